"""A file of the source that cannot be read is one dead letter with its path; all other files land."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from router import StartError
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.audit.verify import verify_tables
from router.engine.stream import run
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

YAML = """\
name: files
lake: {folder}/lake
source: {{files: {files}}}
decode: {decode}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "true"}}
    select: [event.id]
    sinks: [{{delta: silver.all}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""
FORMATS = ["parquet", "lines", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "json", "avro"))]
NAMES = {"blank": "b d", "brackets": "b[1]{2}*", "percent": "b%41"}


def content(kind: str, number: int) -> bytes:
    """Return a file with one row."""
    if kind == "csv":
        return gzip.compress(b"id,x\n%d,%s\n" % (number, b"x" * 50_000))
    if kind in ("json", "lines"):
        return gzip.compress(b'{"id": %d, "x": "%s"}\n' % (number, b"x" * 50_000))
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        parquet.write_table(pa.table({"id": [number], "x": ["x" * 5_000]}), sink, compression="none")
    else:
        fields = [{"name": "id", "type": "long"}]
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{"id": number}])
    return bytes(sink.getvalue())


def damaged(kind: str, number: int, way: str) -> bytes:
    """Return a file that cannot be read: not its beginning, or not all of it."""
    whole = content(kind, number)
    if way == "cut off":
        return whole[: len(whole) - 20]
    if way == "empty":
        return b""
    if kind == "parquet":  # its footer is whole
        return whole.replace(b"x" * 4_000, b"\0" * 3_000 + b"\xff" * 1_000).replace(b"\x15\x00\x15", b"\xff\xff\xff", 1)
    return b"\x1f\x8b" + whole[2:40] + bytes(range(256)) + whole[296:]


class Source:
    """A folder of files, and what the router makes of it."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str) -> None:
        self.spark, self.folder, self.kind = spark, folder, kind
        (folder / "in").mkdir()

    def put(self, name: str, text: bytes) -> str:
        ending = {"csv": "csv.gz", "json": "json.gz", "lines": "txt.gz"}.get(self.kind, self.kind)
        unfinished = self.folder / "in" / f".{name}"
        unfinished.write_bytes(text)
        unfinished.rename(self.folder / "in" / f"{name}.{ending}")
        return f"file:{quote(str(self.folder / 'in' / f'{name}.{ending}'), safe='/*')}"

    def drain(self, **options: str) -> None:
        """Run the stream until it has read all files."""
        registry = load_registry()
        given = json.dumps({"path": str(self.folder / "in"), "format": self.kind, **options})
        decode = "{json: {schema: id bigint}}" if self.kind == "lines" else "{rows: {}}"
        file = self.folder / "files.yaml"
        file.write_text(YAML.format(folder=self.folder, files=given, decode=decode))
        loaded = load_config(file, registry, environ={})
        run(loaded, registry, self.spark)
        problems = [problem for audit in verify_tables(loaded.config, contents=True) for problem in audit.problems]
        assert problems == []

    def rows(self, table: str, *columns: str) -> list[Any]:
        handle = Lake.at(str(self.folder / "lake")).open(table)
        found = handle.to_pyarrow_table(columns=[*columns]).to_pylist() if handle else []
        return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_cannot_be_read_is_one_dead_letter(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Without it one file that is cut off stops all tables, until somebody moves it away at night."""
    source = Source(spark, tmp_path, kind)
    source.put("a", content(kind, 1))
    cut_off = source.put("b", damaged(kind, 2, "cut off"))
    source.put("c", content(kind, 3))
    source.drain()
    assert source.rows("silver.all", "id") == [(1,), (3,)]
    ((stage, topic, reason),) = source.rows("ops.dead", "stage", "topic", "reason")
    assert (stage, topic) == ("read", cut_off)
    assert "cannot be read" in reason

    other = source.put("d", damaged(kind, 4, "garbage"))
    source.drain()
    source.put("e", content(kind, 2))  # mended, under another name
    source.drain()
    assert source.rows("silver.all", "id") == [(1,), (2,), (3,)]
    assert {topic for (topic,) in source.rows("ops.dead", "topic")} == {cut_off, other}
    assert len(source.rows("bronze.all", "offset")) == len({*source.rows("bronze.all", "offset")}) == 5


