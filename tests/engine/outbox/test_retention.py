"""Outboxes of sinks that run in the batches: rows leave them once they are applied and old enough, and not before."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from router.api.sinks import Batch
from router.delta.lake import Lake
from router.delta.maintenance import delete_older
from router.engine.checkpoint_store import CheckpointStore
from router.engine.outbox import retention
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, copied
from tests.engine.profiles import event, raw, route
from tests.kills import CrashError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from router.api.sinks import Applied

DDL = "game string, gamer string, level int"
MERGED, SENT = "outbox.games__profiles__upsert", "outbox.games__profiles__copy"


@pytest.mark.parametrize("commit", EITHER)
def test_an_outbox_keeps_what_is_still_needed(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """Without it outboxes grow for ever; or the rows of a broken table, or of a batch that was cut off, are gone."""
    sinks = Upsert(table="silver.{event.game}", keys=["event.gamer"]), Copy(to=str(tmp_path / "copy"))
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(*sinks))
    query.take(raw(event("uno", "a", 1), event("poker", "a", 1)))
    assert [query.content(table).num_rows for table in (MERGED, SENT)] == [2, 2], "they are looked at once an hour"

    monkeypatch.setattr(retention, "TIDY_SECONDS", -1.0)
    poker = query.folder / "lake" / "silver" / "poker"
    poker.rename(tmp_path / "poker")
    query.take(raw(event("uno", "b", 2), event("poker", "b", 2), first=2))
    assert {row["_table"] for row in query.rows(MERGED)} == {"silver.poker"}
    assert query.rows(SENT) == []

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "mark_applied", crash_at_the_merge(CheckpointStore.mark_applied))
        with pytest.raises(CrashError):
            query.take(raw(event("uno", "c", 3), event("hearts", "c", 3), first=4))
    (tmp_path / "poker").rename(poker)
    query.restarted().again(2)
    tables = ("silver.uno", "silver.poker", "silver.hearts")
    assert [[row["gamer"] for row in query.rows(table, "gamer")] for table in tables] == [[*"abc"], [*"ab"], ["c"]]
    assert len(copied(tmp_path / "copy")) == 6
    assert [query.rows(table) for table in (MERGED, SENT)] == [[], []]


class Parking(Copy):
    """A sink that has parked the rows at the offsets 1 and 3, and refused the one at 4."""

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        session = SparkSession.getActiveSession()
        assert session is not None
        kept = [("events", 0, 1, "parked"), ("events", 0, 3, "parked"), ("events", 0, 4, "dead")]
        return session.createDataFrame(kept, "topic string, partition int, offset bigint, status string")


def test_what_a_sink_has_parked_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Without it rows that wait for `router replay` are gone after a week, and nobody says so."""
    lake, old = Lake.at(str(tmp_path)), datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = pa.table({
        "_topic": ["events"] * 6,
        "_partition": pa.array([0] * 6, pa.int32()),
        "_offset": range(6),
        "_timestamp": pa.array([old] * 6, pa.timestamp("us", "UTC")),
    })  # fmt: skip
    write_deltalake(lake.address("outbox.copy"), rows)
    kept = retention.not_parked(Parking(to=str(tmp_path)), Batch("games", 0, "profiles", "copy"), spark, lake)
    now = datetime.now(timezone.utc)

    assert delete_older(lake, "outbox.copy", now, 0, kept) == 3
    there = lake.open("outbox.copy")
    assert there is not None
    assert sorted(there.to_pyarrow_table().column("_offset").to_pylist()) == [1, 2, 3]


def crash_at_the_merge(mark: Callable[..., None]) -> Callable[..., None]:
    """Return what crashes when a merge is done, before that is noted."""

    def marked(store: CheckpointStore, batch: int, key: str, counts: Applied, *merged: object) -> None:
        if key.endswith("/upsert"):
            raise CrashError
        mark(store, batch, key, counts, *merged)

    return marked
