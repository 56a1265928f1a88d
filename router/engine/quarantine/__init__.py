"""Quarantine: whole rows that wait for a table that cannot take them, or for an approval.

In: staged files of rows whose table is blocked or waits for an approval, and those whose commit has failed. `table` is
the router's own Delta table, one for each sink, that keeps them with cause and offsets. Out: `release` lands them in
their table once, in order, when it can take them or when a person releases them; discarded ones become dead letters.
"""
