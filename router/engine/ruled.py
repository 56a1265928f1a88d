"""Apply a ruling to a labelled frame with Spark's expressions: who goes nowhere, and what a value becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from router.delta.casting import within
from router.delta.schema_diff import merge, shape
from router.engine.guard import any_of
from router.engine.layout import Ruling, Target, too_wide
from router.engine.route import DEAD_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from router.engine.plan import Plan


def ruled(planned: Plan, ruling: Ruling) -> DataFrame:
    """Return the labelled frame with the ruling applied: who goes nowhere and why, who waits, who loses something."""
    frame = _turned(planned.frame, planned.layout.targets, ruling)
    changed = {}
    for target in planned.layout.targets:
        loses = _loses(target, ruling)
        if loses is None:
            continue
        if target.waits is None:
            changed[f"_frozen_{target.goes}"] = loses
            continue
        table, goes = going(target)
        waits = F.coalesce(goes & loses, F.lit(False))
        changed[target.waits.goes] = waits
        changed[waited(target.waits)] = F.when(waits, table)
        changed[target.goes] = F.when(~waits, F.col(target.goes))
    frame = frame.withColumns(changed) if changed else frame
    return _turned(frame, tuple(lane for lane in planned.layout.waiting if lane.goes in changed), ruling)


def waited(lane: Target) -> str:
    """Return the column with the table for which a row waits in a lane."""
    return f"{lane.goes}_table"


def _turned(frame: DataFrame, targets: tuple[Target, ...], ruling: Ruling) -> DataFrame:
    """Take the rows that a target cannot have away from it, and make dead letters of them."""
    changed, letters = {}, []
    for target in targets:
        reason = _ruled_out(target, ruling)
        if reason is None:
            continue
        stage = F.when(reason.startswith("cap:"), F.lit("name")).otherwise(F.lit("schema"))
        why = F.struct(stage.alias("stage"), F.substring(reason, 5, 10_000).alias("reason"),
                       F.lit(target.route).alias("route"), F.lit(target.sink).alias("sink"))  # fmt: skip
        letters.append(F.when(reason.isNotNull(), F.array(why)).otherwise(F.array().cast(DEAD_TYPE)))
        changed[target.goes] = F.when(reason.isNull(), F.col(target.goes))
        changed[f"_turned_{target.goes}"] = reason.isNotNull()
    if letters:
        every = F.concat(F.coalesce(F.col("_dead"), F.array().cast(DEAD_TYPE)), *letters)
        changed["_dead"] = F.when(F.size(every) > 0, every)
    return frame.withColumns(changed) if changed else frame


def _ruled_out(target: Target, ruling: Ruling) -> Column | None:
    table, goes = going(target)
    reasons = []
    if (allowed := ruling.allowed.get(target.key)) is not None:
        named = F.col(target.struct("_table")).getField("_table") if target.names_in_lane else table
        text = F.concat(F.lit("cap:table "), named, F.lit(f": the sink may have {target.at_most} tables and has them"))
        reasons.append(F.when(goes & ~named.isin(*allowed), text))
    for name, columns in target.ruled(ruling.conflicts):
        for column, why in columns.items():
            if column in target.schema.names:
                hit = goes & (table == name) & F.col(target.rows).getField(column).isNotNull()
                reasons.append(F.when(hit, F.lit(f"typ:table {name}: {why}")))
    for name, column, value, come, kind in _frozen(target, ruling):
        if kind is not None and target.waits is None:
            hit = goes & (table == name) & F.coalesce(unfit(value, come, kind), F.lit(False))
            reasons.append(F.when(hit, F.lit(f"typ:table {name}: {too_wide(column, come, kind)}")))
    return F.coalesce(*reasons) if reasons else None


def _loses(target: Target, ruling: Ruling) -> Column | None:
    """Return whether a row has what its table has no place for, or, where it can wait, too wide a value."""
    table, goes = going(target)
    found = []
    for name, _, value, come, kind in _frozen(target, ruling):
        marks = [lost(value, come, kind, blank=target.blank)]
        if target.waits and kind is not None:
            marks.append(unfit(value, come, kind))
        found += [goes & (table == name) & F.coalesce(mark, F.lit(False)) for mark in marks]
    return any_of(found) if found else None


def _frozen(target: Target, ruling: Ruling) -> Iterator[tuple[str, str, Column, pa.DataType, pa.DataType | None]]:
    """Return (table, column, value, type, type in the table) of what does not go into frozen tables as it is."""
    for name, columns in target.ruled(ruling.frozen):
        for column, kind in columns.items():
            if column in target.schema.names:
                yield name, column, F.col(target.rows).getField(column), target.schema.field(column).type, kind


def going(target: Target) -> tuple[Column, Column]:
    """Return the table of a row as text, and whether it goes there."""
    if target.table:
        return F.lit(target.table), F.col(target.goes)
    return F.col(target.goes), F.col(target.goes).isNotNull()


def narrowed(value: Column, have: pa.DataType, kind: pa.DataType) -> Column:
    """Return a value with the nested fields of `kind` only: Spark casts structs by place."""
    if shape(within(kind, have)) == shape(have):
        return value
    if pa.types.is_struct(kind):
        types = {child.name: child.type for child in have}
        fields = [narrowed(value.getField(f.name), types[f.name], f.type).alias(f.name) for f in kind]
        return F.when(value.isNotNull(), F.struct(*fields))
    if pa.types.is_list(kind):
        return F.transform(value, lambda element: narrowed(element, have.value_type, kind.value_type))
    if pa.types.is_map(kind):
        return F.transform_values(value, lambda _, item: narrowed(item, have.item_type, kind.item_type))
    return value


def lost(value: Column, have: pa.DataType, kind: pa.DataType | None, *, blank: bool) -> Column:
    """Return whether a value has what `kind` leaves out; None leaves out all of it."""
    if kind is None:
        return _brought(value, have, blank=blank)
    if pa.types.is_struct(kind):
        kinds = {child.name: child.type for child in kind}
        fields = (lost(value.getField(f.name), f.type, kinds.get(f.name), blank=blank) for f in have)
        return any_of(F.coalesce(field, F.lit(False)) for field in fields)
    if pa.types.is_list(kind):
        return F.exists(value, lambda element: lost(element, have.value_type, kind.value_type, blank=blank))
    if pa.types.is_map(kind):
        return F.exists(F.map_values(value), lambda item: lost(item, have.item_type, kind.item_type, blank=blank))
    return F.lit(False)


def _brought(value: Column, kind: pa.DataType, *, blank: bool) -> Column:
    """Return whether there is a value. `blank`: zero, false and what is empty count as none."""
    if not blank or pa.types.is_struct(kind) or pa.types.is_temporal(kind):
        return value.isNotNull()
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return F.size(value) > 0
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return F.length(value) > 0
    return value if pa.types.is_boolean(kind) else value != F.lit(0)


def unfit(value: Column, have: pa.DataType, kind: pa.DataType) -> Column:
    """Return whether a value is another one in the narrower types of `kind`."""
    if shape(within(kind, have)) == shape(have):
        return F.lit(False)
    if pa.types.is_struct(kind):
        types = {child.name: child.type for child in have}
        fields = (unfit(value.getField(f.name), types[f.name], f.type) for f in kind)
        return any_of(F.coalesce(field, F.lit(False)) for field in fields)
    if pa.types.is_list(kind):
        return F.exists(value, lambda element: unfit(element, have.value_type, kind.value_type))
    if pa.types.is_map(kind):
        keys = F.exists(F.map_keys(value), lambda key: unfit(key, have.key_type, kind.key_type))
        return keys | F.exists(F.map_values(value), lambda item: unfit(item, have.item_type, kind.item_type))
    both = merge(kind, have)
    assert both is not None  # a table with another type has a conflict, see `compare`
    return ~value.cast(_spark(both)).eqNullSafe(value.try_cast(_spark(kind)).cast(_spark(both)))


def _spark(kind: pa.DataType) -> DataType:
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
