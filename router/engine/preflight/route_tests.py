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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import Field, ValidationError, field_validator, model_validator

from router.api.parts import Preparation
from router.api.sinks import ApplyingSink, GivenAnswer, MergingSink, Opening
from router.config.loader import read_text
from router.config.models import Model
from router.config.problems import Document, problems_in_words, sort_problems, widths_of
from router.config.yaml_tree import Keys, parse_yaml, plain_data
from router.delta.lake import Lake
from router.delta.replace_by_spark import staged_rows
from router.delta.unreadable_values import as_rows
from router.engine.batch import Batches
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.destination import Destination
from router.engine.label.layout import BRONZE_SCHEMA, outbox_of
from router.engine.ledger import VIOLATED
from router.engine.source.file_rows import schemas_from_hints
from router.engine.views.schedule import create_refresher, in_order
from router.errors import ConfigError, Problem, RouterError, ViewError
from router.moments import parse_moment
from router.storage.locations import may_make_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typing_extensions import Self

    from router.api.parts import BatchReport, Decoder
    from router.config.loader import Loaded
    from router.config.models import Config, Route

SUFFIX = ".test.yaml"


def _as_text(value: Any) -> str | None:
    """Return the text that is sent for a value of a test: text as it stands, null as nothing, all else as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


class InputRecord(Model):
    """One record of the source: an event as its producer writes it, or a value as it stands."""

    event: Any = Field(default=None, description="is written in the format that the configuration decodes")
    file: str | None = Field(default=None, alias="schema", description="of `schemas`, what the event is written with")
    message: str | None = Field(default=None, description="full name of the event's message; default: the first one")
    value: Any = Field(default=None, description="text is taken as it is, null is no value, all else becomes JSON")
    base64: str | None = Field(default=None, description="the value's bytes, instead of `value`")
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
    def _refuse_bad_base64(cls, text: str | None) -> str | None:
        try:
            base64.b64decode(text or "", validate=True)
        except binascii.Error as error:
            raise ValueError(f"is no base64: {error}") from None
        return text

    @property
    def content(self) -> bytes | None:
        """Return the bytes of the value; None if none is given."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        text = _as_text(self.value)
        return None if text is None else text.encode()


class ExpectedDeadLetter(Model):
    """Expected dead letters. What is not given may be anything; `reason` is part of the text."""

    stage: str | None = None
    reason: str = ""
    route: str | None = None
    sink: str | None = None
    count: int = Field(default=1, ge=1)


class Expected(Model):
    """What the records are to become: everything that gets a row must be named here, but bronze and the ledger."""

    tables: dict[str, int | list[dict[str, Any]]] | None = Field(
        default_factory=dict,
        description="table -> its rows: how many, or which (in any order, the columns given); null: not looked at. "
        "Views are made if one of their tables is named",
    )
    sent: dict[str, int | list[dict[str, Any]]] | None = Field(
        default_factory=dict,
        description="route/sink -> what it sends, in any order: how many, or which (the parts given). For a rest sink: "
        "method, url, headers, body, and with `answers` outcome and reason; null: not looked at",
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
        text = _as_text(self.body) or ""
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
        description="instead of a registry: subject -> files of its versions, the oldest first, from the "
        "configuration's folder",
    )
    lookups: dict[str, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict, description="instead of the tables of lookups: lookup -> its rows"
    )
    tests: tuple[RouteTest, ...] = Field(min_length=1)

    def tested_configuration(self, path: Path) -> Path:
        """Return the configuration that the file at `path` tests; raise ConfigError if its name does not tell."""
        if self.configuration:
            return path.parent / self.configuration
        if path.name.endswith(SUFFIX):
            return path.with_name(path.name.removesuffix(SUFFIX) + ".yaml")
        hint = f"call the file NAME{SUFFIX}, or add `configuration: NAME.yaml`"
        raise ConfigError((Problem(str(path), 1, 1, "", "does not say what it tests", hint),))


def load_tests(path: Path) -> RouteTests:
    """Return the route tests of a file; raise ConfigError with all its problems."""
    return parse_tests(read_text(path), path)


