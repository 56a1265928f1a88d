"""Upserts: after the commit of an outbox its rows are merged into their tables.

In comes the outbox of a merging sink, out go the counts of its rows and dead letters for those that a table refused.
`coordinator` gives every table to `delta_rs` (one Spark job, each task merges its tables) or to `delta_spark`; the rows
of a table that cannot be written stay in the outbox: they are its backlog, which is merged with a later batch.
"""
