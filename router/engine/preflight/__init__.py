"""Preflight: what can be said of a configuration before it runs.

In: a loaded configuration, and the lake where there is one. `check` finds what Spark or a sink refuses, `lake_changes`
compares it with checkpoint, ledger and tables (every start asks it, too), `explain` says
which way routes and tables go and why, `route_tests` plays the cases of `*.test.yaml`, `sizing` computes cores and
files from measured constants, `doctor` tries machine, storage, broker, registry and APIs. Out: lines for a person.
"""