def parse_tests(text: str, path: Path) -> RouteTests:
    """Return the route tests in the text of a file; raise ConfigError with all its problems."""
    root, problems = parse_yaml(text, str(path))
    if root is None or problems:
        raise ConfigError(tuple(problems))
    document = Document(str(path), root, widths_of(text))
    if isinstance(root, Keys) and "source" in root.entries and "tests" not in root.entries:
        hint = f"`router check` checks it; its tests stand in a file of their own: {path.stem}{SUFFIX}"
        raise ConfigError((document.problem_at((), "is a configuration, and no test of one", hint, code="file"),))
    try:
        return RouteTests.model_validate(plain_data(root))
    except ValidationError as error:
        raise ConfigError(sort_problems(problems_in_words(error, document, "see `router help route-tests`"))) from None


RUN = "test"
RAW = BRONZE_SCHEMA.remove(BRONZE_SCHEMA.get_field_index("batch_id"))
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
LETTER_COLUMNS = ("stage", "route", "sink", "reason")


@dataclass(frozen=True)
class CaseResult:
    """The result of one case: `faults` is empty for one that passed. A dead letter is its values of LETTER_COLUMNS."""

    name: str
    faults: tuple[str, ...]
    dead_letters: tuple[tuple[str | None, ...], ...] = ()


def run_tests(loaded: Loaded, tests: RouteTests, spark: SparkSession) -> Iterator[CaseResult]:
    """Run every case in a folder of its own and yield its result.

    Needs no source and no registry; sends nothing to applying sinks. A sink that can preview what it would send does
    so; the rows of the others are those of their outboxes, `outbox.QUERY__ROUTE__SINK`.
    """
    folder = loaded.path.parent
    schemas = {}
    for subject, files in tests.schemas.items():
        schemas[subject] = tuple(folder / file for file in files)
    memory = LearntSchemas(known=schemas_from_hints(loaded.config.source.files))
    decoder = loaded.config.decode.tested(schemas).prepare(Preparation(folder, memory=memory))
    # The lakes of cases are new, so that nothing in them has a former name, and cases use the names of today.
    named = loaded.config.without_former_names()
    routes = tuple(_with_rows(route, tests.lookups) for route in named.routes)
    for case in tests.tests:
        letters: list[dict[str, Any]] = []
        with TemporaryDirectory() as place:
            changes = {
                "lake": f"{place}/lake",
                "checkpoint": f"{place}/checkpoint",
                "storage_options": {},
                "decode": decoder,
                "debug": True,
                "routes": routes,
            }
            try:
                records = _table_of_records(case.records, decoder, folder)
                faults = tuple(
                    _find_differences(loaded.config.model_copy(update=changes), case, records, spark, folder)
                )
                letters = _read_rows(Lake.at(f"{place}/lake"), loaded.config.dead_letters)
            except (_UnwritableError, ViewError) as error:
                faults = (str(error),)
            except (RouterError, OSError) as error:  # a registry may be away
                faults = (f"the batch stopped: {error}",)
        dead_letters = tuple(tuple(row[name] for name in LETTER_COLUMNS) for row in letters)
        yield CaseResult(case.name, faults, dead_letters)


def _with_rows(route: Route, rows_by_lookup: Mapping[str, Sequence[Mapping[str, Any]]]) -> Route:
    """Return a route whose lookups have the rows that the tests give them in place of their tables."""
    lookups = list(route.lookup)
    for number, lookup in enumerate(route.lookup):
        if lookup.name in rows_by_lookup:
            rows = tuple(dict(row) for row in rows_by_lookup[lookup.name])
            changes = {"table": None, "let": None, "database": None, "rows": rows}
            lookups[number] = lookup.model_copy(update=changes)
    return route.model_copy(update={"lookup": tuple(lookups)})


class _UnwritableError(ValueError):
    """A record of a case that cannot be written."""


