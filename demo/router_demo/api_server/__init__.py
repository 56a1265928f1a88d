"""Be an HTTP API that limits, fails and remembers: the other end of a REST sink, in a process of its own.

It records every request with the time at which it was whole, on the machine's monotonic clock, and counts from that
record alone. Read `connection` -> `door` -> `checks` -> `processing` for the life of a request, `script` for what it
can be told to do, `record` and `figures` for what it knows afterwards, `page` for what it shows of that.
`router_demo.api.Api` starts it and asks it.
"""
