"""The status of a stream as Prometheus metrics. Names follow https://prometheus.io/docs/practices/naming/.

Times are timestamps and not ages: a monitor computes the age when it looks. Series are bounded: of tables those that
got a batch last have their own, the others share one. `METRICS` has each metric with its labels and what it is; the
page docs/reference/metrics.md is made of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import generate_latest

from router.counts import outcome_names
from router.engine.commit.committers import Committer
from router.engine.land.record_ages import AGE_SECONDS
from router.engine.status.board import STEP_SECONDS
from router.engine.status.expectations import view_of
from router.stages import Stage
from router.states import STREAM_STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from router.engine.status.snapshot import SinkStatus, StreamSnapshot

OTHERS = "(others)"
"""The label of the tables that have no series of their own; no table has such a name."""
STAGES = (*(stage.value for stage in Stage), "unknown")
"""Stages of dead letters: each has a series from the start, without which a monitor misses the first dead letters."""


@dataclass(frozen=True)
class MetricDefinition:
    """A metric: its name as a monitor sees it, its kind, its labels, and what it is. `values` explains a label."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "info"]
    description: str
    labels: tuple[str, ...] = ()
    values: str = ""

    def new_family(self) -> Any:
        """Return the metric without samples."""
        if self.kind == "gauge":
            return GaugeMetricFamily(self.name, self.description, labels=self.labels)
        if self.kind == "counter":
            return CounterMetricFamily(self.name.removesuffix("_total"), self.description, labels=self.labels)
        if self.kind == "histogram":
            return HistogramMetricFamily(self.name, self.description, labels=self.labels)
        return InfoMetricFamily(self.name.removesuffix("_info"), self.description)


