"""The status of a stream as Prometheus metrics. Names follow https://prometheus.io/docs/practices/naming/.

Times are timestamps and not ages: a monitor computes the age when it looks. Series are bounded: of tables those that
got a batch last have their own, the others share one.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest

from router.engine.status.board import STEP_SECONDS
from router.engine.status.snapshot import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from router.engine.status.snapshot import StreamSnapshot, TableStatus

OTHERS = "(others)"
"""The label of the tables that have no series of their own; no table has such a name."""


def metrics_text(snapshot: StreamSnapshot, tables_at_most: int) -> bytes:
    """Return the metrics of a stream in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(snapshot, tables_at_most))
    return generate_latest(registry)


class _Collector:
    """The metrics of one snapshot."""

    def __init__(self, snapshot: StreamSnapshot, tables_at_most: int) -> None:
        self.snapshot = snapshot
        self.tables_at_most = tables_at_most

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples."""
        snapshot = self.snapshot
        info = InfoMetricFamily("router_build", "The version of the router and the name of the stream.")
        info.add_metric([], {"version": snapshot.version, "query": snapshot.query})
        yield info
        state = GaugeMetricFamily("router_state", "1 for the state that the stream is in.", labels=["state"])
        for name in get_args(State):
            state.add_metric([name], float(name == snapshot.state))
        yield state
        progress = "router_last_progress_timestamp_seconds"
        yield GaugeMetricFamily(progress, "When the stream made its last step.", value=snapshot.progress)
        yield from self._records()
        yield from self._steps()
        yield from self._source()
        yield from self._tables()
        yield from self._sinks()

    def _records(self) -> Iterator[Metric]:
        snapshot = self.snapshot
        records = CounterMetricFamily(
            "router_records", "Records of the source, by what became of them.", labels=["outcome"]
        )
        for outcome, count in snapshot.records.items():
            records.add_metric([outcome], count)
        yield records
        rows = CounterMetricFamily(
            "router_route_rows", "Rows of a route, by what became of them.", labels=["route", "outcome"]
        )
        for route, counts in snapshot.routes.items():
            for outcome, count in counts.items():
                rows.add_metric([route, outcome], count)
        yield rows
        yield CounterMetricFamily("router_batches", "Finished batches.", value=snapshot.finished)

    def _steps(self) -> Iterator[Metric]:
        steps = HistogramMetricFamily("router_batch_step_seconds", "Seconds of a batch's steps.", labels=["step"])
        for step, counts in self.snapshot.step_seconds.items():
            bounds = [*map(str, STEP_SECONDS), "+Inf"]
            buckets = list(zip(bounds, counts, strict=False))
            steps.add_metric([step], buckets, sum_value=counts[-1])
        yield steps

    def _source(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "router_source_lag_records", "Records that are still to be processed.", labels=["topic", "partition"]
        )
        for partition in self.snapshot.partitions:
            if partition.lag is not None:
                lag.add_metric([partition.topic, str(partition.partition)], partition.lag)
        yield lag

    def _tables(self) -> Iterator[Metric]:
        rows = CounterMetricFamily("router_table_rows", "Rows that a table got.", labels=["table"])
        committed = GaugeMetricFamily(
            "router_table_committed_timestamp_seconds", "When a table got its last rows.", labels=["table"]
        )
        newest_first = sorted(self.snapshot.tables, key=attrgetter("committed"), reverse=True)
        for table in newest_first[: self.tables_at_most]:
            rows.add_metric([table.table], table.rows)
            if table.committed:
                committed.add_metric([table.table], table.committed)
        others: list[TableStatus] = newest_first[self.tables_at_most :]
        if others:
            rows.add_metric([OTHERS], sum(table.rows for table in others))
        yield rows
        yield committed
        blocked = sum(1 for table in self.snapshot.tables if table.blocked)
        yield GaugeMetricFamily("router_blocked_tables", "Tables that cannot be written now.", value=blocked)

    def _sinks(self) -> Iterator[Metric]:
        rows = CounterMetricFamily(
            "router_sink_rows", "Rows of an applying sink, by what became of them.", labels=["route", "sink", "outcome"]
        )
        backlog = GaugeMetricFamily(
            "router_outbox_rows", "Rows of an outbox that are still to be sent.", labels=["route", "sink"]
        )
        for sink in self.snapshot.sinks:
            for outcome in ("applied", "dead", "parked", "in_doubt"):
                rows.add_metric([sink.route, sink.sink, outcome], getattr(sink, outcome))
            backlog.add_metric([sink.route, sink.sink], sink.backlog)
        yield rows
        yield backlog