def _find_differences(
    config: Config, case: RouteTest, records: pa.Table, spark: SparkSession, folder: Path
) -> Iterator[str]:
    """Process one batch of records, and yield what differs from what the case expects."""
    lake = Lake.at(config.lake)
    store = CheckpointStore(Lake.at(config.checkpoint_path()), RUN)
    batches = Batches(config, RUN, spark, lake, store, Destination(config, RUN))
    report = batches.process(spark.createDataFrame(records), 0)
    if case.expect.violated is not None:
        yield from _violation_faults(case.expect.violated, report)

    manifest = store.read_manifest(0)
    staged = {commit.table: commit for commit in manifest.commits} if manifest else {}
    # The rows of these tables are seen elsewhere: in `sent`, in dead letters, in the tables that they are merged into.
    hidden = {config.dead_letters, config.ledger}
    sent: dict[str, list[dict[str, Any]]] = {}
    for route, name, sink in config.all_sinks():
        outbox = outbox_of(config.name, route, name)
        if isinstance(sink, MergingSink):
            hidden.add(outbox)
        if not (isinstance(sink, ApplyingSink) and sink.previews):
            continue
        key = f"{route}/{name}"
        # A case that lists the rows of an outbox asks for no calls: encoders may need a registry for them.
        is_listed = outbox in (case.expect.tables or {})
        if not is_listed:
            hidden.add(outbox)
        wanted = case.expect.sent
        if key in case.answers or (wanted is not None and (key in wanted or not is_listed)):
            sent[key] = []
            if outbox in staged:
                # Not by the table: Delta on Spark takes seconds for its log, and a case has little else to wait for.
                events = staged_rows(spark, lake, staged[outbox])
                answer = case.answers[key].answer if key in case.answers else None
                sent[key] = sink.preview(events, Opening(folder, events.limit(0), trial=True, answer=answer))
    bronze = config.bronze_tables() or ()
    written = {table for table in lake.every_table() if table not in bronze}
    expected = case.expect.tables
    if expected is not None:
        if any(may_make_name(view.into, table) for view in config.views for table in expected):
            refreshes = create_refresher(config, spark, lake, store)
            for view in in_order(config.views):
                refreshes.refresh_view(view)
        yield from _table_faults(lake, expected, written - hidden)
    for key in case.answers:
        if key not in sent:
            yield f"{key}: there is no such sink to answer, or it does not say what it would send"
    if case.expect.sent is not None:
        yield from _sent_faults(case.expect.sent, sent)
    yield from _dead_letter_faults(case.expect.dead_letters, _read_rows(lake, config.dead_letters))


def _sent_faults(
    expected: Mapping[str, int | list[dict[str, Any]]], sent: dict[str, list[dict[str, Any]]]
) -> Iterator[str]:
    for key in sorted({*sent, *expected}):
        if key not in sent:
            yield f"{key}: there is no such sink, or it does not say what it would send"
        else:
            yield from _row_faults(key, expected.get(key, 0), sent[key], "sent")


def _table_of_records(records: Sequence[InputRecord], decoder: Decoder, folder: Path) -> pa.Table:
    """Return the records as Kafka would give them: each partition counts its own offsets."""
    offsets: Counter[tuple[str, int]] = Counter()
    rows = []
    for number, record in enumerate(records, 1):
        partition = (record.topic, record.partition)
        value = record.content
        if record.event is not None:
            value = _encode_record(number, record, decoder, folder)
        rows.append({
            "key": None if record.key is None else record.key.encode(),
            "value": value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": offsets[partition],
            "timestamp": BEGIN,
            "timestamp_type": 0,
            "headers": [{"key": name, "value": text.encode()} for name, text in record.headers.items()] or None,
        })  # fmt: skip
        offsets[partition] += 1
    return pa.Table.from_pylist(rows, RAW)


def _encode_record(number: int, record: InputRecord, decoder: Decoder, folder: Path) -> bytes:
    """Return an event as its producer writes it. Raises _UnwritableError."""
    schema_file = folder / record.file if record.file else None
    try:
        return decoder.of_topic(record.topic).encode(record.event, schema_file, record.message)
    except ValueError as error:
        raise _UnwritableError(f"record {number} cannot be written: {error}") from error


def _table_faults(lake: Lake, expected: Mapping[str, int | list[dict[str, Any]]], written: set[str]) -> Iterator[str]:
    for table in sorted(written | set(expected)):
        yield from _row_faults(table, expected.get(table, 0), _read_rows(lake, table), "rows")


def _read_rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    handle = lake.open(table)
    return [] if handle is None else as_rows(handle.to_pyarrow_table())


