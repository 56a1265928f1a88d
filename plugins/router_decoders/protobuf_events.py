"""Decode Protobuf messages whose schemas are in a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr
from pyspark.sql import types as T

from router import ArrowDecoder, ArrowDecoding, Preparation, StartError
from router_schemas.client import Client
from router_schemas.connection import Registry, RegistryAway
from router_schemas.schemas import Schemas

if TYPE_CHECKING:
    from typing_extensions import Self

    from router_schemas.protobuf.events import Events
    from router_schemas.protobuf.library import Library

ABOUT = "_error string, _wanted string, schema_id int, schema_version int, subject string, message string"
SAMPLE = 1000


class Protobuf(ArrowDecoder):
    """Decode a record whose value is a Protobuf message in the frame of a Confluent-compatible schema registry.

    The frame is a zero byte, the schema's id (4 bytes, big-endian) and the index path of the message in its file. All
    versions of a message are read by one merged schema: a field that a version lacks is null, one that was removed
    keeps its data, an unknown one is never lost silently, because its schema is fetched first. New versions are looked
    for before every batch, and an id that comes unannounced within it: the stream is not started again for them.

    A version that no single table column can hold together with the older ones (int32 became string) is reported with
    both versions and the field, and its records become dead letters. So do records with an unknown id, of another
    format, or that google's parser refuses. While the registry is away, ids that were seen before are decoded, and a
    batch with a new one waits.

    Adds `schema_id`, `schema_version`, `subject` and `message` (full name), which rules and `select` may use.
    How types are mapped: docs/formats.md.
    """

    main_option: ClassVar[str | None] = "registry"
    needs: ClassVar[tuple[str, ...]] = ("router_schemas.protobuf.events",)

    registry: Registry = Field(description="the registry; a bare URL is enough")
    subjects: tuple[str, ...] = Field(
        default=(),
        description="subjects whose schemas are known before their first record; those of records that came are found "
        "by their id",
    )

    _library: Library | None = PrivateAttr(default=None)
    _events: Events | None = PrivateAttr(default=None)
    _sampled: frozenset[str] = PrivateAttr(default=frozenset())

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with what it learnt in former runs; where that is nothing, with what a sample needs."""
        try:
            from router_schemas.protobuf.library import Library
        except ModuleNotFoundError as error:
            extra = "pip install 'spark-event-router[protobuf]', here and on every node"
            raise StartError(f"the decoder protobuf needs the module {error.name}: {extra}") from error

        schemas = Schemas(Client(self.registry.beside(preparation.folder)), preparation.memory)
        prepared = self.model_copy()
        prepared._library = Library(schemas, preparation.memory, self.subjects)
        if not prepared._library.uses and not self.subjects:
            prepared._sampled = _places(preparation)
        return prepared

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with new versions of known subjects and with what is wanted."""
        if self._library is None:
            raise StartError("the registry is not open: call prepare() before refresh()")
        try:
            events = self._library.refreshed(wanted | self._sampled)
        except RegistryAway as away:
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        if not events.event.num_fields:
            raise StartError("no schema is known: name the `subjects` of the records, or check what the topic holds")
        if events is self._events:
            return self
        refreshed = self.model_copy()
        refreshed._events = events
        refreshed._sampled = frozenset()
        return refreshed

    def decoding(self) -> ArrowDecoding:
        """Return how tasks decode."""
        from router_schemas.protobuf.events import events
        from router_schemas.protobuf.mapping import spark_struct

        if self._events is None:
            raise StartError("no schema is known: call refresh() before decode()")
        about = T.StructType.fromDDL(ABOUT)
        assert isinstance(about, T.StructType)
        event = T.StructField("event", spark_struct(self._events.event))
        return ArrowDecoding(events, self._events, T.StructType([event, *about.fields]))


def _places(preparation: Preparation) -> frozenset[str]:
    """Return the places that the first records of the source name."""
    from router_schemas.frames import parse
    from router_schemas.protobuf.events import place

    values = preparation.sample(SAMPLE).select("value").toArrow().column("value").combine_chunks()
    keys = parse(values, indexed=True).keys
    return frozenset(place(key.id, key.path or (0,)) for key in keys if key.id is not None)
