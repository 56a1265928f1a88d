"""Routes and sinks with another name than before (`was`): what waits, notes and ids stay under the first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router import ApplyingSink, Batch, ConfigError, Outcome, SinkError, StartError
from router.config.loader import load_config
from router.engine import ledger
from router.engine.audit.verify import verify_tables
from router.engine.preflight.lake_changes import refuse_changes
from router.engine.quarantine.table import list_quarantined, write_approval
from router.registry import load_registry
from router_sinks import Delta, Upsert
from tests.engine.preflight.test_lake_changes import DELTA, EVENTS, begun, changes_of, in_the_outbox, route
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.engine.conftest import MakeQuery

SMALL = {"name": "small", "sql": "event.n > 2", "otherwise": "quarantine"}


class Calls(ApplyingSink):
    """Write down by which key and number rows came; away while there is a file `away`; of a 1 nobody knows."""

    folder: str

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        folder = Path(self.folder)
        if (folder / "away").exists():
            raise ConnectionError("it is away")
        numbers = sorted(row["n"] for row in events.select("n").collect())
        with (folder / "calls").open("a") as calls:
            calls.write(json.dumps([batch.key, batch.id, numbers]) + "\n")
        parked = sum(number == 2 for number in numbers)
        return Outcome(len(numbers) - parked, parked=parked, in_doubt=sum(number == 1 for number in numbers))


def calls(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def renamed(query: Query, name: str = "wins", was: str | None = "calls") -> Query:
    """Return the query after a restart, with its second route under another name."""
    first, second = query.config.routes
    return query.restarted(routes=(first, second.model_copy(update={"name": name, "was": was})))


def test_a_cut_off_batch_and_parked_rows_stay_with_a_renamed_route(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it an API gets a batch by other keys a second time, or never."""
    (tmp_path / "away").touch()
    query = begun(make_query, tmp_path, route(DELTA), route(Calls(folder=str(tmp_path)), name="calls"))
    with pytest.raises(SinkError):
        query.take(records(EVENTS))
    (tmp_path / "away").unlink()

    after = renamed(query)
    refuse_changes(changes_of(after), frozenset())
    report = after.again(0)
    assert [*report.routes] == ["games", "wins"]
    after.take(records(EVENTS, first=10))
    assert calls(tmp_path) == [["games/calls/calls", 0, [0, 1, 2]], ["games/calls/calls", 1, [0, 1, 2]]]
    sums = ledger.read_totals(after.config)
    assert ("wins", "calls") not in sums
    counts = {name: sums["calls", "calls"][name] for name in ("landed", "applied", "parked", "in_doubt", "backlog")}
    assert counts == {"landed": 6, "applied": 4, "parked": 2, "in_doubt": 2, "backlog": 0}
    assert after.config.shown_names("calls", "calls") == ("wins", "calls")
    assert after.config.identity_of("wins", "calls") == ("calls", "calls")
    assert [table for table in after.tables() if table.startswith("outbox.")] == ["outbox.games__calls__calls"]
    refuse_changes(changes_of(after), frozenset())


