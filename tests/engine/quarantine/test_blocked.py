"""Tables that cannot be written: their rows wait in the quarantine, the others land, and nothing is lost or doubled."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router import BatchError, StartError
from router.config.models import QuarantineOptions, Route
from router.engine.quarantine.table import list_quarantined, pending_releases, try_now, write_approval
from router.engine.reprocess import release as module
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables
from tests.engine.conftest import EITHER
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

SINK = "games/tables"
QUARANTINE = "quarantine.games__games__tables"


def newest(folder: Path) -> Path:
    return max((folder / "_delta_log").glob("*.json"))


def cut(folder: Path) -> None:
    log = newest(folder)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def emptied(folder: Path) -> None:
    newest(folder).write_bytes(b"")


def protocol(**found: Any) -> Callable[[Path], None]:
    def add(folder: Path) -> None:
        log = newest(folder)
        lines = [{"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}, {"protocol": found}]
        after = log.with_name(f"{int(log.stem) + 1:020}.json")
        after.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return add


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": cut,
    "emptied": emptied,
    "reading": protocol(minReaderVersion=3, minWriterVersion=7, readerFeatures=["x"], writerFeatures=["x"]),
    "writing": protocol(minReaderVersion=1, minWriterVersion=7, writerFeatures=["x"]),
    "newer": protocol(minReaderVersion=9, minWriterVersion=9),
}
"""What happens to each table; the table's name is the game of its records."""
BLOCKED = (*DAMAGE, "folder")
GAMES = (*BLOCKED, "healthy")
"""The table `folder` cannot be made: there is a file in its place."""


def batch(number: int) -> Any:
    return records([{"game": game, "n": number} for game in GAMES], first=1000 * number)


def damaged(query: Query) -> None:
    """Damage each table, with a copy of its log beside the lake."""
    for game, harm in DAMAGE.items():
        folder = Path(query.lake.address(f"silver.{game}"))
        for log in (folder / "_delta_log").glob("*.json"):
            copy = query.folder / "copy" / game / log.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(log.read_bytes())
        harm(folder)


def mended(query: Query) -> None:
    for game in DAMAGE:
        folder = Path(query.lake.address(f"silver.{game}"), "_delta_log")
        for log in folder.glob("*.json"):
            log.unlink()
        for copy in (query.folder / "copy" / game).iterdir():
            (folder / copy.name).write_bytes(copy.read_bytes())
    Path(query.lake.address("silver.folder")).unlink()


def release(query: Query) -> None:
    """Try what is due, and what would be later."""
    found = query.batches.destination.release
    found.carry_out([*pending_releases(query.store), *pending_releases(query.store, "blocked")])


