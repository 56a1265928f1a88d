"""Decode the keys of records, too."""

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
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

    from router import Memory

OF_A_KEY = "key "
"""The beginning of texts in `_wanted` and `_error` that are about a key."""
OF_KEY = "_key"
"""The beginning of the names of native columns that the key's decoder reads."""
SCHEMA = ("schema_id", "schema_version", "subject", "message")
KEY_NAMES = {"event": "event_key", **{name: f"key_{name}" for name in SCHEMA}}
"""The names of a key's columns, which stand beside those of a value."""


class RecordKeys(Decoder):
    """Decode the value of a record by one decoder and its key by another: `decode: {value: ..., key: ...}`.

    The value becomes `event` as always, the key becomes `event_key`, a struct that rules and `select` may use; the
    columns about a schema are `key_schema_id`, `key_subject` and so on for the key. A record without a key has a null
    `event_key`. A record whose key cannot be decoded is a dead letter, as one whose value cannot. Where a
    record header may hold a schema's GUID, that of the key is `__key_schema_id` unless `header` says otherwise.
    """

    needs: ClassVar[tuple[str, ...]] = ("pyarrow.compute",)

    value: Decoder = Field(description="decoder of the value")
    key: Decoder = Field(description="decoder of the key")

    @field_validator("key")
    @classmethod
    def _of_a_key(cls, key: Decoder) -> Decoder:
        """Look for the GUID in the header that clients use for keys: in the other one the value's would be found."""
        if isinstance(key, RegistryDecoder) and "header" not in key.model_fields_set:
            return key.model_copy(update={"header": KEY_HEADER})
        return key

    @property
    @override
    def zero_is_absent(self) -> bool:
        return self.value.zero_is_absent or self.key.zero_is_absent

    def prepare(self, preparation: Preparation) -> Self:
        """Return this decoder with both prepared."""
        of_key = replace(
            preparation,
            sample=lambda rows: preparation.sample(rows).withColumn("value", F.col("key")),
            memory=_Beside(preparation.memory),
            part="key",
        )
        return self._with(self.value.prepare(preparation), self.key.prepare(of_key))

    def tested(self, schemas: Mapping[str, Sequence[Path]]) -> Self:
        """Return this decoder with files in place of the registries of both."""
        return self._with(self.value.tested(schemas), self.key.tested(schemas))

    def encode(self, event: Any, schema: Path | None = None, message: str | None = None) -> bytes:
        """Return the value of an event; a key is given as its text."""
        return self.value.encode(event, schema, message)

    def refresh(self, wanted: frozenset[str]) -> Self:
        """Return this decoder with the schemas that values and keys want."""
        of_key = frozenset(want for want in wanted if want.startswith(OF_A_KEY))
        key = self.key.refresh(frozenset(want.removeprefix(OF_A_KEY) for want in of_key))
        return self._with(self.value.refresh(wanted - of_key), key)

    def _with(self, value: Decoder, key: Decoder) -> Self:
        if value is self.value and key is self.key:
            return self
        return self.model_copy(update={"value": value, "key": key})

    def decoding(self) -> ArrowDecoding | None:
        """Return how tasks decode both; None where one of them is decoded by native columns alone."""
        value, key = self.value.decoding(), self.key.decoding()
        if value is None or key is None:
            return None
        of_key = [T.StructField(KEY_NAMES[f.name], f.dataType) for f in key.adds if f.name in KEY_NAMES]
        fields = {f.name: f for f in (*value.adds, *of_key)}
        if "_wanted" in key.adds.names:
            fields["_wanted"] = T.StructField("_wanted", T.StringType())
        before = _before(value, key) if value.before or key.before else None
        both = (replace(value, before=None), replace(key, before=None), tuple(fields))
        return ArrowDecoding(both_events, both, T.StructType(list(fields.values())), before)

    def decode(self, raw: DataFrame) -> DataFrame:
        """Add what the decoder of the value adds, and `event_key` beside it."""
        frame = self.value.decode(raw)
        kept = [name for name in ("value", "event", "_error", "_wanted", "_unknown", *SCHEMA) if name in frame.columns]
        frame = frame.withColumnsRenamed({name: f"_kept_{name}" for name in kept}).withColumn("value", F.col("key"))
        frame = self.key.decode(frame).drop("_unknown")  # fields that the schema of the key lacks
        has_key = F.col("key").isNotNull()
        told = [name for name in ("_error", "_wanted") if name in frame.columns]
        combined = {name: _either(name, kept, frame, has_key) for name in told}
        frame = frame.withColumns({f"_new_{name}": column for name, column in combined.items()})
        of_key = {old: new for old, new in KEY_NAMES.items() if old in frame.columns}
        frame = frame.drop("value", *combined, *(f"_kept_{name}" for name in combined)).withColumnsRenamed(of_key)
        frame = frame.withColumnsRenamed({f"_new_{name}": name for name in combined})
        frame = frame.withColumnsRenamed({f"_kept_{name}": name for name in kept if name not in combined})
        return frame.withColumn("event", F.when(F.col("_error").isNull(), F.col("event")))


