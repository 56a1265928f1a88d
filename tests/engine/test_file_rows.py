"""Rows of files: their columns are found, new ones come while the stream runs, what does not fit is kept as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from router import StartError
from router.config.loader import load
from router.config.models import FilesSource, Trigger
from router.delta.lake import Lake
from router.engine.checkpoint_store import LearntSchemas
from router.engine.file_rows import FileRows
from router.engine.preflight.route_tests import load_tests, run_tests
from router.engine.stream import RunOptions, run
from router.errors import ConfigError
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router import BatchReport

YAML = """\
name: files
lake: {folder}/lake
source: {{files: {files}}}
decode: {{rows: {{}}}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{delta: silver.all}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""
Drain = Callable[..., "list[BatchReport]"]


@pytest.fixture
def drain(spark: SparkSession, tmp_path: Path) -> Drain:
    """Run a source of files until it is drained."""
    registry = load_registry()

    def drain(kind: str, options: RunOptions | None = None, **files: Any) -> list[BatchReport]:
        given = json.dumps({"path": str(tmp_path / "in"), "format": kind, **files})
        text = YAML.format(folder=tmp_path, files=given)
        loaded = load(tmp_path / "files.yaml", registry, environ={}, text=text)
        return run(loaded, registry, spark, options)

    return drain


def put(folder: Path, name: str, text: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    unfinished = folder / "in" / f".{name}"
    unfinished.write_text(text)
    unfinished.rename(folder / "in" / name)


def rows(folder: Path, table: str = "silver.all") -> list[dict[str, Any]]:
    """Return the rows of a table without nulls, in a stable order."""
    handle = Lake.at(str(folder / "lake")).open(table)
    found = handle.to_pyarrow_table().to_pylist() if handle else []
    found = [{name: value for name, value in row.items() if value is not None} for row in found]
    found = [row | ({"_rescued": dict(row["_rescued"])} if "_rescued" in row else {}) for row in found]
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=repr)))


def test_new_columns_come_without_a_restart(drain: Drain, tmp_path: Path) -> None:
    """Without it a producer that adds a column stops the stream, or the column is lost."""
    put(tmp_path, "a.csv", "id,name,at\n1,ann,2026-01-01T10:00:00Z\n007,bob,\n")
    options = RunOptions(Trigger(every="100 ms"))

    def go_on(report: BatchReport, behind: int | None) -> None:
        if report.batch == 0:
            put(tmp_path, "b.csv", "name,id,paid amount\ncid,x,2.5\n")
        else:
            options.stop.set()

    options.finished = go_on
    reports = drain("csv", options)

    assert [report.read for report in reports] == [2, 1]
    at = datetime(2026, 1, 1, 10, tzinfo=timezone.utc)
    assert rows(tmp_path) == [
        {"id": "1", "name": "ann", "at": at},
        {"id": "007", "name": "bob"},
        {"id": "x", "name": "cid", "paid_amount": 2.5},
    ]
    assert rows(tmp_path, "ops.dead") == []


def test_what_does_not_fit_is_rescued(drain: Drain, tmp_path: Path) -> None:
    """Without it one odd value makes a null, or a dead letter of a good row."""
    put(tmp_path, "a.csv", "id,n\n1,2\n")
    drain("csv")
    put(tmp_path, "b.csv", "id,n\n3,many\nbroken,4,beyond\n")
    drain("csv")
    assert rows(tmp_path) == [
        {"_rescued": {"id": "broken", "_line": "broken,4,beyond"}, "n": 4},
        {"_rescued": {"n": "many"}, "id": 3},
        {"id": 1, "n": 2},
    ]


def test_rows_of_json_keep_their_types_and_broken_lines(drain: Drain, tmp_path: Path) -> None:
    """Without it a line that is no JSON vanishes, or nested fields that come later do."""
    put(tmp_path, "a.json", '{"id": 1, "who": {"name": "ann"}, "tags": ["x"]}\n{"id": 2.5}\nno json\n')
    drain("json", schema_hints="id bigint")
    put(tmp_path, "b.json", '{"id": 3, "who": {"name": "bob", "age": 5}}\n')
    drain("json", schema_hints="id bigint")
    assert rows(tmp_path) == [
        {"_rescued": {"_line": "no json"}},
        {"_rescued": {"id": "2.5"}},
        {"id": 1, "who": {"name": "ann", "age": None}, "tags": ["x"]},
        {"id": 3, "who": {"name": "bob", "age": 5}},
    ]


@pytest.mark.slow
def test_rows_of_parquet(drain: Drain, tmp_path: Path) -> None:
    """Without it times lose digits, bytes become text, and files of different types stop the stream."""
    at = datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=timezone.utc)
    (tmp_path / "in").mkdir()
    one = pa.table({"id": [1], "at": [at], "raw": [b"\x00\xff"], "x": [float("nan")]})
    parquet.write_table(one, tmp_path / "in/a.parquet")
    drain("parquet")
    parquet.write_table(pa.table({"id": ["2", "x"], "new": [True, None]}), tmp_path / "in/b.parquet")
    parquet.write_table(pa.table({"id": pa.array([3], pa.int32())}), tmp_path / "in/c.parquet")
    drain("parquet")
    assert rows(tmp_path) == [
        {"_rescued": {"id": "x"}},
        {"_rescued": {"x": "NaN"}, "id": 1, "at": at, "raw": b"\x00\xff"},
        {"id": 2, "new": True},
        {"id": 3},
    ]


