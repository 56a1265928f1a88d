"""A value on which an expression ends its task: its column is null there, and all other rows are in their tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine import decision
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from tests.engine.parts import Fatal, Shorter
from tests.engine.source_files import json_lines, put_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router.registry import Registry

DEEP = "ab" * 10_000
"""Java's regular expressions call themselves once for each repetition of a group."""
SOURCE = """\
name: deep
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: {{schema: "id bigint, name string"}}}}
bronze: bronze.all
dead_letters: ops.dead
trigger: {{once: true}}
"""
ROUTES = """\
routes:
  - name: all
    match: {sql: "true"}
    sinks: [{delta: silver.all}]
  - name: row
    match: {sql: "true"}
    select: [event.id, "regexp_extract(event.name, '^(a|b)*(?!x)', 1) AS last"]
    sinks: [{delta: silver.row}]
"""
RULE = """\
  - name: rule
    match: {sql: "event.name RLIKE '^(a|b)*(?!x)$'"}
    sinks: [{delta: silver.rule}]
"""


def put_records(folder: Path, *records: dict[str, Any]) -> None:
    """Put records into the source as a file that is named by the first one."""
    put_file(folder, f"{records[0]['id']}.json", json_lines(records))


def ids(folder: Path, table: str) -> list[int]:
    handle = Lake.at(str(folder / "lake")).open(table)
    assert handle is not None
    return sorted(row["id"] for row in handle.to_pyarrow_table(columns=["id"]).to_pylist())


def loaded_of(folder: Path, text: str) -> tuple[Loaded, Registry]:
    registry = load_registry()
    return load_config(folder / "deep.yaml", registry, environ={}, text=text), registry


def dead_letters(folder: Path) -> list[tuple[str, str, int]]:
    handle = Lake.at(str(folder / "lake")).open("ops.dead")
    assert handle is not None
    rows = handle.to_pyarrow_table().to_pylist()
    return sorted((row["route"], row["stage"], json.loads(row["value"])["id"]) for row in rows)


def test_a_value_that_ends_its_task_is_null(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it one long text ends the JVM at every start, and no table gets anything."""
    monkeypatch.setattr(decision, "TRIES_BEFORE_SEARCH", 1)
    put_records(tmp_path, *({"id": n, "name": DEEP if n == 3 else "ab"} for n in range(1, 5)))
    loaded, registry = loaded_of(tmp_path, SOURCE.format(folder=tmp_path) + ROUTES)
    (report,) = run(loaded, registry, spark)

    assert report.read == 4
    assert ids(tmp_path, "silver.all") == [1, 2, 3, 4]
    assert ids(tmp_path, "silver.row") == [1, 2, 4]
    assert dead_letters(tmp_path) == [("row", "select", 3)]
    (said,) = [text for text in caplog.messages if "fails on 1 records" in text]
    assert "route row" in said
    assert said.endswith("offset 2: java.lang.StackOverflowError")


@pytest.mark.slow
def test_values_that_end_their_task_leave_all_others(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a rule, two records of a batch, or a rebuild stops every table."""
    put_records(tmp_path, *({"id": n, "name": DEEP if n in (3, 7) else "ab"} for n in range(1, 11)))
    loaded, registry = loaded_of(tmp_path, SOURCE.format(folder=tmp_path) + ROUTES + RULE)
    run(loaded, registry, spark)

    def check() -> None:
        every = [*range(1, 11)]
        assert ids(tmp_path, "silver.all") == every
        others = [n for n in every if n not in (3, 7)]
        assert ids(tmp_path, "silver.rule") == others
        assert ids(tmp_path, "silver.row") == others
        assert dead_letters(tmp_path) == [("row", "select", 3), ("row", "select", 7)]

    check()
    put_records(tmp_path, {"id": 11, "name": DEEP})
    run(loaded, registry, spark)
    assert ids(tmp_path, "silver.all") == [*range(1, 12)]


def test_a_record_that_ends_its_task_is_a_dead_letter(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one record of a file ends the stream at every start; of Kafka it did not."""
    monkeypatch.setattr(decision, "TRIES_BEFORE_SEARCH", 1)
    put_records(tmp_path, *({"id": n, "name": "deadly" if n == 3 else "ab"} for n in range(1, 5)))
    loaded, registry = loaded_of(tmp_path, SOURCE.format(folder=tmp_path) + ROUTES)
    decode = Fatal(word="deadly", schema_of="id bigint, name string")
    loaded = replace(loaded, config=loaded.config.model_copy(update={"decode": decode}))
    (report,) = run(loaded, registry, spark)

    assert report.read == 4
    assert ids(tmp_path, "silver.all") == [1, 2, 4]
    assert ids(tmp_path, "silver.row") == [1, 2, 4]
    assert dead_letters(tmp_path) == [(None, "read", 3)]


def test_a_broken_plugin_ends_the_run_without_a_search(spark: SparkSession, tmp_path: Path) -> None:
    """Without it its author waits for minutes for the reason."""
    put_records(tmp_path, {"id": 1, "name": "ab"}, {"id": 2, "name": "ab"})
    loaded, registry = loaded_of(tmp_path, SOURCE.format(folder=tmp_path) + ROUTES)
    decode = Shorter(schema_of="id bigint, name string")
    loaded = replace(loaded, config=loaded.config.model_copy(update={"decode": decode}))
    steps = []
    options = RunOptions(watch=lambda batch, step, done, of: steps.append(step))
    with pytest.raises(Exception, match="shorter"):
        run(loaded, registry, spark, options)
    assert "land" in steps
    assert "search" not in steps
