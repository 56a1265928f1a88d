"""What plugins implement: decoders, rules and encoders; sinks have a module of their own (router.api.sinks).

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

from router.api.columns import row
from router.api.decoding import ArrowDecoding, decode_batch, describe_error
from router.api.halving import by_halves
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self


@dataclass(frozen=True)
class Server:
    """A server that a part uses, for `router doctor`, which sends it no event.

    `kind` is a noun such as `schema registry`, `API` or `broker`. `address` is an http(s) URL or host:port, without
    secrets. `verify` is passed to `requests`. `ask`, if there is one, sends a request and raises an error if the server
    answers but cannot be used, as with a wrong password.
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
    texts: ClassVar[Mapping[str, str]] = {}
    """The options that `router check` reads without Spark, each with what it holds: `column` of the route, `ddl` of the
    events, `field` of `event`, `sql` over `event` and raw columns, `order`: SQL over columns of the route as well."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that its tasks import. Before a stream starts, one executor tries to import them."""
    connectors: ClassVar[tuple[str, ...]] = ()
    """Connectors of Spark that it needs besides the source's, as `avro`. The router fetches no others for it."""
    extras: ClassVar[Mapping[str, str]] = {}
    """Optional modules that it needs -> the argument of `pip install` for each. `router check` looks for them."""

    _named: str = PrivateAttr(default="")
    _provider: str = PrivateAttr(default="")

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the servers that it sends requests to, for `router doctor`. Runs on the driver.

        `folder` is the configuration's; the paths of certificates are relative to it.
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
            cls._resolve_part, core_schema.is_instance_schema(cls), json_schema_input_schema=named
        )

    @classmethod
    def _resolve_part(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, cls):
            return value
        resolve = (info.context or {}).get("resolve")
        if resolve is None:
            raise ValueError(f"an object of the class {cls.__name__} is needed here")
        return resolve(cls, value)


class Memory(Protocol):
    """A decoder's own store next to the checkpoint. Names must come from the decoder, never from the data."""

    def read(self, name: str) -> bytes | None:
        """Return the content that was written under a name, or None."""

    def write(self, name: str, content: bytes) -> None:
        """Write the content completely or not at all, in place of the former content."""


def _reads_no_topic(topic: str) -> bool:
    return False


def _no_sample(rows: int) -> DataFrame:
    raise StartError("there is no source to infer a schema from here: run the configuration once, or give a schema")


class _Nothing:
    """The store of a decoder that has none: it forgets."""

    def read(self, name: str) -> bytes | None:
        return None

    def write(self, name: str, content: bytes) -> None:
        pass


@dataclass(frozen=True)
class Preparation:
    """The things that a decoder may use to get ready, once, before the stream starts.

    `folder` is the configuration's folder. With `refresh` the decoder rebuilds its cached files, as an inferred schema.
    `sample(rows)` reads that many raw records (columns of `RAW_SCHEMA`) from the source. `memory` outlives the process.
    A `debug` run must not change files that real runs use, and a `trial` writes none. `reads_topic(name)` returns
    whether the source reads a topic of Kafka. `part` is the part of a record that is decoded.
    """

    folder: Path
    refresh: bool = False
    sample: Callable[[int], DataFrame] = _no_sample
    memory: Memory = field(default_factory=_Nothing)
    debug: bool = False
    reads_topic: Callable[[str], bool] = _reads_no_topic
    part: Literal["value", "key"] = "value"
    trial: bool = False


class Decoder(Part, ABC):
    """A way to turn raw records into events, with native expressions of Spark or on record batches (ArrowDecoder)."""

    kind = "decoder"

    @property
    def zero_is_absent(self) -> bool:
        """Return whether a field that the record lacks may come out as zero, false or empty, as in protobuf.

        Such a value then counts as none if a table has no column for it.
        """
        return False

    @property
    def skips_blank_lines(self) -> bool:
        """Return whether a line of nothing but blanks is no record, as between JSON objects."""
        return False

    def prepare(self, preparation: Preparation) -> Self:
        """Return a copy that is ready to decode. Called once, at the start of a stream. Runs on the driver."""
        return self

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return a copy for route tests, which takes schemas from files and sends nothing to a registry.

        `schemas` stands for the registry: subject -> the files of its versions, the oldest first. Called before
        `prepare`. Runs on the driver.
        """
        return self

    def known_fields(self, folder: Path) -> StructType | str | None:
        """Return the type of events, or its DDL, if files beside the configuration alone tell it; else None.

        `router check` asks it, without Spark and without the network. Raises StartError for a file that cannot be read.
        """
        return None

    def of_topic(self, topic: str) -> Decoder:
        """Return the decoder for the records of one topic, for route tests; itself unless topics have their own."""
        return self

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the bytes that a producer would send for an event written in YAML, for route tests.

        `schema` is one of the files given to `tested` (None: the newest). `message` is the full name of a message
        (None: the first one). Raises ValueError if the event cannot be encoded. Runs on the driver, after `prepare`.
        """
        raise ValueError(f"the decoder {self.part_name} writes no events; give the bytes as `value` or `base64`")

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return the decoder for the next batch; itself if nothing has changed. Runs on the driver.

        Called at the start of every batch with an empty set. If rows of the batch then have a value in `_wanted`, it
        is called again with these values. Return another object if one of them was found: the batch is decoded a second
        time. If none was, return itself: the rows keep the `_error` that they have. Raise an OSError if a value cannot
        be fetched now: the stream waits.
        """
        return self

    def origin_of(self, field: str) -> str | None:
        """Return which version of which schema brought a field of `event`, as a text; None if that is not known."""
        return None

    def decoding(self) -> ArrowDecoding | None:
        """Return how tasks decode record batches; None if `decode` does all of it with native expressions.

        It must add the same columns as `decode`. Runs on the driver.
        """
        return None

    @abstractmethod
    def decode(self, raw: DataFrame) -> DataFrame:
        """Add the columns `event` (struct, null if the record cannot be decoded) and `_error` (string, the reason).

        In each row exactly one of the two is null. Both may be null for records that belong into bronze only.

        `raw` has the columns of `RAW_SCHEMA`. Keep every column and every row, run no action, and raise on no row.
        Runs on the driver and builds native expressions.

        Further columns that a decoder may add:

        - `_wanted` (string): in rows that need something that `refresh` may fetch, its name; else null. The `_error` of
          such a row is what a dead letter says if it is not found.
        - `_unknown` (array of strings): in rows with fields that the schema lacks, their names if they are few; else
          null.
        - `schema_id` and `schema_version` (int), `subject` and `message` (string): for rules and projections.
        """


class ArrowDecoder(Decoder, ABC):
    """A decoder that works in Python, one record batch at a time."""

    @abstractmethod
    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode. Runs on the driver."""

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add the columns of the decoding, in a stage of its own."""
        decoding = self.decoding()
        frame = decoding.before(raw) if decoding.before else raw
        schema = StructType([*raw.schema.fields, *decoding.adds.fields])
        # `before` has run, on the driver: it does not travel to tasks.
        task = _decoding_task(replace(decoding, before=None), raw.columns)
        return frame.mapInArrow(task, schema)


def _decoding_task(
    decoding: ArrowDecoding, raw_columns: list[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow: it keeps the raw columns and adds the decoded ones."""

    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in batches:
            added = decode_batch(records, decoding)
            raw = records.select(raw_columns)
            yield records.from_arrays([*raw.columns, *added.columns], names=[*raw_columns, *added.schema.names])

    return decode_batches


