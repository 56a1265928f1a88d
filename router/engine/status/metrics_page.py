"""The page docs/reference/metrics.md, made of the metrics themselves: `python -m router.engine.status.metrics_page`."""

from __future__ import annotations

from pathlib import Path

from router.engine.status.metrics import METRICS, MetricDefinition

HEAD = """\
# Metrics

Which series [`/metrics`](../how-to/monitor.md) has, so that you can write a query, an alert or a dashboard. This page
is made by `python -m router.engine.status.metrics_page`.

```console
$ curl -s http://127.0.0.1:4480/metrics | grep lag
router_source_lag_records{partition="0",topic="game-events"} 1204.0
```

Counts begin when the process starts. Times are in seconds since 1970: `time() - router_last_batch_timestamp_seconds`
is an age. Each `outcome` is a [count](system-tables.md#counts). A series that is not known is left out. Tables
beyond `metrics: {tables_at_most: 500}` share the label `table="(others)"`: those that got rows longest ago, or have the
fewest quarantined rows.

The [alerts](../deploy/alerts.yaml), the cases that [test them](../deploy/alerts.test.yaml), and the
[dashboard](../deploy/grafana-dashboard.json) for Grafana use these names.

| metric | kind | labels | is |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(_line(metric) for metric in METRICS)


def _line(metric: MetricDefinition) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    description = metric.description
    if metric.values:
        description = f"{description} `{metric.labels[-1]}`: {metric.values}"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {description} |\n"


if __name__ == "__main__":
    Path("docs/reference/metrics.md").write_text(metrics_page())
