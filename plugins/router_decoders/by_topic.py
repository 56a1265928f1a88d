"""Decode the records of each topic by a decoder of its own, in one task."""

from __future__ import annotations

import hashlib
import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoder, ArrowDecoding, Decoder, Preparation, StartError, to_arrow_columns
from router_decoders.auto import in_turn
from router_decoders.record_keys import MemoryPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self

logger = logging.getLogger("router")
TOPIC_SEPARATOR = " of topic "
"""The text between the want of a topic's decoder and the topic, in `_wanted`."""
TOPIC_COLUMN_PREFIX = "_of_{}_"
"""The beginning of the names of native columns that the decoder of a topic reads, with the topic's number."""


class ByTopic(ArrowDecoder):
    """Decode the records of each topic by its own decoder: `topics: {games: {protobuf: ...}, bills: {json: ...}}`.

    All records share one event: it has the fields of all topics, each null in records of the others, so that one route
    may take events of several topics (`match: {sql: "topic = 'bills'"}` takes those of one). A field that two topics
    have is one field: with the fields of both if it is a struct, and with the wider of two integers or two fractions.
    If two types cannot be combined, the topic that comes first keeps its own, and the records of the other one are
    dead letters that name the field and both types; so they are if two names differ by case only.

    A record of a topic that is not named is a dead letter, or reaches bronze and nothing else (`others: bronze`). The
    decoders add the same columns as without others: `schema_id`, `subject`, `message` and so on. Those that decode by
    Spark's columns alone (`none`, and some of plugins) cannot be among them.
    """

    needs: ClassVar[tuple[str, ...]] = ("pyarrow.compute",)

    topics: dict[str, Decoder] = Field(min_length=1, description="topic -> how its records are decoded")
    others: str = Field(
        default="dead_letters",
        pattern="^(dead_letters|bronze)$",
        description="where records of topics end that are not named: dead_letters, or bronze alone",
    )

    @property
    @override
    def zero_is_absent(self) -> bool:
        return any(decoder.zero_is_absent for decoder in self.topics.values())

    @property
    @override
    def skips_blank_lines(self) -> bool:
        return all(decoder.skips_blank_lines for decoder in self.topics.values())

    def of_topic(self, topic: str) -> Decoder:
        """Return the decoder of a topic's records. Raises ValueError for a topic that is not named."""
        if topic not in self.topics:
            raise ValueError(f"no decoder is named for the topic {topic}; there are some for {', '.join(self.topics)}")
        return self.topics[topic]

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with all of its decoders prepared, each with a sample and a memory of its own."""
        prepared = {}
        for topic, decoder in self.topics.items():
            with _name_topic(topic):
                prepared[topic] = decoder.prepare(_preparation_of_topic(preparation, topic))
        return self._with_decoders(prepared)

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder with files in place of the registries of all."""
        return self._with_decoders({topic: decoder.tested(schemas) for topic, decoder in self.topics.items()})

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with the schemas that records of each topic want."""
        refreshed = {}
        for topic, decoder in self.topics.items():
            end = f"{TOPIC_SEPARATOR}{topic}"
            wanted_of_topic = frozenset(want.removesuffix(end) for want in wanted if want.endswith(end))
            with _name_topic(topic):
                refreshed[topic] = decoder.refresh(wanted_of_topic)
        return self._with_decoders(refreshed)

    def _with_decoders(self, topics: dict[str, Decoder]) -> Self:
        if all(decoder is self.topics[topic] for topic, decoder in topics.items()):
            return self
        return self.model_copy(update={"topics": topics})

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: each row by its topic. Raises StartError for a decoder without a task."""
        decodings = {}
        for topic, decoder in self.topics.items():
            decoding = decoder.decoding()
            if decoding is None:
                raise StartError(f"topic {topic}: the decoder {decoder.part_name} cannot decode one topic of several")
            decodings[topic] = decoding
        adds, refused = unite_decodings(decodings)
        for topic, reason in refused.items():
            logger.warning("topic %s: its records are dead letters: %s", topic, reason)

        # `before` runs on the driver: the parts, which are sent to tasks, go without it.
        parts = []
        befores = []
        for number, (topic, decoding) in enumerate(decodings.items()):
            parts.append(TopicRows(topic, replace(decoding, before=None), refused.get(topic)))
            if decoding.before:
                befores.append(_rename_added_columns(number, decoding.before))
        argument = AnyTopicRows(tuple(parts), adds, dead=self.others == "dead_letters")
        return ArrowDecoding(events_by_topic, argument, adds, before=in_turn(befores))


@contextmanager
def _name_topic(topic: str) -> Iterator[None]:
    """Name the topic in an error."""
    try:
        yield
    except StartError as error:
        raise StartError(f"topic {topic}: {error}") from error


def _preparation_of_topic(preparation: Preparation, topic: str) -> Preparation:
    """Return the sample of one topic, and a part of the memory."""
    name = hashlib.sha256(topic.encode()).hexdigest()[:16]  # a topic is no name of a file
    return replace(
        preparation,
        sample=lambda rows: preparation.sample(rows).where(F.col("topic") == topic),
        memory=MemoryPart(preparation.memory, name),
        reads_topic=lambda other: other == topic,
    )


