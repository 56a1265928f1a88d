"""Columns that are nested deeper than any table can have them: refused at the start, dead letters later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from router import StartError
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.stream import run
from router.registry import load_registry
from tests.engine.source_files import json_lines, put_file
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

YAML = """\
name: deep
lake: {folder}/lake
source: {{files: {{path: {folder}/in, format: json, schema_hints: "id bigint"}}}}
decode: {{rows: {{}}}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "true"}}
    select: {select}
    sinks: [{{delta: silver.all}}, {{upsert: {{table: silver.latest, keys: [id]}}}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""


@pytest.fixture
def drain(spark: SparkSession, tmp_path: Path) -> Callable[..., None]:
    """Run until all files are read."""
    registry = load_registry()

    def drain(select: str = "['event.*']") -> None:
        text = YAML.format(folder=tmp_path, select=select)
        run(load_config(tmp_path / "deep.yaml", registry, environ={}, text=text), registry, spark)

    return drain


def nested(structs: int) -> Any:
    """Return a value with so many structs in each other."""
    value: Any = 1
    for _ in range(structs):
        value = {"x": value}
    return value


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return read_rows(Lake.at(str(folder / "lake")), table)


def ids(folder: Path, table: str) -> list[int]:
    return sorted(row["id"] for row in rows(folder, table))


def test_a_column_that_comes_too_deep_costs_its_own_rows_only(drain: Callable[..., None], tmp_path: Path) -> None:
    """Without it the manifest wants a commit that no table takes: the batch is repeated for ever, after every start."""
    put_file(tmp_path, "a.json", json_lines([{"id": 1, "good": nested(41)}]))
    drain()
    put_file(tmp_path, "b.json", json_lines([{"id": 2, "deep": nested(42)}, {"id": 3, "good": nested(41)}, {"id": 4}]))
    drain()
    assert ids(tmp_path, "silver.all") == [1, 3, 4]
    assert ids(tmp_path, "silver.latest") == [1, 3, 4]
    assert len(rows(tmp_path, "bronze.all")) == 4
    dead = rows(tmp_path, "ops.dead")
    assert {(letter["stage"], letter["route"], json.loads(letter["value"])["id"]) for letter in dead} == {
        ("schema", "all", 2)
    }
    assert {letter["sink"] for letter in dead} == {"delta", "upsert"}
    assert all("column deep is nested too deep" in letter["reason"] for letter in dead)

    put_file(tmp_path, "c.json", json_lines([{"id": 5, "deep": nested(42)}]))
    with pytest.raises(StartError, match=r"route all, sink delta: column deep .* to_json\(deep\) AS deep"):
        drain()
    drain(select="[event.id, event.good, 'to_json(event.deep) AS deep']")
    assert ids(tmp_path, "silver.all") == [1, 3, 4, 5]
    assert ids(tmp_path, "silver.latest") == [1, 3, 4, 5]
    assert len(rows(tmp_path, "ops.dead")) == len(dead)


def test_a_struct_that_grows_too_deep_costs_the_rows_that_have_it(drain: Callable[..., None], tmp_path: Path) -> None:
    """Without it a struct that grows inside makes a table that nobody can open again."""
    put_file(tmp_path, "a.json", json_lines([{"id": 1, "grows": {"x": {"y": 1}}}]))
    drain()
    put_file(tmp_path, "b.json", json_lines([{"id": 2, "grows": nested(42) | {"z": 1}}, {"id": 3, "grows": {"z": 2}}]))
    drain()
    assert ids(tmp_path, "silver.all") == [1]
    assert {json.loads(letter["value"])["id"] for letter in rows(tmp_path, "ops.dead")} == {2, 3}
