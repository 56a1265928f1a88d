"""Tables that are made in a shape that was asked for, each by the engine that can; all hold the same rows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from router import StartError, read
from router.config.models import Maintenance
from router.engine.maintenance import TableMaintenance
from router.engine.preflight.explain import explain_table
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.profiles import event, raw, route

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engine.query import Query

DDL = "game string, gamer string, level int, gone boolean, bonus double"
BOTH = {"keys": ["event.gamer"], "delete_when": "event.gone"}
FEATURES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableTypeWidening": "true",
    "delta.columnMapping.mode": "name",
    "team.owner": "games",
}
TOLD = {"comment": "of each", "comments": {"level": "reached", "bonus": "in euros"}}
CHANGES = {"delta.enableChangeDataFeed": "true"}
QUICK = {
    "divided": {"partition_by": ["event.game"], "properties": CHANGES, "memory": "256 MB"},
    "told": {"engine": "arrow", "properties": {"team.owner": "games"}, **TOLD},
}
BY_SPARK = {
    "divided_by_spark": {"partition_by": ["event.game"], "properties": CHANGES, "engine": "spark"},
    "featured": {"cluster_by": ["event.level"], "properties": FEATURES},
}
SHAPES = QUICK | BY_SPARK
EACH = [*QUICK, *(pytest.param(shape, marks=pytest.mark.slow) for shape in BY_SPARK)]
ROWS = [
    {"gamer": "a", "game": "poker", "level": 2, "bonus": 0.5},
    {"gamer": "c", "game": None, "level": 3, "bonus": None},
    {"gamer": "d", "game": "uno", "level": 1, "bonus": None},
]


@pytest.fixture(scope="module")
def shaped(make_query: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Query]:
    """Take two batches into tables of some shapes; the second has a new column, and moves a row. Once per engine."""

    @cache
    def taken(by_spark: bool) -> Query:
        shapes = BY_SPARK if by_spark else QUICK
        sinks = [Upsert(table=f"silver.{name}", **BOTH, **options) for name, options in shapes.items()]
        found = make_query(tmp_path_factory.mktemp("shapes"), decode=Json(schema=DDL), routes=route(*sinks, sql="true"))
        found.take(raw(event("uno", "a", 1), event("uno", "b", 1), event(None, "c", 1)))
        changed = event("poker", "a", 2, bonus=0.5), event("uno", "b", 0, gone=True), event(None, "c", 3)
        found.take(raw(*changed, event("uno", "d", 1), first=3))
        return found

    return lambda shape: taken(shape in BY_SPARK)


@pytest.mark.parametrize("shape", EACH)
def test_a_table_of_any_shape_has_the_same_rows(shaped: Callable[[str], Query], shape: str) -> None:
    """Without it an option of a table's maker is an error at the second batch, or loses rows."""
    assert shaped(shape).rows(f"silver.{shape}", "gamer", "game", "level", "bonus") == ROWS


@pytest.mark.parametrize("shape", EACH)
def test_a_table_is_what_was_asked_for(shaped: Callable[[str], Query], shape: str) -> None:
    """Without it a table is made plainly, without a word."""
    table, options = shaped(shape).open(f"silver.{shape}"), SHAPES[shape]
    about, features = table.metadata(), {*(table.protocol().writer_features or ())}
    comments = {field.name: field.metadata.get("comment") for field in table.schema().fields}

    assert about.partition_columns == [name.removeprefix("event.") for name in options.get("partition_by", ())]
    assert about.configuration.items() >= options.get("properties", {}).items()
    assert about.description == options.get("comment")
    assert {name: text for name, text in comments.items() if text} == options.get("comments", {})
    if shape == "featured":
        wanted = {"clustering", "deletionVectors", "rowTracking", "inCommitTimestamp", "typeWidening", "columnMapping"}
        assert wanted <= features


@pytest.mark.parametrize("shape", ["divided", pytest.param("divided_by_spark", marks=pytest.mark.slow)])
def test_the_changes_of_a_table_can_be_followed(shaped: Callable[[str], Query], shape: str) -> None:
    """Without it whoever follows a table sees rows come, and never change or go."""
    changes = read(f"silver.{shape}", lake=shaped(shape).lake.root, changes_since=0)
    (last,) = changes.selectExpr("max(_commit_version)").first()
    kinds = sorted(map(tuple, changes.filter(f"_commit_version = {last}").select("gamer", "_change_type").collect()))

    assert kinds == [
        *[("a", "update_postimage"), ("a", "update_preimage"), ("b", "delete")],
        *[("c", "update_postimage"), ("c", "update_preimage"), ("d", "insert")],
    ]


@pytest.mark.parametrize("shape", EACH)
def test_the_engine_is_explained(shaped: Callable[[str], Query], shape: str) -> None:
    """Without it nobody knows why one table of hundreds is slow."""
    query = shaped(shape)
    found = dict(explain_table(query.config, f"silver.{shape}"))

    assert found["engine"].split(": ")[0] == ("spark" if shape in BY_SPARK else "arrow")
    assert ("clustering" in found["engine"]) == (shape == "featured")
    assert (found["rows"], found["keys"]) == ("3", "gamer")
    assert found["deletions"] == "1 remembered"
    assert found["written by"].endswith(", has not yet")  # in a checkpoint of Spark's


@pytest.mark.slow
def test_a_clustered_table_is_maintained(shaped: Callable[[str], Query]) -> None:
    """Without it a table is clustered in name only."""
    query, plan = shaped("featured"), Maintenance(tables="silver.*")
    found = TableMaintenance(query.lake, lambda: query.spark, (plan,)).maintain_table("silver.featured", plan)

    assert ("clustering" in found.by_spark, found.into) == (True, 1)
    assert "OPTIMIZE" in {entry["operation"] for entry in query.open("silver.featured").history()}
    assert query.rows("silver.featured", "gamer", "game", "level", "bonus") == ROWS


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"partition_by": ["event.nobody"]}, "nobody"),
        ({"cluster_by": ["event.gone"]}, "boolean"),
        ({"partition_by": ["event.bonus"]}, "double"),
        ({"partition_by": [f"event.{name.split()[0]}" for name in DDL.split(", ")][:4]}, "double|every column"),
    ],
    ids=["no such column", "clustered by a flag", "divided by a fraction", "divided by all"],
)
def test_a_shape_that_cannot_be_is_refused(make_query: Any, tmp_path: Path, options: Any, word: str) -> None:
    """Without it a wrong shape is found by the first batch, at night."""
    ddl = DDL.removesuffix(", bonus double") if len(options.get("partition_by", ())) == 4 else DDL
    sink = Upsert(table="silver.p", keys=["event.gamer"], **options)
    with pytest.raises(StartError, match=word):
        make_query(tmp_path, decode=Json(schema=ddl), routes=route(sink)).take(raw(event("uno", "a", 1)))
