"""Tables that were deleted, or put back from an older copy, while nobody ran: the next start says so, and asks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from router.api.sinks import Applied
from router.config.models import Config, Route
from router.delta.commit import TableCommit
from router.delta.keyed.upsert import EXPIRES
from router.delta.lake import Lake
from router.delta.table_cache import TableCache
from router.engine.audit.table_states import table_states
from router.engine.audit.verify import verify_tables
from router.engine.checkpoint_store import CheckpointStore, Manifest
from router.engine.commit.lost_tables import CommittedBatches
from router.engine.ledger import SCHEMA as LEDGER
from router.engine.merge.coordinator import MergedTables
from router.engine.start.checks import find_starting_offsets
from router.errors import StartError
from router_decoders import Json
from router_sinks import Delta, Upsert
from tests.engine.parts import Where
from tests.engine.query import RUN, SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable

LAST = 3
"""The last batch that the run has finished."""
KEYED = Upsert(table="silver.profiles", keys=["event.a"])
ROUTES = (
    *(Route(name=name, match=Where(sql="true"), sinks=(Delta(table=f"silver.{name}"),)) for name in ("uno", "poker")),
    Route(name="keyed", match=Where(sql="true"), sinks=(KEYED,)),
)


class Place:
    """A lake and a checkpoint after some batches into bronze and two tables, as a run leaves them."""

    def __init__(self, folder: Path) -> None:
        about = {"name": "games", "lake": str(folder / "lake"), "source": SOURCE, "decode": Json(schema="a int")}
        self.config = Config(**about, bronze="bronze.all", dead_letters="ops.dead", routes=ROUTES)
        self.lake = Lake.at(self.config.lake)
        self.checkpoint = Lake.at(self.config.checkpoint_path())
        self.store = CheckpointStore(self.checkpoint, RUN)
        self.checkpoint.write("spark/metadata", json.dumps({"id": RUN}).encode())
        for batch in range(LAST + 1):
            self.batch(batch)

    def batch(self, batch: int) -> None:
        """Do what a batch leaves behind."""
        works = [work(target, table, batch) for target, table in TARGETS.items()]
        self.store.write_manifest(Manifest(batch, "fingerprint", (), tuple(works), ()))
        for one in works:
            append(self.lake, one.table, pa.table({"a": [batch]}), one.app_id, batch)
        if batch:  # what the first batch brought changed nothing, and left no transaction id
            append(self.lake, "silver.profiles", pa.table({"a": [batch]}), MERGES, batch)
        self.store.mark_applied(batch, "keyed/upsert", Applied(1), ["silver.profiles"] if batch else [])
        append(self.lake, "ops.ledger", LEDGER.empty_table(), f"games:{RUN}/ledger", batch)
        self.checkpoint.write(f"spark/offsets/{batch}", b"")
        self.checkpoint.write(f"spark/commits/{batch}", b"")

    def start(self, *accepted: Any, **changes: Any) -> None:
        spark: Any = None  # nobody needs it
        find_starting_offsets(
            spark, TableCache(self.lake), self.checkpoint, self.config.model_copy(update=changes), {*accepted}
        )

    def folder(self, table: str) -> Path:
        return Path(self.lake.address(table))

    def delete(self, table: str) -> None:
        shutil.rmtree(self.folder(table))

    def replace(self, table: str, **properties: str) -> None:
        """Put another table in the place of one."""
        self.delete(table)
        write_deltalake(self.folder(table), pa.table({"a": [1]}), configuration={**properties})

    def put_back(self, table: str, version: int) -> None:
        """Leave what a copy has that was made when the table had this version."""
        for entry in (self.folder(table) / "_delta_log").iterdir():
            if entry.name > f"{version:020}.json":
                entry.unlink()


MERGES = f"games:{RUN}/keyed/upsert/silver.profiles"
TARGETS = {"/bronze": "bronze.all", "uno/delta": "silver.uno", "poker/delta": "silver.poker"}


def work(target: str, table: str, batch: int) -> TableCommit:
    app_id = f"games:{RUN}{'' if target.startswith('/') else '/'}{target}/{table}"
    return TableCommit(target, table, app_id, batch, (), '{"fields":[]}')


def append(lake: Lake, table: str, rows: pa.Table, app_id: str, batch: int) -> None:
    once = CommitProperties(app_transactions=[Transaction(app_id, batch)])
    write_deltalake(lake.address(table), rows, mode="append", commit_properties=once)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("table", "damage", "says"),
    [
        pytest.param("silver.uno", lambda at: at.delete("silver.uno"), "is gone, with all batches up to 3", id="gone"),
        pytest.param("bronze.all", lambda at: at.delete("bronze.all"), "is gone", id="bronze is gone"),
        pytest.param("silver.uno", lambda at: at.put_back("silver.uno", 1), "lacks batches 2 to 3", id="older copy"),
        pytest.param("silver.uno", lambda at: at.replace("silver.uno"), "lacks batches 0 to 3", id="another table"),
        pytest.param("silver.profiles", lambda at: at.delete("silver.profiles"), "is gone", id="merged and gone"),
        pytest.param(
            "silver.profiles",
            lambda at: at.put_back("silver.profiles", 1),
            "lacks batches 3 to 3",
            id="merged, older",
        ),
    ],
)
def test_a_start_without_what_was_committed_is_refused(
    place: Place, table: str, damage: Callable[[Place], object], says: str
) -> None:
    """Without it the table is made anew, or goes on behind a gap, and nobody is told."""
    place.start()
    damage(place)
    with pytest.raises(StartError) as refused:
        place.start()

    said = str(refused.value)
    assert f"{table}: it " in said
    assert says in said
    assert "silver.poker" not in said
    assert "--accept lost-tables" in said
    assert (f"router rebuild FILE {table}" in said) is (table != "bronze.all"), "bronze is what repairs are made of"


def test_what_is_accepted_is_asked_for_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a table that gets no rows stops every start, or a second loss is accepted with the first."""
    place.delete("silver.uno")
    place.start("lost-tables")
    assert "silver.uno: it is gone" in caplog.text
    place.start()

    place.batch(LAST + 1)
    place.start()
    place.delete("silver.uno")
    with pytest.raises(StartError, match=r"silver\.uno"):
        place.start()


