"""What a schema registry has, how records refer to it, and how values of its formats are read and written.

In come the options of a registry, and records or rows as Arrow arrays. Out go, on the driver, a library that says how
all known schemas are read together (avro, protobuf, json_schema; `library` for what they share), and on the executors
events with what each was written with (wire_format), or rows as bytes. A library asks the resolver for schemas, which
looks into its cache and then asks the registry. Decoders, encoders and sinks use it; it knows none of them.
"""