def _rename_added_columns(number: int, before: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds the native columns of a decoder under names with its topic's number."""

    def add_renamed(raw: DataFrame) -> DataFrame:
        frame = before(raw)
        prefix = TOPIC_COLUMN_PREFIX.format(number)
        added = [name for name in frame.columns if name not in raw.columns]
        return frame.withColumnsRenamed({name: f"{prefix}{name}" for name in added})

    return add_renamed


def unite_decodings(decodings: Mapping[str, ArrowDecoding]) -> tuple[T.StructType, dict[str, str]]:
    """Return the columns that all decodings add, with one event, and why a topic's event cannot be part of it."""
    accepted: list[str] = []
    refused: dict[str, str] = {}
    event = T.StructType()
    others: dict[str, T.StructField] = {}
    for topic, decoding in decodings.items():
        try:
            event = _merge_types(event, decoding.adds["event"].dataType, "event")
            accepted.append(topic)
        except _UnlikeError as error:
            refused[topic] = f"{error}; {', '.join(accepted)} came first"
        for field in decoding.adds:
            if field.name != "event":
                others[field.name] = field
    return T.StructType([T.StructField("event", event), *others.values()]), refused


class _UnlikeError(TypeError):
    """Two types that no field can have at once."""


WIDER_NUMBERS = ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
"""Types of which each takes all values of those before it."""


def _merge_types(first: Any, second: Any, path: str) -> Any:
    """Return the type of a field that two topics have. Raises _UnlikeError."""
    if isinstance(first, T.StructType) and isinstance(second, T.StructType):
        return _merge_structs(first, second, path)
    if isinstance(first, T.ArrayType) and isinstance(second, T.ArrayType):
        return T.ArrayType(_merge_types(first.elementType, second.elementType, f"{path}[]"))
    for kinds in WIDER_NUMBERS:
        if isinstance(first, kinds) and isinstance(second, kinds):
            return max(first, second, key=lambda kind: kinds.index(type(kind)))
    if first != second:
        raise _UnlikeError(f"{path} is {second.simpleString()} here, and {first.simpleString()} there")
    return first


def _merge_structs(first: T.StructType, second: T.StructType, path: str) -> T.StructType:
    fields = {field.name: field for field in first}
    names = {name.lower(): name for name in fields}
    for field in second:
        name = names.get(field.name.lower())
        if name is None:
            fields[field.name] = field
        elif name != field.name:
            raise _UnlikeError(f"{path}.{field.name} is {path}.{name} there")
        else:
            kind = _merge_types(fields[name].dataType, field.dataType, f"{path}.{name}")
            fields[name] = T.StructField(name, kind)
    return T.StructType(list(fields.values()))


@dataclass(frozen=True)
class TopicRows:
    """The records of one topic and how they are decoded; `refused` is the reason why they are not."""

    topic: str
    decoding: ArrowDecoding
    refused: str | None


@dataclass(frozen=True)
class AnyTopicRows:
    """How records of all topics are decoded. With `dead` those of others have an error."""

    parts: tuple[TopicRows, ...]
    adds: T.StructType
    dead: bool


def events_by_topic(records: pa.RecordBatch, topics: AnyTopicRows) -> pa.RecordBatch:
    """Return the columns that the decoders of all topics add, each for its records. Runs on executors."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import at_rows, widen_structs

    topic_column = records.column("topic")
    added_columns = pa.struct(list(to_arrow_columns(topics.adds)))
    decoded = []
    rows_of_decoded = []
    reasons = np.full(records.num_rows, None, object)
    is_other = np.ones(records.num_rows, bool)
    for number, part in enumerate(topics.parts):
        is_of_topic = pc.fill_null(pc.equal(topic_column, part.topic), False)
        rows = np.flatnonzero(is_of_topic.to_numpy(zero_copy_only=False))
        is_other[rows] = False
        if part.refused is not None:
            reasons[rows] = f"topic {part.topic}: {part.refused}"
            continue
        if len(rows) == 0:
            continue
        added = part.decoding.function(_records_of_topic(records, rows, number), part.decoding.argument)
        added = _name_topic_in_wanted(added, part.topic)
        decoded.append(widen_structs(added.to_struct_array(), added_columns))
        rows_of_decoded.append(rows)
    if topics.dead:
        for row in np.flatnonzero(is_other):
            reasons[row] = f"no decoder is named for the topic {topic_column[int(row)]}"
    # Each decoder has returned its rows only: put them back into the order of the records.
    if decoded:
        struct = at_rows(decoded, rows_of_decoded, records.num_rows)
        columns = {field.name: pc.struct_field(struct, [place]) for place, field in enumerate(added_columns)}
    else:
        columns = {field.name: pa.nulls(records.num_rows, field.type) for field in added_columns}
    columns["_error"] = pc.coalesce(pa.array(reasons, pa.string()), columns["_error"])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _records_of_topic(records: pa.RecordBatch, rows: Any, number: int) -> pa.RecordBatch:
    """Return records of one topic, with the native columns of its decoder under the names that they had."""
    import pyarrow as pa

    prefix = TOPIC_COLUMN_PREFIX.format(number)
    if len(rows) < records.num_rows:
        records = records.take(pa.array(rows))
    names = []
    for name in records.schema.names:
        is_of_another_topic = name.startswith("_of_") and not name.startswith(prefix)
        if not is_of_another_topic:
            names.append(name)
    return records.select(names).rename_columns([name.removeprefix(prefix) for name in names])


def _name_topic_in_wanted(added: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Name the topic in the schemas that its decoder wants."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "_wanted" not in added.schema.names:
        return added
    place = added.schema.get_field_index("_wanted")
    wanted = added.column(place).cast(pa.string())
    wanted = pc.binary_join_element_wise(wanted, f"{TOPIC_SEPARATOR}{topic}", "")
    return added.set_column(place, "_wanted", wanted)
