"""Decode records of several formats in Spark columns: one format after the other, each with the others' values null."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from router_decoders import framing_spark as frame_columns
from router_schemas.framed_rows import ABOUT, ADDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from router_decoders.registry_decoder import RegistryDecoder
    from router_schemas.library import Formats
    from router_schemas.model import Kind

NAMES = ("event", *ADDED.names)
OWN = ("_any_format", "_any_value", "_any_why", "_any_wanted", "_any_id")
"""Columns while it decodes; the decoders of the formats have others of their own."""


def decoded(raw: DataFrame, known: Formats, parts: Sequence[tuple[Kind, RegistryDecoder]]) -> DataFrame:
    """Return raw records with `event`, `_error`, `_wanted` and what is known of the schema."""
    frame = _routed(raw, known)
    for kind, decoder in parts:
        frame = frame.withColumn("value", F.when(F.col("_any_format") == kind, F.col("_any_value")))
        frame = decoder.decode(frame).withColumnsRenamed({name: f"_{kind}_{name}" for name in NAMES})
    kinds = [kind for kind, _ in parts]
    columns: dict[str, Column] = {name: _of_format(name, kinds) for name in ABOUT.names}
    columns["schema_id"] = F.coalesce(columns["schema_id"], "_any_id")
    columns["_error"] = F.coalesce("_any_why", _of_format("_error", kinds))
    columns["_wanted"] = F.coalesce("_any_wanted", _of_format("_wanted", kinds))
    columns["event"] = _event(frame, kinds)
    columns["value"] = F.col("_any_value")
    return frame.withColumns(columns).drop(*OWN, *(f"_{kind}_{name}" for kind in kinds for name in NAMES))


def _routed(raw: DataFrame, known: Formats) -> DataFrame:
    """Return raw records with the columns of OWN: the format of a row, or why it has none."""
    missing = F.when(F.col("_known").isNull(), F.concat(frame_columns.called(known), F.lit(" is not known yet")))
    unframed = F.when(F.col("_key").isNull(), frame_columns.unframed(known))
    columns = {
        "_any_value": F.col("value"),
        "_any_why": F.coalesce(unframed, missing, F.col("_known.reason")),
        "_any_wanted": frame_columns.wanted(known),
        "_any_id": frame_columns.about(known)["schema_id"],
        "_any_format": F.when(F.col("_known.reason").isNull(), F.col("_known.message")),
    }
    return frame_columns.framed(raw, known).withColumns(columns).drop(*frame_columns.TEMPORARY)


def _of_format(name: str, kinds: Sequence[Kind]) -> Column:
    """Return what the decoder of a row's format says."""
    return F.coalesce(*(F.when(F.col("_any_format") == kind, F.col(f"_{kind}_{name}")) for kind in kinds))


def _event(frame: DataFrame, kinds: Sequence[Kind]) -> Column:
    """Return the event of a row: a struct with the fields of all formats."""
    structs: dict[Kind, T.StructType] = {kind: frame.schema[f"_{kind}_event"].dataType for kind in kinds}  # type: ignore[misc]
    fields = {one.name: one.dataType for struct in structs.values() for one in struct}
    events = []
    for kind, struct in structs.items():
        event, names = F.col(f"_{kind}_event"), set(struct.fieldNames())
        values = [
            (event.getField(name) if name in names else F.lit(None)).cast(one).alias(name)
            for name, one in fields.items()
        ]
        events.append(F.when(event.isNotNull(), F.struct(*values)))
    return F.coalesce(*events)
