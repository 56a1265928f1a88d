"""Measure the router against what people ship today, on this machine, from a real Kafka.

`python -m benchmarks` takes twenty minutes on two cores, `--full` about two hours. A figure counts only after the
tables were counted, and it carries the machine, the commit and the day. Read `cells` -> `harness` -> `worker` for the
life of one cell. A question is a `Measurement` in a module of `measurements/`, a contender a `Subject` in one of
`subjects/`, a kind of event a `Feed` in one of `feeds/`; `discovery` finds them. `sweeps/` holds the router's
configurations, each of which `router bench` measures alone. Labels, processes and charts are those of `router_bench`.
"""
