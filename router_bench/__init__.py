"""`router bench`: how fast a configuration takes its events, against the partitions of its topic.

In come a configuration, its plugins and a payload (a sample, or the simulator); out go a table, a JSON file whose every
cell says on which machine, from which code and when it was measured, and a chart. `sweep` leads through it: `payload`
fills a topic per number of partitions, `worker` runs the configuration in a process of its own, `chart` draws.

It is here, and not in `benchmarks/`, because a user has only what is installed: `benchmarks` (the project's own suite,
with what it is held against) is no name to put into the site-packages of others, and takes the machine's label, the
clean end of processes and the charts from here. The broker and the simulator are `router_demo`'s, which `payload` alone
imports, by name and when it runs: the router does not depend on its demo.
"""
