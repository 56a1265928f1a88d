"""What plugins implement: decoders, rules and encoders; sinks have a module of their own (router.sinks).

A part is a frozen pydantic model. Its fields are its options, their descriptions and its docstring are its manual
page. Methods run on the driver and build plans; what must run on an executor is a module-level function with plain
arguments. A part keeps no state between batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PrivateAttr, ValidationInfo
from pydantic_core import CoreSchema, core_schema
from pyspark.sql.types import StructType

from router.columns import row
from router.decoding import ArrowDecoding, decode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestamp_type int, headers array<struct<key: string, value: binary>>"
)
"""The columns of a raw record, whatever the source; those a source does not know are null."""


@dataclass(frozen=True)
class Server:
    """A server that a part uses, for `router doctor`, which sends it no event.

    `kind` is `schema registry`, `API`, `broker` or another noun; `address` an http(s) URL, or host:port; it holds no
    secret. `verify` is what `requests` takes. `ask` raises an error where the server answers and yet is of no use, as
    with a wrong password; None: there is nothing to ask.
    """

    kind: str
    address: str
    verify: bool | str = True
    ask: Callable[[], object] | None = None


class Part(BaseModel):
    """A thing that a configuration can name: a set of options with a manual page."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    kind: ClassVar[Literal["decoder", "rule", "sink", "encoder", "view", ""]] = ""
    """Which family a part belongs to; set by Decoder, Rule, Sink, Encoder and ViewQuery only."""
    main_option: ClassVar[str | None] = None
    """The option that a bare string (or list) stands for, so that `sql: "a > 1"` can be written."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that its tasks import: they are tried once on an executor before a stream starts."""
    connectors: ClassVar[tuple[str, ...]] = ()
    """Connectors of Spark that it uses beside the source's: `avro`. Others are not fetched for it."""
    extras: ClassVar[Mapping[str, str]] = {}
    """Modules that the router installs only when asked -> what `pip install` takes: `router check` looks for them."""

    _named: str = PrivateAttr(default="")

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the servers that it asks or sends to, for `router doctor`. Runs on the driver.

        `folder` is the configuration's, which files of certificates are relative to.
        """
        return ()

    @property
    def part_name(self) -> str:
        """Return the name the configuration uses for this part."""
        return self._named or type(self).__name__.lower()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let a field of type `Rule` (or Decoder, Sink, Encoder) take `{name: options}` from a configuration."""
        schema = handler(source)
        if not cls.__dict__.get("kind"):  # a concrete part validates as an ordinary model
            return schema
        named = core_schema.dict_schema(core_schema.str_schema(), min_length=1, max_length=1)
        return core_schema.with_info_before_validator_function(
            cls._resolve, core_schema.is_instance_schema(cls), json_schema_input_schema=named
        )

    @classmethod
    def _resolve(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, cls):
            return value
        resolve = (info.context or {}).get("resolve")
        if resolve is None:
            raise ValueError(f"an object of the class {cls.__name__} is needed here")
        return resolve(cls, value)


class Memory(Protocol):
    """The store of what a decoder has learnt, beside the checkpoint. The decoder chooses the names, never the data."""

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name, or None."""

    def write(self, name: str, content: bytes) -> None:
        """Write whole or not at all; replaces what was there."""


def _reads_no_topic(topic: str) -> bool:
    return False


@dataclass(frozen=True)
class Preparation:
    """What a decoder may use once, before the stream starts.

    `folder` is the configuration's folder, `refresh` says that cached files (an inferred schema) are to be made
    again, `sample(rows)` reads that many raw records (columns of `RAW_SCHEMA`) from the source, `memory` outlives the
    process. In a `debug` run the files that real runs go by stay as they are. `reads_topic(name)` returns whether the
    source reads a topic of Kafka, and `part` is what is decoded of a record.
    """

    folder: Path
    refresh: bool
    sample: Callable[[int], DataFrame]
    memory: Memory
    debug: bool = False
    reads_topic: Callable[[str], bool] = _reads_no_topic
    part: Literal["value", "key"] = "value"


class Decoder(Part, ABC):
    """A way to turn raw records into events: on record batches (see ArrowDecoder), or by native expressions alone."""

    kind = "decoder"

    @property
    def zero_is_absent(self) -> bool:
        """Say that fields may hold zero, false or nothing where the record lacks them: these bring nothing new."""
        return False

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder made ready, once, at the start of a stream. Runs on the driver."""
        return self

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder for route tests, before `prepare`: it asks no registry.

        `schemas` are what one would have: subject -> the files of its versions, the oldest first. Runs on the driver.
        """
        return self

    def of_topic(self, topic: str) -> Decoder:
        """Return the decoder of a topic's records, for route tests: where topics have their own."""
        return self

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the value that a producer would send, for route tests: of an event as YAML has it.

        `schema` is one of the files of `tested` (None: the newest), `message` the full name of a message (None: the
        first one). Raises ValueError for what cannot be written so. Runs on the driver, after `prepare`.
        """
        raise ValueError(f"the decoder {self.part_name} writes no events; give the bytes as `value` or `base64`")

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder as the next batch needs it; itself when nothing has changed. Runs on the driver.

        Called at the start of every batch with nothing wanted, and again when rows of the batch had a value in
        `_wanted`, with these values; the batch is then decoded anew. What cannot be had for good must not be wanted a
        second time: its rows get an `_error`. An OSError means that it cannot be had now: the stream waits.
        """
        return self

    def decoding(self) -> ArrowDecoding | None:
        """Return how the tasks that land rows decode them; None where the native columns of `decode` do all of it.

        What it adds must be what `decode` adds. Runs on the driver.
        """
        return None

    @abstractmethod
    def decode(self, raw: DataFrame) -> DataFrame:
        """Add the columns `event` (struct, null where the record cannot be decoded) and `_error` (string, why).

        Exactly one of the two is null in a row, except that a decoder may leave both null for records that are to
        reach bronze and nothing else. Needs the columns of `RAW_SCHEMA` and keeps every column and every row; runs no
        action; must not raise on any row. Runs on the driver, as native expressions.

        May add `_wanted` (string, null but in rows that need what `refresh` can fetch), `_unknown` (array of strings,
        null but in rows with fields that the schema lacks: the names, where they are few) and what rules and
        projections can use of a schema: `schema_id` and `schema_version` (int), `subject` and `message` (string).
        """