def test_quarantined_and_approved_rows_stay_with_a_renamed_route(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it rows that somebody has let in never reach their table, and others wait where nobody looks."""
    waiting = route(Delta(table="silver.calls"), name="calls", expect=(SMALL,))
    query = begun(make_query, tmp_path, route(DELTA), waiting)
    query.take(records(EVENTS))
    (rows,) = list_quarantined(query.config, query.lake)
    write_approval(query.store, rows)

    after = renamed(query)
    refuse_changes(changes_of(after), frozenset())
    after.take(records([{"game": "uno", "n": 7}], first=10))
    assert sorted(row["n"] for row in after.rows("silver.calls")) == [0, 1, 2, 7]
    after.take(records([{"game": "uno", "n": 0}], first=20))
    assert [part.rows for part in list_quarantined(after.config, after.lake)] == [1]
    assert [problem for audit in verify_tables(after.config) for problem in audit.problems] == []


def test_unmerged_rows_stay_with_a_renamed_route_and_sink(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it rows that wait for a table are never merged, and an older state of a key stays for good."""
    query = begun(make_query, tmp_path, route(DELTA), route(Upsert(table="silver.calls", keys=("n",)), name="calls"))
    query.take(records([{"game": "go", "n": 9}]))
    log = tmp_path / "lake/silver/calls/_delta_log/00000000000000000000.json"
    whole = log.read_bytes()
    log.write_bytes(b"damaged")
    query = query.restarted()
    query.take(records(EVENTS, first=10))
    log.write_bytes(whole)

    other = Upsert(table="silver.others", keys=("n",))
    sink = Upsert(table="silver.calls", keys=("n",), was="upsert")
    new = Upsert(table="silver.new", keys=("n",), was="upsert_9")
    after = query.restarted(routes=(route(DELTA), route(new, sink, name="wins", was="calls")))
    assert after.config.shown_names("calls", "upsert") == ("wins", "upsert_2")
    refuse_changes(changes_of(after), frozenset())
    after.take(records([{"game": "go", "n": 8}], first=20))
    assert sorted(row["n"] for row in after.rows("silver.calls")) == [0, 1, 2, 8, 9]

    swapped = after.restarted(routes=(route(DELTA), route(other, name="wins", was="calls")))
    with pytest.raises(StartError, match="was: upsert_9"):
        refuse_changes(changes_of(swapped), frozenset())


def test_a_former_name_may_not_be_removed(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a line that looks like a comment is deleted, and all that waits is out of reach."""
    query = begun(make_query, tmp_path, route(DELTA), route(Delta(table="silver.calls"), name="calls"))
    query.take(records(EVENTS))
    refuse_changes(changes_of(renamed(query)), frozenset())

    without = renamed(query, was=None)
    with pytest.raises(StartError, match="`was: calls`"):
        refuse_changes(changes_of(without), frozenset())
    assert [(change.severity, change.place) for change in changes_of(without).lost_names()] == [
        ("refused", ("routes", 1))
    ]
    refuse_changes(changes_of(renamed(query, "third")), frozenset())
    refuse_changes(changes_of(without), {"gone-sinks"})
    refuse_changes(changes_of(without), frozenset())


def test_another_kind_of_sink_is_no_heir(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it the rows of an outbox wait for a sink that has no outbox."""
    query = in_the_outbox(make_query, tmp_path)
    table = Delta(table="silver.calls", was="slow")
    after = query.restarted(routes=(query.config.routes[0], route(table, name="wins", was="calls")))
    with pytest.raises(StartError, match="calls/slow is gone"):
        refuse_changes(changes_of(after), frozenset())
    refuse_changes(changes_of(after), {"gone-sinks"})
    refuse_changes(changes_of(after), frozenset())


def test_a_former_name_that_never_was_is_found(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a typing error looks like a route that goes on, and begins anew."""
    query = begun(make_query, tmp_path, route(DELTA), route(Delta(table="silver.calls"), name="calls"))
    query.take(records(EVENTS))

    assert [*changes_of(renamed(query)).unknown_names()] == []
    (unknown,) = changes_of(renamed(query, was="cals")).unknown_names()
    assert (unknown.severity, unknown.place) == ("to do", ("routes", 1, "was"))


YAML = """\
name: games
lake: ./lake
source: {kafka: {servers: "127.0.0.1:1", topics: [game-events]}}
decode: {json: "game string"}
dead_letters: ops.dead
routes:
"""
CLASHES = {
    "two heirs": (
        "  - {name: a, was: old, match: {sql: 'true'}, sinks: [{delta: silver.a}]}",
        "  - {name: b, was: old, match: {sql: 'true'}, sinks: [{delta: silver.b}]}",
    ),
    "the former name is there": (
        "  - {name: a-b, match: {sql: 'true'}, sinks: [{delta: silver.a}]}",
        "  - {name: b, was: a_b, match: {sql: 'true'}, sinks: [{delta: silver.b}]}",
    ),
    "two heirs of a sink": (
        "  - name: a",
        "    match: {sql: 'true'}",
        "    sinks: [{delta: {table: silver.a, was: tables}}, {tables: 'silver.{event.game}'}]",
    ),
}


@pytest.mark.parametrize("lines", CLASHES.values(), ids=CLASHES)
def test_a_former_name_has_one_heir(lines: tuple[str, ...]) -> None:
    """Without it two routes send the rows of one outbox."""
    text = YAML + "\n".join(lines) + "\n"
    with pytest.raises(ConfigError) as refused:
        load_config(Path("games.yaml"), load_registry(), environ={}, text=text)
    (problem,) = refused.value.problems
    assert "or were" in problem.what or "or was" in problem.what
    good = text.replace(", was: old", "").replace("was: a_b", "was: c").replace(", was: tables", "")
    assert load_config(Path("games.yaml"), load_registry(), environ={}, text=good).config.routes
