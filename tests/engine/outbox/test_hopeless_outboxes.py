"""Outboxes, and tables of the router's own, that can never take what a batch has for them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router import StartError, TableError
from router.config.models import Route
from router.engine.audit.verify import verify_tables
from router.engine.quarantine.table import list_quarantined, try_now
from router_sinks import Upsert
from tests.engine.parts import Copy, Events, Fixed, Where, copied
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from tests.engine.conftest import MakeQuery

OUTBOXES = {"copy": "outbox.games__all__copy", "upsert": "outbox.games__all__upsert"}
PROTOCOLS = {
    "nobody writes it": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["somethingNew"]},
    "nobody reads it": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["somethingNew"],
        "writerFeatures": ["somethingNew"],
    },
}


class Harm:
    """A commit to a table with a protocol that neither of the two Delta libraries knows."""

    def __init__(self, query: Query, table: str, protocol: dict[str, Any]) -> None:
        version = query.open(table).version() + 1
        log = Path(query.lake.address(table)) / "_delta_log"
        self.file = log / f"{version:020}.json"
        self.file.write_text(json.dumps({"protocol": protocol}) + "\n")

    def undo(self) -> None:
        self.file.unlink()


@pytest.fixture
def query(make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query that has sent one batch to a sink, merged it into a table, and appended it to another."""
    sinks = (
        Copy(to=str(tmp_path / "copy"), refuses="false"),
        Upsert(table="silver.latest", keys=("n",)),
        Fixed(name="silver.all"),
    )
    routes = (Route(name="all", match=Where(sql="true"), sinks=sinks),)
    made = make_query(
        tmp_path, decode=Events(ddl="n int, at timestamp, raw binary"), bronze="bronze.all", routes=routes
    )
    made.take(events(0, 1))
    return made


def events(*numbers: int) -> Any:
    rows = [{"n": n, "at": "2026-01-01T00:00:00.123456Z", "raw": "AP8="} for n in numbers]
    return records(rows, first=numbers[0])


def try_three_times(query: Query, batch: int) -> None:
    """Take a batch that fails twice; each try is a process of its own."""
    for _ in range(2):
        with pytest.raises(TableError):
            query.restarted().again(batch)
    query.restarted().again(batch)


def sums(query: Query, sink: str) -> dict[str, int]:
    """Return the sums of the ledger for a sink."""
    counts: Counter[str] = Counter()
    for row in query.rows("ops.ledger"):
        if row["sink"] == sink:
            counts.update({name: row[name] or 0 for name in ("matched", "landed", "quarantined", "applied", "backlog")})
    return {name: count for name, count in counts.items() if count}


def sent(query: Query) -> list[list[int]]:
    """Return what the sink got, call by call: a sink that cares for the order within a batch sorts it itself."""
    calls: dict[tuple[Any, ...], list[int]] = {}
    for row in copied(query.folder / "copy"):
        calls.setdefault((row["by"], row["batch"]), []).append(row["n"])
    return [sorted(numbers) for numbers in calls.values()]


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
@pytest.mark.parametrize("sink", OUTBOXES)
def test_an_outbox_that_can_never_take_rows_holds_back_nobody(
    query: Query, sink: str, protocol: dict[str, Any]
) -> None:
    """Without it one sink stops all others for ever, and no change of the configuration helps."""
    harm = Harm(query, OUTBOXES[sink], protocol)
    query.taken[1] = events(2, 3)
    try_three_times(query, 1)
    query.taken[2] = events(4)
    after = query.restarted()
    after.again(2)

    assert sorted(row["n"] for row in after.rows("silver.all")) == [0, 1, 2, 3, 4]
    (waiting,) = list_quarantined(after.config, after.lake)
    assert (waiting.place.table, waiting.rows) == (OUTBOXES[sink], 3)
    if sink == "copy":
        assert sent(after) == [[0, 1]], "later rows wait behind earlier ones"
    assert sums(after, sink) == {"matched": 5, "landed": 2, "quarantined": 3, "applied": 2}

    harm.undo()
    try_now(after.store, waiting.place)
    after.batches.destination.release.carry_out(after.batches.destination.release.due())
    assert list_quarantined(after.config, after.lake) == []
    if sink == "copy":
        assert sent(after) == [[0, 1], [2, 3], [4]]
        (last, *_) = [row for row in copied(after.folder / "copy") if row["n"] == 4]
        assert last["at"].startswith("2026-01-01 00:00:00.123456")
        assert last["raw"] == str(b"\x00\xff")
    else:
        assert sorted(row["n"] for row in after.rows("silver.latest")) == [0, 1, 2, 3, 4]
    assert sums(after, sink) == {"matched": 5, "landed": 5, "applied": 5}
    query.taken[3] = events(5)
    final = after.restarted()
    final.again(3)
    assert sums(final, sink) == {"matched": 6, "landed": 6, "applied": 6}
    assert [problem for audit in verify_tables(final.config) for problem in audit.wrong] == []


def test_what_may_pass_is_waited_for(query: Query) -> None:
    """Without it a disk without rights for a minute costs rows their order, or fills the quarantine."""
    log = Path(query.lake.address(OUTBOXES["copy"])) / "_delta_log"
    newest = max(log.glob("*.json"))
    content = newest.read_bytes()
    newest.write_bytes(b"")
    query.taken[1] = events(2)
    for _ in range(5):
        with pytest.raises(TableError):
            query.restarted().again(1)
    newest.write_bytes(content)
    query.restarted().again(1)

    assert sent(query) == [[0, 1], [2]]
    assert list_quarantined(query.config, query.lake) == []


@pytest.mark.parametrize("table", ["bronze.all", "ops.dead"])
def test_a_table_of_the_router_that_can_never_take_rows_ends_the_stream(query: Query, table: str) -> None:
    """Without it the stream tries for ever, and a supervisor starts it again and again."""
    query.take(records([b"garbage"], first=50))
    Harm(query, table, PROTOCOLS["nobody writes it"])
    query.taken[2] = records([{"n": 2}, b"garbage"], first=60)
    for _ in range(2):
        with pytest.raises(TableError):
            query.restarted().again(2)
    with pytest.raises(StartError, match="cannot pass by itself"):
        query.restarted().again(2)
