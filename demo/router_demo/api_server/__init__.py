"""The mock API: an HTTP API that limits, fails and records, in a process of its own; the other end of a REST sink.

A script in JSON goes in, the figures of the calls come out, by the control port. aiohttp speaks the HTTP.
Read `server` -> `connection` -> `handler` for the life of a call, `script` for what the API can be asked to do, `calls`
for what it knows afterwards, `page` for what it shows of that. `router_demo.api.Api` starts it.
"""