def _before(value: ArrowDecoding, key: ArrowDecoding) -> Callable[[DataFrame], DataFrame]:
    """Return a function that adds the native columns of both; those of the key get names of their own."""

    def before(raw: DataFrame) -> DataFrame:
        frame = raw
        if key.before:
            keys = key.before(raw.withColumns({"value": F.col("key"), "_value": F.col("value")}))
            own = {name: f"{OF_KEY}{name}" for name in keys.columns if name not in (*raw.columns, "_value")}
            frame = keys.withColumnsRenamed(own).withColumn("value", F.col("_value")).drop("_value")
        return value.before(frame) if value.before else frame

    return before


def _either(name: str, kept: list[str], frame: DataFrame, has_key: Column) -> Column:
    """Return the text about the value; where there is none, the text about the key."""
    of_key = F.when(has_key, F.concat(F.lit(OF_A_KEY), F.col(name)))
    return F.coalesce(F.col(f"_kept_{name}"), of_key) if name in kept else of_key


@dataclass(frozen=True)
class _Beside:
    """The memory of the key's decoder, beside that of the value's."""

    memory: Memory

    def read(self, name: str) -> bytes | None:
        return self.memory.read(f"key-{name}")

    def write(self, name: str, content: bytes) -> None:
        self.memory.write(f"key-{name}", content)


def both_events(records: pa.RecordBatch, both: tuple[ArrowDecoding, ArrowDecoding, tuple[str, ...]]) -> pa.RecordBatch:
    """Return the columns `names` for the records: what both decodings add, of the key under other names.

    Runs on executors.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    value, key, names = both
    of_value = _columns(value.function(records, value.argument))
    of_key = _columns(key.function(_keys(records), key.argument))
    has_key = records.column("key").is_valid()
    found = {**of_value, **{KEY_NAMES[name]: column for name, column in of_key.items() if name in KEY_NAMES}}
    for name in ("_error", "_wanted"):
        if name in of_key:
            text = pc.if_else(
                has_key, pc.binary_join_element_wise(OF_A_KEY, of_key[name], ""), pa.scalar(None, pa.string())
            )
            found[name] = pc.coalesce(of_value[name], text) if name in of_value else text
    event = of_value["event"]
    found["event"] = pc.if_else(found["_error"].is_valid(), pa.scalar(None, event.type), event)
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=list(names))


def _keys(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with their keys as values, and with the native columns of keys under the names they had."""
    import pyarrow as pa

    columns = {**_columns(records), "value": records.column("key")}
    own = {name.removeprefix(OF_KEY): name for name in columns if name.startswith(f"{OF_KEY}_")}
    columns |= {name: columns[under] for name, under in own.items()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
