"""Read Avro schemas, merge their versions, and tell the Spark types of the result; the decoding is Spark's."""
