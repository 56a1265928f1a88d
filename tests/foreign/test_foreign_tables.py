"""Tables that others made: written as they demand, or left as they are while their rows wait, named with the cause.

Each gets two batches by append and by upsert, the second with a new column: docs/evidence/foreign-tables.md says what
becomes of them.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from router.api.sinks import KeyedTable
from router.config.models import Route
from router.delta.constraints import features_against_appends
from router.delta.keyed.upsert import merge_engine
from router.errors import first_line
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables, Upsert
from tests.engine.query import records
from tests.foreign.tables import QUICK, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.engine.query import Query

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "foreign-tables.md"
QUARANTINE = "quarantine.games__appended__tables"
KEYED = KeyedTable(keys=("id",))
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]
FIRST = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
SECOND = [{"id": 1, "name": "c", "more": 0.5}]
APPENDED = [(1, "a", None), (1, "c", 0.5), (2, "b", None)]
MERGED = [(1, "c", 0.5), (2, "b", None)]
REFUSED = {"unknown_writer_feature", "unknown_reader_feature", "protocol_4_8", "collations", "catalog_managed"}
"""Tables that neither delta-rs nor Delta on Spark writes."""


@pytest.fixture(scope="module")
def played(make_query: Any, spark: SparkSession, tmp_path_factory: Any) -> Callable[[bool], Query]:
    """Take the batches into the quick tables, or into the others."""

    @cache
    def played(quick: bool) -> Query:
        query = make_query(
            tmp_path_factory.mktemp("foreign"),
            decode=Json(schema="game string, id bigint, name string, more double"),
            routes=(
                Route(name="appended", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),
                Route(
                    name="merged",
                    match=Sql(where="true"),
                    sinks=(Upsert(table="gold.{event.game}", keys=("event.id",)),),
                ),
            ),
        )
        games = [name for name in TABLES if (name in QUICK) == quick]
        for game in games:
            for layer in ("silver", "gold"):
                TABLES[game](spark, query.lake.address(f"{layer}.{game}"))
        for number, rows in enumerate((FIRST, SECOND)):
            query.take(records([{"game": game, **row} for game in games for row in rows], first=number * 1000))
        return query

    return played


def record_rows(spark: SparkSession, address: str) -> list[tuple[Any, ...]]:
    """Return the rows of the records in a table; those that it had before are left out."""
    frame = spark.read.format("delta").load(address)
    found = [row.asDict() for row in frame.filter("game <> 'old'").collect()]
    return sorted(((row["id"], (row["name"] or "").strip(), row.get("more")) for row in found), key=repr)


def by_delta_rs(address: str) -> list[tuple[Any, ...]] | str:
    """Return the same rows as delta-rs reads them, or why it does not."""
    try:
        table = DeltaTable(address)
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            return "column mapping: it looks for the columns by their names in the table, and finds none"
        found = table.to_pyarrow_table().to_pylist()
    except Exception as error:
        return first_line(error)
    found = [row for row in found if row["game"] != "old"]
    return sorted(((row["id"], (row["name"] or "").strip(), row.get("more")) for row in found), key=repr)


@pytest.mark.parametrize("table", EACH)
def test_rows_are_appended_or_wait(spark: SparkSession, played: Callable[[bool], Query], table: str) -> None:
    """Without it a table of somebody else is harmed, or holds up all others."""
    query = played(table in QUICK)
    blocked = query.batches.quarantine.blocked_reasons().get(f"appended/tables/silver.{table}")
    if table in REFUSED:
        assert blocked
        waiting = [row for row in query.rows(QUARANTINE) if row["_table"] == f"silver.{table}"]
        assert sorted(((row["id"], row["name"], row["more"]) for row in waiting), key=repr) == APPENDED
        return
    address = query.lake.address(f"silver.{table}")
    assert blocked is None
    assert record_rows(spark, address) == APPENDED
    if isinstance(found := by_delta_rs(address), list):
        assert found == APPENDED


@pytest.mark.parametrize("table", EACH)
def test_rows_are_merged_or_wait(spark: SparkSession, played: Callable[[bool], Query], table: str) -> None:
    """Without it a table of somebody else is harmed, or holds up all others."""
    query = played(table in QUICK)
    address = query.lake.address(f"gold.{table}")
    backlog = json.loads(query.store.read("backlog/merged__upsert.json") or b"{}")
    if table in REFUSED:
        assert f"gold.{table}" in str(backlog)
    elif table == "append_only":  # what is in it must not change
        assert f"gold.{table}" in str(backlog)
        assert record_rows(spark, address) == [(1, "a", None), (2, "b", None)]
    else:
        assert f"gold.{table}" not in str(backlog)
        assert record_rows(spark, address) == MERGED
        if isinstance(found := by_delta_rs(address), list):
            assert found == MERGED


@pytest.mark.slow
def test_the_page_says_what_becomes_of_each(spark: SparkSession, played: Callable[[bool], Query]) -> None:
    """Without it the page promises what no run has shown. FOREIGN_TABLES=write makes it anew."""
    names: dict[str, list[str]] = {}
    for name in TABLES:
        described, result = described_table(played(name in QUICK), name)
        names.setdefault(result, []).append(described)
    lines = [f"| {'; '.join(described)} | {result} |" for result, described in names.items()]
    text = "\n".join((*HEAD, *lines, ""))
    if os.environ.get("FOREIGN_TABLES") == "write":
        PAGE.write_text(text)
    assert PAGE.read_text() == text


HEAD = (
    "# Tables that others made",
    "",
    "What `tests/foreign` has found with the versions that this project is tested with: each table gets two batches",
    "by a `tables` sink and by an `upsert`, the second with a new column, and is read back by Delta on Spark and by",
    "delta-rs. Rows that wait are in the quarantine, or in the backlog of the upsert, with the cause, and hold up no",
    "other table. In brackets: the protocol's versions for readers and writers, and its features.",
    "",
    "| tables | rows are appended by | merged by | delta-rs reads it |",
    "|---|---|---|---|",
)


def described_table(query: Query, name: str) -> tuple[str, str]:
    """Return a table's name with its protocol, and the cells that say what becomes of it."""
    shown = name.replace("_", " ")
    if name in REFUSED:
        return shown, "nobody: they wait | nobody: they wait | no"
    silver, gold = (DeltaTable(query.lake.address(f"{layer}.{name}")) for layer in ("silver", "gold"))
    protocol = silver.protocol()
    features = ", ".join(sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())}))
    version = f"{protocol.min_reader_version}, {protocol.min_writer_version}"
    appends = "Delta on Spark" if features_against_appends(silver) else "delta-rs"
    merges = "Delta on Spark" if merge_engine(gold, KEYED).engine == "spark" else "delta-rs"
    merges = "nobody: changed rows wait" if name == "append_only" else merges
    reads = "yes" if isinstance(by_delta_rs(query.lake.address(f"silver.{name}")), list) else "no"
    about = f"{version}: {features}" if features else version
    return f"{shown} ({about})", f"{appends} | {merges} | {reads}"
