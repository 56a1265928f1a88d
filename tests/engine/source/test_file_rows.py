"""Rows of files: their columns are found, new ones come while the stream runs, what does not fit is kept as text."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from router.config.loader import load_config
from router.config.models import FilesSource, Trigger
from router.delta.lake import Lake
from router.engine.checkpoint_store import LearntSchemas
from router.engine.preflight.route_tests import load_tests, run_tests
from router.engine.source.file_rows import FileRows
from router.engine.source.lossless_cast import table_name
from router.engine.stream import RunOptions, run
from router.errors import ConfigError
from router.registry import load_registry
from tests.engine.source_files import put_file
from tests.lake_rows import read_rows

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
        loaded = load_config(tmp_path / "files.yaml", registry, environ={}, text=text)
        return run(loaded, registry, spark, options)

    return drain


def rows(folder: Path, table: str = "silver.all") -> list[dict[str, Any]]:
    """Return the rows of a table without nulls, in a stable order."""
    found = read_rows(Lake.at(str(folder / "lake")), table)
    found = [{name: value for name, value in row.items() if value is not None} for row in found]
    found = [row | ({"_rescued": dict(row["_rescued"])} if "_rescued" in row else {}) for row in found]
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=repr)))


def test_new_columns_come_without_a_restart(drain: Drain, tmp_path: Path) -> None:
    """Without it a producer that adds a column stops the stream, or the column is lost."""
    put_file(tmp_path, "a.csv", "id,name,at\n1,ann,2026-01-01T10:00:00Z\n007,bob,\n")
    options = RunOptions(Trigger(every="100 ms"))

    def go_on(report: BatchReport, behind: int | None) -> None:
        if report.batch == 0:
            put_file(tmp_path, "b.csv", "name,id,paid amount\ncid,x,2.5\n")
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
    put_file(tmp_path, "a.csv", "id,n\n1,2\n")
    drain("csv")
    put_file(tmp_path, "b.csv", "id,n\n3,many\nbroken,4,beyond\n")
    drain("csv")
    assert rows(tmp_path) == [
        {"_rescued": {"id": "broken", "_line": "broken,4,beyond"}, "n": 4},
        {"_rescued": {"n": "many"}, "id": 3},
        {"id": 1, "n": 2},
    ]


def test_rows_of_json_keep_their_types_and_broken_lines(drain: Drain, tmp_path: Path) -> None:
    """Without it a line that is no JSON vanishes, or nested fields that come later do."""
    put_file(tmp_path, "a.json", '{"id": 1, "who": {"name": "ann"}, "tags": ["x"]}\n{"id": 2.5}\nno json\n')
    drain("json", schema_hints="id bigint")
    put_file(tmp_path, "b.json", '{"id": 3, "who": {"name": "bob", "age": 5}}\n')
    drain("json", schema_hints="id bigint")
    assert rows(tmp_path) == [
        {"_rescued": {"_line": "no json"}},
        {"_rescued": {"id": "2.5"}},
        {"id": 1, "who": {"name": "ann", "age": None}, "tags": ["x"]},
        {"id": 3, "who": {"name": "bob", "age": 5}},
    ]


@pytest.mark.parametrize("multi_line", ["false", "true"])
def test_texts_of_csv_that_are_not_utf8_are_rescued(spark: SparkSession, tmp_path: Path, multi_line: str) -> None:
    """Without it a file of another encoding has other letters in its table, and nobody hears of it."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_bytes(
        b"id,na\xc3\xafme,n\n1,M\xc3\xbcller,2\n2,M\xfcller,3\n3,\xff\xfe,\xe9\n4,x,5,\xfc\n"
    )
    (folder / "b.csv").write_bytes("id,naïme,n\n5,\ufffd \u20ac,6\n".encode())
    found = records(spark, FilesSource(path=str(folder), format="csv", options={"multiLine": multi_line}))

    def base64(text: bytes) -> str:
        return b64encode(text).decode()

    assert sorted(found, key=repr) == sorted(
        [
            {"id": "1", "naïme": "Müller", "n": "2"},
            {"id": "2", "n": "3", "_rescued": {"naïme": base64(b"M\xfcller")}},
            {"id": "3", "_rescued": {"naïme": base64(b"\xff\xfe"), "n": base64(b"\xe9")}},
            {"id": "4", "naïme": "x", "n": "5", "_rescued": {"_line": base64(b"4,x,5,\xfc")}},
            {"id": "5", "naïme": "\ufffd \u20ac", "n": "6"},
        ],
        key=repr,
    )


def test_lines_of_json_that_are_not_utf8_are_rescued(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a line of another encoding has other letters in its table, and nobody hears of it."""
    folder = tmp_path / "in"
    folder.mkdir()
    broken = [b'{"ID": 2, "name": "M\xfcller", "t\xfc": 1}', b'{"ID": 3, "many": ["\xff"]}', b"no json \xe9"]
    lines = [b'{"ID": 1, "name": "M\xc3\xbcller", "many": [1.0]}', *broken, '{"ID": 4, "name": "\ufffd"}'.encode()]
    lines += [b'[{"ID": 5}, {"ID": 6, "id": "x"}, 7]', b"{cut off"]
    (folder / "a.json").write_bytes(b"\n".join([*lines, b""]))
    (folder / "b.json").write_bytes(b'{"ID": 8, "id": 9}\n')
    found = records(spark, FilesSource(path=str(folder), format="json"))

    expected: list[dict[str, Any]] = [{"_rescued": {"_line": b64encode(line).decode()}} for line in broken]
    expected += [{"ID": "1", "name": "Müller", "many": ["1.0"]}, {"ID": "4", "name": "\ufffd"}]
    expected += [{"ID": "5"}, {"ID": "6", "_rescued": {"id": "x"}}, {"_rescued": {"_line": "7"}}]
    expected += [{"_rescued": {"_line": "{cut off"}}, {"ID": "8", "_rescued": {"id": "9"}}]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_files_of_json_that_are_not_utf8_are_rescued(spark: SparkSession, tmp_path: Path) -> None:
    """Without it Spark's other parser of JSON is not seen to refuse them."""
    folder = tmp_path / "in"
    folder.mkdir()
    for k, text in enumerate([b'{"id": 1, "name": "M\xc3\xbcller"}', b'{"id": 2, "name": "M\xfcller"}']):
        (folder / f"{k}.json").write_bytes(text)
    found = records(spark, FilesSource(path=str(folder), format="json", options={"multiLine": "true"}))
    broken = {"_rescued": {"_line": '{"id": 2, "name": "M\ufffdller"}'}}
    assert sorted(found, key=repr) == [broken, {"id": "1", "name": "Müller"}]


HEADERS: list[tuple[dict[str, str], str]] = [
    ({"sep": "\\t"}, "a\tb\n1\tx\n"),
    ({"sep": "||"}, "a||b\n1||x\n"),
    ({"Delimiter": ";"}, "a;b\n1;x\n"),
    ({"quote": "'"}, "'a','b'\n'1,2','x'\n"),
    ({"quote": ""}, 'a,"b\n1,"x\n'),
    ({"escape": '"'}, 'a,"b ""q"""\n1,"x ""y"" z"\n'),
    ({}, 'a,"b \\"q\\""\n1,"x \\"y\\" z"\n'),
    ({"comment": "#"}, "# about\na,b\n#no\n1,x\n"),
    ({"lineSep": ";"}, "a,b;1,x;2,y"),
    ({"nullValue": "-"}, "a,-\n1,-\n2,x\n"),
    ({"multiLine": "true"}, '"a\nb",c\n"1\n2",x\n'),
    ({"Header": "false"}, "1,x\n2,y\n"),
    ({}, "\ufeffa,b\n1,x\n"),
    ({"multiLine": "true"}, "\ufeff\n\na,b\n1,x\n"),
    ({"encoding": "UTF-16LE", "lineSep": "\n"}, "a,größe\n1,ß\n"),
    ({"charset": "UTF-16", "multiLine": "true"}, "a,größe\n1,ß\n"),
    ({"encoding": "ISO-8859-1"}, "id,größe\n1,ß\n"),
]


@pytest.mark.parametrize(("options", "text"), HEADERS, ids=[f"{k} {sorted(case[0])}" for k, case in enumerate(HEADERS)])
def test_a_header_of_csv_is_read_as_spark_does(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], text: str
) -> None:
    """Without it the rows go into columns of other names, or an option stops the stream."""
    folder = tmp_path / "in"
    folder.mkdir()
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    (folder / "a.csv").write_bytes(text.encode(encoding))
    expected = []
    for row in spark.read.options(**{"header": "true", **options}).csv(str(folder)).collect():
        expected.append({table_name(name): value for name, value in row.asDict().items() if value is not None})
    assert expected
    assert records(spark, FilesSource(path=str(folder), format="csv", options=options)) == expected


