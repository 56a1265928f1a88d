"""The engine: a configuration as a running query, and one batch from its offsets to its report.

In: a loaded configuration and a Spark session (`stream`). `batch` is the whole story of a batch, and its steps are the
rooms next to it: `label`, `land`, `commit`, `outbox` and `merge`; `ledger`, `quarantine` and `checkpoint_store` keep
what must outlive it. `preflight`, `spark` and `start` come before the first batch, `tables` after the last.
Out: reports of batches. See docs/explanation/architecture.md.
"""
