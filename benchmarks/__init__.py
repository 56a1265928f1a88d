"""Measure the router against what people ship today, on this machine, from a real Kafka.

`python -m benchmarks` takes under ten minutes on two cores, `--full` about two hours. A figure counts only after the
tables were counted. Read `cells` -> `harness` -> `worker` for the life of one cell; a new measurement is one module
in `measurements/`, a new contender one in `subjects/`, a new kind of event one in `feeds/`.
"""
