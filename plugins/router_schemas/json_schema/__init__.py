"""JSON Schemas of a registry: read with what they refer to, and merged.

In come registered texts: registered makes a Spark struct of each, whatever it allows (spark_types), merge one struct of
all versions, and the library keeps what records were written with. Out goes that one struct. The decoder decodes the
JSON.
"""
