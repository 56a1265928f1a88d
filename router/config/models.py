"""The configuration as frozen models: what people write, checked. Intervals and times are read as people write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from router.api.parts import Decoder, Rule, ViewQuery
from router.api.sinks import ApplyingSink, LakeSink, MergingSink, Sink, TableSink
from router.api.table_options import NewTable, TableOptions
from router.moments import parse_moment
from router.record import BATCH, IN_RULES, PLACE, RECORD
from router.registry import fault
from router.storage.addresses import AddressError, normalize_address
from router.table_names import BronzeTables, template_pattern, templates_meet

if TYPE_CHECKING:
    from router.storage.locations import Location, TableLocation

_SECONDS_BY_UNIT = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
"""The length of each unit of an interval."""


def parse_interval(text: str) -> timedelta:
    """Return the length of `10 s`, `5 min`, `500 ms` or `1 h`; raise ValueError for anything else and for zero."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _SECONDS_BY_UNIT or float(match[1]) == 0:
        raise ValueError("is not an interval; write a number and a unit: 500 ms, 10 s, 5 min, 1 h")
    return timedelta(seconds=float(match[1]) * _SECONDS_BY_UNIT[match[2]])


def parse_zoned_moment(text: str) -> datetime:
    """Return a time written as ISO 8601; raise ValueError when it is not one or has no time zone."""
    refusal = "is not a time with a zone; write ISO 8601: 2025-01-31T12:00:00Z"
    try:
        time = parse_moment(text)
    except ValueError:
        raise ValueError(refusal) from None
    if time.tzinfo is None:
        raise ValueError(refusal)
    return time


NAME_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"
HYPHENED_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"
TABLE_PATTERN = r"^[a-z][a-z0-9_]{0,63}\.[a-z0-9][a-z0-9_]{0,127}$"
BRONZE_PATTERN = rf"{TABLE_PATTERN}|^[a-z][a-z0-9_]{{0,63}}\.([a-z0-9][a-z0-9_]{{0,63}})?\{{topic\}}[a-z0-9_]{{0,63}}$"


def _check_percent(value: str) -> str:
    if not re.fullmatch(r"(100|[0-9]{1,2}(\.[0-9]+)?)\s*%", value):
        raise ValueError("must be a share from 0% to 100%, as 50%")
    return value


def _check_interval(text: str) -> str:
    parse_interval(text)
    return text


def _check_moment(text: str) -> str:
    parse_zoned_moment(text)
    return text


def _check_place(text: str) -> str:
    try:
        normalize_address(text)
    except AddressError as error:
        # The address may come from a variable, and is not shown then: what is wrong with its scheme may be.
        raise fault(error.what) from None
    return text


def _debug_place(place: str) -> str:
    """Return the place next to another one; inside it if it is a whole bucket."""
    place = place.rstrip("/")
    # Next to a bucket there would be another bucket.
    is_bucket = "://" in place and place.count("/") == 2
    return f"{place}/_debug" if is_bucket else f"{place}_debug"


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
HyphenedName = Annotated[str, StringConstraints(pattern=HYPHENED_PATTERN)]
"""The name of a query or a route; if a table is named after it, a hyphen becomes an underscore."""
TableName = Annotated[str, StringConstraints(pattern=TABLE_PATTERN)]
BronzeName = Annotated[str, StringConstraints(pattern=BRONZE_PATTERN)]
Percent = Annotated[str, AfterValidator(_check_percent)]
Interval = Annotated[str, AfterValidator(_check_interval)]
StorageAddress = Annotated[str, AfterValidator(_check_place)]
Moment = Annotated[str, AfterValidator(_check_moment)]


class Model(BaseModel):
    """A frozen piece of configuration that refuses unknown keys and shows no value in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)


class KafkaSource(Model):
    """Kafka topics. Offsets live in the checkpoint, not in a consumer group."""

    servers: str = Field(description="host:port, several with commas")
    topics: tuple[str, ...] = Field(default=(), description="topics to read; or give `pattern`")
    pattern: str | None = Field(default=None, description="regular expression of topics to read")
    start: Literal["earliest", "latest"] | dict[str, dict[int, int]] = Field(
        default="earliest", description="where a new checkpoint begins: also {topic: {partition: offset}}"
    )
    start_time: Moment | dict[str, dict[int, Moment]] | None = Field(
        default=None, description="begin at records of this time (ISO 8601), for all or per topic and partition"
    )
    rows_per_batch: int = Field(default=500_000, ge=1, description="records per micro-batch, about")
    commit_group: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="consumer group for which offsets are committed after each batch, for lag monitors; never read",
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict, description="passed to Spark's Kafka source as they are: kafka.security.protocol, ..."
    )

    def reads_topic(self, topic: str) -> bool | None:
        """Return whether a topic is read; None if only Java, as which Spark takes it, can read the pattern."""
        if self.pattern is None:
            return topic in self.topics
        try:
            return re.fullmatch(self.pattern, topic) is not None
        except re.error:
            return None


class Archive(Model):
    """Where files go that have been read."""

    archive: str = Field(min_length=1, description="folder; a file keeps its path below it")


_OPTIONS_OF_ROWS = ("sep", "header", "multiLine", "lineSep", "encoding", "mode", "columnNameOfCorruptRecord", "comment")
_OPTIONS_OF_LISTING = ("pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter", "maxFileAge")
OPTIONS_OF_FILES = {
    name.lower(): name for name in (*_OPTIONS_OF_ROWS, *_OPTIONS_OF_LISTING, "latestFirst", "maxCachedFiles")
}
OPTIONS_OF_FILES |= {"filenameonly": "fileNameOnly", "delimiter": "sep", "charset": "encoding"}
"""Options of Spark's readers that the router reads as well: their names in lower case, and the one name of each."""


