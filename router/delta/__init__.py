"""Everything that knows the Delta log; it knows Arrow and delta-rs, but neither routes nor batches.

In come rows as Arrow tables, or files staged in a table's folder; out come Delta commits, each once per transaction id.
`lake` finds tables and says which names may be one, `table_cache` keeps them open. `commit` adds staged files (with
`file_statistics`); `schema_diff` and `casting` hold their columns against a table's. `upsert` keeps one row per key
(`row_order`, `row_versions`, `row_checks`, `scd`); `maintenance` compacts and cleans.
"""
