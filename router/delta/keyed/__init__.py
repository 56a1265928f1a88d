"""Tables with one row per key, merged by delta-rs.

In: rows of an outbox and a table. Out: one commit that inserts, updates and deletes by key, with histories (`scd`), the
order of rows (`row_order`), what is remembered of deletions (`row_versions`) and the checks before it (`row_checks`).
"""
