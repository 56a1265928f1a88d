"""Decode the values of records and their keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from router import ArrowDecoding, Decoder, Preparation
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.model import KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router import Memory

KEY_TEXT_PREFIX = "key "
"""The beginning of texts in `_wanted` and `_error` that are about a key."""
KEY_COLUMN_PREFIX = "_key"
"""The beginning of the names of native columns that the key's decoder reads."""
SCHEMA_NAMES = ("schema_id", "schema_version", "subject", "message")
KEY_NAMES = {"event": "event_key", **{name: f"key_{name}" for name in SCHEMA_NAMES}}
"""The names of a key's columns, next to those of its value."""


class RecordKeys(Decoder):
    """Decode the value of a record by one decoder and its key by another: `decode: {value: ..., key: ...}`.

    The value becomes `event` as always, the key becomes `event_key`, a struct that rules and `select` may use; the
    columns about a schema are `key_schema_id`, `key_subject` and so on for the key. A record without a key has a null
    `event_key`. A record whose key cannot be decoded is a dead letter, as one whose value cannot. If a record header
    may hold a schema's GUID, that of the key is `__key_schema_id` unless `header` is set.
    """

    needs: ClassVar[tuple[str, ...]] = ("pyarrow.compute",)

    value: Decoder = Field(description="decoder of the value")
    key: Decoder = Field(description="decoder of the key")

    @field_validator("key")
    @classmethod
    def _of_a_key(cls, key: Decoder) -> Decoder:
        """Look for the GUID in the header that clients use for keys: the other one has the value's."""
        if isinstance(key, RegistryDecoder) and "header" not in key.model_fields_set:
            return key.model_copy(update={"header": KEY_HEADER})
        return key

    @property
    @override
    def zero_is_absent(self) -> bool:
        return self.value.zero_is_absent or self.key.zero_is_absent

    @property
    @override
    def skips_blank_lines(self) -> bool:
        return self.value.skips_blank_lines

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with both prepared."""
        preparation_of_key = replace(
            preparation,
            sample=lambda rows: preparation.sample(rows).withColumn("value", F.col("key")),
            memory=MemoryPart(preparation.memory, "key"),
            part="key",
        )
        return self._with_decoders(self.value.prepare(preparation), self.key.prepare(preparation_of_key))

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder with files in place of the registries of both."""
        return self._with_decoders(self.value.tested(schemas), self.key.tested(schemas))

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the bytes of a value; a test writes a key as its text."""
        return self.value.encode(event, schema, message)

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with the schemas that values and keys want."""
        wanted_of_keys = frozenset(want for want in wanted if want.startswith(KEY_TEXT_PREFIX))
        key = self.key.refresh(frozenset(want.removeprefix(KEY_TEXT_PREFIX) for want in wanted_of_keys))
        value = self.value.refresh(wanted - wanted_of_keys)
        return self._with_decoders(value, key)

    def _with_decoders(self, value: Decoder, key: Decoder) -> Self:
        if value is self.value and key is self.key:
            return self
        return self.model_copy(update={"value": value, "key": key})

    def decoding(self) -> ArrowDecoding | None:
        """Return how tasks decode both; None if one of them is decoded by native columns alone."""
        value = self.value.decoding()
        key = self.key.decoding()
        if value is None or key is None:
            return None
        fields = {field.name: field for field in value.adds}
        for field in key.adds:
            name = KEY_NAMES.get(field.name)
            if name:
                fields[name] = T.StructField(name, field.dataType)
        if "_wanted" in key.adds.names:
            fields["_wanted"] = T.StructField("_wanted", T.StringType())
        before = None
        if value.before or key.before:
            before = _add_native_columns(value, key)
        # `before` runs on the driver: what is sent to tasks goes without it.
        both = (replace(value, before=None), replace(key, before=None), tuple(fields))
        adds = T.StructType(list(fields.values()))
        return ArrowDecoding(both_events, both, adds, before=before)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add the columns of the value's decoder, and `event_key` and the other columns of the key's."""
        frame = self.value.decode(raw)
        # The decoder of the key needs the key as value, and adds columns of the same names: move those of the value.
        of_value = ("value", "event", "_error", "_wanted", "_unknown", *SCHEMA_NAMES)
        moved = {name: f"_kept_{name}" for name in of_value if name in frame.columns}
        frame = frame.withColumnsRenamed(moved).withColumn("value", F.col("key"))
        frame = self.key.decode(frame).drop("_unknown")  # fields that the schema of the key lacks

        # Combine the texts about both.
        combined = [name for name in ("_error", "_wanted") if name in frame.columns]
        texts = {}
        for name in combined:
            text = F.when(F.col("key").isNotNull(), F.concat(F.lit(KEY_TEXT_PREFIX), F.col(name)))
            if name in moved:
                text = F.coalesce(moved[name], text)
            texts[f"_new_{name}"] = text
        value_texts = [f"_kept_{name}" for name in combined]
        frame = frame.withColumns(texts).drop("value", *combined, *value_texts)

        # Name the columns of the key, then move those of the value back.
        key_names = {old: new for old, new in KEY_NAMES.items() if old in frame.columns}
        moved_back = {kept: name for name, kept in moved.items() if name not in combined}
        frame = frame.withColumnsRenamed(key_names)
        frame = frame.withColumnsRenamed({f"_new_{name}": name for name in combined})
        frame = frame.withColumnsRenamed(moved_back)
        return frame.withColumn("event", F.when(F.col("_error").isNull(), F.col("event")))


def _add_native_columns(value: ArrowDecoding, key: ArrowDecoding) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds the native columns of both; those of the key get names of their own."""

    def add_both_columns(raw: DataFrame) -> DataFrame:
        frame = raw
        if key.before:
            # The decoder of the key reads the column `value`: put the key there, and the value aside.
            keys = key.before(raw.withColumns({"value": F.col("key"), "_value": F.col("value")}))
            own_names = {}
            for name in keys.columns:
                if name not in (*raw.columns, "_value"):
                    own_names[name] = f"{KEY_COLUMN_PREFIX}{name}"
            frame = keys.withColumnsRenamed(own_names).withColumn("value", F.col("_value")).drop("_value")
        if value.before:
            frame = value.before(frame)
        return frame

    return add_both_columns