class FilesSource(Model):
    """Files, read as they arrive in a folder, each file once: each line a record, or each row of a table format."""

    path: str = Field(description="folder or pattern; new files are picked up, those in subfolders are not")
    format: Literal["lines", "csv", "json", "parquet", "avro"] = Field(
        default="lines", description="lines: a line is a record, as bytes; else `decode: {rows: {}}` has its columns"
    )
    files_per_batch: int = Field(default=100, ge=1)
    whole_files: bool = Field(default=False, description="a file is one record")
    schema_hints: str | None = Field(
        default=None, min_length=1, description="Spark DDL: columns of rows whose type is known, or that may come later"
    )
    after: Literal["keep", "delete"] | Archive = Field(
        default="keep", description="what becomes of files that have been read: keep, delete, or {archive: FOLDER}"
    )
    options: dict[str, str] = Field(
        default_factory=dict, description="passed to Spark's reader of the format: sep, header, multiLine, ..."
    )

    @field_validator("options")
    @classmethod
    def _as_spark_names_them(cls, options: dict[str, str]) -> dict[str, str]:
        """Return options with one name each, as Spark takes them in any case, and some under two names."""
        named: dict[str, str] = {}
        for key, value in options.items():
            name = OPTIONS_OF_FILES.get(key.lower(), key)
            if name in named:
                raise ValueError(f"two options are called {name}")
            named[name] = value
        return named

    @model_validator(mode="after")
    def _takes_every_line(self) -> FilesSource:
        for name in ("mode", "columnNameOfCorruptRecord"):
            if name in self.options and self.format in ("csv", "json"):
                raise ValueError(f"`{name}` cannot be set: a line that is no row is kept in `_rescued`, as `_line`")
        return self


class FormatSource(Model):
    """Anything Spark can stream that has a `value` column (string or binary)."""

    name: str = Field(description="Spark's name of the format: delta, rate, kinesis, ...")
    options: dict[str, SecretStr] = Field(default_factory=dict)
    columns: dict[str, str] = Field(
        default_factory=dict, description='SQL expressions for raw columns: {value: "to_json(struct(*))"}'
    )


class DeltaSource(Model):
    """The rows of a Delta table as they come: as records with the row as JSON, those of a bronze table as received."""

    table: TableName
    lake: StorageAddress | None = Field(
        default=None, description="where the table is; default: this configuration's lake"
    )
    changes: bool = Field(
        default=False,
        description="also deleted and changed rows, from its change data: with `_change_type` (insert, delete, "
        "update_postimage) and `_commit_version` in the JSON. Without it a table whose rows change ends the run",
    )
    start: Literal["earliest", "latest"] | int = Field(
        default="earliest", description="where a new checkpoint begins: also a version of the table"
    )
    files_per_batch: int = Field(default=1000, ge=1, description="data files per micro-batch, about")


class BronzeExpectation(Model):
    """What must hold for records; null counts as a violation. Bronze also keeps those that violate it."""

    name: Name
    sql: str = Field(description="SQL over the record (`key`, `value`, `topic`, ...) and what decoding adds (`event`)")
    otherwise: Literal["warn", "fail"] = Field(
        default="warn", description="warn: it is counted; fail: the stream stops"
    )


class Bronze(Model, TableOptions):
    """The table of every record as received, or one for each topic."""

    table: BronzeName = Field(description="layer.table; bronze.{topic}: one for each topic")
    expect: tuple[BronzeExpectation, ...] = Field(default=(), description="what must hold for records")

    @model_validator(mode="after")
    def _columns_of_bronze(self) -> Bronze:
        allowed = {
            "partition_by": PLACE[:2],
            "cluster_by": (*PLACE, "timestamp", BATCH),
            "comments": (*RECORD, BATCH),
        }
        for option, names in self.named_columns().items():
            for name in names:
                if name not in allowed[option]:
                    raise ValueError(f"`{option}` of bronze takes {', '.join(allowed[option])}, not {name}")
        return self


def _as_table(value: object) -> object:
    """Take the name of a table alone for its options."""
    return {"table": value} if isinstance(value, str) else value


