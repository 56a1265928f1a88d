"""Decode the records of each topic by a decoder of its own, in one task."""

from __future__ import annotations

import hashlib
import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoder, ArrowDecoding, Decoder, Preparation, StartError, to_arrow_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router import Memory

logger = logging.getLogger("router")
SEPARATOR = " of topic "
"""What stands between the want of a topic's decoder and the topic, in `_wanted`."""
OWN = "_of_{}_"
"""The beginning of the names of native columns that the decoder of a topic reads, with the topic's number."""


class ByTopic(ArrowDecoder):
    """Decode the records of each topic by its own decoder: `topics: {games: {protobuf: ...}, bills: {json: ...}}`.

    All records share one event: it has the fields of all topics, each null in records of the others, so that one route
    may take events of several topics (`match: {sql: "topic = 'bills'"}` takes those of one). A field that two topics
    have is one field, with the fields of both where it is a struct, and the wider of two integers or two fractions.
    Where the types do not go together, the topic that stands first keeps its own, and the records of the other one are
    dead letters that name the field and both types; so they are where two names differ by case only.

    A record of a topic that is not named is a dead letter, or reaches bronze and nothing else (`others: bronze`). The
    decoders add what they add alone: `schema_id`, `subject`, `message` and so on. Those that decode by Spark's columns
    alone (`none`, and some of plugins) cannot be among them.
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

    def of_topic(self, topic: str) -> Decoder:
        """Return the decoder of a topic's records. Raises ValueError for a topic that is not named."""
        if topic not in self.topics:
            raise ValueError(f"no decoder is named for the topic {topic}; there are some for {', '.join(self.topics)}")
        return self.topics[topic]

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with all of its decoders prepared, each with a sample and a memory of its own."""
        made = {}
        for topic, decoder in self.topics.items():
            with _named(topic):
                made[topic] = decoder.prepare(_of_topic(preparation, topic))
        return self._with(made)

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder with files in place of the registries of all."""
        return self._with({topic: decoder.tested(schemas) for topic, decoder in self.topics.items()})

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with the schemas that records of each topic want."""
        made = {}
        for topic, decoder in self.topics.items():
            end = f"{SEPARATOR}{topic}"
            with _named(topic):
                made[topic] = decoder.refresh(frozenset(w.removesuffix(end) for w in wanted if w.endswith(end)))
        return self._with(made)

    def _with(self, topics: dict[str, Decoder]) -> Self:
        if all(decoder is self.topics[topic] for topic, decoder in topics.items()):
            return self
        return self.model_copy(update={"topics": topics})

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode: each row as its topic says. Raises StartError for a decoder without a task."""
        made = {}
        for topic, decoder in self.topics.items():
            found = decoder.decoding()
            if found is None:
                raise StartError(f"topic {topic}: the decoder {decoder.part_name} cannot decode one topic of several")
            made[topic] = found
        adds, refused = united(made)
        for topic, why in refused.items():
            logger.warning("topic %s: its records are dead letters: %s", topic, why)
        parts = tuple(TopicRows(topic, replace(one, before=None), refused.get(topic)) for topic, one in made.items())
        befores = [_before(at, one.before) for at, one in enumerate(made.values()) if one.before]
        before = (lambda raw: reduce(lambda frame, one: one(frame), befores, raw)) if befores else None
        return ArrowDecoding(events_by_topic, AnyTopicRows(parts, adds, self.others == "dead_letters"), adds, before)


@contextmanager
def _named(topic: str) -> Iterator[None]:
    """Say which topic an error is about."""
    try:
        yield
    except StartError as error:
        raise StartError(f"topic {topic}: {error}") from error


def _of_topic(preparation: Preparation, topic: str) -> Preparation:
    """Return the sample of one topic, and a memory beside those of the others."""
    name = hashlib.sha256(topic.encode()).hexdigest()[:16]  # a topic is no name of a file
    return replace(
        preparation,
        sample=lambda rows: preparation.sample(rows).where(F.col("topic") == topic),
        memory=_Beside(preparation.memory, name),
        reads_topic=lambda other: other == topic,
    )


@dataclass(frozen=True)
class _Beside:
    """The memory of one topic's decoder, beside those of the others."""

    memory: Memory
    topic: str

    def read(self, name: str) -> bytes | None:
        return self.memory.read(f"{self.topic}-{name}")

    def write(self, name: str, content: bytes) -> None:
        self.memory.write(f"{self.topic}-{name}", content)


