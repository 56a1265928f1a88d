"""Tables with one row per key, merged by delta-rs.

Input: rows of an outbox, and a table. Output: one commit that inserts, updates and deletes by key. `upsert_rows` runs
the steps: check the rows (`row_checks`), read what the table holds of their keys (`row_versions`), find the newest rows
(`row_order`), decide what they change (`scd`), write. `key_property` stores in a table by which keys it is merged.
"""
