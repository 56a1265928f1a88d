"""A schema brings what one route cannot be planned with: that route sees events without it, all others see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Lookup, Route
from router.engine.audit.verify import verify_tables
from router.errors import StartError
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Upsert
from tests.engine.parts import Fixed
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router import Sink
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

OLD = "id int, n int, text string, deep struct<a: int>"
FIRST = {"id": 1, "n": 2, "text": "abcdef", "deep": {"a": 1}}
TABLE = "silver.bad"


@dataclass(frozen=True)
class Change:
    """What version 2 of a schema has, and a route that cannot be planned with it; `more` is a field that is harmless.

    `event` is a record of version 2. `rows` has what the route makes of the first record and of that one.
    """

    new: str
    event: dict[str, Any]
    rows: list[dict[str, Any]]
    select: tuple[str, ...] = ("event.*",)
    sink: Sink = field(default_factory=lambda: Fixed(name=TABLE))
    match: str = "true"
    frozen: int = 0
    refused: int = 0
    conflicts: int = 0


SECOND = {**FIRST, "id": 2, "more": "x"}
WHOLE = [{**FIRST, "more": None}, SECOND]
CHANGES = {
    "a column that select makes": Change(
        f"{OLD}, more string, shout string",
        {**SECOND, "shout": "taken"},
        [{**row, "shout": "ABCDEF"} for row in WHOLE],
        select=("event.*", "upper(event.text) AS shout"),
        frozen=1,
    ),
    "a column that select makes in Spark": Change(
        f"{OLD}, more string, sound string",
        {**SECOND, "sound": "taken"},
        [{**row, "sound": "A123"} for row in WHOLE],
        select=("event.*", "soundex(event.text) AS sound"),
        frozen=1,
    ),
    "all events in Spark": Change(
        "id int, n double, text string, deep struct<a: int>, more string",
        {**SECOND, "n": 2.0},
        WHOLE,
        match="soundex(event.text) = 'A123' AND date_add(DATE '2026-01-01', event.n) IS NOT NULL",
    ),
    "a name that an outbox needs": Change(
        f"{OLD}, more string, _offset long",
        {**SECOND, "_offset": 7},
        WHOLE,
        sink=Upsert(table=TABLE, keys=("id",)),
        frozen=1,
    ),
    "a key of fractions": Change(
        "id double, n int, text string, deep struct<a: int>, more string",
        {**SECOND, "id": 2.5},
        [{**FIRST}],
        sink=Upsert(table=TABLE, keys=("id",)),
        refused=1,
    ),
    "a key of fractions that is whole": Change(
        "id double, n int, text string, deep struct<a: int>, more string",
        {**SECOND, "id": 2.0},
        WHOLE,
        sink=Upsert(table=TABLE, keys=("id",)),
    ),
    "a partition of fractions": Change(
        "id int, n double, text string, deep struct<a: int>, more string",
        {**SECOND, "n": 2.0},
        WHOLE,
        sink=Delta(table=TABLE, partition_by=("n",)),
    ),
    "a type that a function refuses": Change(
        "id int, n double, text string, deep struct<a: int>, more string",
        {**SECOND, "n": 2.0},
        [{"day": date(2026, 1, 3)}] * 2,
        select=("date_add(DATE '2026-01-01', event.n) AS day",),
    ),
    "another kind of type": Change(
        "id int, n int, text string, deep string, more string",
        {**SECOND, "deep": "no struct"},
        [{"a": 1}],
        select=("event.deep.a",),
        refused=1,
        conflicts=1,
    ),
    "a field that is gone": Change(
        "id int, n int, text string, more string",
        {key: value for key, value in SECOND.items() if key != "deep"},
        [{"a": 1, "id": 1}, {"a": None, "id": 2}],
        select=("event.deep.a", "event.id"),
    ),
}


@pytest.fixture
def begin(make_query: MakeQuery, tmp_path: Path) -> Callable[[Change], Query]:
    def begin(change: Change) -> Query:
        good = Route(name="good", match=Sql(where="true"), sinks=(Fixed(name="silver.good"),))
        bad = Route(name="bad", match=Sql(where=change.match), select=change.select, sinks=(change.sink,))
        return make_query(
            tmp_path, decode=Json.model_validate({"schema": OLD}), bronze="bronze.events", routes=(bad, good)
        )

    return begin


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_route_that_cannot_be_planned_with_a_new_schema_keeps_the_old_one(
    begin: Callable[[Change], Query], change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it one registered schema ends the stream, at each start: no table gets anything, bronze neither."""
    query = begin(change)
    query.take(records([FIRST]))
    new = Json.model_validate({"schema": change.new})

    query = query.restarted(decode=new)
    report = query.take(records([change.event], first=1))

    (told,) = [record.message for record in caplog.records if "cannot be planned" in record.message]
    assert "route bad" in told
    # A table takes no column of another kind, so that change costs the other route its row as well.
    whole = [{key: value for key, value in row.items() if value is not None} for row in query.rows("silver.good")]
    assert sorted(whole, key=repr) == sorted([FIRST, change.event][: 2 - change.conflicts], key=repr)
    assert query.rows(TABLE, *change.rows[-1]) == sorted(change.rows, key=repr)
    assert (report.read, report.decoded, report.dead_letters) == (1, 1, change.refused + change.conflicts)
    assert report.routes["bad"]["frozen"] == change.frozen
    assert query.letters("stage").total() == change.refused + change.conflicts

    # The next start finds the same, and says it again; without a note nothing tells a schema from a mistake.
    again = query.restarted(decode=new)
    again.take(records([FIRST], first=2))
    assert len(query.rows("silver.good")) == 3 - 2 * change.conflicts
    assert not any(audit.problems for audit in verify_tables(query.config, contents=True))
    query.store.delete("schemas/planned.json")
    with pytest.raises(StartError, match=r"route bad|`select`"):
        query.restarted(decode=new).take(records([FIRST], first=3))