@pytest.mark.parametrize("option", ["mode", "columnnameofcorruptrecord"])
def test_an_option_that_drops_lines_is_refused(option: str) -> None:
    """Without it lines that are no row are in no table, no dead letter and no count."""
    with pytest.raises(ValueError, match="cannot be set: a line that is no row is kept in `_rescued`"):
        FilesSource(path="in", format="csv", options={option: "DROPMALFORMED"})
    with pytest.raises(ValueError, match="two options are called sep"):
        FilesSource(path="in", format="csv", options={"sep": ";", "delimiter": ","})


def test_a_csv_file_of_another_encoding_names_the_option(drain: Drain, tmp_path: Path) -> None:
    """Without it a column has a name that nobody gave it; the other files land."""
    put_file(tmp_path, "a.csv", "id,größe\n1,2\n")
    (tmp_path / "in" / "b.csv").write_bytes("id,größe\n3,4\n".encode("latin-1"))
    drain("csv")
    assert rows(tmp_path) == [{"id": 1, "größe": 2}]
    (dead,) = rows(tmp_path, "ops.dead")
    assert dead["topic"].endswith("b.csv")
    assert "its header is not UTF-8: name its encoding in source.files.options" in dead["reason"]


def test_keys_that_differ_by_case_are_kept_in_any_encoding(spark: SparkSession, tmp_path: Path) -> None:
    """Without it lines of another encoding are no rows beside such keys."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_bytes('{"ID": "ß", "id": 2}\n[{"ID": "x"}]\n'.encode("utf-16-le"))
    options = {"encoding": "UTF-16LE", "lineSep": "\n"}
    found = records(spark, FilesSource(path=str(folder), format="json", options=options))
    assert found == [{"ID": "ß", "_rescued": {"id": "2"}}, {"ID": "x"}]


def test_files_of_json_without_a_column_land(drain: Drain, tmp_path: Path) -> None:
    """Without it Spark refuses to read them, and good rows without a value are said to be damaged files."""
    put_file(tmp_path, "a.json", '{"a": null}\n{}\n[]\n[{}]\n\n')
    put_file(tmp_path, "b.json", 'no json\n1\nnull\n"x"\n')
    drain("json")
    broken = [{"_rescued": {"_line": line}} for line in ("no json", "1", "null", '"x"')]
    assert rows(tmp_path) == sorted([*broken, {}, {}, {}], key=lambda row: repr(sorted(row.items(), key=repr)))
    assert rows(tmp_path, "ops.dead") == []
    put_file(tmp_path, "c.json", '{"a": 1}\n')
    drain("json")
    assert {"a": 1} in rows(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_column_may_have_the_name_of_one_of_spark(drain: Drain, tmp_path: Path, kind: str) -> None:
    """Without it one file with such a column stops the stream."""
    text = {"csv": "id,_metadata\n1,2\n", "json": '{"id": 1, "_metadata": 2}\n'}
    put_file(tmp_path, f"a.{kind}", text[kind])
    drain(kind)
    assert rows(tmp_path) == [{"id": 1, "_metadata": 2}]


OWN_NAMES = ("_line", "_Path", "_changed", "_block", "_RESCUED")


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "avro"])
def test_a_column_may_have_the_name_of_one_of_the_router(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Without it one file with such a column stops the stream, or loses its values silently."""
    row = {"id": 1, **{name: f"of {name}" for name in OWN_NAMES}}
    (tmp_path / "in").mkdir()
    if kind == "csv":
        put_file(tmp_path, "a.csv", ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n2,a,b,c,d,e,beyond\n")
    elif kind == "json":
        put_file(tmp_path, "a.json", json.dumps(row) + "\nno json\n")
    elif kind == "parquet":
        parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "in/a.parquet")
    else:
        fields = [{"name": name, "type": "long" if name == "id" else "string"} for name in row]
        with (tmp_path / "in/a.avro").open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, [row])
    memory = LearntSchemas()
    files = FilesSource(path=str(tmp_path / "in"), format=kind)
    for _ in range(2):  # the second time all columns are known
        whole, *broken = records(spark, files, memory)
        assert whole == {
            "id": "1",
            **{name: f"of {name}" for name in OWN_NAMES[:-1]},
            "_rescued": {"_RESCUED": "of _RESCUED"},
        }
        if kind == "csv":
            assert broken[0]["id"] == "2"
            assert broken[0]["_line"] == "a"
            assert broken[0]["_rescued"] == {"_RESCUED": "e", "_line": "2,a,b,c,d,e,beyond"}
        if kind == "json":
            assert broken == [{"_rescued": {"_line": "no json"}}]