class Source(Model):
    """Where records come from: exactly one of the kinds."""

    kafka: KafkaSource | None = None
    files: FilesSource | None = None
    delta: DeltaSource | None = None
    format: FormatSource | None = None

    def reads_topic(self, topic: str) -> bool:
        """Return whether records of a topic are read; topics of sources other than Kafka are not known in advance."""
        return self.kafka is not None and bool(self.kafka.reads_topic(topic))


class Expectation(Model):
    """What must hold for the events of a route; null counts as a violation. The ledger counts violations."""

    name: Name
    sql: str
    otherwise: Literal["dead_letter", "quarantine", "warn", "drop", "fail"] = Field(
        default="dead_letter",
        description="quarantine: the row waits; warn: it lands; drop: it does not; fail: the stream stops",
    )


def _refuse_unknown_expectation(value: object) -> object:
    """Refuse a name that is still one: `Config` puts what it stands for in its place."""
    if isinstance(value, str):
        raise ValueError(f"no expectation of `expectations` is called {value}")
    return value


NamedExpectation = Annotated[
    Expectation, BeforeValidator(_refuse_unknown_expectation, json_schema_input_type=Name | Expectation)
]


class Let(Model):
    """A query with a name, for views and lookups: a temporary view, which has no table of its own."""

    name: Name
    tables: dict[Name, TableName] = Field(
        default_factory=dict, description="tables that it reads, by the names that they have in its SQL"
    )
    let: tuple[NamedLet, ...] = Field(default=(), description="others that it reads: names of those before it")
    sql: str = Field(description="a query of what `tables` and `let` name")

    @property
    def joined_tables(self) -> frozenset[str]:
        """Return the tables that it reads, also by way of others."""
        return frozenset(self.tables.values()).union(*(other.joined_tables for other in self.let))


def _refuse_unknown_let(value: object) -> object:
    """Refuse a name that is still one: `Config` puts what it stands for in its place."""
    if isinstance(value, str):
        raise ValueError(f"no query of `let` is called {value}, or none before this one")
    return value


NamedLet = Annotated[Let, BeforeValidator(_refuse_unknown_let, json_schema_input_type=Name | Let)]
Let.model_rebuild()


class LookupDatabase(Model):
    """A query of a database that SQLAlchemy has a dialect for."""

    url: SecretStr = Field(description="of SQLAlchemy, with its driver: postgresql+pg8000://user@host/database")
    query: str = Field(min_length=1, description="a SELECT; its columns are those of the lookup")


class Lookup(Model):
    """A table by whose rows the events of a route get more columns: those of the row with their key.

    The columns are fields of a struct with the lookup's name, null if the table has no row for an event. Every
    executor keeps all rows, and gets them again when the table has changed.
    """

    name: Name = Field(description="of the struct: `billing.plan` in expressions")
    table: str | None = Field(
        default=None, description="a Delta table: layer.table of the lake, or the address of one elsewhere"
    )
    let: NamedLet | None = Field(default=None, description="a query of `let` instead of a table")
    database: LookupDatabase | None = Field(default=None, description="a query of a database instead of a table")
    rows: tuple[dict[str, str | int | float | bool | None], ...] | None = Field(
        default=None, description="the rows themselves, instead of a table"
    )
    on: dict[str, str] = Field(min_length=1, description="column of the table: SQL expression over the event")
    columns: tuple[str, ...] = Field(default=(), description="columns that are kept; default: all but those of `on`")
    newest_by: str | None = Field(
        default=None, description="of rows with one key, that with the largest value here is used"
    )
    every: Interval = Field(default="5 min", description="how often the table is looked at for changes")
    at_most: int = Field(default=1_000_000, ge=1, description="rows that the table may have")

    @model_validator(mode="after")
    def _one_table(self) -> Lookup:
        sources = [name for name in ("table", "let", "database", "rows") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"has {' and '.join(sources) or 'no table'}; give one of table, let, database, rows")
        if self.table is not None and "/" not in self.table and not re.match(TABLE_PATTERN, self.table):
            raise ValueError("`table` is layer.table of the lake, or the address of a folder, which has a slash")
        keys = sorted({*self.columns} & {*self.on})
        if keys:
            raise ValueError(f"`columns` names {keys[0]}, which `on` has; the event has its value already")
        if self.name in IN_RULES:
            raise ValueError(f"a lookup cannot be called {self.name}: records have a column of that name")
        return self


