"""Commit: staged files become part of their tables, each table in one Delta commit, each at most once.

In: the staged files of a batch. `schema_evolution` compares them with the tables and decides, on the driver, what each
table gains and which rows must land otherwise. Out: one `TableCommit` a table, which `committers` carries out: with
delta-rs where it implements all that the table asks for, with Delta on Spark for the others.
"""