def test_a_lake_that_is_accepted_as_lost_is_not_asked_for_again(place: Place) -> None:
    """Without it the way out of one refusal ends in another one."""
    shutil.rmtree(place.lake.root + "/silver")
    shutil.rmtree(place.lake.root + "/ops")
    place.start("lost-lake")
    append(place.lake, "ops.ledger", LEDGER.empty_table(), f"games:{RUN}/ledger", LAST)
    place.start()


def cut_off(place: Place) -> None:
    """Decide a batch that is in no table yet."""
    works = (work("uno/delta", "silver.uno", LAST + 1),)
    place.store.write_manifest(Manifest(LAST + 1, "fingerprint", (), works, ()))


def quarantined(place: Place) -> None:
    """Finish a batch whose rows for a table went to the quarantine."""
    place.batch(LAST + 1)
    found = place.store.read_manifest(LAST + 1)
    assert found is not None
    place.store.write_manifest(replace(found, quarantined={"uno/delta/silver.uno": "why"}))
    place.put_back("silver.uno", LAST)


def restored(place: Place) -> None:
    """Take the last batch back, as an operator does on purpose."""
    DeltaTable(place.folder("silver.uno")).restore(LAST - 1)


def forgetful(place: Place) -> None:
    """Let a table be one that forgets transaction ids."""
    place.replace("silver.uno", **{EXPIRES: "interval 1 hour"})