@pytest.fixture(scope="module", params=EITHER)
def stages(request: pytest.FixtureRequest, make_query: MakeQuery, tmp_path_factory: Any) -> dict[str, Any]:
    """Play a batch, the damage, two batches with a restart between them, the repair, the release and a last batch."""
    query = make_query(
        tmp_path_factory.mktemp("blocked"),
        decode=Json(schema="game string, n bigint"),
        bronze="bronze.events",
        commit=request.param,
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    Path(query.lake.address("silver.folder")).parent.mkdir(parents=True)
    Path(query.lake.address("silver.folder")).write_text("a file")
    query.take(batch(0))
    damaged(query)
    query.take(batch(1))
    query = query.restarted()
    query.take(batch(2))
    release(query)
    found = {
        "waiting": query.rows(QUARANTINE),
        "listed": list_quarantined(query.config, query.lake),
        "blocked": query.batches.quarantine.blocked_reasons(),
        "ledger": query.rows("ops.ledger"),
        "healthy": query.rows("silver.healthy"),
    }
    mended(query)
    release(query)
    query.take(batch(3))
    return {**found, "query": query}


def sums(ledger: list[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in ledger:
        if row["sink"] == "tables":
            kinds = ("matched", "landed", "quarantined", "released", "refused")
            found.update({kind: row[kind] for kind in kinds if row[kind]})
    return found


def test_other_tables_are_not_held_back(stages: dict[str, Any]) -> None:
    assert [row["n"] for row in stages["healthy"]] == [0, 1, 2]


def test_rows_wait_with_their_table_and_cause(stages: dict[str, Any]) -> None:
    waiting = Counter((row["_table"], row["_batch_id"]) for row in stages["waiting"])
    expected = Counter((f"silver.{game}", number) for game in DAMAGE for number in (1, 2))
    assert waiting == expected + Counter(("silver.folder", number) for number in (0, 1, 2))
    assert all(row["_cause"] for row in stages["waiting"])
    causes = {place.rpartition("/")[2].removeprefix("silver."): why for place, why in stages["blocked"].items()}
    assert causes.keys() == set(BLOCKED)
    assert all("\n" not in why and len(why) < 500 for why in causes.values()), causes


def test_rows_that_are_known_before_the_commit_keep_their_offsets(stages: dict[str, Any]) -> None:
    offsets = {(row["_table"], row["_batch_id"]): row["_offset"] for row in stages["waiting"]}
    assert offsets["silver.emptied", 1] == 1000 + GAMES.index("emptied")
    assert offsets["silver.writing", 2] == 2000 + GAMES.index("writing")


def test_the_ledger_counts_them(stages: dict[str, Any]) -> None:
    rows, blocked = 3 * len(GAMES), 2 * len(DAMAGE) + 3
    assert sums(stages["ledger"]) == Counter(matched=rows, landed=rows - blocked, quarantined=blocked)
    assert sums(stages["query"].rows("ops.ledger"))["released"] == blocked


def test_they_are_listed(stages: dict[str, Any]) -> None:
    listed = {one.place.table: (one.rows, one.cause is not None) for one in stages["listed"]}
    assert listed == {**{f"silver.{game}": (2, True) for game in DAMAGE}, "silver.folder": (3, True)}


def test_a_table_that_is_mended_has_every_row_once_and_in_order(stages: dict[str, Any]) -> None:
    query = stages["query"]
    for game in GAMES:
        assert [row["n"] for row in query.rows(f"silver.{game}")] == [0, 1, 2, 3], game
    assert query.rows(QUARANTINE) == []
    assert query.batches.quarantine.blocked_reasons() == {}


@pytest.fixture
def query(make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query with one table that is damaged, and a row that waits for it."""
    query = make_query(
        tmp_path,
        decode=Json(schema="game string, n bigint"),
        bronze="bronze.events",
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    query.take(records([{"game": "one", "n": 0}]))
    query.log = newest(Path(query.lake.address("silver.one"))).read_bytes()  # type: ignore[attr-defined]
    emptied(Path(query.lake.address("silver.one")))
    query.take(records([{"game": "one", "n": 1}], first=10))
    return query


def test_a_table_that_is_gone_waits_for_a_person(query: Query) -> None:
    """Without it a table that somebody deleted by mistake is made anew in silence, with the newest rows only."""
    shutil.rmtree(query.lake.address("silver.one"))
    release(query)
    query.take(records([{"game": "one", "n": 2}], first=20))
    assert query.lake.open("silver.one") is None
    assert [row["n"] for row in query.rows(QUARANTINE)] == [1, 2]
    for one in list_quarantined(query.config, query.lake):
        try_now(query.store, one.place)
    release(query)
    query.take(records([{"game": "one", "n": 3}], first=30))
    assert [row["n"] for row in query.rows("silver.one")] == [1, 2, 3]


def test_a_table_that_is_gone_while_the_stream_runs_is_not_made_anew(make_query: MakeQuery, tmp_path: Path) -> None:
    query = make_query(
        tmp_path,
        decode=Json(schema="game string, n bigint"),
        bronze="bronze.events",
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    query.take(records([{"game": "one", "n": 0}, {"game": "two", "n": 0}]))
    shutil.copytree(query.lake.address("silver.one"), tmp_path / "one")
    shutil.rmtree(query.lake.address("silver.one"))
    query.take(records([{"game": "one", "n": 1}, {"game": "two", "n": 1}], first=10))
    assert query.lake.open("silver.one") is None
    assert [row["n"] for row in query.rows("silver.two")] == [0, 1]
    rebuild = "`router rebuild FILE silver.one`"
    way_on = f"`router run FILE --once --accept lost-tables` continues with it as it is, then {rebuild}"
    assert all(way_on in row["_cause"] for row in query.rows(QUARANTINE))
    shutil.rmtree(query.lake.address("silver.one"), ignore_errors=True)
    shutil.copytree(tmp_path / "one", query.lake.address("silver.one"))
    release(query)
    assert [row["n"] for row in query.rows("silver.one")] == [0, 1]
    shutil.rmtree(query.lake.address("bronze.events"))
    with pytest.raises(StartError, match="--accept lost-tables"):
        query.take(records([{"game": "one", "n": 2}], first=20))


def test_discarded_rows_are_dead_letters_as_received(query: Query) -> None:
    for one in list_quarantined(query.config, query.lake):
        write_approval(query.store, one, discard=True)
    release(query)
    (letter,) = query.rows("ops.dead")
    assert (letter["offset"], json.loads(letter["value"]), letter["route"]) == (10, {"game": "one", "n": 1}, "games")
    assert "it cannot be read" in letter["reason"]
    assert query.rows(QUARANTINE) == []
    assert sums(query.rows("ops.ledger")) == Counter(matched=2, landed=1, quarantined=0, refused=1)


def test_the_stream_stops_when_the_quarantine_is_full(query: Query) -> None:
    query = query.restarted(quarantine=QuarantineOptions(at_most=100))
    with pytest.raises(BatchError, match=r"router quarantine list"):
        query.take(records([{"game": "one", "n": 2}], first=20))
    assert query.rows(QUARANTINE, "n") == [{"n": 1}]


@pytest.mark.parametrize("step", ["noted", "committed", "booked"])
def test_a_release_that_is_cut_off_ends_once(query: Query, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    newest(Path(query.lake.address("silver.one"))).write_bytes(query.log)  # type: ignore[attr-defined]
    parts = {"noted": "commit", "committed": "_book", "booked": "delete"}
    owner = module.Release if step == "committed" else module._ReleasedRows
    whole = getattr(owner, parts[step])
    monkeypatch.setattr(owner, parts[step], _crash)
    release(query)
    monkeypatch.setattr(owner, parts[step], whole)
    release(query)
    query.take(records([{"game": "one", "n": 2}], first=20))
    assert [row["n"] for row in query.rows("silver.one")] == [0, 1, 2]
    assert query.rows(QUARANTINE) == []
    assert sums(query.rows("ops.ledger"))["released"] == 1


def _crash(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("cut off")


def test_files_that_another_writers_change_has_made_unfit_are_not_committed(
    make_query: MakeQuery, tmp_path: Path
) -> None:
    query = make_query(
        tmp_path,
        decode=Json(schema="game string, n bigint"),
        routes=(Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),)),),
    )
    query.take(records([{"game": "one", "n": 0}]))
    attempt = query.batches.committers.attempt_commits

    def replaced(*args: Any) -> Any:
        frame = query.spark.createDataFrame([("one", "text")], "game string, n string")
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(query.lake.address("silver.one"))
        return attempt(*args)

    query.batches.committers = replace(query.batches.committers)
    object.__setattr__(query.batches.committers, "attempt_commits", replaced)
    query.take(records([{"game": "one", "n": 1}, {"game": "two", "n": 1}], first=10))
    assert [row["n"] for row in query.rows("silver.two")] == [1]
    assert [row["n"] for row in query.rows("silver.one")] == ["text"]
    (waiting,) = query.rows(QUARANTINE)
    assert (waiting["_table"], waiting["_batch_id"], waiting["n"]) == ("silver.one", 1, 1)
    assert "another writer has changed it" in waiting["_cause"]
