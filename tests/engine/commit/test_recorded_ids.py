"""The transaction ids of a lake that has seen every feature, letter by letter: tables are held to them for years.

If one of them has to change, `FORMAT` in `router/engine/checkpoint_store.py` rises with it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from router import ApplyingSink, Batch, Outcome
from router.config.models import Expectation, Route, View
from router.delta.transaction_id import parse_transaction_id
from router.engine.audit.dead_letters import DeadLetterFilter
from router.engine.quarantine.table import list_quarantined, pending_releases, write_approval
from router.engine.reprocess.backfill import Backfill, RecordRange
from router.engine.reprocess.replay import DeadLetterReplay
from router.engine.views.schedule import create_refresher
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine.parts import Copy
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.engine.conftest import MakeQuery

REPLAY = re.compile(r"replay-\d{8}T\d{6}Z-[0-9a-f]{8}")
HUGE = 2**40
SMALL = Expectation(name="small", sql="event.id < 100", otherwise="quarantine")


class Keeping(ApplyingSink):
    """Keep what it is given in a table of its own."""

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        parts, rows = batch.parts("ops.kept"), events.select("id").toArrow()
        parts.write(rows)
        parts.commit(rows.schema)
        return Outcome(len(rows))


def ids_in(lake: str) -> dict[str, set[str]]:
    """Return the ids in the logs of all tables of a lake, with one name for all replays."""
    found: dict[str, set[str]] = {}
    for log in Path(lake).glob("[!_]*/**/_delta_log/*.json"):
        table = log.parents[1].relative_to(lake).as_posix().replace("/", ".")
        for line in log.read_text().splitlines():
            if '"txn"' in line:
                found.setdefault(table, set()).add(REPLAY.sub("replay", json.loads(line)["txn"]["appId"]))
    return found


class Recorder:
    """A query, and the ids that each step of its life adds to its tables."""

    def __init__(self, query: Query, spark: SparkSession) -> None:
        self.query, self.spark = query, spark
        self.steps: dict[str, dict[str, list[str]]] = {}
        self.seen: set[tuple[str, str]] = set()
        self.offset = 0

    def take(self, *events: dict[str, Any] | bytes) -> None:
        self.query.take(records(events, first=self.offset))
        self.offset += 100

    def record(self, step: str) -> None:
        new: dict[str, list[str]] = {}
        for table, ids in sorted(ids_in(self.query.lake.root).items()):
            if fresh := sorted(name for name in ids if (table, name) not in self.seen):
                new[table] = fresh
                self.seen |= {(table, name) for name in fresh}
        self.steps[step] = new

    def path(self, table: str) -> Path:
        return Path(self.query.lake.address(table))

    def repair(self, *tables: str, accept: bool = False) -> None:
        for table in tables:
            self.query.rebuilt(table, accept=accept, spark=self.spark.newSession())

    def damage_after_manifest(self, table: str) -> None:
        """Let the next commit to a table fail, when its batch is decided."""
        newest = max((self.path(table) / "_delta_log").glob("*.json"))
        self.next = newest.with_name(f"{int(newest.stem) + 1:020}.json")

        def watch(batch: int, step: str, done: int, of: int) -> None:
            if step == "manifest" and done == of:
                self.next.write_bytes(b"")

        self.query.batches.watch = watch

    def mend(self, table: str) -> None:
        """Take the damage away, and try what waits for the table."""
        self.query.batches.watch = None
        self.next.unlink()
        blocked = pending_releases(self.query.store, "blocked")
        self.query.batches.destination.release.carry_out([note for note in blocked if note.place.table == table])

    def settle(self, table: str, *, discard: bool = False) -> None:
        """Let what waits for a table in, or refuse it."""
        for waiting in list_quarantined(self.query.config, self.query.lake):
            if waiting.place.table == table:
                write_approval(self.query.store, waiting, discard=discard)
        self.query.batches.destination.release.carry_out(pending_releases(self.query.store))


def routes(folder: Path) -> tuple[Route, ...]:
    named, merged = Sql(where="event.game IS NOT NULL"), Sql(where="event.id IS NOT NULL")
    waits = Tables(table="silver.{event.game}", evolution="quarantine")
    newest = Upsert(table="silver.newest", keys=("event.game",), delete_when="event.id = 3")
    return (
        Route(name="all", match=named, expect=(SMALL,), sinks=(waits,)),
        Route(name="wide", match=named, sinks=(Delta(table="gold.all"), Copy(to=f"{folder}/copy", refuses="id = 2"))),
        Route(name="kept", match=named, sinks=(Keeping(),)),
        Route(name="merged", match=merged, sinks=(newest,)),
    )


def played(make_query: MakeQuery, spark: SparkSession, folder: Path) -> Recorder:
    """Play the life of a query: batches, what waits and leaves the quarantine, repairs, views, replays, a backfill."""
    view = View.model_validate({
        "name": "counts", "from": "gold.all", "into": "gold.counts", "sql": "SELECT count(*) AS n FROM source",
    })  # fmt: skip
    narrow = Json(schema="game string, id int")
    about = {"decode": narrow, "bronze": "bronze.events", "views": (view,)}
    query = make_query(folder, routes=routes(folder), **about)
    query.write_run_id()
    life = Recorder(query, spark)

    games = [{"game": game, "id": number} for number, game in enumerate(("uno", "go", "chess", "rummy"), start=1)]
    life.take(*games, {"game": "uno", "id": 500}, {"game": "go", "id": 600}, {"id": 7}, b"garbage")
    life.record("batch")

    life.settle("silver.uno")
    life.settle("silver.go", discard=True)
    life.record("held rows are let in or discarded")

    life.damage_after_manifest("silver.chess")
    life.take({"game": "chess", "id": 9})
    life.record("rows of a commit that failed")
    life.mend("silver.chess")
    life.record("a table can be written again")

    wide = Json(schema="game string, id bigint, bonus double")
    life.query = life.query.restarted(decode=wide)
    life.take(
        *({"game": "uno", "id": 3, "bonus": 0.5}, {"game": "go", "id": 8, "bonus": 50.0}),
        *({"game": "fish", "id": 9}, {"game": "eel", "id": HUGE}),
    )
    life.record("wider rows")
    life.settle("silver.uno")
    life.record("an approval")
    DeltaTable(life.path("silver.go")).alter.add_constraint({"few": "id < 8"})
    life.settle("silver.go")
    life.record("a release that the table refuses")

    life.take({"game": "fish", "id": 10, "bonus": 1.0})
    shutil.rmtree(life.path("silver.fish"))
    life.repair("silver.fish", "silver.chess", "silver.newest")
    life.record("repairs")
    query = life.query
    create_refresher(query.config, query.spark, query.lake, query.store).refresh_view(view)
    life.record("a view")

    late = Route(name="late", match=Sql(where="true"), sinks=(Delta(table="silver.late"),))
    query = query.restarted(routes=(late,))
    backfill = Backfill(query.context(spark))
    backfill.run(backfill.begin(RecordRange()))
    life.record("a backfill")
    copy = Copy(to=f"{folder}/copy")
    changed = Route(name="wide", match=Sql(where="true"), sinks=(Delta(table="gold.all"), copy))
    query = query.restarted(routes=(changed,))
    replay = DeadLetterReplay(query.context(spark))
    begun = replay.begin(DeadLetterFilter(stages=("apply",), route="wide"))
    assert begun is not None
    replay.send(begun)
    life.record("a replay")
    return life


@pytest.fixture(scope="module")
def life(make_query: MakeQuery, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return played(make_query, spark, tmp_path_factory.mktemp("life"))


EVERY_ID: dict[str, dict[str, list[str]]] = {
    "batch": {
        "bronze.events": ["games:run-1/bronze/bronze.events"],
        "gold.all": ["games:run-1/wide/delta/gold.all"],
        "ops.dead": [
            "games:run-1/dead_letters/ops.dead",
            "games:run-1/merged/upsert/outbox.games__merged__upsert/dead_letters",
            "games:run-1/wide/copy/dead_letters",
        ],
        "ops.kept": ["games:run-1/kept/keeping"],
        "ops.ledger": ["games:run-1/ledger"],
        "outbox.games__kept__keeping": ["games:run-1/kept/keeping/outbox.games__kept__keeping"],
        "outbox.games__merged__upsert": ["games:run-1/merged/upsert/outbox.games__merged__upsert"],
        "outbox.games__wide__copy": ["games:run-1/wide/copy/outbox.games__wide__copy"],
        "quarantine.games__all__tables": ["games:run-1/all/tables/quarantine/quarantine.games__all__tables"],
        "silver.chess": ["games:run-1/all/tables/silver.chess"],
        "silver.go": ["games:run-1/all/tables/silver.go"],
        "silver.newest": ["games:run-1/merged/upsert/silver.newest", "router/keyed"],
        "silver.newest._deletions": ["games:run-1/merged/upsert/silver.newest/deletions"],
        "silver.rummy": ["games:run-1/all/tables/silver.rummy"],
        "silver.uno": ["games:run-1/all/tables/silver.uno"],
    },
    "held rows are let in or discarded": {
        "ops.dead": ["games:run-1/discard/all/tables/silver.go"],
        "ops.ledger": [
            "games:run-1/ledger/discard/all/tables/silver.go",
            "games:run-1/ledger/held/all/tables/silver.uno",
        ],
        "silver.uno": ["games:run-1/held/all/tables/silver.uno"],
    },
    "rows of a commit that failed": {
        "quarantine.games__all__tables": ["games:run-1/all/tables/silver.chess/quarantine"],
    },
    "a table can be written again": {
        "ops.ledger": ["games:run-1/ledger/unblock/all/tables/silver.chess"],
        "silver.chess": ["games:run-1/unblock/all/tables/silver.chess"],
    },
    "wider rows": {
        "gold.all": ["games:run-1/wider"],
        "outbox.games__kept__keeping": ["games:run-1/wider"],
        "outbox.games__merged__upsert": ["games:run-1/wider"],
        "outbox.games__wide__copy": ["games:run-1/wider"],
        "quarantine.games__all__tables": ["games:run-1/wider"],
        "silver.fish": ["games:run-1/all/tables/silver.fish"],
        "silver.newest": ["games:run-1/wider"],
    },
    "an approval": {
        "ops.ledger": ["games:run-1/ledger/release/all/tables/silver.uno"],
        "silver.uno": ["games:run-1/release/all/tables/silver.uno", "games:run-1/wider"],
    },
    "a release that the table refuses": {
        "ops.dead": ["games:run-1/refuse/release/all/tables/silver.go"],
        "ops.ledger": ["games:run-1/ledger/release/all/tables/silver.go"],
    },
    "repairs": {
        "ops.ledger": ["games:run-1/ledger/repair/all/tables/silver.fish"],
        "silver.chess": ["games:run-1/repair/silver.chess"],
        "silver.fish": ["games:run-1/release/all/tables/silver.fish", "games:run-1/repair/silver.fish"],
        "silver.newest": ["games:run-1/repair/silver.newest"],
        "silver.newest._deletions": ["games:run-1/repair/silver.newest"],
    },
    "a view": {"gold.counts": ["games/views/counts/gold.counts"]},
    "a backfill": {
        "ops.ledger": ["games:replay/ledger"],
        "silver.late": ["games:replay/late/delta/silver.late"],
    },
    "a replay": {
        "ops.dead": ["games:replay/dead_letters/replayed/0"],
        "outbox.games__wide__copy": ["games:replay/wide/copy/outbox.games__wide__copy"],
    },
}


def test_every_id_is_what_it_was(life: Recorder) -> None:
    """Without it a table that an older commit wrote gets a batch twice, or a repair loses rows."""
    assert life.steps == EVERY_ID


def test_every_id_is_read(life: Recorder) -> None:
    """Without it what a commit brought is nobody's, and `router verify` counts it as one of others."""
    written = {text for tables in life.steps.values() for ids in tables.values() for text in ids}

    assert {text for text in written if str(parse_transaction_id(text)) != text} == set()


