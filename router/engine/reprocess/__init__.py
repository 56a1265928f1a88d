"""Reprocess: records that were processed before, processed again by the steps of a batch.

In: a configuration, records of bronze or of the topic (`records`), dead letters, or rows of an outbox. `replay` sends
dead letters again, `backfill` takes a range of records, `refresh` rebuilds tables, each by `repair` (`upsert_rebuild`
those with one row per key), `resend` gives an outbox's rows to its API again. Out: commits under the name of the run,
or one commit that replaces the content of a table.
"""