def _before(at: int, before: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds the native columns of a decoder under names of its topic."""

    def named(raw: DataFrame) -> DataFrame:
        frame = before(raw)
        own = [name for name in frame.columns if name not in raw.columns]
        return frame.withColumnsRenamed({name: f"{OWN.format(at)}{name}" for name in own})

    return named


def united(made: Mapping[str, ArrowDecoding]) -> tuple[T.StructType, dict[str, str]]:
    """Return what the decodings of all topics add, with one event, and why topics have no place in it."""
    events: dict[str, T.StructType] = {}
    refused: dict[str, str] = {}
    event = T.StructType()
    for topic, one in made.items():
        try:
            event = _merged(event, one.adds["event"].dataType, "event")
            events[topic] = event
        except _UnlikeError as error:
            refused[topic] = f"{error}; {', '.join(events)} came first"
    others = {field.name: field for one in made.values() for field in one.adds if field.name != "event"}
    return T.StructType([T.StructField("event", event), *others.values()]), refused


class _UnlikeError(TypeError):
    """Two types that no field can have at once."""


WIDER = ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
"""Types of which each takes all values of those before it."""


def _merged(one: Any, other: Any, path: str) -> Any:
    """Return the type of a field that two topics have. Raises _UnlikeError."""
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        return _merged_structs(one, other, path)
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(_merged(one.elementType, other.elementType, f"{path}[]"))
    for kinds in WIDER:
        if isinstance(one, kinds) and isinstance(other, kinds):
            return max(one, other, key=lambda kind: kinds.index(type(kind)))
    if one != other:
        raise _UnlikeError(f"{path} is {other.simpleString()} here, and {one.simpleString()} there")
    return one


def _merged_structs(one: T.StructType, other: T.StructType, path: str) -> T.StructType:
    fields = {field.name: field for field in one}
    known = {name.lower(): name for name in fields}
    for field in other:
        have = known.get(field.name.lower())
        if have is None:
            fields[field.name] = field
        elif have != field.name:
            raise _UnlikeError(f"{path}.{field.name} is {path}.{have} there")
        else:
            kind = _merged(fields[have].dataType, field.dataType, f"{path}.{have}")
            fields[have] = T.StructField(have, kind)
    return T.StructType(list(fields.values()))


@dataclass(frozen=True)
class TopicRows:
    """The records of one topic and how they are decoded; `refused` says why they are not."""

    topic: str
    made: ArrowDecoding
    refused: str | None


@dataclass(frozen=True)
class AnyTopicRows:
    """How records of all topics are decoded. With `dead` those of others have an error."""

    parts: tuple[TopicRows, ...]
    adds: T.StructType
    dead: bool


def events_by_topic(records: pa.RecordBatch, known: AnyTopicRows) -> pa.RecordBatch:
    """Return what the decoders of all topics add, each for its records. Runs on executors."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from router_schemas.wire_format import at_rows, widened

    topics = records.column("topic")
    kind = pa.struct(list(to_arrow_columns(known.adds)))
    read, order = [], []
    why = np.full(records.num_rows, None, object)
    others = np.ones(records.num_rows, bool)
    for at, part in enumerate(known.parts):
        rows = np.flatnonzero(pc.fill_null(pc.equal(topics, part.topic), False).to_numpy(zero_copy_only=False))
        others[rows] = False
        if part.refused is not None:
            why[rows] = f"topic {part.topic}: {part.refused}"
        elif len(rows):
            added = part.made.function(_of_part(records, rows, at), part.made.argument)
            read.append(widened(_with_topic(added, part.topic).to_struct_array(), kind))
            order.append(rows)
    if known.dead and others.any():
        why[others] = [f"no decoder is named for the topic {topics[int(row)]}" for row in np.flatnonzero(others)]
    if read:
        found = at_rows(read, order, records.num_rows)
        columns = {field.name: pc.struct_field(found, [i]) for i, field in enumerate(kind)}
    else:
        columns = {field.name: pa.nulls(records.num_rows, field.type) for field in kind}
    columns["_error"] = pc.coalesce(pa.array(why, pa.string()), columns["_error"])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _of_part(records: pa.RecordBatch, rows: Any, at: int) -> pa.RecordBatch:
    """Return records of one topic, with the native columns of its decoder under the names that they had."""
    import pyarrow as pa

    own = OWN.format(at)
    mine = records if len(rows) == records.num_rows else records.take(pa.array(rows))
    kept = [name for name in mine.schema.names if not name.startswith("_of_") or name.startswith(own)]
    return mine.select(kept).rename_columns([name.removeprefix(own) for name in kept])


def _with_topic(added: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Name the topic in what its decoder wants."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "_wanted" not in added.schema.names:
        return added
    at = added.schema.get_field_index("_wanted")
    wanted = pc.binary_join_element_wise(added.column(at).cast(pa.string()), f"{SEPARATOR}{topic}", "")
    return added.set_column(at, "_wanted", wanted)