class Route(Model):
    """A rule, tables to look events up in, a projection, expectations and sinks."""

    name: HyphenedName
    was: HyphenedName | None = Field(
        default=None,
        description="the name that this route had before: waiting rows, notes and ids of its sinks stay under "
        "that name. Keep this option",
    )
    match: Rule
    lookup: tuple[Lookup, ...] = Field(default=(), description="tables that events are joined with, by key")
    select: tuple[str, ...] = Field(default=("event.*",), description="SQL expressions; the columns of the route")
    expect: tuple[NamedExpectation, ...] = Field(
        default=(), description="expectations, or the names of those that stand in `expectations`"
    )
    sinks: tuple[Sink, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_heir(self) -> Route:
        identities = list(self.shown_sinks.values())
        for name in identities:
            if identities.count(name) > 1:
                raise ValueError(
                    f"two sinks are, or were, {name}: give `was` to one of the two; a new sink stands before it, or "
                    "has a `was` of its own that no sink had"
                )
        return self

    @model_validator(mode="after")
    def _tell_sinks(self) -> Route:
        """Let merging sinks know which columns fields of the event become under another name."""
        for sink in self.sinks:
            if isinstance(sink, MergingSink):
                sink._renamed = renamed_fields(self.select)
        return self

    @property
    def identity(self) -> str:
        """Return the name that ids, tables and notes of the route go by: its first one."""
        return self.was or self.name

    @property
    def named_sinks(self) -> dict[str, Sink]:
        """Return the sinks by the names that their ids, tables and notes go by: `was`, else that which is shown."""
        return {sink.was or name: sink for name, sink in zip(self.shown_sinks, self.sinks, strict=True)}

    @property
    def shown_sinks(self) -> dict[str, str]:
        """Return the names of the sinks that people see, in order, each with the name that its ids go by.

        That is the part's name, numbered from the second of its kind on.
        """
        shown: dict[str, str] = {}
        numbers: Counter[str] = Counter()
        for sink in self.sinks:
            name = sink.part_name
            numbers[name] += 1
            if numbers[name] > 1:
                name = f"{name}_{numbers[name]}"
            shown[name] = sink.was or name
        return shown


def renamed_fields(select: tuple[str, ...]) -> dict[str, str]:
    """Return fields of the event that are columns of a route by another name only: `event.id AS customer`."""
    names = {name for text in select for name in re.findall(r"(\*|\w+)`?\s*$", text)}
    renamed: dict[str, str] = {}
    for text in select:
        match = re.fullmatch(r"\s*event\.`?(\w+)`?\s+(?:AS\s+)?`?(\w+)`?\s*", text, re.IGNORECASE)
        # A column of that name comes first; a * may have one.
        if match and not names & {match[1], "*"}:
            renamed.setdefault(match[1], match[2])
    return renamed


TABLE_GLOB = r"^[a-z0-9_*?]+\.[a-z0-9_*?]+$"
TableGlob = Annotated[str, StringConstraints(pattern=TABLE_GLOB)]
"""A table, or a pattern of tables: silver.*"""


def _as_globs(value: object) -> object:
    """Take one pattern for a list of it."""
    return (value,) if isinstance(value, str) else value


TableGlobs = Annotated[
    tuple[TableGlob, ...], BeforeValidator(_as_globs, json_schema_input_type=TableGlob | tuple[TableGlob, ...])
]


class ViewSource(Model):
    """The tables that a view reads, as one relation: those of a route, of another view, or of patterns."""

    route: HyphenedName | None = Field(default=None, description="the tables that the sinks of this route name")
    view: Name | None = Field(default=None, description="the tables of this view")
    tables: TableGlobs = Field(default=(), description="tables, or patterns of tables: silver.*")
    without: TableGlobs = Field(default=(), alias="except", description="tables that are left out of these")

    @model_validator(mode="after")
    def _has_one_kind(self) -> ViewSource:
        if [bool(self.route), bool(self.view), bool(self.tables)].count(True) != 1:
            raise ValueError("give exactly one of route, view, tables")
        return self


def _view_source(value: object) -> object:
    """Take tables alone for a source of tables."""
    if isinstance(value, str):
        return {"tables": (value,)}
    if isinstance(value, (list, tuple)):
        return {"tables": value}
    return value


class ViewExpectation(Model):
    """What must hold for the rows of a view; null counts as a violation."""

    name: Name
    sql: str = Field(description="SQL over the view's columns")
    otherwise: Literal["warn", "drop", "fail"] = Field(
        default="warn", description="warn: the row stays; drop: it does not; fail: the refresh fails, no table changes"
    )


class View(Model):
    """Tables that are computed from other tables: SQL over one relation of all of them, again when these change."""

    name: Name
    source: Annotated[
        ViewSource, BeforeValidator(_view_source, json_schema_input_type=TableGlob | tuple[TableGlob, ...] | ViewSource)
    ] = Field(
        alias="from",
        description="the tables that `source` stands for in the SQL, with the column `table`: uno for silver.uno",
    )
    sql: str | None = Field(default=None, description="a query of `source`, and of what `tables` names")
    query: ViewQuery | None = Field(default=None, description="a query in Python from a plugin, instead of `sql`")
    into: str = Field(
        description="the table of the rows, or one for each value of columns of theirs: gold.{table}_sessions",
        pattern=r"^[a-z][a-z0-9_]{0,63}\.([a-z0-9_]|\{[A-Za-z_][A-Za-z0-9_]*\})+$",
    )
    tables: dict[Name, TableName] = Field(
        default_factory=dict, description="tables that the SQL may join, by the names it has for them"
    )
    let: tuple[NamedLet, ...] = Field(default=(), description="queries of `let` that the SQL may join, by their names")
    expect: tuple[ViewExpectation, ...] = Field(default=(), description="what must hold for its rows")
    every: Interval | None = Field(default=None, description="refreshed at this interval; default: 60 s")
    after: Annotated[str, StringConstraints(pattern=r"^\s*[1-9][0-9]{0,8}\s+commits?\s*$")] | None = Field(
        default=None, description="refreshed after so many batches into its sources: 10 commits"
    )
    on_demand: bool = Field(default=False, description="refreshed by `router views FILE --refresh` only")
    refresh: Literal["incremental", "full"] = Field(
        default="incremental", description="`incremental` reads only changes, if the query allows it"
    )
    comment: str | None = Field(default=None, description="comment of the tables that are created")
    changes: bool = Field(
        default=False, description="new tables keep change data, for `source: {delta: {changes: true}}`"
    )

    @model_validator(mode="after")
    def _one_query(self) -> View:
        if (self.sql is None) == (self.query is None):
            raise ValueError("give one of sql and query")
        return self

    @model_validator(mode="after")
    def _one_time(self) -> View:
        if [bool(self.every), bool(self.after), self.on_demand].count(True) > 1:
            raise ValueError("give one of every, after, on_demand")
        return self

    @property
    def joined_tables(self) -> frozenset[str]:
        """Return the tables that it reads in addition to those of `source`."""
        return frozenset(self.tables.values()).union(*(let.joined_tables for let in self.let))

    @property
    def refresh_commits(self) -> int | None:
        """Return after how many batches it is refreshed; None if it follows a time, or is on demand."""
        return int(self.after.split()[0]) if self.after else None

    @property
    def refresh_seconds(self) -> float | None:
        """Return after how many seconds it is refreshed; None if it follows batches, or is on demand."""
        if self.after or self.on_demand:
            return None
        return parse_interval(self.every or "60 s").total_seconds()


def reads_tables_of(view: View, other: View) -> bool:
    """Say whether a view reads tables that another one makes, as far as their names tell."""
    if view.source.view:
        return view.source.view == other.name
    if any(template_pattern(other.into).fullmatch(name) for name in view.joined_tables):
        return True
    # A pattern that also names the view's own tables leaves these out.
    if view is other:
        return False
    return any(templates_meet(as_template(glob), other.into) for glob in view.source.tables)


def as_template(glob: str) -> str:
    """Return a pattern of tables as a template of their names."""
    return re.sub(r"[*?]+", "{x}", glob)


class Trigger(Model):
    """When batches run: one of the three."""

    once: bool = Field(default=False, description="take what is there, in batches, and end")
    every: Interval | None = Field(default=None, description="an interval: 10 s, 5 min")
    continuous: bool = Field(default=False, description="the next batch as soon as the last is done (default)")


class Ui(Model):
    """Where a running stream shows what it does: its page, `/api/status`, `/metrics`, `/healthz`, `/readyz`."""

    address: str = Field(
        default="127.0.0.1:4480",
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}$",
        description="HOST:PORT; one that is not of this machine alone needs a `token`",
    )
    token: SecretStr | None = Field(
        default=None,
        description="what readers send as `Authorization: Bearer TOKEN`: ${file:/run/secrets/token}",
    )
    hosts: tuple[str, ...] = Field(
        default=(), description="other names by which the server is asked: those of a proxy or a service before it"
    )
    stuck_after: Interval = Field(
        default="10 min", description="time without a step of the stream after which `/healthz` answers 503"
    )
    samples: bool = Field(
        default=False, description="show records of dead letters; without it no answer has a record or a part of one"
    )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Return the address in two parts, an IPv6 address without brackets."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    @model_validator(mode="after")
    def _is_guarded(self) -> Ui:
        host, port = self.host_and_port
        if port > 65535:
            raise ValueError(f"{port} is no port")
        if self.token is None and host not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(f"{host} can be reached from other machines: give a `token`, or bind 127.0.0.1")
        return self


