"""The demo: a real Kafka and a schema registry without an installer, games that send events, a mock API, the router.

`python -m router_demo` (`__main__`) tells the story: options go in, a lake comes out, and what landed compared
with what was sent.
- Events: `games`, and `traffic` with garbage among them; put together in `records`, as JSON or in a format of
  `avro_values` and `protobuf_values`; sent to Kafka by `simulator`, as a command by `cli`.
- Servers: `embedded` runs a process for as long as a block and fetches what it needs; `kafka`, `registry` and `api` are
  such servers, `api_server` is the program of the third.
- The story: `running` runs routers, `big_wins` posts to the API, `landed` reads the lake, `summary` compares.
"""
