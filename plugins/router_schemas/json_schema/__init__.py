"""JSON Schemas of a registry: read with what they refer to, and merged.

In come registered texts: the library makes a Spark struct of each, whatever it allows, merge one struct of all
versions, and the library keeps what records were written with. Out goes that struct; decoding the JSON is the
decoder's business.
"""