@pytest.mark.parametrize("change", [cut_off, quarantined, restored, forgetful])
def test_what_is_no_loss_is_not_taken_for_one(place: Place, change: Callable[[Place], None]) -> None:
    """Without it a start is refused after a crash, a RESTORE or a batch into the quarantine."""
    change(place)
    place.start()


def test_tables_that_nobody_writes_any_more_may_be_deleted(place: Place) -> None:
    """Without it a sink cannot be given up together with its table."""
    place.delete("silver.uno")
    place.start(routes=ROUTES[1:])
    renamed = Route(name="uno", match=Where(sql="true"), sinks=(Delta(table="silver.one"),))
    place.start(routes=(renamed, ROUTES[1]))
    place.delete("silver.profiles")
    place.start(routes=ROUTES[1:2])
    others = Upsert(table="silver.others", keys=["event.a"])
    for changed in (others, KEYED.model_copy(update={"dropped": "remake"})):
        place.start(routes=(ROUTES[1], ROUTES[2].model_copy(update={"sinks": (changed,)})))
    place.delete("bronze.all")
    place.start(routes=ROUTES[1:2], bronze=None)


def test_a_run_can_ask_of_open_tables_what_they_have_lost(place: Place) -> None:
    """Without it what happens to a table between two batches of one run is seen at the next start only."""
    committed = CommittedBatches.from_manifests(place.store, place.config, LAST)
    place.batch(LAST + 1)
    for target, table in TARGETS.items():
        committed.add_batch(table, work(target, table, LAST + 1).app_id, LAST + 1)
    open_tables = {table: place.lake.open(table) for table in TARGETS.values()}
    assert not committed.find_lost_tables(open_tables)

    found = committed.find_lost_tables({**open_tables, "silver.uno": None, "silver.new": None})
    assert {name: (one.first, one.last, one.gone) for name, one in found.items()} == {"silver.uno": (0, 4, True)}


def test_the_audit_names_a_table_of_merges_that_is_gone_or_older(place: Place) -> None:
    """Without it `router verify` says that all is well, and the next start refuses."""

    def wrong() -> dict[str, list[str]]:
        return {audit.table: audit.wrong for audit in verify_tables(place.config) if "profiles" in audit.table}

    assert wrong() == {"silver.profiles": []}
    (state,) = [state.state for state in table_states(place.config) if state.table == "silver.profiles"]
    assert state == "ok"

    place.put_back("silver.profiles", 1)
    older = "of keyed/upsert it has batch 2, and batch 3 was committed to it: it was put back from an older copy"
    assert wrong() == {"silver.profiles": [older]}

    place.delete("silver.profiles")
    gone = "it is gone: keyed/upsert merged rows into it, the last in batch 3"
    assert wrong() == {"silver.profiles": [gone]}
    assert [audit.wrong for audit in verify_tables(place.config, ["silver.profiles"])] == [[gone]]
    (state,) = [state.state for state in table_states(place.config) if state.table == "silver.profiles"]
    assert state == "gone"


def test_the_audit_knows_a_table_of_merges_of_long_ago(place: Place) -> None:
    """Without it a table is missed only as long as the marks of its last batches are kept."""
    for batch in range(LAST + 1):
        place.store.write(f"applied/{RUN}/{batch:010}.json", b"{}")
    MergedTables(place.store, "keyed/upsert").note_tables(["silver.profiles"])
    place.delete("silver.profiles")

    (audit,) = verify_tables(place.config, ["silver.profiles"])
    assert audit.wrong == ["it is gone: keyed/upsert merged rows into it"]


def test_the_audit_expects_no_table_that_is_made_again(place: Place) -> None:
    """Without it a table whose sink says `dropped: remake` is a fault until its next row."""
    remade = KEYED.model_copy(update={"dropped": "remake"})
    routes = (*ROUTES[:2], Route(name="keyed", match=Where(sql="true"), sinks=(remade,)))
    place.delete("silver.profiles")

    assert verify_tables(place.config.model_copy(update={"routes": routes}), ["silver.profiles"]) == []
