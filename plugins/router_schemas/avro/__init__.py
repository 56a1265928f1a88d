"""Avro: schemas on the driver, rows to bytes on the executors; Spark's `from_avro` decodes.

In come registered texts: the parser makes a model of each, merge one reader's schema of all versions, spark_types the
columns that Spark makes of it, and the library keeps what records were written with. Out go the texts for `from_avro`,
and, for writing, a schema made for columns (spark_types) and the records (encode).
"""
