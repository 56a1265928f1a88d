"""Every table is held against manifests, ledger and bronze, without Spark: what is wrong is said by table."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, Transaction, write_deltalake

from router.cli import commands
from router.config.loader import load_config
from router.engine.audit.table_states import table_states
from router.engine.label.layout import DEAD_SCHEMA
from router.engine.ledger import SCHEMA
from router.own_names import DELETIONS
from router.registry import load_registry
from tests.engine.written_lake import GAMES, WrittenLake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a lake with six batches; copied before anybody harms it."""
    return WrittenLake(tmp_path_factory.mktemp("whole")).take(6).folder


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> WrittenLake:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    return WrittenLake(folder, taken=6)


def told(lake: WrittenLake, *asked: str) -> tuple[dict[str, str], int]:
    """Return what is said of each table, and the exit code."""
    shown = CliRunner().invoke(commands, ["verify", str(lake.file), *asked])
    lines = (line.partition("  ") for line in shown.output.splitlines())
    return {table: what.strip() for table, _, what in lines}, shown.exit_code


def wrong(lake: WrittenLake, *asked: str) -> dict[str, str]:
    found, code = told(lake, *asked)
    broken = {table: what for table, what in found.items() if not what.startswith("ok")}
    assert code == (1 if broken else 0)
    return broken


def test_a_whole_lake_is_ok(lake: WrittenLake) -> None:
    """Without it nobody believes what is said of a broken one."""
    found, code = told(lake, "--contents")

    assert code == 0
    assert set(found) == {"bronze.events", "gold.wins", "ops.ledger", *(f"silver.{game}" for game in GAMES)}
    assert found["silver.uno"] == "ok, 21 rows in 6 files, version 5"


def test_a_damaged_page_is_found_with_the_contents(lake: WrittenLake) -> None:
    """Without it the command ends with a stack trace, and names no other table."""
    file = lake.path("silver.uno") / "part-0000000002-0.parquet"
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)

    assert list(found := wrong(lake, "--contents")) == ["silver.uno"]
    assert found["silver.uno"].startswith(f"1 file is damaged: {file.name} ")


def lose_a_file(lake: WrittenLake) -> str:
    (lake.path("silver.uno") / "part-0000000002-0.parquet").unlink()
    return "1 file is missing: part-0000000002-0.parquet"


def empty_a_file(lake: WrittenLake) -> str:
    (lake.path("silver.uno") / "part-0000000002-0.parquet").write_bytes(b"")
    return "1 file is damaged: part-0000000002-0.parquet has 0 bytes"


