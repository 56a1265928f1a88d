"""The page docs/reference/metrics.md, made of the metrics themselves: `python -m router.engine.status.metrics_page`."""

from __future__ import annotations

from pathlib import Path

from router.engine.status.metrics import METRICS, MetricDefinition

HEAD = """\
# Metrics

After this page you can write a query, an alert or a dashboard over the series of `/metrics`. The
[alerts and the dashboard](../how-to/monitor.md#prometheus-and-grafana) that the router has use the same names.
`python -m router.engine.status.metrics_page` makes this page.

```console
$ curl -s http://127.0.0.1:4480/metrics | grep lag
router_source_lag_records{partition="0",topic="game-events"} 1204.0
```

The lag by topic is `sum by (instance, topic) (router_source_lag_records)`. Times are in seconds since 1970:
`time() - router_last_batch_timestamp_seconds` is an age. Counts begin when the process starts. Each `outcome` is a
[count](system-tables.md#counts). A series that is not known is left out. Tables beyond
[`tables_at_most`](status-server.md) share the label `table="(others)"`: those that got rows longest ago, or have the
fewest quarantined rows.

| metric | kind | labels | is |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(_table_line(metric) for metric in METRICS)


def _table_line(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    description = metric.description
    if metric.values:
        description = f"{description} `{metric.labels[-1]}`: {metric.values}"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {description} |\n"


if __name__ == "__main__":
    Path("docs/reference/metrics.md").write_text(metrics_page())
