"""Give the rows of outboxes, the tables `outbox.QUERY__ROUTE__SINK`, to the sinks that apply or merge them.

In: what a batch has committed into the outboxes. `apply` gives each to its sink, once; `detached` runs the sinks that
have a query of their own over their outbox; `resend` sends parked rows and dead letters again. Out: what became of the
rows, for the ledger. Rows stay in an outbox until they are applied or refused, and for `outbox_retention` after it.
"""
