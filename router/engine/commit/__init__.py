"""Commit staged files to their tables: one Delta commit per table, each at most once.

In: the staged files of a batch. `schema_evolution` compares them with the tables and decides, on the driver, what each
table gains and which rows must land otherwise. Out: one `TableCommit` a table, which `committers` makes: with delta-rs
if it implements all features of the table, else with Delta on Spark.
"""