RESCUED = "in _rescued"
TEXTS: dict[str, dict[str, str]] = {
    "decimal(10,2)": {
        "2.50": "2.50", "2.500": "2.50", " 2.5\t": "2.50", "+2.5": "2.50", "1e3": "1000.00", "1250e-3": "1.25",
        "2.555": RESCUED, "2.5500000000000000000000000000000000000001": RESCUED, "123456789": RESCUED,
        "12345678": "12345678.00", "1,5": RESCUED, "0.000": "0.00", ".5": "0.50", "NaN": RESCUED, "2.5d": RESCUED,
    },
    "int": {
        "007": "7", "+7": "7", " 7 ": "7", "-0": "0", "2147483647": "2147483647", "2147483648": RESCUED,
        "1e3": RESCUED, "1.0": RESCUED, "2.5": RESCUED, "0x10": RESCUED,
    },
    "bigint": {"9223372036854775807": "9223372036854775807", "9223372036854775808": RESCUED},
    "double": {
        "0.1": "0.1", "2.50": "2.5", "1e3": "1000.0", "52.520006599999999": "52.5200066", "1e400": RESCUED,
        "9007199254740993": RESCUED, "9007199254740992": "9.007199254740992E15", "1e-400": RESCUED, "0e-400": "0.0",
        "12345678901234567.25": RESCUED, "0.12345678901234567890": RESCUED, "1d": RESCUED, "Infinity": RESCUED,
        "9223372036854775807": RESCUED, "1e22": "1.0E22",
    },
    "float": {"0.1": "0.1", "16777217": RESCUED, "16777216": "1.6777216E7", "0.123456789": RESCUED, "1e39": RESCUED},
    "boolean": {"true": "True", "no": "False", "1": "True", "2": RESCUED, "on": RESCUED},
    "date": {
        "2026-01-31": "2026-01-31", "2026-1-2": "2026-01-02", "2026-01-31 00:00:00": "2026-01-31",
        "2024-02-30": RESCUED, "2026-01-31T10:00:00": RESCUED, "2026": RESCUED, "2026-01": RESCUED,
        "10000-01-01": RESCUED, "0000-01-01": RESCUED, "31.01.2026": RESCUED,
    },
    "timestamp": {
        "2026-01-31T10:00:00.123456Z": "2026-01-31T10:00:00.123456Z", "2026-01-31": "2026-01-31T00:00:00.000000Z",
        "2026-01-31 10:00:00+02:00": "2026-01-31T08:00:00.000000Z", "2026-01-31T10:00:00.1234567Z": RESCUED,
        "2026-01-31T10:00:00.123456000Z": "2026-01-31T10:00:00.123456Z", "10:00": RESCUED, "2026": RESCUED,
        "2026-01-31 10:00:00 Europe/Berlin": "2026-01-31T09:00:00.000000Z", "2026-02-30T10:00:00Z": RESCUED,
        "0001-01-01T00:00:00+02:00": RESCUED, "9999-12-31T23:59:59Z": "9999-12-31T23:59:59.000000Z",
        "2026-01-31T24:00:00Z": RESCUED, "1767225600": RESCUED,
    },
    "timestamp_ntz": {
        "2026-01-31T10:00:00": "2026-01-31T10:00:00.000000", "2026-01-31T10:00:00Z": RESCUED,
        "2026-01-31T10:00:00.1234567": RESCUED,
    },
}  # fmt: skip


def records(spark: SparkSession, files: FilesSource, memory: LearntSchemas | None = None) -> list[dict[str, Any]]:
    """Return the rows of the files of a source, with numbers as they are written."""
    texts = texts_of_records(spark, files, memory or LearntSchemas())
    return [json.loads(text, parse_float=str, parse_int=str) for text in texts]


def texts_of_records(spark: SparkSession, files: FilesSource, memory: LearntSchemas) -> list[bytes]:
    """Return the JSON of each row of the files of a source."""
    listed = [str(path) for path in Path(files.path).iterdir()]
    rows = FileRows(spark, files, memory).read_records(listed).select("value").collect()
    return [bytes(row["value"]) for row in rows]


