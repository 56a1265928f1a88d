"""Lookups: tables that events are joined with by key, held by the tasks.

In: the `lookup` of a route, and tables of the lake. `loading` reads a table on the driver, and again at an interval;
`let` makes named queries of it. `join` adds the row of a key to each event of a record batch, on executors. Out: a
struct for each lookup, null for a key that the table does not have.
"""
