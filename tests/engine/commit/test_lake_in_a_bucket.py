"""Whole batches with lake and store in an object store: equal to those on a disk, at a bounded number of requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from benchmarks.s3_server import Fault, S3Server
from router.config.models import Bronze, Route
from router.engine.merge.delta_rs import SMALL_ROWS
from router.engine.quarantine.table import pending_releases
from router.storage.locations import TableLocation
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables, Upsert
from tests.engine.parts import Events, Fixed, Named, Where
from tests.engine.query import Query, multiset, records
from tests.s3_servers import SERVERS, lake_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
GAMES = 3
BATCHES = 24
"""More than there are between two checkpoints of a table."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """Run an S3 server."""
    with lake_on(request.param) as found:
        yield found


@pytest.fixture
def query(make_query: Callable[..., Query], tmp_path: Path) -> Callable[..., Query]:
    """Make a query with a table per game, single tables, bronze and dead letters."""

    def query(**where: Any) -> Query:
        routes = (
            Route(name="games", match=Where(sql="true"), sinks=(Named(sql="'silver.' || event.game"),)),
            Route(name="big", match=Where(sql="event.n > 90"), sinks=(Fixed(name="silver.big"),)),
        )
        decode = Events(ddl="game string, n int")
        return make_query(tmp_path, decode=decode, routes=routes, bronze="bronze.all", **where)

    return query


def batch(number: int, games: int = GAMES) -> Any:
    """Return the records of a batch, with one that is no JSON."""
    events = [{"game": f"g{n % games}", "n": n} for n in range(10)]
    return records([*events, b"no JSON"], first=number * 11)


def test_a_bucket_has_what_a_disk_has(query: Callable[..., Query], server: S3Server) -> None:
    """Without it a lake in an object store has other rows, or costs what its requests cost."""
    far = query(lake="s3://lake/equal", storage_options=server.options)
    near = query()
    begin = 0
    for number in range(BATCHES):
        for one in (far, near):
            one.take(batch(number))
        begin = begin or len(server.asked())  # after the batch that makes the tables
    asked = server.asked(begin)

    assert far.tables() == near.tables()
    for table in near.tables():
        assert multiset(far, table) == multiset(near, table)
    logs = Counter(one.path.split("/_delta_log")[0] for one in asked if "_delta_log" in one.path)
    logs += Counter(_listed(one.query) for one in asked if "_delta_log" in one.query)
    touched = {table for table in near.tables() if table not in ("silver.big",)}
    assert {path.removeprefix("/lake/equal/").replace("/", ".") for path in logs} == touched
    assert max(logs.values()) / (BATCHES - 1) <= 5


def _listed(query: str) -> str:
    prefix = next(part for part in query.split("&") if part.startswith("prefix="))
    return "/lake/" + prefix.removeprefix("prefix=").replace("%2F", "/").split("/_delta_log")[0]


def test_an_outbox_needs_no_file_system_of_spark(
    make_query: Callable[..., Query], tmp_path: Path, server: S3Server
) -> None:
    """Without it a lake in a bucket takes every batch's bronze, and its upserts end in hundreds of lines of Java."""
    sink = Upsert(table="gold.{event.game}_last", keys=("event.game",))
    routes = (Route(name="games", match=Sql(where="true"), sinks=(sink,)),)
    parts = {"decode": Json(schema="game string, n int"), "routes": routes, "bronze": "bronze.all"}
    far = make_query(tmp_path, lake="s3://lake/outboxes", storage_options=server.options, **parts)
    near = make_query(tmp_path, **parts)
    for query in (far, near):
        query.take(batch(0))
        query.take(records([{"game": f"g{n % GAMES}", "n": n} for n in range(SMALL_ROWS + 1)], first=1000))

    # Rows that wait for a table are read from the outbox itself.
    first_commit = "gold/g1_last/_delta_log/00000000000000000000.json"
    for query in (far, near):
        content = query.lake.read(first_commit)
        assert content is not None
        query.lake.write(first_commit, b"{")
        query.take(batch(2))
        query.lake.write(first_commit, content)
        query.take(batch(3))
    for table in ("gold.g0_last", "gold.g1_last", "bronze.all"):
        assert multiset(far, table) == multiset(near, table)


@pytest.mark.parametrize("server", ["moto"], indirect=True)
def test_a_batch_goes_through_faults(query: Callable[..., Query], server: S3Server) -> None:
    """Without it a store that is busy, or cuts a connection, fails a batch or lands it twice."""
    far = query(lake="s3://lake/faults", storage_options=server.options)
    far.take(batch(0))
    server.fail(
        Fault("PUT", ".parquet", "503 Slow Down", times=2),
        Fault("PUT", "_delta_log", "500 Internal Server Error", done=True, times=3),
        Fault("PUT", "manifests", ""),
        Fault("GET", "_delta_log", "503 Slow Down", seconds=1.0, times=2),
    )
    far.take(batch(1))
    server.fail()
    far.again(1)

    assert sum(len(far.rows(table)) for table in far.tables() if table.startswith("silver.g")) == 20
    assert len(far.rows("bronze.all")) == 22


def test_tables_have_buckets_of_their_own(make_query: Callable[..., Query], tmp_path: Path, server: S3Server) -> None:
    """Without it a bucket per topic loses rows, and one that is not there holds back all others."""
    for bucket in ("raw-events", "games-g0", "games-g1"):
        server.make_bucket(bucket)

    def at(place: str) -> TableLocation:
        return TableLocation(place=place, storage_options={k: SecretStr(v) for k, v in server.options.items()})

    sinks = (
        Tables(table="silver.{event.game}", location=at("s3://games-{event.game}/rows")),
        Upsert(table="gold.{event.game}_last", keys=("event.game",), location=at("s3://lake/last/{table}")),
    )
    far = make_query(
        tmp_path,
        decode=Json(schema="game string, n int"),
        bronze=Bronze(table="bronze.{topic}", location=at("s3://raw-{topic}/raw")),
        routes=(Route(name="games", match=Sql(where="true"), sinks=sinks),),
    )
    for number in range(3):
        far.take(batch(number))

    (why,) = far.batches.quarantine.blocked_reasons().values()
    assert "its files cannot be written: s3://games-g2/rows cannot be written" in why
    assert len(far.rows("quarantine.games__games__tables")) == 9
    server.make_bucket("games-g2")
    far = far.restarted()
    far.batches.destination.release.carry_out(pending_releases(far.store, "blocked"))
    far.take(batch(3))

    wanted = Counter(n for _ in range(4) for n in range(10))
    found = Counter(row["n"] for game in range(GAMES) for row in far.rows(f"silver.g{game}"))
    assert found == wanted
    assert far.rows("gold.g1_last", "game", "n") == [{"game": "g1", "n": 7}]
    assert len(far.rows("bronze.events")) == 44
    assert far.rows("quarantine.games__games__tables") == []
    places = {"silver.g2": "s3://games-g2/rows", "gold.g2_last": "s3://lake/last/g2_last"}
    assert far.lake.noted_locations().items() >= {**places, "bronze.events": "s3://raw-events/raw"}.items()
    assert not (tmp_path / "lake/silver").exists()
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"hush-hush" in file.read_bytes()]
