"""Audit: whether tables have the rows that they should have, after their batches.

In: a configuration, and the lake, manifests and ledger that its query has written. `table_states` lists the tables with
their states, `verify` compares each with manifests, ledger and bronze, `expectation_counts` adds up the violations of
expectations, `dead_letters` counts dead letters by reason, `record_trace` tells what happened to one record. Out: one
line for each table, group, or fact. Nothing is changed;
`reprocess` does that.
"""
