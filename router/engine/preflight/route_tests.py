"""Route tests: records in, rows and dead letters expected. `games.test.yaml` tests `games.yaml`.

A file of them is read (`load_tests`) and run (`run_tests`): the records of a case go through one batch of the
configuration, into a lake of its own.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import takewhile
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import Field, ValidationError, field_validator, model_validator

from router.config.models import Model
from router.config.problems import Document, sort_problems, widths_of
from router.config.yaml_tree import parse_yaml, plain_data
from router.delta.lake import Lake
from router.engine.batch import Batches
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.destination import Destination
from router.engine.file_rows import hinted
from router.engine.label.layout import BRONZE_SCHEMA, outbox_of
from router.engine.ledger import VIOLATED
from router.errors import ConfigError, Problem, RouterError, StartError
from router.parts import Preparation
from router.sinks import ApplyingSink, GivenAnswer, MergingSink, Opening

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self

    from router.config.loader import Loaded
    from router.config.models import Config, Route
    from router.parts import BatchReport, Decoder

SUFFIX = ".test.yaml"


class InputRecord(Model):
    """One record of the source: an event as its producer writes it, or a value as it stands."""

    event: Any = Field(default=None, description="is written in the format that the configuration decodes")
    file: str | None = Field(default=None, alias="schema", description="of `schemas`, what the event is written with")
    message: str | None = Field(default=None, description="full name of the event's message; default: the first one")
    value: Any = Field(default=None, description="text is taken as it is, null is no value, all else becomes JSON")
    base64: str | None = Field(default=None, description="the value's bytes, in place of `value`")
    key: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    topic: str = "test"
    partition: int = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.event is not None and self.model_fields_set & {"value", "base64"}:
            raise ValueError("give an event, or a value or base64")
        if self.event is None and (self.file or self.message):
            raise ValueError("schema and message say how an event is written: give one")
        return self

    @field_validator("base64")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        try:
            base64.b64decode(text or "", validate=True)
        except binascii.Error as error:
            raise ValueError(f"is no base64: {error}") from None
        return text

    @property
    def content(self) -> bytes | None:
        """Return the bytes of the value, where it is given."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        if self.value is None:
            return None
        return self.value.encode() if isinstance(self.value, str) else json.dumps(self.value).encode()


class ExpectedDeadLetter(Model):
    """Expected dead letters. What is not given may be anything; `reason` is part of the text."""

    stage: str | None = None
    reason: str = ""
    route: str | None = None
    sink: str | None = None
    count: int = Field(default=1, ge=1)


class Expected(Model):
    """What the records are to become: everything that gets a row must be named here, but bronze and the ledger."""

    tables: dict[str, int | list[dict[str, Any]]] = Field(
        default_factory=dict, description="table -> its rows: how many, or which (in any order, the columns given)"
    )
    sent: dict[str, int | list[dict[str, Any]]] = Field(
        default_factory=dict,
        description="route/sink -> what it sends, in any order: how many, or which (the parts given). For a rest sink: "
        "method, url, headers, body, and with `answers` outcome and reason",
    )
    dead_letters: tuple[ExpectedDeadLetter, ...] = ()
    violated: dict[str, int] | None = Field(
        default=None,
        description="route/expectation -> the events on which it does not hold; default: not looked at",
    )


class CaseAnswer(Model):
    """What the other side answers to everything that a sink would send."""

    status: int = Field(default=200, ge=100, le=599)
    headers: dict[str, str] = Field(default_factory=dict)
    body: Any = Field(default=None, description="text is taken as it is, null is nothing, all else becomes JSON")

    @property
    def answer(self) -> GivenAnswer:
        """Return the answer as a sink takes it."""
        text = self.body if isinstance(self.body, str) else "" if self.body is None else json.dumps(self.body)
        return GivenAnswer(self.status, self.headers, text.encode())


class RouteTest(Model):
    """One test: records, and what becomes of them."""

    name: str = Field(min_length=1)
    records: tuple[InputRecord, ...] = Field(min_length=1)
    answers: dict[str, CaseAnswer] = Field(
        default_factory=dict,
        description="route/sink -> what it gets as an answer; `sent` then has the `outcome` and the `reason`",
    )
    expect: Expected


class RouteTests(Model):
    """A file of route tests."""

    configuration: str | None = Field(
        default=None, description="the file that is tested; default: X.yaml for X.test.yaml"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="variables that the configuration needs")
    schemas: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="in place of a registry: subject -> files of its versions, the oldest first, from the "
        "configuration's folder",
    )
    lookups: dict[str, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict, description="in place of the tables of lookups: lookup -> its rows"
    )
    tests: tuple[RouteTest, ...] = Field(min_length=1)

    def tested(self, path: Path) -> Path:
        """Return the configuration that the file at `path` tests; raise ConfigError when its name does not tell."""
        if self.configuration:
            return path.parent / self.configuration
        if path.name.endswith(SUFFIX):
            return path.with_name(path.name.removesuffix(SUFFIX) + ".yaml")
        hint = f"call the file NAME{SUFFIX}, or add `configuration: NAME.yaml`"
        raise ConfigError((Problem(str(path), 1, 1, "", "does not say what it tests", hint),))