def cut_the_log(lake: WrittenLake) -> str:
    newest = lake.logs("silver.uno")[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    return f"it cannot be read: {newest.name} of its log is damaged"


def cut_the_log_at_a_line(lake: WrittenLake) -> str:
    newest = lake.logs("silver.uno")[-1]
    newest.write_text(newest.read_text().split("\n")[0] + "\n")
    return "of all/tables it has batch 4, and batch 5 was committed to it"


def empty_the_log(lake: WrittenLake) -> str:
    newest = lake.logs("silver.uno")[-1]
    newest.write_bytes(b"")
    return f"it cannot be read: {newest.name} of its log is empty"


def lose_a_commit(lake: WrittenLake) -> str:
    third = lake.logs("silver.uno")[2]
    third.unlink()
    return f"it cannot be read: its log lacks {third.name}"


def drop(lake: WrittenLake) -> str:
    shutil.rmtree(lake.path("silver.uno"))
    return "it is gone: 21 rows at least were committed to it, the last in batch 5"


def put_an_older_copy_back(lake: WrittenLake) -> str:
    for log in lake.logs("silver.uno")[3:]:
        log.unlink()
    return "of all/tables it has batch 2, and batch 5 was committed to it: it was put back from an older copy"


def put_another_in_its_place(lake: WrittenLake) -> str:
    shutil.rmtree(lake.path("silver.uno"))
    write_deltalake(lake.path("silver.uno"), pa.table({"game": ["uno"]}))
    return "of all/tables it has nothing, and batch 5 was committed to it: another table stands in its place"


def delete_rows(lake: WrittenLake) -> str:
    lake.open("silver.uno").delete("id = 0")
    return "version 6: DELETE by delta-rs:py-1.6.6 removed 6 rows"


def write_rows(lake: WrittenLake) -> str:
    write_deltalake(lake.path("silver.uno"), pa.table({"game": ["uno", "uno"]}), mode="append", schema_mode="merge")
    return "version 6: WRITE by delta-rs:py-1.6.6 added 2 rows"


def change_rows(lake: WrittenLake) -> str:
    lake.open("silver.uno").update({"amount": "0"}, predicate="id = 1")
    return "version 6: UPDATE by delta-rs:py-1.6.6 changed rows"


def lose_remembered_deletions(lake: WrittenLake) -> str:
    below = lake.path("silver.uno") / DELETIONS
    write_deltalake(below, pa.table({"gamer": ["a"]}))
    (file,) = below.glob("*.parquet")
    file.unlink()
    return f"its remembered deletions in {below}: 1 file is missing: {file.name}"


HARMS = (
    lose_remembered_deletions,
    *(lose_a_file, empty_a_file, cut_the_log, cut_the_log_at_a_line, empty_the_log, lose_a_commit),
    *(drop, put_an_older_copy_back, put_another_in_its_place, delete_rows, write_rows, change_rows),
)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_harmed_table_is_named_with_what_is_wrong(lake: WrittenLake, harm: Callable[[WrittenLake], str]) -> None:
    """Without it rows are gone for weeks before a reader asks where they are."""
    expected = harm(lake)
    found = wrong(lake)

    assert set(found) == {"silver.uno"}
    assert found["silver.uno"].startswith(expected)
    assert wrong(lake, "silver.go") == {}
    assert set(wrong(lake, "silver.go", "silver.uno")) == {"silver.uno"}


def test_rows_that_only_a_footer_denies_are_found_on_request(lake: WrittenLake) -> None:
    """Without it a file that was swapped for another of its size goes for whole."""
    path = lake.path("gold.wins") / "part-0000000001-0.parquet"
    path.write_bytes(bytes(path.stat().st_size))

    assert wrong(lake) == {}
    assert set(wrong(lake, "--contents")) == {"gold.wins"}


def test_compacted_tables_and_batches_under_way_are_ok(lake: WrittenLake) -> None:
    """Without it maintenance, and a stream that runs, look like damage."""
    lake.open("silver.uno").optimize.compact()
    ledger = lake.logs("ops.ledger")[-1]
    ledger.unlink()  # the batch has been committed, and the ledger comes last
    (lake.folder / "lake/_router/games/spark/commits/5").unlink()

    assert wrong(lake) == {}


def test_rows_that_were_moved_to_the_quarantine_are_ok(lake: WrittenLake) -> None:
    """Without it a table that was blocked once looks as if it had lost a batch, for ever."""
    lake.take(1, blocked=("silver.uno", "gold.wins"))
    lake.take(1)
    assert wrong(lake) == {}

    for path in lake.store.json_paths("manifests/run-1"):  # the ledger alone says it, too
        lake.store.delete(path)
    assert wrong(lake) == {}


def test_rows_that_are_in_no_quarantine_and_no_table_are_missed(lake: WrittenLake) -> None:
    """Without it a manifest that lost what it says of a blocked table goes for one whose table has the rows."""
    lake.take(1, blocked=("silver.uno",))
    path = lake.store.manifest_path(6)
    lake.store.write(path, json.dumps({**lake.store.load(path), "quarantined": {}}).encode())
    assert wrong(lake)["silver.uno"].startswith("of all/tables it has batch 5, and batch 6 was committed to it")


@pytest.mark.parametrize("content", [b"", b'{"batch": 3'])
def test_a_damaged_manifest_is_named(lake: WrittenLake, content: bytes) -> None:
    """Without it the command that looks for damage ends with a traceback."""
    path = lake.store.manifest_path(3)
    lake.store.write(path, content)
    assert f"{lake.store.address_of(path)} is damaged" in wrong(lake)["manifest"]


def test_a_table_that_was_dropped_long_ago_is_missed_by_its_sink(lake: WrittenLake) -> None:
    """Manifests are kept for a hundred batches; after these the ledger knows how many rows a sink has landed."""
    for path in lake.store.json_paths("manifests/run-1"):
        lake.store.delete(path)
    shutil.rmtree(lake.path("silver.uno"))
    found = wrong(lake)

    assert set(found) == {"all/tables"}
    assert "batch 0: 5 in the ledger, 4 there" in found["all/tables"]
    assert found["all/tables"].endswith("and 3 more batches")


def test_a_log_that_does_not_reach_back_is_held_as_far_as_it_does(lake: WrittenLake) -> None:
    """Logs are cleaned up after a month: what came before cannot be wrong for it."""
    for game in GAMES:
        lake.open(f"silver.{game}").create_checkpoint()
        for log in lake.logs(f"silver.{game}")[:3]:
            log.unlink()
    lake.take(2)
    newest = lake.logs("silver.go")[-1]
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = '{"numRecords": 1}'
    assert wrong(lake) == {}

    newest.write_text("\n".join(map(json.dumps, lines)))
    assert wrong(lake)["silver.go"].startswith("batch 7 of all/tables has 1 rows in its log, 8 in its manifest")


def test_the_ledger_is_held_against_the_checkpoint(lake: WrittenLake) -> None:
    """Without it an older copy of the ledger makes every table look as if it were ahead, and not the ledger behind."""
    for log in lake.logs("ops.ledger")[3:]:
        log.unlink()

    assert wrong(lake)["ops.ledger"] == "it ends with batch 2, and the checkpoint with batch 5"


@pytest.mark.parametrize("name", ["wins:run-9/ledger", "wins:run-9/ledger/release/all/tables/silver.uno"])
def test_queries_share_a_ledger(lake: WrittenLake, name: str) -> None:
    """Without it the second configuration of a lake is taken for somebody who writes into the ledger of the first."""
    other = {**dict.fromkeys(SCHEMA.names), "query": "wins", "run": "run-9", "batch_id": 0, "read": 3}
    rows = pa.Table.from_pylist([other], SCHEMA)
    once = CommitProperties(app_transactions=[Transaction(name, 0)])
    write_deltalake(lake.open("ops.ledger"), rows, mode="append", commit_properties=once)

    assert wrong(lake) == {}


@pytest.mark.parametrize(
    "name",
    [
        "wins:run-9/dead_letters/ops.dead", "wins:run-9/all/rest/dead_letters", "wins:replay-1/dead_letters/replayed/0",
        "wins:run-9/discard/all/tables/silver.uno", "wins:run-9/refuse/held/all/tables/silver.uno",
    ],
)  # fmt: skip
def test_queries_share_dead_letters(lake: WrittenLake, name: str) -> None:
    """Without it rows that a second configuration discards from its quarantine are said to be somebody's changes."""
    rows = pa.Table.from_pylist([{"stage": "schema", "reason": "nobody approved it"}], DEAD_SCHEMA)
    once = CommitProperties(app_transactions=[Transaction(name, 0)])
    write_deltalake(lake.path("ops.dead"), rows, commit_properties=once)

    assert wrong(lake) == {}


@pytest.mark.parametrize("name", ["wins:run-9/all/tables/silver.uno", "wins:run-9/unblock/all/tables/silver.uno"])
def test_queries_share_a_table(lake: WrittenLake, name: str) -> None:
    """Without it what a configuration wrote under its former name is taken for somebody's rows."""
    once = CommitProperties(app_transactions=[Transaction(name, 0)])
    rows = pa.Table.from_pylist([{"game": "uno", "id": 1, "amount": 1.0}])
    write_deltalake(lake.path("silver.uno"), rows, mode="append", commit_properties=once)
    assert wrong(lake) == {}

    write_deltalake(lake.path("silver.uno"), rows, mode="append")
    assert "added 1 rows" in wrong(lake)["silver.uno"]


def test_an_unknown_table_is_said(lake: WrittenLake) -> None:
    shown = CliRunner().invoke(commands, ["verify", str(lake.file), "silver.nonsense"])

    assert shown.exit_code == 2
    assert "no rows in silver.nonsense" in shown.output


def test_every_table_is_listed_with_its_state(lake: WrittenLake) -> None:
    """Without it an operator opens one table after the other to find the one that is behind."""
    for log in lake.logs("silver.uno")[4:]:
        log.unlink()
    shutil.rmtree(lake.path("silver.go"))
    cut_the_log_of = lake.logs("gold.wins")[-1]
    cut_the_log_of.write_bytes(cut_the_log_of.read_bytes()[:100])
    write_deltalake(lake.path("other.table"), pa.table({"id": [1]}))
    found = {one.table: one for one in table_states(load_config(lake.file, load_registry()).config)}

    told = {name: (one.state, one.rows, one.lag, one.committer) for name, one in found.items() if "poker" not in name}
    assert told == {
        "bronze.events": ("ok", 105, 0, "delta-rs"),
        "gold.wins": ("unreadable", None, 12, "delta-rs"),
        "ops.dead": ("none", None, 0, "delta-rs"),
        "ops.ledger": ("ok", 18, 0, "delta-rs"),
        "silver.euchre": ("ok", 21, 0, "delta-rs"),
        "silver.go": ("gone", None, 21, "delta-rs"),
        "silver.rummy": ("ok", 21, 0, "delta-rs"),
        "silver.uno": ("behind", 10, 11, "delta-rs"),
    }
    shown = CliRunner().invoke(commands, ["tables", str(lake.file)])
    assert shown.exit_code == 0
    assert "silver.uno" in shown.output
