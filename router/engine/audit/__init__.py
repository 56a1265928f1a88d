"""Audit: whether tables hold what they should, after their batches.

In: a configuration, and the lake, manifests and ledger that its query has written. `table_states` lists the tables with
their state, `verify` holds each against what was committed, counted and kept in bronze, `expectation_counts` adds up
what expectations found, `dead_letters` counts what was refused by reason. Out: one line for each table, or group.
Nothing is changed; `reprocess` does that.
"""