@dataclass(frozen=True)
class MemoryPart:
    """The part of a memory that one of several decoders has."""

    memory: Memory
    part: str

    def read(self, name: str) -> bytes | None:
        return self.memory.read(f"{self.part}-{name}")

    def write(self, name: str, content: bytes) -> None:
        self.memory.write(f"{self.part}-{name}", content)


def both_events(records: pa.RecordBatch, both: tuple[ArrowDecoding, ArrowDecoding, tuple[str, ...]]) -> pa.RecordBatch:
    """Return the columns that both decodings add, of the key under other names. Runs on executors.

    `both` are the decoding of the value, that of the key, and the names of the columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    value, key, names = both
    of_value = _columns_by_name(value.function(records, value.argument))
    of_key = _columns_by_name(key.function(_keys_as_values(records), key.argument))
    has_key = records.column("key").is_valid()
    columns = dict(of_value)
    for name, column in of_key.items():
        if name in KEY_NAMES:
            columns[KEY_NAMES[name]] = column
    no_text = pa.scalar(None, pa.string())
    for name in ("_error", "_wanted"):
        if name not in of_key:
            continue
        # A record without a key has nothing wrong with it; the text about its value comes before that about its key.
        text = pc.if_else(has_key, pc.binary_join_element_wise(KEY_TEXT_PREFIX, of_key[name], ""), no_text)
        if name in of_value:
            text = pc.coalesce(of_value[name], text)
        columns[name] = text
    # A record whose key cannot be decoded is a dead letter: it has no event.
    event = of_value["event"]
    columns["event"] = pc.if_else(columns["_error"].is_valid(), pa.scalar(None, event.type), event)
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def _keys_as_values(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with their keys as values, and with the native columns of keys under the names they had."""
    import pyarrow as pa

    columns = _columns_by_name(records)
    columns["value"] = records.column("key")
    for name in records.schema.names:
        if name.startswith(f"{KEY_COLUMN_PREFIX}_"):
            columns[name.removeprefix(KEY_COLUMN_PREFIX)] = columns[name]
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _columns_by_name(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