@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("parquet", "lines"))]
)
def test_a_stream_may_begin_with_files_that_cannot_be_read(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Without it the first start fails, since its columns are learnt from the first files."""
    source = Source(spark, tmp_path, kind)
    bad = [source.put(f"{number}", damaged(kind, number, "garbage")) for number in range(3)]
    hints = {} if kind == "lines" else {"schema_hints": "id bigint"}  # else nobody knows the route's column yet
    source.drain(**hints)
    source.put("z", content(kind, 7))
    source.drain(**hints)
    assert source.rows("silver.all", "id") == [(7,)]
    assert [topic for (topic,) in source.rows("ops.dead", "topic")] == bad


def test_a_replay_of_a_file_that_cannot_be_read_makes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a file without content becomes a row of nulls."""
    source = Source(spark, tmp_path, "csv")
    source.put("a", content("csv", 1))
    bad = source.put("b", damaged("csv", 2, "cut off"))
    source.drain()
    command = [sys.executable, "-m", "router", "replay", str(tmp_path / "files.yaml"), "--send"]
    subprocess.run(command, check=True)
    assert source.rows("silver.all", "id") == [(1,)]
    assert {*source.rows("ops.dead", "topic")} == {(bad,)}
    source.drain()


def test_a_file_that_would_be_deleted_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the only copy of a file that nobody could read is deleted."""
    source = Source(spark, tmp_path, "csv")
    source.put("b", damaged("csv", 2, "cut off"))
    with pytest.raises(StartError, match=r"b\.csv\.gz: the file cannot be read: .*by `after: delete`"):
        source.drain(after="delete")
    assert (tmp_path / "in/b.csv.gz").exists()


@pytest.mark.parametrize(
    "name", ["brackets", *(pytest.param(name, marks=pytest.mark.slow) for name in ("blank", "percent"))]
)
@pytest.mark.parametrize("kind", ["csv", "lines"])
def test_names_of_files_are_no_patterns(spark: SparkSession, tmp_path: Path, name: str, kind: str) -> None:
    """Without it a file whose name has brackets is not found, or another one is read twice."""
    source = Source(spark, tmp_path, kind)
    source.put("b1", content(kind, 1))
    source.put(NAMES[name], content(kind, 2))
    bad = source.put(f"{NAMES[name]}-", damaged(kind, 3, "cut off"))
    source.drain()
    assert source.rows("silver.all", "id") == [(1,), (2,)]
    assert source.rows("ops.dead", "topic") == [(bad,)]


def test_other_formats_refuse_names_that_are_patterns(spark: SparkSession, tmp_path: Path) -> None:
    """Without it Spark's own source gives all rows of the files beside such a file twice, and nobody is told."""
    source = Source(spark, tmp_path, "lines")
    source.put("a", content("lines", 1))
    source.put("b[1]", content("lines", 2))
    text = YAML.format(folder=tmp_path, files="", decode="{json: {schema: id bigint}}")
    format_source = json.dumps({"format": {"name": "text", "options": {"path": str(tmp_path / "in")}}})
    (tmp_path / "files.yaml").write_text(text.replace("{files: }", format_source))
    registry = load_registry()
    with pytest.raises(StartError, match=r"b%5B1%5D\.txt\.gz: beside a file of such a name Spark reads others twice"):
        run(load_config(tmp_path / "files.yaml", registry, environ={}), registry, spark)
    assert source.rows("silver.all", "id") == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_file_that_is_larger_than_memory_is_one_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a small file of one endless line ends Spark's JVM at every start."""
    source = Source(spark, tmp_path, "lines")
    source.put("a", content("lines", 1))
    bomb = source.put("b", b"".join([gzip.compress(b"x" * (1 << 20))] * 2_200))
    source.drain()
    assert source.rows("silver.all", "id") == [(1,)]
    ((stage, topic, reason),) = source.rows("ops.dead", "stage", "topic", "reason")
    assert (stage, topic) == ("read", bomb)
    assert "java.lang.OutOfMemoryError" in reason
