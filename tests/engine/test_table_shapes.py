"""Tables that are made in a shape that was asked for, each by the engine that can; all hold the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router import StartError, read
from router.config.models import Maintenance
from router.engine.caretaker import Caretaker
from router.engine.explain import explain
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.test_upserts import event, raw, route

if TYPE_CHECKING:
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
SHAPES = {
    "divided": {"partition_by": ["event.game"], "properties": CHANGES, "memory": "256 MB"},
    "divided_by_spark": {"partition_by": ["event.game"], "properties": CHANGES, "engine": "spark"},
    "featured": {"cluster_by": ["event.level"], "properties": FEATURES},
    "told": {"engine": "arrow", "properties": {"team.owner": "games"}, **TOLD},
}
ROWS = [
    {"gamer": "a", "game": "poker", "level": 2, "bonus": 0.5},
    {"gamer": "c", "game": None, "level": 3, "bonus": None},
    {"gamer": "d", "game": "uno", "level": 1, "bonus": None},
]


@pytest.fixture(scope="module")
def query(make_query: Any, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Take two batches into a table of every shape; the second has a new column, and moves a row."""
    sinks = [Upsert(table=f"silver.{name}", **BOTH, **options) for name, options in SHAPES.items()]
    found = make_query(tmp_path_factory.mktemp("shapes"), decode=Json(schema=DDL), routes=route(*sinks, sql="true"))
    found.take(raw(event("uno", "a", 1), event("uno", "b", 1), event(None, "c", 1)))
    changed = event("poker", "a", 2, bonus=0.5), event("uno", "b", 0, gone=True), event(None, "c", 3)
    found.take(raw(*changed, event("uno", "d", 1), first=3))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_table_of_any_shape_has_the_same_rows(query: Query, shape: str) -> None:
    """Without it an option of a table's maker is an error at the second batch, or loses rows."""
    assert query.rows(f"silver.{shape}", "gamer", "game", "level", "bonus") == ROWS


def test_tables_are_what_was_asked_for(query: Query) -> None:
    """Without it a table is made plainly, without a word."""
    about = {name: query.open(f"silver.{name}").metadata() for name in SHAPES}
    features = {name: {*(query.open(f"silver.{name}").protocol().writer_features or ())} for name in SHAPES}

    assert about["divided"].partition_columns == about["divided_by_spark"].partition_columns == ["game"]
    wanted = {"clustering", "deletionVectors", "rowTracking", "inCommitTimestamp", "typeWidening", "columnMapping"}
    assert wanted <= features["featured"]
    for name in ("featured", "told"):
        assert about[name].configuration["team.owner"] == "games"
    comments = {field.name: field.metadata.get("comment") for field in query.open("silver.told").schema().fields}
    assert (about["told"].description, comments["level"], comments["bonus"]) == ("of each", "reached", "in euros")


@pytest.mark.parametrize("shape", ["divided", "divided_by_spark"])
def test_the_changes_of_a_table_can_be_followed(query: Query, shape: str) -> None:
    """Without it whoever follows a table sees rows come, and never change or go."""
    changes = read(f"silver.{shape}", lake=query.lake.root, changes_since=0)
    (last,) = changes.selectExpr("max(_commit_version)").first()
    kinds = sorted(map(tuple, changes.filter(f"_commit_version = {last}").select("gamer", "_change_type").collect()))

    assert kinds == [
        *[("a", "update_postimage"), ("a", "update_preimage"), ("b", "delete")],
        *[("c", "update_postimage"), ("c", "update_preimage"), ("d", "insert")],
    ]


def test_the_engine_is_explained(query: Query) -> None:
    """Without it nobody knows why one table of hundreds is slow."""
    found = {name: dict(explain(query.config, f"silver.{name}")) for name in SHAPES}
    engines = {name: lines["engine"].split(": ")[0] for name, lines in found.items()}

    assert engines == {"divided": "arrow", "divided_by_spark": "spark", "featured": "spark", "told": "arrow"}
    assert "clustering" in found["featured"]["engine"]
    assert (found["divided"]["rows"], found["divided"]["keys"], found["divided"]["deletions"]) == (
        "3",
        "gamer",
        "1 remembered",
    )
    assert found["told"]["written by"] == "profiles/upsert_4, has not yet"  # in a checkpoint of Spark's


def test_a_clustered_table_is_maintained(query: Query) -> None:
    """Without it a table is clustered in name only."""
    plan = Maintenance(tables="silver.*")
    found = Caretaker(query.lake, lambda: query.spark, (plan,)).maintain("silver.featured", plan)

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
