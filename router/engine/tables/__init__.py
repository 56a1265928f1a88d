"""Tables after their batches: their states, whether they hold what they should, and how one is made whole again.

In: a configuration and the lake, manifests and ledger that its query has written. `table_states` lists the tables,
`verify` holds each against what was committed, counted and kept in bronze, `repair` makes one anew. `from_bronze` is
the engine of all that lands records a second time: a batch is read from bronze and goes the way of every batch, into
the named tables only.
"""
