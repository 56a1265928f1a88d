"""Commands that need no Spark, on a lake in a bucket: they say what they say of the same lake on a disk."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from router.cli import commands
from router.config.loader import load_config
from router.delta.lake import Lake
from router.delta.table_cache import TableCache
from router.engine import ledger
from router.engine.commit.committers import Committers
from router.engine.start.checks import refuse_moved
from router.errors import StartError
from router.registry import load_registry
from router.storage.locations import Location
from tests.engine.written_lake import QUERY, WrittenLake
from tests.storage.test_log_tail import staged

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.s3_server import S3Server


@pytest.fixture
def copied(bucket: Lake, server: S3Server, tmp_path: Path) -> tuple[Path, Path]:
    """Copy a written lake into a bucket; return the configurations of both."""
    written = WrittenLake(tmp_path).take(2)
    root = tmp_path / "lake"
    for file in root.rglob("*"):
        if file.is_file():
            bucket.write(str(file.relative_to(root)), file.read_bytes())
    about = {**yaml.safe_load(written.file.read_text()), "lake": bucket.root, "storage_options": server.options}
    far = tmp_path / "far.yaml"
    far.write_text(yaml.safe_dump(about))
    return written.file, far


@pytest.mark.parametrize("command", [["verify", "--contents"], ["tables"], ["ledger"]], ids=lambda command: command[0])
def test_commands_say_the_same(copied: tuple[Path, Path], command: list[str]) -> None:
    """Without it an operator of a lake in a bucket is blind."""
    near, far = (CliRunner().invoke(commands, [command[0], str(file), *command[1:]]) for file in copied)

    assert near.output
    assert (far.output, far.exit_code) == (near.output, near.exit_code)
    assert "hush-hush" not in far.output


@pytest.mark.parametrize("command", [["verify", "--contents"], ["tables"], ["ledger"]], ids=lambda command: command[0])
def test_commands_say_the_same_of_tables_elsewhere(tmp_path: Path, command: list[str]) -> None:
    """Without it an operator does not see the tables that a `location` puts elsewhere."""
    for folder in ("near", "far"):
        (tmp_path / folder).mkdir()
    near = WrittenLake(tmp_path / "near").take(2)
    far = WrittenLake(tmp_path / "far", games=f"{tmp_path}/games/of-{{event.game}}/rows").take(2)

    said = [CliRunner().invoke(commands, [command[0], str(one.file), *command[1:]]) for one in (near, far)]

    assert (tmp_path / "games/of-uno/rows/_delta_log").is_dir()
    assert "silver.uno" in said[0].output or command == ["ledger"]
    assert (said[1].output, said[1].exit_code) == (said[0].output, said[0].exit_code)


def test_a_place_that_changes_is_refused(tmp_path: Path) -> None:
    """Without it a table begins anew in another place, and its rows are in two."""
    (tmp_path / "far").mkdir()
    games = "silver.{event.game}"
    far = WrittenLake(tmp_path / "far", games=f"{tmp_path}/games/{{event.game}}").take(1)
    config = load_config(far.file, load_registry(())).config

    refuse_moved(far.lake, config)
    for other in (
        (),  # back in the lake's layout
        (Location(games, f"{tmp_path}/others/{{event.game}}"),),
        (Location(games, f"s3://{'x' * 61}{{event.game}}"),),
        (*far.lake.locations, Location("gold.wins", f"{tmp_path}/wins")),  # out of it
    ):
        with pytest.raises(StartError, match=r"is at .*, and the configuration puts it at"):
            refuse_moved(Lake.at(far.lake.root, None, other), config)
    writes_others = config.model_copy(update={"routes": config.routes[1:]})
    refuse_moved(Lake.at(far.lake.root), writes_others)


def test_a_batch_is_committed_and_booked(bucket: Lake) -> None:
    """Without it the last steps of a batch fail where the first ones worked."""
    committers = Committers(bucket, None)  # type: ignore[arg-type] # no table here needs Spark
    tables = TableCache(bucket)
    for batch in range(3):
        works = (replace(staged(bucket, batch), decided=batch - 1),)
        assert not committers.missing_files(works)
        handles = tables.open_readable_tables({work.table for work in works})
        assert committers.commit_all(works, handles, {"router.batch": str(batch)}) == 1
        assert committers.commit_all(works, {}, {"router.batch": str(batch)}) == 0
        entry = ledger.LedgerEntry("ops.ledger", f"{QUERY}/ledger", batch)
        for _ in range(2):  # a restart books again
            ledger.append(committers, entry, ledger.rows_of_batch("games", "run-1", batch, (), (), {}), tables=tables)

    for table in ("silver.uno", "ops.ledger"):
        handle = bucket.open(table)
        assert handle is not None
        assert handle.version() == 2


def test_a_bucket_that_does_not_exist_is_said_in_words(server: S3Server, tmp_path: Path) -> None:
    """Without it the answer of the storage ends in the middle of its XML."""
    file = WrittenLake(tmp_path).take(1).file
    about = {**yaml.safe_load(file.read_text()), "lake": "s3://no-such-bucket/lake", "storage_options": server.options}
    far = tmp_path / "far.yaml"
    far.write_text(yaml.safe_dump(about))

    for command, code in (("tables", 2), ("doctor", 1)):
        result = CliRunner().invoke(commands, [command, str(far)])
        assert result.exit_code == code
        assert "no such bucket" in result.output
        assert "<" not in result.output


SHOW_KEY = """
import sys
from router.cli import commands
from router.engine.spark import session

stop_session = session.stop_session

def show_key_and_stop(spark):
    print("key:", spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.access.key"))
    stop_session(spark)

session.stop_session = show_key_and_stop
commands(sys.argv[1:])
"""
"""Runs a command, and prints the access key that its Spark has when the command ends."""


@pytest.mark.spark
def test_spark_maintains_a_table_with_the_keys_of_the_lake(
    copied: tuple[Path, Path], bucket: Lake, server: S3Server
) -> None:
    """Without it Spark takes the keys of the environment, which may be those of another account, or finds none."""
    handle = bucket.open("silver.uno")
    assert handle is not None
    # Only Delta on Spark may maintain a table with a constraint.
    handle.alter.add_constraint({"some": "id >= 0"})
    _, far = copied

    command = [sys.executable, "-c", SHOW_KEY, "maintain", str(far), "silver.uno", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert f"key: {server.options['aws_access_key_id']}" in done.stdout.splitlines()
