"""A batch that becomes dead letters for the most part is said, and stops before its commit where that is asked for."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from router.config.loader import load_config
from router.delta.lake import Lake
from router.delta.staged_files import staged_file
from router.engine.dead_letter_share import dead_letter_share
from router.engine.stream import RunOptions, run
from router.errors import BatchError, ConfigError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router import BatchReport
    from router.acceptance import Accepted

REGISTRY = load_registry()
ROUTE = "{name: %s, match: {sql: 'true'}, sinks: [{delta: silver.%s}]}"


def write_records(folder: Path, *, good: int, bad: int, name: str = "a", amount: object = 1.5) -> None:
    """Write a file of records, of which some are no JSON."""
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"amount": amount})] * good + ["{"] * bad
    (folder / "in" / f"{name}.json").write_text("\n".join(lines) + "\n")


def drain(
    folder: Path, spark: SparkSession, at_most: str | None = None, kind: str = "double", accept: Accepted = frozenset()
) -> list[BatchReport]:
    dead_letters = f"{{table: ops.dead, at_most: {at_most}}}" if at_most else "ops.dead"
    text = (
        f"name: games\nlake: {folder}/lake\nsource: {{files: {{path: {folder}/in, files_per_batch: 1}}}}\n"
        f"decode: {{json: {{schema: 'amount {kind}'}}}}\nroutes: [{ROUTE % ('x', 'x')}, {ROUTE % ('y', 'y')}]\n"
        f"dead_letters: {dead_letters}\ntrigger: {{once: true}}\n"
    )
    return run(load_config(folder / "games.yaml", REGISTRY, text=text), REGISTRY, spark, RunOptions(accept=accept))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_type_that_no_table_takes_is_said_with_its_reason(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it every good record becomes two dead letters, the run ends well, and nobody hears of it."""
    write_records(tmp_path, good=1, bad=0)
    drain(tmp_path, spark)
    write_records(tmp_path, good=200, bad=0, name="b", amount="much")
    (report,) = drain(tmp_path, spark, kind="string")
    assert report.dead_letters == 400
    (warning,) = [text for text in warnings(caplog) if "become dead letters" in text]
    assert "200 of 200 records (100.0%) become dead letters: schema: table silver." in warning


@pytest.mark.parametrize(
    ("good", "bad", "is_said"),
    [(49, 50, False), (50, 50, False), (49, 51, True)],
    ids=["few records", "half of them", "more than half"],
)
def test_few_dead_letters_are_not_worth_a_warning(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    good: int,
    bad: int,
    *,
    is_said: bool,
) -> None:
    """Without it a warning at each small batch hides the one that counts."""
    write_records(tmp_path, good=good, bad=bad)
    drain(tmp_path, spark)
    assert any("become dead letters: decode" in text for text in warnings(caplog)) == is_said


def test_a_batch_above_the_limit_stops_before_its_commit_and_one_may_pass(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a wrong schema empties a topic into dead letters, or one accepted batch lets all others pass."""
    for name in ("a", "b"):
        write_records(tmp_path, good=60, bad=50, name=name)
    with pytest.raises(BatchError, match=r"50 of 110 records .*40\.0% may.*--accept dead-letters") as stopped:
        drain(tmp_path, spark, at_most="40%")
    lake = Lake.at(str(tmp_path / "lake"))
    assert stopped.value.exit_code == 2
    assert lake.open("silver.x") is None
    assert lake.open("ops.dead") is None
    assert not list((tmp_path / "lake" / "silver").rglob("*.parquet"))

    with pytest.raises(BatchError, match="batch 1: 50 of 110 records"):
        drain(tmp_path, spark, at_most="40%", accept={"dead-letters"})
    table = lake.open("silver.x")
    assert table is not None
    assert len(table.to_pyarrow_table()) == 60
    (report,) = drain(tmp_path, spark, at_most="46%")
    assert (report.batch, report.failed) == (1, 50)


def test_a_record_that_several_sinks_refuse_is_one_record(tmp_path: Path) -> None:
    """Without it a preview says that a batch would stop which the stream commits: its letters are counted."""
    lake = Lake.at(str(tmp_path))
    letters = [{"topic": "t", "partition": 0, "offset": n // 2, "stage": "schema", "reason": "no"} for n in range(60)]
    pq.write_table(pa.Table.from_pylist(letters), tmp_path / "letters.parquet")
    files = [staged_file(lake, "/dead_letters", "ops.dead", "letters.parquet")]

    assert dead_letter_share(lake, files, 100, above=0.5) is None
    share = dead_letter_share(lake, files, 100, above=0.2)
    assert share is not None
    assert (share.records, share.share) == (30, 0.3)


@pytest.mark.parametrize("at_most", ["0.5", "120%", "half"])
def test_a_limit_that_is_no_share_is_refused(spark: SparkSession, tmp_path: Path, at_most: str) -> None:
    with pytest.raises(ConfigError, match=r"dead_letters\.at_most: must be a share from 0% to 100%"):
        drain(tmp_path, spark, at_most=at_most)