def test_a_lookup_that_cannot_be_planned_with_a_new_schema_keeps_the_old_one(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The key that events are looked up by gets a type that the table's cannot be compared with."""
    rows = ({"id": 1, "plan": "gold"}, {"id": 2, "plan": "free"})
    lookup = Lookup(name="billing", rows=rows, on={"id": "event.id"})
    sinks = (Fixed(name=TABLE),)
    select = ("event.*", "billing.plan")
    route = Route(name="all", match=Sql(where="true"), lookup=(lookup,), select=select, sinks=sinks)
    query = make_query(tmp_path, decode=Json.model_validate({"schema": OLD}), bronze="bronze.events", routes=(route,))
    query.take(records([FIRST]))

    query = query.restarted(
        decode=Json.model_validate({"schema": f"{OLD}, more string".replace("id int", "id double")})
    )
    report = query.take(records([SECOND, {**SECOND, "id": 2.5}, b"garbage"], first=1))

    assert "lookups and tombstones cannot be planned with id" in caplog.text
    assert (report.read, report.decoded, report.failed, report.dead_letters) == (3, 1, 2, 2)
    assert query.rows(TABLE, "id", "plan", "more") == [
        {"id": 1, "plan": "gold", "more": None},
        {"id": 2, "plan": "free", "more": "x"},
    ]
    assert not any(audit.problems for audit in verify_tables(query.config, contents=True))


def test_a_run_of_some_routes_leaves_what_is_noted_of_others(begin: Callable[[Change], Query]) -> None:
    """Without it a replay of one route's dead letters lets the next start refuse another route."""
    change = CHANGES["a column that select makes"]
    query = begin(change)
    query.take(records([FIRST]))
    both = query.config.routes

    query = query.restarted(routes=both[1:])
    query.take(records([FIRST], first=1))
    query = query.restarted(routes=both, decode=Json.model_validate({"schema": change.new}))
    report = query.take(records([change.event], first=2))

    assert (report.decoded, report.dead_letters) == (1, 0)
    assert query.rows(TABLE, *change.rows[-1]) == sorted(change.rows, key=repr)
