"""Everything that knows the Delta log; it knows Arrow and delta-rs, but neither routes nor batches.

Input: rows as Arrow tables, or files staged in a table's folder. Output: Delta commits, one per transaction id.

| to | read |
|---|---|
| find a table and its files | `lake`, `located_files` |
| keep tables open, read their logs | `table_cache`, `log_tail`, `history` |
| stage rows as files | `parquet_writer`, `file_statistics` |
| commit staged files | `commit`, `replace`, `replace_by_spark`, `transaction_id` |
| compare and change schemas | `schema_diff`, `casting`, `widening`, `nesting`, `constraints` |
| keep one row per key | `keyed/upsert` first |
| compact and clean | `maintenance`, `maintenance_process` |
"""
