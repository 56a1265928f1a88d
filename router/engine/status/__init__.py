"""Status: what a running stream is doing, for people and monitors.

In: steps, manifests and reports of batches, waits and warnings (`board`, in the driver). Out: a
frozen `StreamSnapshot`, which `server` gives to HTTP clients as JSON, as Prometheus metrics (`metrics`) and as answers
to health checks. Whoever reads asks neither Spark nor Delta, and holds up no batch. With a server two threads tell the
board what the stream does not know: `source_ends` where the topic ends, `file_reader` what stands in files.
"""