class Rule(Part, ABC):
    """A condition that decides which events belong to a route."""

    kind = "rule"

    @abstractmethod
    def matches(self) -> Column:
        """Return a boolean column over `event` and the raw columns; null counts as false.

        A row for which the column raises an error does not match. Runs on the driver.
        """

    def known_values(self) -> Mapping[str, frozenset[str]]:
        """Return column -> all texts that it can have in rows that match, for columns that the rule restricts so."""
        return {}


class ViewQuery(Part, ABC):
    """A view's query, written in Python instead of SQL."""

    kind = "view"

    @abstractmethod
    def rows(self, source: DataFrame, tables: Mapping[str, DataFrame]) -> DataFrame:
        """Return the view's rows as a lazy frame: run no action, and give each column a different name.

        `source` has the columns of all tables of the view, and `table`, the name of each row's table. `tables` are
        those that the view joins, by the names that the view gives them. Runs on the driver, at every refresh.
        """


ENCODER_RAISES = "the encoder raises "
"""The beginning of the reason of a row on which an encoder's function raised something else than ValueError."""


@dataclass(frozen=True)
class Encoded:
    """The encoded value of each row, in order; None for a row that cannot be encoded.

    `reasons`: the position of such a row -> why.
    """

    values: list[bytes | None]
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoding:
    """The way in which rows of certain columns are encoded; it is pickled and sent to tasks.

    `column(names)` combines the route's columns into one; by default into a struct of them. `function(array, argument)`
    is a module-level function that gets this column, one record batch at a time, and returns as many values. It encodes
    each row independently of the others. For a row that cannot be encoded it returns a reason, or raises ValueError: it
    is called with parts of the batch then (`encode`). `what` describes the values in a few words.
    """

    function: Callable[[pa.Array, Any], Encoded]
    argument: Any
    what: str
    column: Callable[[Iterable[str]], Column] = row

    def encode(self, array: pa.Array) -> Encoded:
        """Return the value of each row of a batch; raises on no content of a row. Runs on executors."""
        encoded = Encoded([])
        for piece in by_halves(lambda start, stop: self.function(array[start:stop], self.argument), len(array)):
            if piece.made is None:
                # ValueError is how a function refuses a row.
                is_refused = isinstance(piece.error, ValueError)
                encoded.reasons[piece.start] = (
                    str(piece.error) if is_refused else describe_error(ENCODER_RAISES, piece.error)
                )
                encoded.values.append(None)
                continue
            # Reasons are by row: those of a piece are counted from its first one.
            for place, reason in piece.made.reasons.items():
                encoded.reasons[piece.start + place] = reason
            encoded.values.extend(piece.made.values)
        return encoded


class Encoder(Part, ABC):
    """A way to turn rows of a route into bytes: an option of sinks that send."""

    kind = "encoder"

    @abstractmethod
    def open(self, columns: StructType, folder: Path, subject: str | None = None, *, trial: bool = False) -> Encoding:
        """Return how rows of these columns are encoded. Runs on the driver, once for every set of columns.

        `folder` is the configuration's. `subject` is used for a schema that names none. With `trial` nothing may be
        registered. Raises StartError, naming the field, if the columns do not match the schema or the format, and
        OSError if a schema registry is unavailable.
        """


@dataclass(frozen=True)
class BatchReport:
    """The report of one finished batch, for observers.

    All counts are rows, except for `tables` (tables that got rows) and `files`. `seconds`: step -> its wall time.
    `unknown` counts the events with fields that the schema lacks. `violated`: expectation of bronze -> records that
    violate it.
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