def test_rows_of_avro(drain: Drain, tmp_path: Path) -> None:
    """Without it the columns of one file are taken for those of all."""
    (tmp_path / "in").mkdir()
    for name, fields in {"a": {"id": "long"}, "b": {"id": "long", "plan": "string"}}.items():
        schema = {"type": "record", "name": "r", "fields": [{"name": f, "type": kind} for f, kind in fields.items()]}
        with (tmp_path / f"in/{name}.avro").open("wb") as file:
            fastavro.writer(file, schema, [{"id": 1, "plan": "gold"}])
    drain("avro")
    assert rows(tmp_path) == [{"id": 1, "plan": "gold"}, {"id": 1}]


@pytest.mark.parametrize("after", [pytest.param("delete", marks=pytest.mark.slow), "archive"])
def test_files_that_were_read_are_deleted_or_archived(drain: Drain, tmp_path: Path, after: str) -> None:
    """Without it a landing folder grows for ever."""
    for name in "abcd":
        put(tmp_path, f"{name}.csv", "id\n1\n")
    (tmp_path / "old").mkdir()
    drain("csv", files_per_batch=1, after="delete" if after == "delete" else {"archive": str(tmp_path / "old")})
    left = [path.name for path in (tmp_path / "in").glob("*.csv")]
    archived = [path.name for path in (tmp_path / "old").rglob("*.csv")]
    assert len(left) <= 2  # those of the last batch, when a later one has begun
    assert sorted(left + archived) == [f"{name}.csv" for name in "abcd"] or after == "delete"
    assert len(rows(tmp_path)) == 4


def test_a_file_without_rows_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a start fails, and nobody knows where."""
    put(tmp_path, "a.parquet", "no parquet")
    files = FilesSource(path=str(tmp_path / "in"), format="parquet")
    with pytest.raises(StartError, match=r"a\.parquet cannot be read as parquet"):
        FileRows(spark, files, LearntSchemas()).learn()


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named(drain: Drain, tmp_path: Path) -> None:
    """Without it somebody looks for it among ten thousand."""
    put(tmp_path, "a.parquet", "no parquet")
    with pytest.raises(StartError, match=r"a\.parquet cannot be read as parquet"):
        drain("parquet")
    (tmp_path / "in/a.parquet").unlink()
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "in/b.parquet")
    drain("parquet")
    put(tmp_path, "c.parquet", "no parquet")  # Spark has noted the batch with it
    with pytest.raises(StartError, match=r"c\.parquet cannot be read as parquet"):
        drain("parquet")
    (tmp_path / "in/c.parquet").unlink()
    parquet.write_table(pa.table({"id": [2]}), tmp_path / "in/d.parquet")
    drain("parquet")
    assert rows(tmp_path) == [{"id": 1}, {"id": 2}]


def test_a_backlog_is_taken_in_parts(drain: Drain, tmp_path: Path) -> None:
    """Without it the first batch of a folder that was filled for a year is all of it."""
    (tmp_path / "in").mkdir()
    for k in range(12):
        (tmp_path / f"in/{k:03}.json").write_text(f'{{"id": {k}}}\n')
    reports = drain("json", files_per_batch=6)
    assert [report.read for report in reports] == [6, 6]
    assert sorted(row["id"] for row in rows(tmp_path)) == [*range(12)]


def test_route_tests_take_the_hints(spark: SparkSession, tmp_path: Path) -> None:
    """Without it configurations for files cannot be tested."""
    files = json.dumps({"path": str(tmp_path / "in"), "format": "csv", "schema_hints": "id bigint"})
    (tmp_path / "files.yaml").write_text(YAML.format(folder=tmp_path, files=files))
    cases = tmp_path / "files.test.yaml"
    cases.write_text("tests: [{name: one, records: [{event: {id: 1}}], expect: {tables: {silver.all: [{id: 1}]}}}]\n")
    (result,) = run_tests(load(tmp_path / "files.yaml", load_registry()), load_tests(cases), spark)
    assert result.faults == ()


@pytest.mark.parametrize(
    ("files", "decode", "path"),
    [
        ({"format": "csv"}, "{json: 'id int'}", "decode"),
        ({}, "{rows: {}}", "decode"),
        ({"format": "csv", "whole_files": True}, "{rows: {}}", "source.files.whole_files"),
        ({"schema_hints": "id int"}, "{json: 'id int'}", "source.files.schema_hints"),
        ({"options": {"cleanSource": "delete"}}, "{json: 'id int'}", "source.files.options.cleanSource"),
        ({"format": "xml"}, "{rows: {}}", "source.files.format"),
    ],
    ids=["rows by json", "no rows", "whole files", "hints", "clean source", "no format"],
)
def test_what_does_not_go_together_is_refused(files: dict[str, Any], decode: str, path: str) -> None:
    """Without it the first batch is full of dead letters."""
    text = YAML.format(folder="x", files=json.dumps({"path": "in", **files})).replace("{rows: {}}", decode)
    with pytest.raises(ConfigError) as error:
        load(Path("files.yaml"), load_registry(), environ={}, text=text)
    assert path in [problem.path for problem in error.value.problems]