class Metrics(Model):
    """How much is measured."""

    tables_at_most: int = Field(
        default=500, ge=0, description="tables with series of their own in `/metrics`; the others share one"
    )


class OnFailure(Model):
    """Who hears that a stream is in trouble, or out of it again."""

    webhook: SecretStr = Field(
        description="URL that gets a POST when the stream waits, stops or has recovered, and when a table is blocked"
    )

    @field_validator("webhook")
    @classmethod
    def _is_address(cls, webhook: SecretStr) -> SecretStr:
        try:
            address = urlsplit(webhook.get_secret_value())
            is_address = address.scheme in ("http", "https") and bool(address.hostname)
        except ValueError:
            is_address = False
        if not is_address:
            # As `fault`, which is shown: the message of another error is withheld if it has four letters of a secret.
            raise fault("must be an address: https://HOST/PATH")
        return webhook


class Landing(Model):
    """How files are written."""

    file_bytes: int = Field(default=128 << 20, ge=1 << 10, description="bytes at which a file is closed")
    buffer_bytes: int = Field(default=64 << 20, ge=1 << 20, description="Arrow bytes a task holds before it writes")
    spread: Literal["auto", "keep", "by_table"] = Field(
        default="auto", description="`by_table` shuffles so that a table's rows meet in one task: fewer small files"
    )