def _row_faults(where: str, wanted: int | list[dict[str, Any]], rows: list[dict[str, Any]], noun: str) -> Iterator[str]:
    """Yield how rows differ from the wanted ones, or from their number; the order does not matter."""
    if isinstance(wanted, int):
        if len(rows) != wanted:
            yield f"{where}: {wanted} {noun} expected, {len(rows)} found: {_show_rows(rows)}"
        return
    unmatched = list(rows)
    for wanted_row in wanted:
        match = next((row for row in unmatched if _is_wanted_value(wanted_row, row)), None)
        if match is None:
            yield f"{where}: {noun}: none like {wanted_row!r}; there are: {_show_rows(unmatched)}"
        else:
            unmatched.remove(match)
    if len(rows) != len(wanted):
        yield f"{where}: {len(wanted)} {noun} expected, {len(rows)} found; beyond them: {_show_rows(unmatched)}"


def _violation_faults(expected: Mapping[str, int], report: BatchReport) -> Iterator[str]:
    counts: dict[str, int] = {}
    for route, outcomes in report.routes.items():
        for name, count in outcomes.items():
            if name.startswith(VIOLATED):
                counts[f"{route}/{name.removeprefix(VIOLATED)}"] = count
    for name, count in report.violated.items():
        counts[f"bronze/{name}"] = count
    for key in sorted({*counts, *expected}):
        if key not in counts:
            yield f"{key}: there is no such expectation"
        elif expected.get(key, 0) != counts[key]:
            yield f"{key}: does not hold on {expected.get(key, 0)} events expected, {counts[key]} found"


def _dead_letter_faults(expected: Sequence[ExpectedDeadLetter], rows: list[dict[str, Any]]) -> Iterator[str]:
    unmatched = list(rows)
    for letter in expected:
        matching = [row for row in unmatched if _is_letter(letter, row)][: letter.count]
        for row in matching:
            unmatched.remove(row)
        if len(matching) < letter.count:
            options = {name: value for name, value in letter.model_dump().items() if value}
            yield f"dead letters: {options} expected, {len(matching)} found; there are: {_show_letters(unmatched)}"
    if unmatched:
        yield f"dead letters: nothing else expected, {len(unmatched)} found: {_show_letters(unmatched)}"


def _is_letter(letter: ExpectedDeadLetter, row: dict[str, Any]) -> bool:
    exact = all(getattr(letter, name) in (None, row[name]) for name in ("stage", "route", "sink"))
    return exact and letter.reason in row["reason"]


def _is_wanted_value(wanted: Any, actual: Any) -> bool:
    """Return whether a value is the wanted one; of a struct, only the given fields count."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return all(name in actual and _is_wanted_value(value, actual[name]) for name, value in wanted.items())
    if isinstance(wanted, dict) and isinstance(actual, list):
        # A map comes as its entries, which are pairs.
        is_map = all(isinstance(entry, tuple) for entry in actual)
        return is_map and len(wanted) == len(actual) and _is_wanted_value(wanted, dict(actual))
    if isinstance(wanted, list) and isinstance(actual, list):
        return len(wanted) == len(actual) and all(map(_is_wanted_value, wanted, actual))
    return bool(_as_type_of(actual, wanted) == actual)


def _as_type_of(actual: Any, wanted: Any) -> Any:
    """Return a value of YAML with the type of the value that it is compared with; unchanged if it has no such form."""
    # YAML has no decimals and no bytes, and a test may write a time as text.
    try:
        if isinstance(actual, datetime):
            moment = parse_moment(str(wanted))
            if actual.tzinfo and not moment.tzinfo:
                moment = moment.replace(tzinfo=timezone.utc)
            return moment
        if isinstance(actual, date):
            return date.fromisoformat(str(wanted))
        if isinstance(actual, Decimal):
            return Decimal(str(wanted))
    except (ValueError, ArithmeticError):
        return wanted
    return str(wanted).encode() if isinstance(actual, bytes) else wanted


def _show_rows(rows: list[dict[str, Any]]) -> str:
    text = ", ".join(repr(row) for row in rows[:3])
    if len(rows) > 3:
        text += f" and {len(rows) - 3} more"
    return text or "none"


def _show_letters(rows: list[dict[str, Any]]) -> str:
    shown = []
    for row in rows:
        shown.append({name: row[name] for name in ("stage", "reason", "route", "sink") if row[name]})
    return _show_rows(shown)