BUILD = MetricDefinition(
    "router_build_info", "info", "The version of the router and the name of the stream.", ("version", "query")
)
STATE = MetricDefinition(
    "router_state",
    "gauge",
    "1 for the state that the stream is in.",
    ("state",),
    ", ".join(STREAM_STATES),
)
PROGRESS = MetricDefinition("router_last_progress_timestamp_seconds", "gauge", "When the stream made its last step.")
_BATCH = MetricDefinition(
    "router_last_batch_timestamp_seconds",
    "gauge",
    "When the last batch ended; before the first, when the process started.",
)
_BATCHES_TOTAL = MetricDefinition("router_batches_total", "counter", "Finished batches.")
_STEPS = MetricDefinition("router_batch_step_seconds", "histogram", "Seconds of a batch's steps.", ("step",))
RECORDS = MetricDefinition(
    "router_records_total",
    "counter",
    "Records of the source, by what became of them.",
    ("outcome",),
    ", ".join(outcome_names("source", "batch")),
)
ROUTE_ROWS = MetricDefinition(
    "router_route_rows_total",
    "counter",
    "Rows of a route, by what became of them.",
    ("route", "outcome"),
    ", ".join(outcome_names("route")),
)
LAG = MetricDefinition(
    "router_source_lag_records",
    "gauge",
    "Records of a topic's partition that are still to be processed.",
    ("topic", "partition"),
)
LAG_READ = MetricDefinition(
    "router_source_end_read_timestamp_seconds",
    "gauge",
    "When the broker was last asked where the partition that was asked for longest ago ends.",
)
FRESHNESS = MetricDefinition(
    "router_freshness_seconds",
    "histogram",
    "Seconds from the time of a record until it was in a table, of all tables together: a record in two counts twice.",
)
TABLE_ROWS = MetricDefinition("router_table_rows_total", "counter", "Rows that a table got.", ("table",))
TABLE_COMMITTED = MetricDefinition(
    "router_table_committed_timestamp_seconds", "gauge", "When a table got its last rows.", ("table",)
)
TABLE_NEWEST = MetricDefinition(
    "router_table_newest_record_timestamp_seconds", "gauge", "The time of the newest record in a table.", ("table",)
)
BLOCKED = MetricDefinition("router_blocked_tables", "gauge", "Tables that cannot be written now; their rows wait.")
COMMITTERS = MetricDefinition(
    "router_tables",
    "gauge",
    "Tables that were written since the start, by what wrote them last: delta-rs is the quick one.",
    ("committer",),
    ", ".join(get_args(Committer)),
)
VIEW_REFRESHED = MetricDefinition(
    "router_view_refreshed_timestamp_seconds",
    "gauge",
    "When a refresh of a view last found something new.",
    ("view",),
)
_VIEW_SECONDS = MetricDefinition(
    "router_view_refresh_seconds", "gauge", "How long the last refresh of a view took that found something.", ("view",)
)
VIEW_ROWS = MetricDefinition("router_view_rows", "gauge", "Rows of all tables of a view.", ("view",))
VIEW_FAILED = MetricDefinition(
    "router_view_failed", "gauge", "1 if the last refresh of a view failed; its tables stay as they were.", ("view",)
)
VIEW_VIOLATED = MetricDefinition(
    "router_view_violated_rows",
    "gauge",
    "Rows of a view for which an expectation does not hold, as its tables are.",
    ("view", "expectation"),
)
EXPECTED = MetricDefinition(
    "router_expectation_events_total",
    "counter",
    "Events, or records of bronze, of which an expectation was asked.",
    ("of", "expectation"),
)
_VIOLATED = MetricDefinition(
    "router_expectation_violations_total",
    "counter",
    "Events, or records of bronze, for which an expectation did not hold; `of` is the route, or bronze.",
    ("of", "expectation"),
)
_DEAD_LETTERS = MetricDefinition(
    "router_dead_letters_total",
    "counter",
    "Dead letters, by the stage that refused them.",
    ("stage",),
    ", ".join(STAGES),
)
QUARANTINED = MetricDefinition(
    "router_quarantined_rows", "gauge", "Rows that wait in the quarantine for their table.", ("table",)
)
SINK_ROWS = MetricDefinition(
    "router_sink_rows_total",
    "counter",
    "Rows of a sink that applies, by what became of them.",
    ("route", "sink", "outcome"),
    ", ".join(outcome_names("sink")),
)
OUTBOX_ROWS = MetricDefinition(
    "router_outbox_rows", "gauge", "Rows of an outbox that are still to be sent.", ("route", "sink")
)
OUTBOX_OLDEST = MetricDefinition(
    "router_outbox_oldest_row_timestamp_seconds",
    "gauge",
    "When the oldest row that is still to be sent came into the outbox.",
    ("route", "sink"),
)
LIMIT_USED = MetricDefinition(
    "router_limit_used_ratio", "gauge", "The share of its stated rate limit that a sink uses.", ("route", "sink")
)
CIRCUIT = MetricDefinition(
    "router_circuit_open", "gauge", "1 if a sink sends nothing, because its API does not work.", ("route", "sink")
)
ANSWERS = MetricDefinition(
    "router_api_answers_total",
    "counter",
    "Calls to the API of a sink, and of those that share its limit, by how they ended.",
    ("route", "sink", "answer"),
    "ok (taken, or refused for good), throttled, failed, timed out",
)
METRICS = (
    *(BUILD, STATE, PROGRESS, _BATCH, _BATCHES_TOTAL, _STEPS, RECORDS, ROUTE_ROWS, LAG, LAG_READ, FRESHNESS),
    *(TABLE_ROWS, TABLE_COMMITTED, TABLE_NEWEST, BLOCKED, COMMITTERS, _DEAD_LETTERS, QUARANTINED),
    *(VIEW_REFRESHED, _VIEW_SECONDS, VIEW_ROWS, VIEW_FAILED, VIEW_VIOLATED, EXPECTED, _VIOLATED),
    *(SINK_ROWS, OUTBOX_ROWS, OUTBOX_OLDEST, LIMIT_USED, CIRCUIT, ANSWERS),
)
"""All metrics, in the order in which they are shown."""


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
        info = BUILD.new_family()
        info.add_metric([], {"version": snapshot.version, "query": snapshot.query})
        yield info
        state = STATE.new_family()
        for name in STREAM_STATES:
            state.add_metric([name], float(name == snapshot.state))
        yield state
        yield _single_metric(PROGRESS, snapshot.progress)
        yield _single_metric(_BATCH, snapshot.batches[0].ended if snapshot.batches else snapshot.started)
        yield _single_metric(_BATCHES_TOTAL, snapshot.finished)
        yield self._step_metric()
        yield from self._record_metrics()
        yield from self._source_metrics()
        yield from self._table_metrics()
        yield self._dead_letters()
        yield self._quarantine_metric()
        yield from self._view_metrics()
        yield from self._expectation_metrics()
        yield from self._sink_metrics()

    def _step_metric(self) -> Metric:
        steps = _STEPS.new_family()
        for step, counts in self.snapshot.step_seconds.items():
            steps.add_metric([step], _bucket_counts(STEP_SECONDS, counts), sum_value=counts[-1])
        return steps  # type: ignore[no-any-return]

    def _record_metrics(self) -> Iterator[Metric]:
        records = RECORDS.new_family()
        for outcome, count in self.snapshot.records.items():
            records.add_metric([outcome], count)
        yield records
        rows = ROUTE_ROWS.new_family()
        for route, counts in self.snapshot.routes.items():
            for outcome, count in counts.items():
                rows.add_metric([route, outcome], count)
        yield rows

    def _source_metrics(self) -> Iterator[Metric]:
        lag = LAG.new_family()
        times: list[float] = []
        for partition in self.snapshot.partitions:
            if partition.lag is not None:
                lag.add_metric([partition.topic, str(partition.partition)], partition.lag)
            if partition.read is not None:
                times.append(partition.read)
        yield lag
        # A partition without an answer since then may have any lag: the newest time would hide it.
        if times:
            yield _single_metric(LAG_READ, min(times))
        freshness = self.snapshot.freshness
        if freshness is not None:
            ages = FRESHNESS.new_family()
            ages.add_metric([], _bucket_counts(AGE_SECONDS, freshness.counts), sum_value=freshness.counts[-1])
            yield ages

    def _table_metrics(self) -> Iterator[Metric]:
        rows = TABLE_ROWS.new_family()
        committed = TABLE_COMMITTED.new_family()
        newest = TABLE_NEWEST.new_family()
        # Tables that got a batch last have a series of their own: those are the ones whose rate is not zero.
        newest_first = sorted(self.snapshot.tables, key=attrgetter("committed"), reverse=True)
        for table in newest_first[: self.tables_at_most]:
            if table.rows is not None:
                rows.add_metric([table.table], table.rows)
            if table.committed:
                committed.add_metric([table.table], table.committed)
            if table.newest_record is not None:
                newest.add_metric([table.table], table.newest_record)
        others = newest_first[self.tables_at_most :]
        if others:
            rows.add_metric([OTHERS], sum(table.rows or 0 for table in others))
        yield rows
        yield committed
        yield newest
        yield _single_metric(BLOCKED, len(self.snapshot.blocked_tables))
        written = Counter(table.committer for table in self.snapshot.tables)
        committers = COMMITTERS.new_family()
        for committer in get_args(Committer):
            committers.add_metric([committer], written[committer])
        yield committers

    def _dead_letters(self) -> Metric:
        counts: Counter[str] = Counter(dict.fromkeys(STAGES, 0))
        for letters in self.snapshot.dead_letters:
            counts[letters.stage] += letters.count
        family = _DEAD_LETTERS.new_family()
        for stage, count in counts.items():
            family.add_metric([stage], count)
        return family  # type: ignore[no-any-return]

    def _quarantine_metric(self) -> Metric:
        rows: Counter[str] = Counter()
        for waiting in self.snapshot.quarantined:
            rows[waiting.table] += waiting.rows
        most_first = rows.most_common()
        family = QUARANTINED.new_family()
        for table, count in most_first[: self.tables_at_most]:
            family.add_metric([table], count)
        others = most_first[self.tables_at_most :]
        if others:
            family.add_metric([OTHERS], sum(count for _, count in others))
        return family  # type: ignore[no-any-return]

    def _view_metrics(self) -> Iterator[Metric]:
        refreshed = VIEW_REFRESHED.new_family()
        seconds = _VIEW_SECONDS.new_family()
        rows = VIEW_ROWS.new_family()
        failed = VIEW_FAILED.new_family()
        for view in self.snapshot.views:
            failed.add_metric([view.view], float(bool(view.failed)))
            # Before its first refresh a view has no time, and 0 would be an age of fifty years.
            if view.refreshed is not None:
                refreshed.add_metric([view.view], view.refreshed)
                seconds.add_metric([view.view], view.seconds)
                rows.add_metric([view.view], view.rows)
        yield from (refreshed, seconds, rows, failed)

    def _expectation_metrics(self) -> Iterator[Metric]:
        of_views = VIEW_VIOLATED.new_family()
        events = EXPECTED.new_family()
        violations = _VIOLATED.new_family()
        for status in self.snapshot.expectations:
            view = view_of(status)
            if view is not None:
                of_views.add_metric([view, status.name], status.violated)
                continue
            events.add_metric([status.of, status.name], status.events)
            violations.add_metric([status.of, status.name], status.violated)
        yield from (of_views, events, violations)

    def _sink_metrics(self) -> Iterator[Metric]:
        rows = SINK_ROWS.new_family()
        for sink in self.snapshot.sinks:
            for outcome in outcome_names("sink"):
                rows.add_metric([sink.route, sink.sink, outcome], getattr(sink, outcome))
        yield rows
        yield _of_sinks(OUTBOX_ROWS, self.snapshot.sinks, "backlog")
        yield _of_sinks(OUTBOX_OLDEST, self.snapshot.sinks, "oldest")
        yield _of_sinks(LIMIT_USED, self.snapshot.sinks, "limit_used")
        yield _of_sinks(CIRCUIT, self.snapshot.sinks, "circuit_open")
        answers = ANSWERS.new_family()
        for sink in self.snapshot.sinks:
            for answer, count in sink.answers.items():
                answers.add_metric([sink.route, sink.sink, answer], count)
        yield answers


def _single_metric(definition: MetricDefinition, value: float) -> Metric:
    """Return a metric without labels."""
    family = definition.new_family()
    family.add_metric([], value)
    return family  # type: ignore[no-any-return]


def _of_sinks(definition: MetricDefinition, sinks: Sequence[SinkStatus], attribute: str) -> Metric:
    """Return a metric with a sample of each sink for which the attribute is known."""
    family = definition.new_family()
    for sink in sinks:
        value = getattr(sink, attribute)
        if value is not None:
            family.add_metric([sink.route, sink.sink], float(value))
    return family  # type: ignore[no-any-return]


def _bucket_counts(bounds: tuple[float, ...], counts: tuple[float, ...]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram, of counts up to each bound and then of all."""
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, counts, strict=False))