class Maintenance(Model):
    """How tables are kept in shape while the stream runs, one at a time, after `every` or `commits`."""

    tables: TableGlob = Field(description="a table, or a pattern of tables: silver.*")
    every: Interval = Field(default="1 h", description="time after which a table that was written is maintained")
    commits: int = Field(default=100, ge=1, description="batches into a table after which it is maintained")
    budget: Interval = Field(default="10 s", description="after this time no other table is begun until the next batch")
    file_bytes: int = Field(default=128 << 20, ge=1 << 10, description="smaller files are joined")
    zorder: tuple[str, ...] = Field(
        default=(), description="columns that all rows of a table are sorted by, every time"
    )
    statistics: bool = Field(default=True, description="read files that came without statistics, and note them")
    retention: Interval = Field(
        default="168 h", description="files that no version refers to, of failed attempts, are deleted after this time"
    )
    log_commits: int | None = Field(
        default=None,
        ge=20,
        description="the newest versions can be read: their commits and files stay; default: 1000, and no number for "
        "tables that merges and views rewrite",
    )
    log_retention: Interval | None = Field(
        default=None,
        description="younger versions can be read also; default: 1 h, and 168 h in an object store for tables that are "
        "appended to; twice the longest `every` of a view if that is more",
    )
    enabled: bool = Field(default=True, description="false: the tables are left alone")
    unsafe: bool = Field(default=False, description="let `retention` be less than 168 h")

    @model_validator(mode="after")
    def _refuse_unsafe_retention(self) -> Maintenance:
        if not self.unsafe and parse_interval(self.retention) < parse_interval("168 h"):
            raise ValueError(
                f"retention {self.retention} is less than 168 h: readers of older versions and batches that were cut "
                "off may need the files; if none can, also write `unsafe: true`"
            )
        return self


DEFAULT_MAINTENANCE = Maintenance(tables="*.*")
"""The plan for tables that no line names. It leaves the files of tables alone that others have made."""


class History(Model):
    """How long one can look back."""

    keep: Interval = Field(
        default="7 d",
        description="the version that each table had when a changed configuration began can be read for this time; its "
        "files stay as long. Tables that others made, or that only Spark may write, go back as far as their log",
    )


class QuarantineOptions(Model):
    """How rows are kept whose table cannot be written, or may not take them yet."""

    at_most: ByteSize = Field(
        default=ByteSize(1 << 30), description="bytes that the quarantine may have, as 1 GiB; above it the stream stops"
    )


class DeadLetters(Model):
    """The table of what went nowhere else, and how much of a batch may go there."""

    table: TableName = Field(description="layer.table")
    at_most: Percent | None = Field(
        default=None,
        description="the share of a batch that may become dead letters, as 50%; above it the stream stops before the "
        "commit, and `--accept dead-letters` lets one batch pass. Batches of fewer than 100 records are not judged",
    )

    @property
    def largest_share(self) -> float:
        """Return the share as a number from 0 to 1, which is 1 if all may."""
        return float((self.at_most or "100%").rstrip("% ")) / 100


Shared = TypeVar("Shared", Expectation, Let)


def read_shared(kind: type[Shared], items: object) -> dict[str, Shared]:
    """Return the expectations or lets of a list by name. One at fault is reported where it stands, and nowhere else."""
    by_name: dict[str, Shared] = {}
    for item in _as_list(items):
        try:
            model = kind.model_validate(with_named(item, "let", by_name))
        except ValidationError:
            # Whoever names it gets something that is in order.
            name = item.get("name") if isinstance(item, Mapping) else None
            if isinstance(name, str):
                by_name[name] = kind.model_construct(name=name, sql="true")
            continue
        by_name[model.name] = model
    return by_name


def with_named(options: object, key: str, by_name: Mapping[str, Any]) -> object:
    """Return options with what is shared in the place of its name, or of names in a list."""
    if not isinstance(options, Mapping) or key not in options:
        return options
    names = options[key]
    if isinstance(names, (list, tuple)):
        return {**options, key: [_replace_name(name, by_name) for name in names]}
    return {**options, key: _replace_name(names, by_name)}


def _replace_name(name: object, by_name: Mapping[str, Any]) -> object:
    """Return the expectation or let of a name; anything that is no name, or not a known one, as it is."""
    return by_name.get(name, name) if isinstance(name, str) else name


def _as_list(value: object) -> list[object]:
    """Return the items of a list; none of anything else, which the model refuses."""
    return list(value) if isinstance(value, (list, tuple)) else []


