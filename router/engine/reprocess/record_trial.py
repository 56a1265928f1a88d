"""Find records, and run one through a configuration: for `router trace`. Nothing is written or sent.

Records are found by their key in bronze, without Spark; by a condition over their events in a trial of all that are
chosen. A trial has a route of its own, of the records that are looked for: its rows have the place of each.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.api.parts import Rule
from router.api.sinks import TableSink
from router.config.models import Route
from router.delta.dataset import rows_with
from router.delta.unreadable_values import as_rows
from router.engine.audit.record_search import TracedPlace
from router.engine.audit.record_trace import TraceLine, as_facts, as_text
from router.engine.balance import sum_by_key
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.decision import tables_of
from router.engine.label.layout import TRACED
from router.engine.reprocess.preview import RecordChoice, Trial, chosen_records, staging_lake_of
from router.engine.reprocess.records import BronzeRecords, RecordRange
from router.errors import StartError
from router.record import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column

    from router.config.models import Config
    from router.engine.balance import Partition
    from router.engine.reprocess.context import ReprocessContext

_ROUTE = "traced-record"
_TABLE = "traced.records"
_FIELD = re.compile(r"\bevent\.`?(\w+)")


class RecordCondition(Rule):
    """Match the events for which a condition holds."""

    sql: str

    def matches(self) -> Column:
        return F.expr(self.sql)


class TracedRecords(TableSink):
    """Keep the rows of the records that are looked for."""

    def table(self) -> str:
        return _TABLE


def find_by_key(config: Config, key: bytes, since: float | None, last: int | None) -> list[TracedPlace]:
    """Return the records of bronze with a key: those since a time, or of about the newest `last`.

    Raises StartError without bronze.
    """
    lake, _ = lake_and_checkpoint(config)
    bronze = BronzeRecords.newest(lake, config)
    if not bronze.versions:
        raise StartError(f"{config.name} has no bronze with records: find them in the source by --where")
    is_chosen = pc.field("key") == key
    if since is not None:
        is_chosen &= pc.field("timestamp") >= pa.scalar(round(since * 1_000_000), pa.timestamp("us", "UTC"))
    if last is not None:
        is_chosen &= pc.field("batch_id") >= bronze.batch_of_newest(lake, last)
    places: list[TracedPlace] = []
    for table in bronze.versions:
        handle = lake.open(table)
        if handle is not None:
            rows = rows_with(handle, is_chosen, ("key", "timestamp", "batch_id"), *PLACE)
            places += [TracedPlace(**row) for row in rows.select(PLACE).to_pylist()]
    return sorted(set(places), key=_in_order)


def find_by_condition(context: ReprocessContext, choice: RecordChoice, condition: str) -> list[TracedPlace]:
    """Return the chosen records for whose event a condition in SQL holds."""
    found: set[TracedPlace] = set()
    with _trial_of(context, choice, (_route(condition, "1 AS one"),)) as trial:
        for _, _, rows in trial.staged_rows():
            found |= {TracedPlace(*(row[name] for name in TRACED)) for row in rows.to_pylist()}
    return sorted(found, key=_in_order)


def _in_order(place: TracedPlace) -> tuple[str, int, int]:
    topic, partition, offset = place
    return topic or "", -1 if partition is None else partition, offset


def judge_record(context: ReprocessContext, place: TracedPlace, origin: str) -> list[TraceLine]:
    """Return what a configuration does with a record, as lines of an origin.

    Raises StartError if the record cannot be read.
    """
    topic, partition, offset = place
    if topic is None or partition is None:
        raise StartError(f"{place} has no topic or no partition: it cannot be chosen")
    chosen = RecordRange(begins={topic: {partition: offset}}, ends={topic: {partition: offset + 1}})
    routes = (*context.config.routes, _route("true", "event.*"))
    with _trial_of(context, RecordChoice(chosen=chosen), routes) as trial:
        return [replace(line, origin=origin) for line in _verdicts(trial, context.config)]


@contextmanager
def _trial_of(context: ReprocessContext, choice: RecordChoice, routes: tuple[Route, ...]) -> Iterator[Trial]:
    """Make a trial of the chosen records by some routes; its files are deleted at the end."""
    config = context.config.model_copy(update={"routes": routes, "bronze": None})
    with staging_lake_of(context) as staging_lake, chosen_records(context, choice) as (place, records):
        tables = tables_of(config, context.spark, context.lake)
        yield Trial.of(replace(context, config=config), staging_lake, place, records, tables)


def _route(condition: str, column: str) -> Route:
    return Route(name=_ROUTE, match=RecordCondition(sql=condition), select=(column,), sinks=(TracedRecords(),))


def _verdicts(trial: Trial, config: Config) -> Iterator[TraceLine]:
    """Yield the event, the verdicts of rules and expectations on it, its rows, and its dead letters. Without origin."""
    rows: list[TraceLine] = []
    for _, table, part in trial.staged_rows():
        for row in as_rows(part.drop_columns([*TRACED])):
            if table == _TABLE:
                yield TraceLine("event", "derived", as_text(row), "", as_facts(row))
                yield from _verdicts_on(row, trial.decision.partitions, config)
                continue
            facts = {"table": table, "row": as_facts(row)}
            rows.append(TraceLine(table, "derived", f"gets {as_text(row)}", "", facts))
    yield from rows
    for letter in trial.dead_letters().to_table(columns=["stage", "reason", "route", "sink"]).to_pylist():
        text = f"stage {letter['stage']}: {as_text(letter['reason'])}"
        yield TraceLine("dead letter", "derived", text, "", letter)
    for place, why in trial.waiting.items():
        yield TraceLine(place, "derived", f"its rows would wait: {as_text(why)}", "")


def _verdicts_on(event: dict[str, Any], partitions: Sequence[Partition], config: Config) -> Iterator[TraceLine]:
    """Yield which routes take an event and which expectations do not hold, with the fields that their texts name."""
    matched = sum_by_key(partitions, "matched")
    violated = sum_by_key(partitions, "violated")
    for route in config.routes:
        verdicts = {"takes it" if matched[route.identity] else "does not take it": str(route.match)}
        for expectation in route.expect:
            if violated[f"{route.identity}/{expectation.name}"]:
                verdicts[f"expectation {expectation.name} does not hold"] = expectation.sql
        for verdict, expression in verdicts.items():
            values = {f"event.{name}": event.get(name) for name in _FIELD.findall(expression)}
            text = f"{verdict}: {as_text(values)}" if values else verdict
            facts = {"verdict": verdict, "values": as_facts(values)}
            yield TraceLine(f"route {route.name}", "derived", text, "", facts)
