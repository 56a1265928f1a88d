"""The base of decoders of records that name their schema: open a registry or files, look for new ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr, model_validator
from pyspark.sql.types import StructType

from router import ArrowDecoder, Preparation, Server, StartError
from router_schemas.model import KEY_HEADER, VALUE_HEADER
from router_schemas.registry_options import RegistryAway, RegistryOptions
from router_schemas.subject_names import CountedSubjects, Strategy, check_one_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from typing_extensions import Self

    from router_schemas.library import Library
    from router_schemas.registry_client import OfflineRegistry
    from router_schemas.resolver import SchemaResolver

SAMPLE_RECORDS = 1000
"""Records of the source that are searched for schemas if the configuration names none."""
SAMPLE_ROUNDS = 3
"""How often they are searched: the schema of a wrapped message is found only when that of the outer one is known."""


class RegistryDecoder(ArrowDecoder):
    """A decoder of values by the schemas that they were written with.

    Each format opens a library of its schemas, and tasks read with what the library makes of them. `sources` are the
    options for places of schemas; a configuration gives one of them.
    """

    main_option: ClassVar[str | None] = "registry"
    sources: ClassVar[tuple[str, ...]] = ("registry",)

    registry: RegistryOptions | None = Field(
        default=None, description="where the schemas of all records are: a schema registry; a bare URL is enough"
    )
    subjects: tuple[str, ...] = Field(
        default=(),
        description="subjects of the registry whose schemas are known before their first record, and all whose new "
        "versions count; the schema of any record is found by what its wire format names",
    )
    subject_name_strategy: Strategy = Field(
        default="topic_name",
        description="without `subjects`: how producers name them, so that new versions of the same subjects are known "
        "before their first record. topic_name: TOPIC-value (TOPIC-key); record_name: the record's full name; "
        "topic_record_name: TOPIC-NAME",
    )

    header: str = Field(
        default=VALUE_HEADER,
        min_length=1,
        description=f"record header that may hold the schema's GUID, instead of its id; that of keys is {KEY_HEADER}",
    )

    _files: Any = PrivateAttr(default=None)
    _folder: Any = PrivateAttr(default=None)
    _library: Any = PrivateAttr(default=None)
    _known: Any = PrivateAttr(default=None)
    _sample: Any = PrivateAttr(default=None)

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Return the servers of the registry."""
        from router_schemas.registry_client import servers_of

        return servers_of(self.registry, folder)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        set_sources = self._set_sources()
        if not set_sources:
            raise ValueError(f"give exactly one of {', '.join(self.sources)}; none is given")
        if len(set_sources) > 1:
            raise ValueError(f"give exactly one of {', '.join(self.sources)}; {' and '.join(set_sources)} are given")
        if "subject_name_strategy" in self.model_fields_set and (self.registry is None or self.subjects):
            raise ValueError("subject_name_strategy is for a registry without `subjects`: leave one of them out")
        if self.subjects and self.registry is None:
            raise ValueError(f"subjects are those of a registry; leave them out with {set_sources[0]}")
        check_one_context(self.subjects)
        return self

    def _set_sources(self) -> list[str]:
        return [name for name in self.sources if getattr(self, name) is not None]

    @abstractmethod
    def open_library(self, preparation: Preparation) -> Library[Any]:
        """Return where the schemas of this format come from."""

    @abstractmethod
    def on_disk(self, schemas: Mapping[str, Sequence[Path]]) -> OfflineRegistry:
        """Return a registry that has files of this format."""

    def wanted_by(self, records: pa.RecordBatch, known: Any) -> frozenset[str]:
        """Return the unknown schemas, by id or GUID, that raw records name in their values and headers."""
        from router_schemas.wire_format import parse_values, schema_bytes

        values = records.column("value")
        parsed = parse_values(values, indexed=False, headers=records.column("headers"), header=self.header)
        return frozenset(str(key.writer) for key in parsed.keys if schema_bytes(key.writer) not in known.written)

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder with files in place of its registry."""
        if self.registry is None:
            return self
        if not schemas:
            raise StartError(
                "a route test asks no registry: give the files that it would have, `schemas: {SUBJECT: [FILE, ...]}`"
            )
        update = {}
        if not self.subjects:
            update["subjects"] = tuple(schemas)
        tested = self.model_copy(update=update)
        tested._files = self.on_disk(schemas)
        return tested

    def open_resolver(self, preparation: Preparation, subjects: tuple[str, ...] = ()) -> SchemaResolver:
        """Return the schemas of the registry, or of the files that stand for it.

        Ids are those of the context of `subjects`; without any, of that of the decoder's own.
        """
        from router_schemas.resolver import SchemaResolver

        if self._files is not None:
            return SchemaResolver(self._files, preparation.memory)
        assert self.registry is not None  # callers have a registry
        subject = next(iter(subjects or self.subjects), "")
        return SchemaResolver.open_registry(self.registry, preparation.folder, preparation.memory, subject)

    def counted_subjects(self, preparation: Preparation, named: tuple[str, ...] | None = None) -> CountedSubjects:
        """Return the subjects that count: those of the configuration, or `named`, or those of the strategy."""
        subjects = self.subjects if named is None else named
        strategy = self.subject_name_strategy
        return CountedSubjects(subjects, strategy, reads_topic=preparation.reads_topic, part=preparation.part)

    def id_and_file(self, schema: Path | None) -> tuple[int, Path]:
        """Return the id and the file of the schema that a route test writes an event with; raise ValueError."""
        if self._files is not None:
            id_and_file: tuple[int, Path] = self._files.choose_file(schema)
            return id_and_file
        file = self._folder / getattr(self, self._set_sources()[0])
        if schema not in (None, file):
            raise ValueError(f"events are written with {file.name}, the one schema of the configuration")
        return 1, file

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with the schemas that former runs found; without any, with a sample of the source."""
        prepared = self.model_copy()
        prepared._folder = preparation.folder
        prepared._library = self.open_library(preparation)
        # If neither a former run nor the configuration names a schema, the first records of the source do.
        if prepared._library.is_empty and not prepared._library.announces_schemas:
            sample = preparation.sample(SAMPLE_RECORDS).select("value", "headers").toArrow()
            prepared._sample = sample.combine_chunks().to_batches()
        return prepared

    def known_fields(self, folder: Path) -> StructType | None:
        """Return the columns of the one schema of a file."""
        if self.registry is not None:
            return None
        event = self.prepare(Preparation(folder)).refresh(frozenset()).decoding().adds["event"].dataType
        assert isinstance(event, StructType)
        return event

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with new versions of known subjects, and with the schemas that records want."""
        if self._library is None:
            raise StartError("the registry or the file is not open: call prepare() before refresh()")
        try:
            known = self._learn_from_sample(self._library.refresh_schemas(wanted))
        except RegistryAway as away:
            raise ConnectionError(f"waiting for the schema registry: {away}") from away
        if self._library.is_empty:
            raise StartError(f"no schema is known that can be read: {self._library.advice}")
        if known is self._known:
            return self
        return self.with_known(known)

    def with_known(self, known: Any) -> Self:
        """Return this decoder with the result of a library."""
        copy = self.model_copy()
        copy._known = known
        copy._sample = None
        return copy

    @property
    def known_schemas(self) -> Any:
        """Return the last result of the library."""
        if self._known is None:
            raise StartError("no schema is known: call refresh() before decode()")
        return self._known

    def origin_of(self, field: str) -> str | None:
        """Return the field, and the schema and version that brought it."""
        origin = getattr(self._known, "origins", {}).get(field)
        return f"{field} of {origin}" if origin else None

    def _learn_from_sample(self, known: Any) -> Any:
        """Return the library's result with the schemas that the sample names, if there is one."""
        for _ in range(SAMPLE_ROUNDS):
            wanted: frozenset[str] = frozenset()
            for records in self._sample or ():
                wanted |= self.wanted_by(records, known)
            if not wanted:
                break
            known = self._library.refresh_schemas(wanted)
        return known