class Config(Model):
    """One router: a source, a decoder, routes and where everything goes."""

    name: HyphenedName
    plugins: tuple[str, ...] = Field(
        default=(), description="files with parts, relative to this file, or modules; `--plugin` adds to them"
    )
    lake: StorageAddress = Field(description="folder or URI; the table layer.table lives at lake/layer/table")
    storage_options: dict[str, SecretStr] = Field(default_factory=dict)
    checkpoint: StorageAddress | None = Field(default=None, description="default: LAKE/_router/NAME")
    source: Source
    decode: Decoder
    bronze: Annotated[Bronze, BeforeValidator(_as_table, json_schema_input_type=BronzeName | Bronze)] | None = Field(
        default=None, description="table of every record as received; bronze.{topic}: one for each topic"
    )
    expectations: tuple[Expectation, ...] = Field(
        default=(), description="expectations that several routes have: each names them in its `expect`"
    )
    let: tuple[NamedLet, ...] = Field(
        default=(), description="queries with a name, which views and lookups read: temporary views"
    )
    routes: tuple[Route, ...] = ()
    views: tuple[View, ...] = Field(default=(), description="tables that are computed from other tables")
    dead_letter_options: Annotated[
        DeadLetters, BeforeValidator(_as_table, json_schema_input_type=TableName | DeadLetters)
    ] = Field(alias="dead_letters", description="table of what went nowhere else; {table, at_most}: with a limit")
    unmatched: Literal["dead_letters", "drop"] = "dead_letters"
    drop: Literal["nulls"] | None = Field(
        default=None,
        description="nulls: skip and count records without a value, unless a sink deletes by them",
    )
    ledger: TableName = "ops.ledger"
    ui: Ui | None = Field(default=None, description="a server that shows what a stream does; default: none")
    metrics: Metrics = Field(default_factory=Metrics)
    on_failure: OnFailure | None = Field(default=None, description="reports of changes of state: {webhook: URL}")
    commit: Literal["auto", "spark"] = Field(
        default="auto",
        description="who commits: `auto` takes delta-rs for the tables that it can write and Delta on Spark for the "
        "others; `spark` takes Delta on Spark for all, for catalogs and storage that only Spark may write",
    )
    trigger: Trigger = Trigger(continuous=True)
    landing: Landing = Landing()
    register_tables: bool = Field(
        default=False,
        alias="register",
        description="make tables known to Spark's catalog as layer.table; a debugging run does not",
    )
    maintenance: tuple[Maintenance, ...] = Field(
        default=(),
        description="how tables are kept in shape; the first line that matches a table counts. Tables that no line "
        "matches are also kept in shape if the router has made them",
    )
    history: History = History()
    quarantine: QuarantineOptions = QuarantineOptions()
    outbox_retention: Interval = Field(
        default="168 h",
        description="rows that a sink has finished are deleted from its outbox when their record is older than this",
    )
    debug: bool = Field(
        default=False,
        description="write to LAKE_debug with a checkpoint of its own, and send nothing: see the outboxes",
    )
    spark: dict[str, str] = Field(default_factory=dict, description="Spark settings of the session")

    @model_validator(mode="before")
    @classmethod
    def _with_shared(cls, options: object) -> object:
        """Put expectations and queries in the place of their names in routes, lookups and views."""
        if not isinstance(options, Mapping):
            return options
        expectations = read_shared(Expectation, options.get("expectations"))
        lets = read_shared(Let, options.get("let"))
        filled = dict(options)
        if isinstance(options.get("routes"), (list, tuple)):
            routes: list[object] = []
            for item in options["routes"]:
                route = with_named(item, "expect", expectations)
                if isinstance(route, Mapping) and isinstance(route.get("lookup"), (list, tuple)):
                    lookups = [with_named(lookup, "let", lets) for lookup in route["lookup"]]
                    route = {**route, "lookup": lookups}
                routes.append(route)
            filled["routes"] = routes
        if isinstance(options.get("views"), (list, tuple)):
            filled["views"] = [with_named(view, "let", lets) for view in options["views"]]
        if isinstance(options.get("let"), (list, tuple)):
            # Each knows those before it.
            own: list[object] = []
            for place, let in enumerate(options["let"]):
                own.append(with_named(let, "let", read_shared(Let, options["let"][:place])))
            filled["let"] = own
        return filled

    @field_validator("decode", mode="before")
    @classmethod
    def _as_keyed_decoder(cls, value: object) -> object:
        """Take `{value: ..., key: ...}` for the options of the decoder `keyed`."""
        if isinstance(value, Mapping) and set(value) == {"value", "key"}:
            return {"keyed": value}
        return value

    @property
    def dead_letters(self) -> str:
        """Return the table of what went nowhere else."""
        return self.dead_letter_options.table

    def all_sinks(self) -> Iterator[tuple[str, str, Sink]]:
        """Yield route, name and sink of each sink; the names are those that ids, tables and notes go by (`was`)."""
        for route in self.routes:
            for name, sink in route.named_sinks.items():
                yield route.identity, name, sink

    def with_sinks(self, keep: Callable[[str, str, Sink], bool]) -> Config:
        """Return this with some sinks only, and without bronze; `keep` is asked with route, name and sink of each.

        They keep their names: without the others they would have other numbers. Routes without a sink are left out.
        """
        routes: list[Route] = []
        for route in self.routes:
            sinks: list[Sink] = []
            for name, sink in route.named_sinks.items():
                if keep(route.identity, name, sink):
                    named = sink.model_copy()
                    named._named = name
                    sinks.append(named)
            if sinks:
                routes.append(route.model_copy(update={"sinks": tuple(sinks)}))
        return self.model_copy(update={"bronze": None, "routes": tuple(routes), "unmatched": "drop"})

    def shown_names(self, route: str, sink: str) -> tuple[str, str]:
        """Return the names that people see of a route and its sink, whose ids go by these names."""
        for candidate in self.routes:
            if candidate.identity == route:
                shown = {identity: name for name, identity in candidate.shown_sinks.items()}
                return candidate.name, shown.get(sink, sink)
        return route, sink

    def identity_of(self, route: str | None, sink: str | None) -> tuple[str | None, str | None]:
        """Return the names that the ids of a route and its sink go by, from those that people see."""
        for candidate in self.routes:
            if candidate.name == route:
                return candidate.identity, candidate.shown_sinks.get(sink or "", sink)
        return route, sink

    def without_former_names(self) -> Config:
        """Return this with all routes and sinks under the names that people see, for runs that leave nothing."""
        routes = []
        for route in self.routes:
            sinks = tuple(sink.model_copy(update={"was": None}) for sink in route.sinks)
            routes.append(route.model_copy(update={"was": None, "sinks": sinks}))
        return self.model_copy(update={"routes": tuple(routes)})

    def lookups_by_name(self) -> dict[str, Lookup]:
        """Return the tables that routes look events up in, by name: routes that share a name share the table."""
        by_name = {}
        for route in self.routes:
            for lookup in route.lookup:
                by_name[lookup.name] = lookup
        return by_name

    def detached_sinks(self) -> Iterator[tuple[str, str, ApplyingSink]]:
        """Yield route, name and sink of those that have a query of their own; a debugging run has none."""
        if self.debug:
            return
        for route, name, sink in self.all_sinks():
            if isinstance(sink, ApplyingSink) and sink.detached:
                yield route, name, sink

    def with_debug_places(self) -> Config:
        """Return this with a lake and a checkpoint of its own; the catalog keeps the names of the other lake."""
        checkpoint = _debug_place(self.checkpoint) if self.checkpoint else None
        changes = {"lake": _debug_place(self.lake), "checkpoint": checkpoint, "debug": True, "register_tables": False}
        return self.model_copy(update=changes)

    def bronze_tables(self) -> BronzeTables | None:
        """Return which tables have every record as received."""
        if self.bronze is None:
            return None
        return BronzeTables(self.bronze.table, frozenset({self.dead_letters, self.ledger}))

    def table_options(self) -> dict[str, NewTable]:
        """Return how tables are made, by target: `route/sink` and `/bronze`."""
        options: dict[str, NewTable] = {}
        if self.bronze:
            options["/bronze"] = self.bronze
        for route, name, sink in self.all_sinks():
            if isinstance(sink, TableSink):
                options[f"{route}/{name}"] = sink
        return options

    def table_locations(self) -> tuple[Location, ...]:
        """Return where tables lie that are not in the lake's layout; a debugging run has all of them in its lake."""
        if self.debug:
            return ()
        own = frozenset({self.dead_letters, self.ledger})
        locations = []
        for names, location in self._written_tables():
            if names and location:
                locations.append(location.location_of(names, own))
        return tuple(locations)

    def written_names(self) -> tuple[str, ...]:
        """Return the names, or templates of names, of the tables of sinks and of bronze; "" if only rows tell."""
        return tuple(names for names, _ in self._written_tables())

    def _written_tables(self) -> Iterator[tuple[str, TableLocation | None]]:
        if self.bronze:
            yield self.bronze.table, self.bronze.location
        for _, _, sink in self.all_sinks():
            if isinstance(sink, LakeSink):
                yield names_of(sink), sink.location

    def fixed_tables(self) -> frozenset[str]:
        """Return the tables with one name that the router or a sink writes."""
        own = {self.dead_letters, self.ledger, *self.written_names()}
        return frozenset(name for name in own if name and "{" not in name)

    def maintenance_plans(self) -> tuple[Maintenance, ...]:
        """Return how tables are kept in shape; the last plan is for those that no line names."""
        return (*self.maintenance, DEFAULT_MAINTENANCE)

    def revealed_storage_options(self) -> dict[str, str]:
        """Return the options of the storage as it takes them: with secrets in the clear, not to be shown or kept."""
        return {key: value.get_secret_value() for key, value in self.storage_options.items()}

    def checkpoint_path(self) -> str:
        """Return where Spark's checkpoint and the router's manifests are kept."""
        return self.checkpoint or f"{self.lake.rstrip('/')}/_router/{self.name}"


def names_of(sink: LakeSink) -> str:
    """Return the one table of a sink, or the template of its tables; nothing if only its rows tell."""
    template = sink.table_template()
    if template:
        return template
    try:
        table = sink.table()
    except Exception:  # a Column cannot be made without a Spark session; `check --plan` makes it
        return ""
    return table if isinstance(table, str) else ""