def test_ids_of_delta_on_spark(make_query: MakeQuery, spark: SparkSession, tmp_path: Path) -> None:
    """Without it a table that only Delta on Spark writes gets a batch twice."""
    merged = Route(
        name="merged",
        match=Sql(where="event.id IS NOT NULL"),
        sinks=(Upsert(table="silver.newest", keys=("event.game",), delete_when="event.id = 2"),),
    )
    appended = Route(name="all", match=Sql(where="true"), sinks=(Delta(table="gold.all"),))
    decode = Json(schema="game string, id int")
    query = make_query(tmp_path, decode=decode, bronze="bronze.events", routes=(merged, appended), commit="spark")
    query.write_run_id()
    life = Recorder(query, spark)
    life.take({"game": "uno", "id": 1}, {"game": "go", "id": 2}, {"id": 7})
    life.take({"game": "go", "id": 2})
    life.record("batch")
    life.repair("gold.all")
    life.record("a repair")

    assert life.steps == {
        "batch": {
            "bronze.events": ["games:run-1/bronze/bronze.events"],
            "gold.all": ["games:run-1/all/delta/gold.all"],
            "ops.dead": ["games:run-1/merged/upsert/silver.newest/dead_letters"],
            "ops.ledger": ["games:run-1/ledger"],
            "outbox.games__merged__upsert": ["games:run-1/merged/upsert/outbox.games__merged__upsert"],
            "silver.newest": ["games:run-1/merged/upsert/silver.newest"],
            "silver.newest._deletions": ["games:run-1/merged/upsert/silver.newest/deletions"],
        },
        "a repair": {"gold.all": ["games:run-1/repair"]},
    }