class ArrowDecoder(Decoder, ABC):
    """A decoder that works in Python, a record batch at a time."""

    @abstractmethod
    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode. Runs on the driver."""

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add the columns that the decoding adds, in a stage of its own."""
        made = self.decoding()
        frame = made.before(raw) if made.before else raw
        schema = StructType([*raw.schema.fields, *made.adds.fields])
        return frame.mapInArrow(_stage(replace(made, before=None), raw.columns), schema)


def _stage(made: ArrowDecoding, kept: list[str]) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow: it keeps these columns and adds the decoded ones."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for records in batches:
            added = decode_batch(records, made)
            columns = [*(records.column(name) for name in kept), *added.columns]
            yield records.from_arrays(columns, names=[*kept, *added.schema.names])

    return decode


class Rule(Part, ABC):
    """A decision which events belong to a route."""

    kind = "rule"

    @abstractmethod
    def matches(self) -> Column:
        """Return a boolean column over `event` and the raw columns; null means no.

        A row on which the column cannot be evaluated does not match. Runs on the driver.
        """

    def known_values(self) -> Mapping[str, frozenset[str]]:
        """Return the only texts that columns can have in rows that match, where the rule says so."""
        return {}


class ViewQuery(Part, ABC):
    """A query of a view in Python, in place of SQL."""

    kind = "view"

    @abstractmethod
    def rows(self, source: DataFrame, tables: Mapping[str, DataFrame]) -> DataFrame:
        """Return the view's rows, lazily: no action, each column with a name of its own.

        `source` has the columns of all tables of the view, and `table`; `tables` are those that the view joins, by the
        names it gives them. Runs on the driver, at every refresh.
        """


@dataclass(frozen=True)
class Encoded:
    """A value for each row; a row without one has None, and the reason stands under its position."""

    values: list[bytes | None]
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoding:
    """The way in which rows of certain columns are encoded; travels to tasks.

    `function(array, argument)` is a module-level function: it takes what `column` makes of the rows, a record batch at
    a time, and returns as many values. It must not raise on any row, and decides on a row without looking at its
    neighbours. `column(names)` makes the one column that it takes of the route's columns; a struct of them by default.
    `what` describes the values in a few words.
    """

    function: Callable[[pa.Array, Any], Encoded]
    argument: Any
    what: str
    column: Callable[[Iterable[str]], Column] = row


class Encoder(Part, ABC):
    """A way to turn rows of a route into bytes: an option of sinks that send."""

    kind = "encoder"

    @abstractmethod
    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows of these columns are encoded. Runs on the driver, once for every set of columns.

        `folder` is the configuration's, `subject` the one for a schema that names none; with `trial` nothing may be
        registered. Raises StartError, naming the field, where the columns do not go with the schema or the format, and
        an OSError where a schema registry cannot be asked now.
        """


@dataclass(frozen=True)
class BatchReport:
    """The report of one finished batch, for observers.

    Counts are rows; `seconds` has the wall time of each step; `tables` the number of tables that got rows. `unknown`
    events have fields that the schema lacks. `violated`: expectation of bronze -> records for which it does not hold.
    """

    query: str
    batch: int
    read: int
    decoded: int
    failed: int
    unmatched: int
    dead_letters: int
    tables: int
    files: int
    seconds: dict[str, float] = field(default_factory=dict)
    routes: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: int = 0
    violated: dict[str, int] = field(default_factory=dict)
