"""Schemas that are drawn and change while a stream runs: what one route cannot take is its own trouble.

Each change is of a kind that a producer can register: a field more with any name, one less, one of another type. A
route that looks at nothing of it gets each record within the batch; no other record is lost, and no run ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as T

from router.config.models import Route
from router.engine.audit.verify import verify_tables
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Upsert
from tests.engine.drawing import FIELD_NAMES, Field, draw_type, raw_table
from tests.engine.stream.test_drawn_configurations import Drawn, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

VERSIONS = 4
RECORDS = 12
IN_EVERY_RUN = 6
CONFIGURATIONS = 60
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, CONFIGURATIONS)),
]
NESTED = (T.StructType, T.ArrayType, T.MapType)
OWN_NAMES = ("made_0", "made_1", "_offset", "_topic", "_newest_1", "_arrival", "valid_from", "GAME", "K", "_rescued")
"""Names that columns of routes, of keyed tables or of other fields have."""
GOOD = Route(
    name="good", match=Sql(where="true"), select=("event.game", "offset AS place"), sinks=(Delta(table="good.all"),)
)

KEYED = Route(
    name="keyed",
    match=Sql(where="true"),
    select=("event.*", "offset AS place"),
    sinks=(Upsert(table="good.keyed", keys=("event.game",), newest_by="offset"),),
)
"""Its key has few values, so that every batch changes rows that are there: others are mostly appended to."""


def change(drawn: Drawn) -> None:
    """Change one to three fields, but never `game`."""
    chance = drawn.drawing.chance
    fields = drawn.drawing.fields
    for _ in range(chance.randint(1, 3)):
        way = chance.choice(["more", "more", "less", "type", "type", "inside", "inside"])
        place = chance.randrange(1, len(fields))
        if way == "more":
            name = chance.choice([*FIELD_NAMES, *OWN_NAMES])
            if name.casefold() not in {field.name.casefold() for field in fields}:
                kind = chance.choice([draw_type(chance, 2), draw_entries(drawn)])
                fields.insert(chance.randint(2, len(fields)), Field(name, kind))
        elif way == "less" and len(fields) > 3 and place > 1:
            del fields[place]
        elif way == "type":
            fields[place] = replace(fields[place], type=draw_type(chance, 2))
        elif way == "inside":
            nested = [k for k, field in enumerate(fields) if isinstance(field.type, NESTED)]
            maps = [k for k in nested if isinstance(fields[k].type, T.MapType)]
            place = chance.choice(maps or nested or [place])
            fields[place] = replace(fields[place], type=changed_inside(drawn, fields[place].type))


def draw_entries(drawn: Drawn) -> T.MapType:
    """Return a map of structs: engines differ most in what such a struct may gain."""
    field = T.StructField("f0", draw_type(drawn.drawing.chance, 1))
    return T.MapType(T.StringType(), T.StructType([field]))


def changed_inside(drawn: Drawn, kind: T.DataType) -> T.DataType:
    """Return a type with another one at its bottom, or a field more or less."""
    chance = drawn.drawing.chance
    if isinstance(kind, T.StructType):
        fields = list(kind)
        if chance.random() < 0.4:
            fields.insert(
                chance.randint(0, len(fields)), T.StructField(f"g{chance.randint(0, 9)}", draw_type(chance, 1))
            )
        elif len(fields) > 1 and chance.random() < 0.5:
            del fields[chance.randrange(len(fields))]
        elif fields:
            place = chance.randrange(len(fields))
            fields[place] = T.StructField(fields[place].name, changed_inside(drawn, fields[place].dataType))
        named = {field.name: field for field in fields}
        return T.StructType([*named.values()])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(changed_inside(drawn, kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, changed_inside(drawn, kind.valueType))
    return draw_type(chance, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schema_that_changes_stops_no_other_table(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Without it a change that somebody registers at night ends the stream, or loses rows of tables that need none."""
    drawn = Drawn(seed, make_query, spark, tmp_path)
    if drawn.drawing.chance.random() < 0.5:
        drawn.drawing.fields.append(Field("entries", draw_entries(drawn)))
    # Without what drops records on purpose.
    drawn.routes = [route.model_copy(update={"expect": ()}) for route in drawn.routes]
    decode = Json(schema=drawn.drawing.ddl)
    drawn.query = drawn.query.restarted(decode=decode, routes=(*drawn.routes, GOOD, KEYED))
    findings: list[str] = []
    events: dict[int, dict[str, Any]] = {}
    for version in range(VERSIONS):
        if version:
            change(drawn)
            drawn.query = drawn.query.restarted(decode=Json(schema=drawn.drawing.ddl))
        findings.append(drawn.drawing.ddl)
        records = drawn.drawing.records(RECORDS, hostile=0)
        drawn.query.take(raw_table(records, len(drawn.records)))
        drawn.records += records
        raw = spark.createDataFrame(drawn.query.taken[version])
        for row in values(drawn.query.config.decode.decode(raw).select("offset", "event").toArrow()):
            events[row["offset"]] = row["event"]
        good = Counter(row["place"] for row in drawn.query.rows("good.all", "place"))
        assert good == Counter(range(len(drawn.records))), findings
    assert not (found := [*check(drawn, events)]), "\n".join([*findings, *map(str, drawn.routes), *found])


def check(drawn: Drawn, events: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yield everything that is not as it should be."""
    query = drawn.query
    bronze = Counter(row["offset"] for row in values(query.content("bronze.all")))
    if bronze != Counter(events.keys()):
        yield f"bronze has {bronze}"
    for audit in verify_tables(query.config, contents=True):
        yield from (f"verify: {audit.table}: {problem}" for problem in audit.problems)
    refused: Counter[int] = Counter()
    for row in values(query.content("ops.dead")) if query.lake.open("ops.dead") else ():
        if row["route"] == "r0" and row["sink"] in (None, "delta"):
            refused[row["offset"]] += 1
    # The first route takes all records: each is in its table, or a dead letter.
    rows = values(query.content("d0.every")) if query.lake.open("d0.every") else []
    landed = Counter(row["place"] for row in rows)
    for place in events:
        if landed[place] + refused[place] != 1:
            yield f"record {place} has {landed[place]} rows, {refused[place]} dead letters"
    for row in rows:
        for name, value in events[row["place"]].items():
            if name != "place" and not is_kept(row.get(name), value):
                yield f"record {row['place']}, {name}: {row[name]!r}, not {value!r}"


def is_kept(stored: Any, sent: Any) -> bool:
    """Return whether a value is what was sent, also in a wider type; null is what a column does not take."""
    if isinstance(stored, dict) and isinstance(sent, dict):
        return all(is_kept(stored.get(name), inner) for name, inner in sent.items())
    if isinstance(stored, list) and isinstance(sent, list):
        return len(stored) == len(sent) and all(map(is_kept, stored, sent))
    if isinstance(stored, tuple) and isinstance(sent, tuple):
        return len(stored) == len(sent) and all(map(is_kept, stored, sent))
    return stored is None or sent is None or stored == sent or repr(stored) == repr(sent)