def _shared(one: ErrorDetails, other: ErrorDetails) -> list[int | str]:
    """Return the location that two errors have in common."""
    pairs = zip(one["loc"], other["loc"], strict=False)
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def load_tests(path: Path) -> RouteTests:
    """Return the route tests of a file; raise ConfigError with all its problems."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError((Problem(str(path), 1, 1, "", f"cannot be read: {error}", "check the path"),)) from None
    root, problems = parse_yaml(text, str(path))
    if root is None or problems:
        raise ConfigError(tuple(problems))
    document = Document(str(path), root, widths_of(text))
    try:
        return RouteTests.model_validate(plain_data(root))
    except ValidationError as error:
        lines = error.errors(include_url=False)
        # A list that is short because what is in it is wrong is no second mistake.
        told = [a for a in lines if not any(len(b["loc"]) > len(a["loc"]) == len(_shared(a, b)) for b in lines)]
        found = (document.problem(line["loc"], line["msg"], "see docs/reference/route-tests.md") for line in told)
        raise ConfigError(sort_problems(found)) from None


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
    preparation = Preparation(folder, False, _no_sample, LearntSchemas(known=hinted(loaded.config.source.files)))
    prepared = loaded.config.decode.tested(schemas).prepare(preparation)
    named = loaded.config.without_former_names()  # its lakes are new, and its cases say the names of today
    routes = tuple(_with_rows(route, tests.lookups) for route in named.routes)
    for case in tests.tests:
        with TemporaryDirectory() as place:
            here = {"lake": f"{place}/lake", "checkpoint": f"{place}/checkpoint", "storage_options": {}}
            config = loaded.config.model_copy(update={"decode": prepared, "debug": True, "routes": routes, **here})
            try:
                raw = _raw(case.records, prepared, folder)
                faults = tuple(_faults(config, case, raw, spark, folder))
            except _UnwritableError as error:
                faults = (str(error),)
            except RouterError as error:
                faults = (f"the batch stopped: {error}",)
        yield CaseResult(case.name, faults)


def _with_rows(route: Route, given: Mapping[str, Sequence[Mapping[str, Any]]]) -> Route:
    """Return a route whose lookups have the rows of the tests in place of their tables, where the tests give them."""
    none = {"table": None, "let": None, "database": None}
    found = (
        one.model_copy(update={**none, "rows": tuple(map(dict, given[one.name]))}) if one.name in given else one
        for one in route.lookup
    )
    return route.model_copy(update={"lookup": tuple(found)})


def _no_sample(rows: int) -> DataFrame:
    raise StartError("a route test has no source to infer a schema from: run the configuration once, or give a schema")


class _UnwritableError(ValueError):
    """A record of a case that cannot be written."""


def _faults(config: Config, case: RouteTest, raw: pa.Table, spark: SparkSession, folder: Path) -> Iterator[str]:
    lake, checkpoint = Lake.at(config.lake), Lake.at(config.checkpoint_path())
    destination = Destination(config, RUN)
    batches = Batches(config, RUN, spark, lake, CheckpointStore(checkpoint, RUN), destination)
    report = batches.process(spark.createDataFrame(raw), 0)
    if case.expect.violated is not None:
        yield from _violation_faults(case.expect.violated, report)
    previewed = {outbox_of(config.name, *key.split("/")): (key, sink) for key, sink in _previewing(config)}
    hidden = {config.dead_letters, config.ledger, *_merged_outboxes(config), *previewed}
    bronze = config.bronze_tables() or ()
    found = {table for table in lake.every_table() if table not in bronze}
    yield from _table_faults(lake, case.expect, found - hidden)
    answers = {key: given.answer for key, given in case.answers.items()}
    sent = {
        key: _sent(lake, outbox, sink, spark, folder, answers.pop(key, None))
        for outbox, (key, sink) in previewed.items()
    }
    yield from (f"{key}: there is no such sink to answer, or it does not say what it would send" for key in answers)
    yield from _sent_faults(case.expect, sent)
    dead = lake.open(config.dead_letters)
    yield from _dead_letter_faults(case.expect.dead_letters, dead.to_pyarrow_table().to_pylist() if dead else [])


def _merged_outboxes(config: Config) -> Iterator[str]:
    """Return the outboxes whose rows are to be seen in the tables that they were merged into."""
    for route, name, sink in config.all_sinks():
        if isinstance(sink, MergingSink):
            yield outbox_of(config.name, route, name)


def _previewing(config: Config) -> Iterator[tuple[str, ApplyingSink]]:
    """Return route/sink of the sinks that say what they would send."""
    for route, name, sink in config.all_sinks():
        if isinstance(sink, ApplyingSink) and sink.previews:
            yield f"{route}/{name}", sink


def _sent(
    lake: Lake, outbox: str, sink: ApplyingSink, spark: SparkSession, folder: Path, answer: GivenAnswer | None
) -> list[dict[str, Any]]:
    """Return what a sink would send of the rows in its outbox."""
    if lake.open(outbox) is None:
        return []
    events = spark.read.format("delta").load(lake.address(outbox))
    return sink.preview(events, Opening(folder, events.limit(0), trial=True, answer=answer))


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
        written_by = decoder.of_topic(record.topic)
        return written_by.encode(record.event, folder / record.file if record.file else None, record.message)
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


def _violation_faults(expected: Mapping[str, int], report: BatchReport) -> Iterator[str]:
    found = {
        f"{route}/{name.removeprefix(VIOLATED)}": count
        for route, counts in report.routes.items()
        for name, count in counts.items()
        if name.startswith(VIOLATED)
    }
    found |= {f"bronze/{name}": count for name, count in report.violated.items()}
    for key in sorted({*found, *expected}):
        if key not in found:
            yield f"{key}: there is no such expectation"
        elif (wanted := expected.get(key, 0)) != found[key]:
            yield f"{key}: does not hold on {wanted} events expected, {found[key]} found"


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
