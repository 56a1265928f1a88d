"""Preflight: what is known about a configuration before it runs.

In: a loaded configuration, and its lake if it exists. `check` finds what Spark or a sink refuses, `lake_changes`
compares it with checkpoint, ledger and tables (as every start does), `explain` prints where routes and tables lead and
why, `route_tests` runs the cases of `*.test.yaml`, `sizing` computes cores and files from measured constants, `doctor`
tries machine, storage, broker, registry and APIs. Out: lines for a person.
"""
