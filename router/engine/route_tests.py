"""Run route tests: the records of a case through one batch of its configuration, into a lake of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router.delta.lake import Lake
from router.engine.batch import Batches
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.label.layout import BRONZE_SCHEMA, outbox_of
from router.errors import RouterError, StartError
from router.parts import Preparation
from router.sinks import ApplyingSink, MergingSink, Opening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.config.route_tests import Expected, ExpectedDeadLetter, InputRecord, RouteTest, RouteTests
    from router.parts import Decoder

RUN = "test"
RAW = BRONZE_SCHEMA.remove(BRONZE_SCHEMA.get_field_index("batch_id"))
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class CaseResult:
    """The result of one case: `faults` is empty for one that passed."""

    name: str
    faults: tuple[str, ...]


def run_tests(loaded: Loaded, tests: RouteTests, spark: SparkSession) -> Iterator[CaseResult]:
    """Run every case in a folder of its own and say how it went.

    Needs no source and no registry; sends nothing to applying sinks. A sink that says what it would send is asked; the
    rows of the others are those of their outboxes, `outbox.QUERY__ROUTE__SINK`.
    """
    folder = loaded.path.parent
    schemas = {subject: tuple(folder / file for file in files) for subject, files in tests.schemas.items()}
    preparation = Preparation(folder, False, _no_sample, LearntSchemas())
    prepared = loaded.config.decode.tested(schemas).prepare(preparation)
    for case in tests.tests:
        with TemporaryDirectory() as place:
            here = {"lake": f"{place}/lake", "checkpoint": f"{place}/checkpoint", "storage_options": {}}
            config = loaded.config.model_copy(update={"decode": prepared, "debug": True, **here})
            try:
                raw = _raw(case.records, prepared, folder)
                faults = tuple(_faults(config, case, raw, spark, folder))
            except _UnwritableError as error:
                faults = (str(error),)
            except RouterError as error:
                faults = (f"the batch stopped: {error}",)
        yield CaseResult(case.name, faults)


def _no_sample(rows: int) -> DataFrame:
    raise StartError("a route test has no source to infer a schema from: run the configuration once, or give a schema")


class _UnwritableError(ValueError):
    """A record of a case that cannot be written."""


def _faults(config: Config, case: RouteTest, raw: pa.Table, spark: SparkSession, folder: Path) -> Iterator[str]:
    lake, checkpoint = Lake.at(config.lake), Lake.at(config.checkpoint_path())
    batches = Batches(config, RUN, spark, lake, CheckpointStore(checkpoint, RUN))
    batches.process(spark.createDataFrame(raw), 0)
    previewed = {outbox_of(config.name, *key.split("/")): (key, sink) for key, sink in _previewing(config)}
    hidden = {config.bronze, config.dead_letters, config.ledger, *_merged_outboxes(config), *previewed}
    found = {table for layer in lake.layers() for table in lake.tables(layer)}
    yield from _table_faults(lake, case.expect, found - hidden)
    sent = {key: _sent(lake, outbox, sink, spark, folder) for outbox, (key, sink) in previewed.items()}
    yield from _sent_faults(case.expect, sent)
    dead = lake.open(config.dead_letters)
    yield from _dead_letter_faults(case.expect.dead_letters, dead.to_pyarrow_table().to_pylist() if dead else [])


def _merged_outboxes(config: Config) -> Iterator[str]:
    """Return the outboxes whose rows are to be seen in the tables that they were merged into."""
    for route in config.routes:
        for name, sink in route.named_sinks.items():
            if isinstance(sink, MergingSink):
                yield outbox_of(config.name, route.name, name)


def _previewing(config: Config) -> Iterator[tuple[str, ApplyingSink]]:
    """Return route/sink of the sinks that say what they would send."""
    for route in config.routes:
        for name, sink in route.named_sinks.items():
            if isinstance(sink, ApplyingSink) and sink.previews:
                yield f"{route.name}/{name}", sink


def _sent(lake: Lake, outbox: str, sink: ApplyingSink, spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """Return what a sink would send of the rows in its outbox."""
    if lake.open(outbox) is None:
        return []
    events = spark.read.format("delta").load(lake.address(outbox))
    return sink.preview(events, Opening(folder, events.limit(0), trial=True))


def _sent_faults(expected: Expected, sent: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for key in sorted({*sent, *expected.sent}):
        if key not in sent:
            yield f"{key}: there is no such sink, or it does not say what it would send"
        else:
            yield from _row_faults(key, expected.sent.get(key, 0), sent[key], "sent")


def _raw(records: Sequence[InputRecord], decoder: Decoder, folder: Path) -> pa.Table:
    offsets: Counter[tuple[str, int]] = Counter()
    rows = []
    for number, record in enumerate(records, 1):
        place = (record.topic, record.partition)
        rows.append({
            "key": None if record.key is None else record.key.encode(),
            "value": record.content if record.event is None else _written(number, record, decoder, folder),
            "topic": record.topic,
            "partition": record.partition,
            "offset": offsets[place],
            "timestamp": BEGIN,
            "timestamp_type": 0,
            "headers": [{"key": name, "value": text.encode()} for name, text in record.headers.items()] or None,
        })  # fmt: skip
        offsets[place] += 1
    return pa.Table.from_pylist(rows, RAW)


def _written(number: int, record: InputRecord, decoder: Decoder, folder: Path) -> bytes:
    try:
        return decoder.encode(record.event, folder / record.file if record.file else None, record.message)
    except ValueError as error:
        raise _UnwritableError(f"record {number} cannot be written: {error}") from error


def _table_faults(lake: Lake, expected: Expected, found: set[str]) -> Iterator[str]:
    for table in sorted(found | set(expected.tables)):
        handle = lake.open(table)
        rows = handle.to_pyarrow_table().to_pylist() if handle else []
        yield from _row_faults(table, expected.tables.get(table, 0), rows, "rows")


def _row_faults(where: str, wanted: int | list[dict[str, Any]], rows: list[dict[str, Any]], what: str) -> Iterator[str]:
    if isinstance(wanted, int):
        if len(rows) != wanted:
            yield f"{where}: {wanted} {what} expected, {len(rows)} found: {_shown(rows)}"
        return
    left = list(rows)
    for row in wanted:
        if (match := next((have for have in left if _matches(row, have)), None)) is None:
            yield f"{where}: {what}: none like {row!r}; there are: {_shown(left)}"
        else:
            left.remove(match)
    if len(rows) != len(wanted):
        yield f"{where}: {len(wanted)} {what} expected, {len(rows)} found; beyond them: {_shown(left)}"


def _dead_letter_faults(expected: Sequence[ExpectedDeadLetter], found: list[dict[str, Any]]) -> Iterator[str]:
    left = list(found)
    for letter in expected:
        matching = [have for have in left if _is(letter, have)][: letter.count]
        left = [have for have in left if not any(have is taken for taken in matching)]
        if len(matching) < letter.count:
            what = {name: value for name, value in letter.model_dump().items() if value}
            yield f"dead letters: {what} expected, {len(matching)} found; there are: {_about(left)}"
    if left:
        yield f"dead letters: nothing else expected, {len(left)} found: {_about(left)}"


def _is(letter: ExpectedDeadLetter, have: dict[str, Any]) -> bool:
    exact = all(getattr(letter, name) in (None, have[name]) for name in ("stage", "route", "sink"))
    return exact and letter.reason in have["reason"]


def _matches(wanted: Any, have: Any) -> bool:
    """Say whether a value is the wanted one; of a struct, only the given fields count."""
    if isinstance(wanted, dict) and isinstance(have, dict):
        return all(name in have and _matches(value, have[name]) for name, value in wanted.items())
    if isinstance(wanted, dict) and isinstance(have, list):  # a map comes as its entries
        return _matches(wanted, dict(have)) and len(wanted) == len(have)
    if isinstance(wanted, list) and isinstance(have, list):
        return len(wanted) == len(have) and all(_matches(one, other) for one, other in zip(wanted, have, strict=True))
    return bool(_plain(wanted, have) == have)


def _plain(wanted: Any, have: Any) -> Any:
    """Return a value of YAML with the type of the value that it is compared with."""
    try:
        if isinstance(have, datetime):
            moment = datetime.fromisoformat(str(wanted).replace("Z", "+00:00"))
            return moment if have.tzinfo is None or moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        if isinstance(have, date):
            return date.fromisoformat(str(wanted))
        if isinstance(have, Decimal):
            return Decimal(str(wanted))
    except (ValueError, ArithmeticError):
        return wanted
    return str(wanted).encode() if isinstance(have, bytes) else wanted


def _shown(rows: list[dict[str, Any]]) -> str:
    return ", ".join(repr(row) for row in rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "") or "none"


def _about(found: list[dict[str, Any]]) -> str:
    return _shown([{name: have[name] for name in ("stage", "reason", "route", "sink") if have[name]} for have in found])