@pytest.mark.parametrize("kind", [*TEXTS])
def test_a_text_that_would_lose_something_is_rescued(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Without it 2.555 lands as 2.56, a number too large as another one, a time as its day."""
    lines = [f'"{text}","{text}"' for text in TEXTS[kind]]
    put_file(tmp_path, "a.csv", "\n".join(["text,x", *lines]) + "\n")
    files = FilesSource(path=str(tmp_path / "in"), format="csv", schema_hints=f"text string, x {kind}")
    landed = {}
    for row in records(spark, files):
        landed[row["text"]] = str(row["x"]) if "x" in row else RESCUED
        assert row.get("_rescued") == (None if "x" in row else {"x": row["text"]})
    assert landed == TEXTS[kind]


def test_an_hour_that_summer_time_skips_is_rescued(spark: SparkSession, tmp_path: Path) -> None:
    """Without it Spark moves the time by an hour, and an old one by half a minute."""
    put_file(
        tmp_path, "a.csv", "x\n2026-03-29 02:30:00\n2026-03-29 03:30:00\n1850-01-01 00:00:00\n2026-03-29 02:30:00Z\n"
    )
    files = FilesSource(path=str(tmp_path / "in"), format="csv", schema_hints="x timestamp")
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        landed = records(spark, files)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert landed == [
        {"_rescued": {"x": "2026-03-29 02:30:00"}},
        {"x": "2026-03-29T01:30:00.000000Z"},
        {"x": "1849-12-31T23:06:32.000000Z"},
        {"x": "2026-03-29T02:30:00.000000Z"},
    ]


def test_inferred_columns_keep_signs_and_zeros(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a phone number becomes a number as soon as the first file has only short ones."""
    files = FilesSource(path=str(tmp_path / "in"), format="csv")
    memory = LearntSchemas()
    put_file(tmp_path, "a.csv", "n,b,d,x,digits\n1,true,2026-01-01,1.5,0.12345678901234567890\n")
    (row,) = records(spark, files, memory)
    assert row == {"n": "1", "b": True, "d": "2026-01-01", "x": "1.5", "digits": "0.12345678901234567890"}
    put_file(tmp_path, "a.csv", "n,b,d,x,digits\n+49,yes,2026-01-01 10:00,007,1\n")
    (row,) = records(spark, files, memory)
    assert row == {"digits": "1", "_rescued": {"n": "+49", "b": "yes", "d": "2026-01-01 10:00", "x": "007"}}


JSON_VALUES = """\
{"d": 2.50, "n": 1, "s": 1.50, "t": "2026-01-31T10:00:00.123456Z", "x": 0.5, "b": true}
{"d": 12345678901234567.89, "n": 9007199254740993, "s": "2026-01-31T10:00:00+02:00", "x": 9007199254740993}
{"d": 2.555, "n": 2.5, "s": {"a": 1.50}, "t": "2026-01-31T10:00:00.123456789Z", "x": 1e400, "b": "on"}
{"d": true, "n": true, "t": 20260101, "day": 20260101, "b": 1}
"""


@pytest.mark.parametrize("many_lines", ["false", "true"])
def test_numbers_of_json_keep_their_digits(spark: SparkSession, tmp_path: Path, many_lines: str) -> None:
    """Without it a number is a double before anybody looks, and a number under a date is a day in 1970."""
    values = JSON_VALUES.splitlines()
    text = f"[{','.join(values)}]" if many_lines == "true" else JSON_VALUES
    put_file(tmp_path, "a.json", text)
    hints = "d decimal(20,2), n bigint, s string, t timestamp, b boolean, day date"
    options = {"multiLine": many_lines}
    files = FilesSource(path=str(tmp_path / "in"), format="json", schema_hints=hints, options=options)
    assert records(spark, files) == [
        {"d": "2.50", "n": "1", "s": "1.50", "t": "2026-01-31T10:00:00.123456Z", "x": "0.5", "b": True},
        {
            "d": "12345678901234567.89",
            "n": "9007199254740993",
            "s": "2026-01-31T10:00:00+02:00",
            "_rescued": {"x": "9007199254740993"},
        },
        {
            "s": '{"a": 1.50}',
            "_rescued": {"d": "2.555", "n": "2.5", "t": "2026-01-31T10:00:00.123456789Z", "x": "1e400", "b": "on"},
        },
        {"b": True, "_rescued": {"d": "true", "n": "true", "t": "20260101", "day": "20260101"}},
    ]


def test_times_of_json_are_whole_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a code of four digits becomes the first of January, and nanoseconds are cut."""
    put_file(
        tmp_path, "a.json", '{"code": "2026", "nanos": "2026-01-31T10:00:00.123456789Z", "at": "2026-01-31T10:00Z"}\n'
    )
    files = FilesSource(path=str(tmp_path / "in"), format="json")
    assert records(spark, files) == [
        {"code": "2026", "nanos": "2026-01-31T10:00:00.123456789Z", "at": "2026-01-31T10:00:00.000000Z"}
    ]


def test_values_of_parquet_that_would_lose_something_are_rescued(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the largest bigint is rounded, bytes become question marks, a year 12026 makes a dead letter."""
    (tmp_path / "in").mkdir()
    largest = 2**63 - 1
    far = pa.array([253402300800000000], pa.timestamp("us", "UTC"))  # the first second of the year 10000
    columns = {
        "narrow": pa.array([2**31]),
        "wide": pa.array([largest]),
        "rounded": pa.array([2.555]),
        "short": pa.array([0.1]),
        "shorter": pa.array([0.123456789]),
        "day": pa.array([datetime(2026, 1, 1, 10, tzinfo=timezone.utc)]),
        "text": pa.array([b"\xff"]),
        "flag": pa.array([True]),
        "far": far,
    }
    parquet.write_table(pa.table(columns), tmp_path / "in/a.parquet")
    hints = (
        "narrow int, wide double, rounded decimal(10,2), short float, shorter float, day date, text string, flag int"
    )
    files = FilesSource(path=str(tmp_path / "in"), format="parquet", schema_hints=hints)
    (row,) = records(spark, files)
    assert row.pop("short") == "0.1"
    assert row.pop("_rescued") == {
        "narrow": "2147483648",
        "wide": str(largest),
        "rounded": "2.555",
        "shorter": "0.123456789",
        "day": "2026-01-01 10:00:00",
        "text": "/w==",
        "flag": "true",
        "far": "+10000-01-01 00:00:00",
    }
    assert row == {}


SHAPES: dict[str, tuple[str | None, list[str], list[dict[str, Any]]]] = {
    # Hints, the lines of the files one batch after the other, the rows of the last file.
    "whole numbers after fractions": (
        None,
        ['{"x": [1.5]}', '{"x": [3]}'],
        [{"x": ["3.0"]}],
    ),
    "fractions beside whole numbers": (
        None,
        ['{"x": [1]}', '{"x": [3]}\n{"x": [3.0]}\n{"x": [ 1.50, 2 ]}'],
        [{"x": ["3"]}, {"_rescued": {"x": "[3.0]"}}, {"_rescued": {"x": "[ 1.50, 2 ]"}}],
    ),
    "another shape in one row": (
        None,
        [
            '{"s": {"a": 1, "t": ["x"]}, "m": [{"k": 1}]}',
            '{"s": {"a": 2, "t": []}, "m": [{"k": 2}, null]}\n{"s": [7.10], "m": "none"}\n{"s": {"a": null}, "m": []}',
        ],
        [
            {"s": {"a": "2", "t": []}, "m": [{"k": "2"}, None]},
            {"_rescued": {"s": "[7.10]", "m": "none"}},
            {"s": {}, "m": []},
        ],
    ),
    "only empty ones in a batch": (
        None,
        ['{"x": [1.5], "n": 1, "s": {"a": 1}}', '{"x": [], "n": [], "s": {}}'],
        [{"x": [], "s": {}, "_rescued": {"n": "[]"}}],
    ),
    "digits that a double loses": (
        None,
        ['{"x": [0.5], "s": {"a": 0.5}}', '{"x": [9007199254740993, 0.5], "s": {"a": 1e400}}'],
        [{"_rescued": {"x": "[9007199254740993, 0.5]", "s": '{"a": 1e400}'}}],
    ),
    "a new field beside another type": (
        None,
        ['{"s": {"a": 1}}', '{"s": {"a": "x", "b": 1}}\n{"s": {"a": 2, "b": 2}}'],
        [{"_rescued": {"s": '{"a": "x", "b": 1}'}}, {"s": {"a": "2", "b": "2"}}],
    ),
    "names that differ by case": (
        None,
        ['{"s": {"a": 1}}', '{"s": {"A": 2}}\n{"s": 3}\n{"s": {"A": 4, "a": 5}}\n{"s": {"a": 6, "a": 7}}'],
        [
            {"s": {"a": "2"}},
            {"_rescued": {"s": "3"}},
            {"_rescued": {"s": '{"A": 4, "a": 5}'}},
            {"_rescued": {"s": '{"a": 6, "a": 7}'}},
        ],
    ),
    "names that no table can have": (
        None,
        [
            '{"o": {"x y": 1, "q": [{"a.b": 2}]}}',
            '{"o": {"x y": 3, "q": [{"a.b": 2}]}}\n{"o": {"x_y": 4}}\n{"o": {"x y": 5, "x_y": 6}}\n{"o": {"X=Y": 7}}',
        ],
        [
            {"o": {"x_y": "3", "q": [{"a_b": "2"}]}},
            {"o": {"x_y": "4"}},
            {"_rescued": {"o": '{"x y": 5, "x_y": 6}'}},
            {"o": {"x_y": "7"}},
        ],
    ),
    "names of a NUL, and of nothing": (
        None,
        ['{"p": {"": 1}}\n{"p": {"\\u0000": 2}}\n{"p": {"": 3, "\\u0000": 4}}'],
        [{"p": {"_": "1"}}, {"p": {"_": "2"}}, {"_rescued": {"p": '{"": 3, "\\u0000": 4}'}}],
    ),
    "keys that come twice": (
        None,
        ['{"a": 1, "s": {"x": 1}}', '{"a": 2, "a": 3}\n{"s": {"x": 4, "x": 5}}\n{"b": 1, "b": 2, "s": {"x": 6}}'],
        [{"a": "3"}, {"_rescued": {"s": '{"x": 4, "x": 5}'}}, {"b": "2", "s": {"x": "6"}}],
    ),
    "hints with names that no table can have": (
        "`a b` bigint, o struct<`x y`:bigint>",
        ['{"a b": 1, "o": {"x y": 2}}\n{"a_b": 3, "o": {"x_y": 4}}'],
        [{"a_b": "1", "o": {"x_y": "2"}}, {"o": {"x_y": "4"}, "_rescued": {"a_b": "3"}}],
    ),
    "texts inside": (
        None,
        ['{"s": {"t": "x"}}', '{"s": {"t": [ 3.0 ]}}\n{"s": {"t": {"u": 1e2}}}\n{"s": {"t": "\\u00e9"}}'],
        [{"s": {"t": "[ 3.0 ]"}}, {"s": {"t": '{"u": 1e2}'}}, {"s": {"t": "é"}}],
    ),
    "hints": (
        "d array<decimal(4,2)>, s struct<at:timestamp,n:int>, m map<string,bigint>, v variant, w array<variant>",
        [
            '{"d": [1.5, 2], "s": {"at": "2026-01-31T10:00:00Z", "n": 1}, "m": {"a": 1, "b": null}}\n'
            '{"d": [1.555], "s": {"at": "2026", "n": 1}, "m": {"a": 1.5}, "v": "text", "w": [1, "a"]}\n'
            '{"d": ["1.50"], "s": {"n": 3000000000}, "m": [1], "v": {"a": 1}, "w": 1}',
        ],
        [
            {
                "d": ["1.50", "2.00"],
                "s": {"at": "2026-01-31T10:00:00.000000Z", "n": "1"},
                "m": {"a": "1", "b": None},
            },
            {
                "v": "text",
                "w": ["1", "a"],
                "_rescued": {"d": "[1.555]", "s": '{"at": "2026", "n": 1}', "m": '{"a": 1.5}'},
            },
            {"d": ["1.50"], "v": {"a": "1"}, "_rescued": {"s": '{"n": 3000000000}', "m": "[1]", "w": "1"}},
        ],
    ),
    "a sample that lacks a type": (
        None,
        ['{"n": 1, "x": [1]}', '{"n": 2, "x": [2]}\n{"n": "many", "x": ["many"]}'],
        [{"n": "2", "x": ["2"]}, {"_rescued": {"n": "many", "x": '["many"]'}}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", [*SHAPES])
def test_nested_values_of_json_land_row_by_row(spark: SparkSession, tmp_path: Path, shape: str) -> None:
    """Without it one row of another shape takes a column from all rows of its batch, bronze included."""
    hints, batches, expected = SHAPES[shape]
    files = FilesSource(path=str(tmp_path / "in"), format="json", schema_hints=hints)
    memory = LearntSchemas()
    landed = []
    for text in batches:
        put_file(tmp_path, "a.json", f"{text}\n")
        landed = records(spark, files, memory)
    assert landed == expected


def test_nested_values_of_csv_take_hints(spark: SparkSession, tmp_path: Path) -> None:
    """Without it an array in CSV is text although a hint gives its type."""
    put_file(tmp_path, "a.csv", 'x|s\n[1, 2]|{"a": 1}\n[1.5]|1\n')
    hints = "x array<int>, s struct<a:int>"
    files = FilesSource(path=str(tmp_path / "in"), format="csv", schema_hints=hints, options={"sep": "|", "quote": ""})
    assert records(spark, files) == [
        {"x": ["1", "2"], "s": {"a": "1"}},
        {"_rescued": {"x": "[1.5]", "s": "1"}},
    ]


def test_nested_values_of_parquet_land_row_by_row(spark: SparkSession, tmp_path: Path) -> None:
    """Without it files with narrower numbers inside of a list lose the column, NaN inside makes a dead letter."""
    (tmp_path / "in").mkdir()
    files = FilesSource(path=str(tmp_path / "in"), format="parquet")
    memory = LearntSchemas()
    point = pa.struct({"x": pa.int32(), "at": pa.timestamp("us", "UTC")})
    wide = {
        "n": [[1, 2**40]],
        "s": pa.array([{"x": 1}], point),
        "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    parquet.write_table(pa.table(wide), tmp_path / "in/a.parquet")
    assert records(spark, files, memory) == [{"n": ["1", str(2**40)], "s": {"x": "1"}, "m": {"a": "1"}}]
    (tmp_path / "in/a.parquet").unlink()
    far = datetime(9999, 12, 31, tzinfo=timezone.utc)
    wider_point = pa.struct({"x": pa.int64(), "at": pa.timestamp("us", "UTC"), "y": pa.int8()})
    narrow = {
        "k": [0, 1, 2],
        "n": pa.array([[3], None, [None, 4]], pa.list_(pa.int32())),
        "s": pa.array([{"x": 2, "at": far, "y": 1}, {"x": 2**40}, None], wider_point),
        "m": pa.array([[("a", 1.0)], [("a", 1.5)], []], pa.map_(pa.string(), pa.float64())),
        "f": pa.array([[0.5], [float("nan")], []]),
    }
    parquet.write_table(pa.table(narrow), tmp_path / "in/b.parquet")
    assert records(spark, files, memory) == [
        {
            "k": "0",
            "n": ["3"],
            "s": {"x": "2", "at": "9999-12-31T00:00:00.000000Z", "y": "1"},
            "m": {"a": "1"},
            "f": ["0.5"],
        },
        {"k": "1", "_rescued": {"s": f'{{"x":{2**40}}}', "m": '{"a":1.5}', "f": '["NaN"]'}},
        {"k": "2", "n": [None, "4"], "m": {}, "f": []},
    ]


def test_nested_values_of_avro_land_row_by_row(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a file whose writer narrowed a type inside of an array loses the column."""
    (tmp_path / "in").mkdir()
    files = FilesSource(path=str(tmp_path / "in"), format="avro")
    memory = LearntSchemas()
    landed = []
    for name, kind, values in (("a", "long", [[2**40]]), ("b", "int", [[3], []]), ("c", "double", [[1.0], [1.5]])):
        field = {"name": "x", "type": {"type": "array", "items": kind}}
        with (tmp_path / f"in/{name}.avro").open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": [field]}, [{"x": x} for x in values])
        landed.append(records(spark, files, memory))
        (tmp_path / f"in/{name}.avro").unlink()
    assert landed == [
        [{"x": [str(2**40)]}],
        [{"x": ["3"]}, {"x": []}],
        [{"x": ["1"]}, {"_rescued": {"x": "[1.5]"}}],
    ]


def test_a_row_of_another_shape_leaves_its_neighbours_in_tables(drain: Drain, tmp_path: Path) -> None:
    """Without it ten good rows of a batch have nulls in the table and in bronze."""
    put_file(tmp_path, "a.json", '{"id": 0, "tags": [1.5]}\n')
    drain("json")
    lines = [f'{{"id": {k}, "tags": [{k}]}}' for k in range(1, 11)]
    put_file(tmp_path, "b.json", "\n".join([*lines, '{"id": 11, "tags": {"a":  1}}']) + "\n")
    drain("json")
    landed = sorted(rows(tmp_path), key=lambda row: row["id"])
    assert [row.get("tags") for row in landed] == [[1.5], *[[float(k)] for k in range(1, 11)], None]
    assert [row.get("_rescued") for row in landed] == [None] * 11 + [{"tags": '{"a":  1}'}]
    in_bronze = [json.loads(row["value"]) for row in rows(tmp_path, "bronze.all")]
    assert sum("tags" in row for row in in_bronze) == 11
    assert rows(tmp_path, "ops.dead") == []


def test_a_column_may_have_any_name_beside_nested_values(drain: Drain, tmp_path: Path) -> None:
    """Without it a column with the name of a step of the reader gets the values of another."""
    row = {"_parsed_0": 7, "_PARSED_1": "x", "__parsed_1": True, "list": [1], "object": {"a": 1}}
    put_file(tmp_path, "a.json", json.dumps(row) + "\n")
    drain("json")
    assert rows(tmp_path) == [row]


class MisfitError(Exception):
    """A value that its column would change."""


def taken(value: Any, kind: T.DataType, take_plain: Callable[[Any, T.DataType], Any]) -> Any:
    """Return what a column has of a value, without fields that are null; raise MisfitError if it loses something.

    This is the model of the property tests: it shares nothing with the code, and knows plain types by `take_plain`.
    """
    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        if not isinstance(value, list):
            raise MisfitError
        return [taken(element, kind.elementType, take_plain) for element in value]
    if isinstance(kind, T.MapType):
        if not isinstance(value, dict):
            raise MisfitError
        return {key: taken(child, kind.valueType, take_plain) for key, child in value.items()}
    if isinstance(kind, T.StructType):
        if not isinstance(value, dict):
            raise MisfitError
        fields = {}
        for key, child in value.items():
            if key in kind.names:
                fields[key] = taken(child, kind[key].dataType, take_plain)
            elif not is_empty(child):
                raise MisfitError
        return {key: child for key, child in fields.items() if child is not None}
    return take_plain(value, kind)


def is_empty(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return all(map(is_empty, value.values() if isinstance(value, dict) else value))
    return value is None


def plain_of_json(value: Any, kind: T.DataType) -> Any:
    if isinstance(kind, T.StringType):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(kind, T.BooleanType) and isinstance(value, bool):
        return value
    if isinstance(kind, T.LongType) and type(value) is int:
        return value
    if isinstance(kind, T.DoubleType) and type(value) in (int, float) and float(value) == value:
        return value
    raise MisfitError


def nested(leaves: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.DataType]:
    """Return arrays, maps and structs, three levels at most."""

    def around(inner: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.DataType]:
        structs = st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
            lambda fields: T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
        )
        maps = inner.map(lambda kind: T.MapType(T.StringType(), kind))
        return st.one_of(inner.map(T.ArrayType), structs, maps)

    return around(st.one_of(leaves, around(st.one_of(leaves, around(leaves)))))


WHOLE = st.one_of(st.integers(-9, 9), st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**60]))
EIGHTHS = st.integers(-80, 80).map(lambda number: number / 8)
PLAIN_VALUES = st.one_of(st.none(), st.booleans(), WHOLE, EIGHTHS, st.text("xyz", max_size=3), st.just("ä"))
ANY_VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=5,
)
OF_LEAF: dict[type[T.DataType], st.SearchStrategy[Any]] = {
    T.StringType: st.text("xyz", max_size=3),
    T.BooleanType: st.booleans(),
    T.ShortType: st.integers(-(2**15), 2**15 - 1),
    T.IntegerType: st.integers(-(2**31), 2**31 - 1),
    T.LongType: WHOLE,
    T.DoubleType: EIGHTHS,
}


@st.composite
def values_of(draw: st.DrawFn, kind: T.DataType, oddities: st.SearchStrategy[Any] | None = None) -> Any:
    """Return a value of a type, now and then with an oddity somewhere inside."""
    if oddities is not None and draw(st.integers(0, 7)) == 0:
        return draw(oddities)
    if draw(st.integers(0, 9)) == 0:
        return None
    if isinstance(kind, T.ArrayType):
        return draw(st.lists(values_of(kind.elementType, oddities), max_size=3))
    if isinstance(kind, T.MapType):
        return draw(st.dictionaries(st.sampled_from("kl"), values_of(kind.valueType, oddities), max_size=2))
    if isinstance(kind, T.StructType):
        return {field.name: draw(values_of(field.dataType, oddities)) for field in kind}
    return draw(OF_LEAF[type(kind)])


def known_columns(kind: T.DataType) -> LearntSchemas:
    """Return the memory of a query that knows the column `x`."""
    memory = LearntSchemas()
    rescued = T.StructField("_rescued", T.MapType(T.StringType(), T.StringType()))
    memory.write("rows", T.StructType([T.StructField("x", kind), rescued]).json().encode())
    return memory


def known_type(memory: LearntSchemas) -> T.DataType:
    struct = T.StructType.fromJson(json.loads(memory.read("rows") or b""))
    return struct["x"].dataType


few_examples = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
JSON_LEAVES = st.sampled_from([T.StringType(), T.BooleanType(), T.LongType(), T.DoubleType()])
NUMBERS = st.sampled_from([T.ShortType(), T.IntegerType(), T.LongType(), T.DoubleType()])


@few_examples
@given(st.data())
def test_any_nested_value_of_json_is_in_its_column_or_rescued_as_it_stood(
    spark: SparkSession, tmp_path: Path, data: st.DataObject
) -> None:
    """Without it a shape that nobody has thought of loses a value, or changes that of a neighbour."""
    kind = data.draw(nested(JSON_LEAVES))
    values = data.draw(st.lists(values_of(kind, ANY_VALUES), min_size=20, max_size=20))
    put_file(tmp_path, "a.json", "".join(f'{{"x": {json.dumps(value)}}}\n' for value in values))
    memory = known_columns(kind)
    files = FilesSource(path=str(tmp_path / "in"), format="json")
    landed = [json.loads(text) for text in texts_of_records(spark, files, memory)]
    kind = known_type(memory)
    for value, row in zip(values, landed, strict=True):
        try:
            column = taken(value, kind, plain_of_json)
            expected = {} if column is None else {"x": column}
        except MisfitError:
            text = value if isinstance(value, str) else json.dumps(value)
            expected = {"_rescued": {"x": text}}
        assert row == expected, (kind.simpleString(), value)


def plain_of_parquet(value: float, kind: T.DataType) -> Any:
    if isinstance(kind, T.DoubleType):
        number: float = float(value)
    else:
        bits = {T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}[type(kind)]
        number = int(value)
        if not -(2**bits) <= number < 2**bits:
            raise MisfitError
    if number != value:
        raise MisfitError
    return number


def as_arrow(value: Any, kind: T.DataType) -> Any:
    """Return a value as Arrow takes it: a map is a list of pairs."""
    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        return [as_arrow(element, kind.elementType) for element in value]
    if isinstance(kind, T.MapType):
        return [(key, as_arrow(child, kind.valueType)) for key, child in value.items()]
    if isinstance(kind, T.StructType):
        return {field.name: as_arrow(value[field.name], field.dataType) for field in kind}
    return value


def without_nulls(value: Any) -> Any:
    """Return a value without the members that are null: Spark writes none for the fields of a struct."""
    if isinstance(value, list):
        return [without_nulls(element) for element in value]
    if isinstance(value, dict):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    return value


@st.composite
def similar(draw: st.DrawFn, kind: T.DataType) -> T.DataType:
    """Return a type with other numbers in it, and fields besides."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(draw(similar(kind.elementType)))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), draw(similar(kind.valueType)))
    if isinstance(kind, T.StructType):
        fields = {field.name: draw(similar(field.dataType)) for field in kind if draw(st.booleans())}
        fields["d"] = draw(NUMBERS)
        return T.StructType([T.StructField(name, inner) for name, inner in fields.items()])
    return draw(NUMBERS)


@few_examples
@given(st.data())
def test_any_nested_value_of_parquet_is_in_its_column_or_rescued(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Without it a file whose writer has other numbers inside of a list or a map loses values."""
    kind = data.draw(nested(NUMBERS))
    found = data.draw(similar(kind))
    values = data.draw(st.lists(values_of(found), min_size=20, max_size=20))
    folder = tmp_path_factory.mktemp("in")
    struct = T.StructType([T.StructField("k", T.IntegerType()), T.StructField("x", found)])
    rows_of_file = pa.Table.from_pylist(
        [{"k": k, "x": as_arrow(value, found)} for k, value in enumerate(values)], to_arrow_schema(struct)
    )
    parquet.write_table(rows_of_file, folder / "a.parquet")
    memory = known_columns(kind)
    files = FilesSource(path=str(folder), format="parquet")
    landed = [json.loads(text) for text in texts_of_records(spark, files, memory)]
    kind = known_type(memory)
    for k, (value, row) in enumerate(zip(values, landed, strict=True)):
        try:
            column = taken(value, kind, plain_of_parquet)
            expected = {"k": k} if column is None else {"k": k, "x": column}
        except MisfitError:
            assert without_nulls(json.loads(row.pop("_rescued")["x"])) == without_nulls(value)
            expected = {"k": k}
        assert row == expected, (kind.simpleString(), found.simpleString(), value)


def test_what_would_be_rounded_reaches_the_table_as_text(drain: Drain, tmp_path: Path) -> None:
    """Without it an invoice of 2.555 is one of 2.56, and nobody is told."""
    put_file(tmp_path, "a.csv", "id,paid\n007,2.50\n8,2.555\n9,123456789\n")
    drain("csv", schema_hints="id int, paid decimal(10,2)")
    assert rows(tmp_path) == [
        {"_rescued": {"paid": "123456789"}, "id": 9},
        {"_rescued": {"paid": "2.555"}, "id": 8},
        {"id": 7, "paid": Decimal("2.50")},
    ]
    assert rows(tmp_path, "ops.dead") == []


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


def test_times_of_pandas_land(drain: Drain, tmp_path: Path) -> None:
    """Without it Spark reads no Parquet file that pandas has written with a time, since those have nanoseconds."""
    (tmp_path / "in").mkdir()
    moments = ["2026-01-31T10:00:00.123456", "1969-12-31T23:59:59.999999001", "1677-09-21T00:12:43.2", "NaT"]
    nanos = pa.array(np.array(moments, "datetime64[ns]"))
    table = pa.table({"id": [1, 2, 3, 4], "at": nanos.cast(pa.timestamp("ns", "UTC")), "there": nanos, "a`b": nanos})
    parquet.write_table(table, tmp_path / "in" / "a.parquet")
    micros = pa.table({"id": [5], "at": pa.array([1], pa.timestamp("us", "UTC"))})
    parquet.write_table(micros, tmp_path / "in" / "b.parquet")
    drain("parquet")

    utc = timezone.utc
    far = datetime(1677, 9, 21, 0, 12, 43, 200_000, tzinfo=utc)
    day = datetime(2026, 1, 31, 10, 0, 0, 123_456, tzinfo=utc)
    odd = "1969-12-31T23:59:59.999999001"
    assert sorted(rows(tmp_path), key=lambda row: row["id"]) == [
        {"id": 1, "at": day, "there": day.replace(tzinfo=None), "a_b": day.replace(tzinfo=None)},
        {"id": 2, "_rescued": {"at": odd, "there": odd, "a`b": odd}},
        {"id": 3, "at": far, "there": far.replace(tzinfo=None), "a_b": far.replace(tzinfo=None)},
        {"id": 4},
        {"id": 5, "at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=utc)},
    ]
    assert rows(tmp_path, "ops.dead") == []


def test_rows_of_avro(drain: Drain, tmp_path: Path) -> None:
    """Without it the columns of one file are taken for those of all."""
    (tmp_path / "in").mkdir()
    for name, fields in {"a": {"id": "long"}, "b": {"id": "long", "plan": "string"}}.items():
        schema = {"type": "record", "name": "r", "fields": [{"name": f, "type": kind} for f, kind in fields.items()]}
        with (tmp_path / f"in/{name}.avro").open("wb") as file:
            fastavro.writer(file, schema, [{"id": 1, "plan": "gold"}])
    drain("avro")
    assert rows(tmp_path) == [{"id": 1, "plan": "gold"}, {"id": 1}]


@pytest.mark.parametrize("space", ["my-shop.events", "shop.Outer$", "2026.a b", "", None], ids=repr)
def test_avro_files_may_have_any_namespace(spark: SparkSession, tmp_path: Path, space: str | None) -> None:
    """Writers put the name of a topic or a class there, which Avro refuses as a name: a file is not lost for it."""
    (tmp_path / "in").mkdir()
    suit = {"type": "enum", "name": "Suit", "symbols": ["HEARTS"]}
    hand = {"type": "record", "name": "Hand", "namespace": space, "fields": [{"name": "suit", "type": "Suit"}]}
    fields = [{"name": "suit", "type": suit}, {"name": "hands", "type": {"type": "array", "items": hand}}]
    with (tmp_path / "in/a.avro").open("wb") as file:
        row = {"suit": "HEARTS", "hands": [{"suit": "HEARTS"}]}
        fastavro.writer(file, {"type": "record", "name": "Bet", "namespace": space, "fields": fields}, [row])

    assert records(spark, FilesSource(path=str(tmp_path / "in"), format="avro")) == [row]


@pytest.mark.parametrize("after", [pytest.param("delete", marks=pytest.mark.slow), "archive"])
def test_files_that_were_read_are_deleted_or_archived(drain: Drain, tmp_path: Path, after: str) -> None:
    """Without it a landing folder grows for ever."""
    for name in "abcd":
        put_file(tmp_path, f"{name}.csv", "id\n1\n")
    (tmp_path / "old").mkdir()
    drain("csv", files_per_batch=1, after="delete" if after == "delete" else {"archive": str(tmp_path / "old")})
    left = [path.name for path in (tmp_path / "in").glob("*.csv")]
    archived = [path.name for path in (tmp_path / "old").rglob("*.csv")]
    assert len(left) <= 2  # those of the last batch, when a later one has begun
    assert sorted(left + archived) == [f"{name}.csv" for name in "abcd"] or after == "delete"
    assert len(rows(tmp_path)) == 4


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
    (result,) = run_tests(load_config(tmp_path / "files.yaml", load_registry()), load_tests(cases), spark)
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
        load_config(Path("files.yaml"), load_registry(), environ={}, text=text)
    assert path in [problem.path for problem in error.value.problems]


def test_nested_names_that_no_table_can_have_land(drain: Drain, tmp_path: Path) -> None:
    """Without it one key with a blank inside of an object refuses every start, also when the file is mended."""
    put_file(
        tmp_path, "a.json", '{"id": 1, "o": {"x y": 1}, "many": [{"p,q": 2}]}\n{"id": 2, "o": {"x y": 1, "x_y": 2}}\n'
    )
    drain("json")
    put_file(tmp_path, "b.json", '{"id": 3, "o": {"x_y": 4}}\n')
    drain("json")
    assert rows(tmp_path) == [
        {"id": 2, "_rescued": {"o": '{"x y": 1, "x_y": 2}'}},
        {"id": 1, "o": {"x_y": 1}, "many": [{"p_q": 2}]},
        {"id": 3, "o": {"x_y": 4}},
    ]


@pytest.mark.parametrize("known", [False, True], ids=["at first", "later"])
def test_keys_of_json_that_differ_by_case_only_are_kept(drain: Drain, tmp_path: Path, known: bool) -> None:
    """Without it Spark takes them for one, and the values of all but one key are gone."""
    if known:
        put_file(tmp_path, "0.json", '{"id": 0}\n')
        drain("json")
    lines = [{"id": 1}, {"ID": 2}, {"id": 3, "ID": 4}, {"Id": {"x": 1}}, {"a": "5", "ID": "six"}]
    lines += [{"n": {"b": 1, "B": 2}}, {"n": {"b": 3}}]
    put_file(tmp_path, "1.json", "".join(json.dumps(line) + "\n" for line in lines) + "\n{broken\n")
    drain("json")

    found = [row for row in rows(tmp_path) if row.get("id", row.get("ID")) != 0]
    assert len(found) == len(lines) + 1
    column = "id" if known else "ID"
    kept = []
    for row in found:
        rescued = row.pop("_rescued", {})
        if column in row:
            rescued[column] = str(row.pop(column))
        kept.append({**row, **rescued})
    expected = [{"id": "1"}, {"ID": "2"}, {"id": "3", "ID": "4"}, {"Id": '{"x":1}'}, {"a": "5", "ID": "six"}]
    for row in expected:
        assert row in kept
    assert sorted(json.loads(row["n"])["b"] for row in kept if "n" in row) == [1, 3]
    assert [json.loads(row["n"]) for row in kept if "n" in row and "B" in row["n"]] == [{"b": 1, "B": 2}]
    assert {"_line": "{broken"} in kept


def test_nested_names_of_parquet_that_no_table_can_have_land(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a struct that another engine wrote stops the stream."""
    kind = pa.struct([("x y", pa.int64()), ("z", pa.int64())])
    twice = pa.struct([("p q", pa.int64()), ("p_q", pa.int64())])
    (tmp_path / "in").mkdir()
    columns = {"o": pa.array([{"x y": 1, "z": 2}], kind), "t": pa.array([{"p q": 3, "p_q": 4}], twice)}
    parquet.write_table(pa.table(columns), tmp_path / "in" / "a.parquet")

    (row,) = records(spark, FilesSource(path=str(tmp_path / "in"), format="parquet"))

    assert row == {"o": {"x_y": "1", "z": "2"}, "_rescued": {"t": '{"p q":3,"p_q":4}'}}


def test_stored_columns_that_no_start_accepts_are_mended(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a name that was learnt once refuses every start, although nobody wrote it."""
    memory = LearntSchemas()
    stored = T.StructType.fromDDL(
        "id bigint, ID string, o struct<`x y`:bigint, `X Y`:string>, _rescued map<string,string>"
    )
    memory.write("rows", stored.json().encode())
    put_file(tmp_path, "a.json", '{"id": 1, "o": {"x y": 2}}\n')
    files = FilesSource(path=str(tmp_path / "in"), format="json")

    FileRows(spark, files, memory).learn_columns()

    mended = T.StructType.fromJson(json.loads(memory.read("rows") or b""))
    assert mended == T.StructType.fromDDL("id bigint, o struct<x_y:bigint>, _rescued map<string,string>")
    assert any("names that no table can have" in text for text in caplog.messages)
    assert records(spark, files, memory) == [{"id": "1", "o": {"x_y": "2"}}]
    FileRows(spark, files, memory).learn_columns()
    assert len(caplog.messages) == 1
