"""Merge the rows of outboxes into their tables, after the commit of the outbox.

In: the outbox of a merging sink. Out: the counts of its rows, and dead letters for those that a table refused.
`coordinator` gives every table to `delta_rs` (one Spark job, each task merges its tables) or to `delta_spark`; the rows
of a table that cannot be written stay in the outbox: they are its backlog, which is merged with a later batch.
"""
