"""Ids that a registry does not have or refuses: what they cost a batch, and what they do to the others' records."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router import Preparation
from router.config.models import Route
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.land import task
from router_decoders import Auto, JsonSchema
from router_schemas.wire_format import pack_value
from tests.engine.parts import Fixed, Where
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from router.delta.lake import Lake
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query
    from tests.schemas.faulty import FaultyRegistry

GARBAGE = range(2**31 - 100, 2**31)
AGAIN = "the batch is read again"


def no_sample(rows: int) -> DataFrame:
    raise AssertionError("the source was read")


def add(faulty: FaultyRegistry, *fields: str) -> int:
    """Register a version with these fields."""
    text = json.dumps({"title": "Bet", "type": "object", "properties": {name: {"type": "string"} for name in fields}})
    return faulty.book.add("bets", text, "JSON")


@pytest.fixture(params=[JsonSchema, Auto], ids=["json_schema", "auto"])
def begin(
    request: pytest.FixtureRequest, make_query: MakeQuery, tmp_path: Path, lake: Lake, faulty: FaultyRegistry
) -> Callable[[], Query]:
    """Begin a query as a new process does, with what is kept beside the checkpoint."""
    route = Route(name="bets", match=Where(sql="true"), sinks=(Fixed(name="silver.bets"),))

    def begin() -> Query:
        options: dict[str, Any] = {"registry": {"url": faulty.url, "attempts": 1}, "subjects": ["bets"]}
        preparation = Preparation(Path(lake.root), False, no_sample, LearntSchemas(CheckpointStore(lake)))
        decoder = request.param.model_validate(options).prepare(preparation)
        return make_query(tmp_path, decode=decoder, routes=(route,))

    return begin


def test_garbage_is_not_decoded_again_and_a_new_schema_among_it_is(
    begin: Callable[[], Query],
    faulty: FaultyRegistry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it a batch of 2 000 records with one random id takes three times as long, at each such batch."""
    first = add(faulty, "game")
    query = begin()
    good = pack_value(first, None, b'{"game":"uno"}')
    garbage = [pack_value(number, None, b"{}") for number in GARBAGE]

    with caplog.at_level(logging.INFO, "router"):
        report = query.take(records([good, *garbage]))
        assert (report.decoded, report.dead_letters) == (1, 100)
        assert AGAIN not in caplog.text
        asked = [path for path in faulty.paths if path.startswith("/schemas/ids/21")]
        assert len(asked) == len(set(asked)) == 100

        report = query.take(records([good, *garbage], first=101))
        assert (report.decoded, report.dead_letters) == (1, 100)
        assert AGAIN not in caplog.text
        assert len([path for path in faulty.paths if path.startswith("/schemas/ids/21")]) == 100

    (reason,) = query.letters("reason", offset=1)
    assert reason.startswith(f"the registry does not give schema {GARBAGE[0]}: it answers 404")

    # A subject that is not polled has the new schema, and no task has room to report all that its rows want.
    other = faulty.book.add("others", json.dumps({"title": "Win", "properties": {"won": {"type": "string"}}}), "JSON")
    monkeypatch.setattr(task, "MAX_WANTED_SCHEMAS", 7)
    with caplog.at_level(logging.INFO, "router"):
        report = query.take(records([good, *garbage[:20], pack_value(other, None, b'{"won":"all"}')], first=202))
    assert (report.decoded, report.dead_letters) == (2, 20)
    assert AGAIN in caplog.text
    assert {row["won"] for row in query.rows("silver.bets")} == {None, "all"}


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_a_refused_id_is_a_dead_letter_and_nothing_else(
    begin: Callable[[], Query], faulty: FaultyRegistry, status: int
) -> None:
    """Without it one record ends the stream at every start."""
    first = add(faulty, "game")
    faulty.refused["/schemas/ids/77"] = status
    good = pack_value(first, None, b'{"game":"uno"}')

    for start, query in enumerate((begin(), begin())):
        query.taken = {number: records([]) for number in range(start)}
        report = query.take(records([good, pack_value(77, None, b"{}"), good], first=3 * start))
        assert (report.decoded, report.dead_letters) == (2, 1)
        (reason,) = query.letters("reason", offset=3 * start + 1)
        assert f"schema 77: it answers {status}" in reason


@pytest.mark.parametrize("fault", ["hangup", "503", "403", "404"])
def test_records_of_known_schemas_land_while_the_registry_is_unavailable(
    begin: Callable[[], Query], faulty: FaultyRegistry, fault: str
) -> None:
    """Without it a stream stands still, or does not start, for a registry that it does not need."""
    first = add(faulty, "game")
    good = pack_value(first, None, b'{"game":"uno"}')
    begin().take(records([good]))
    faulty.fails(fault)

    query = begin()
    query.taken = {0: records([])}
    report = query.take(records([good, good], first=1))

    assert (report.decoded, report.dead_letters) == (2, 0)
    with pytest.raises(ConnectionError, match="waiting for the schema registry"):
        query.take(records([good, pack_value(88, None, b"{}")], first=3))
    faulty.fails("")
    query.taken.pop(2)
    report = query.take(records([good, pack_value(88, None, b"{}")], first=3))
    assert (report.decoded, report.dead_letters) == (1, 1)
