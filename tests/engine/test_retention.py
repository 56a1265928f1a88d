"""Outboxes of sinks that run in the batches: rows leave them once they are applied and old enough, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router.engine.checkpoint_store import CheckpointStore
from router.engine.outbox import retention
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, copied
from tests.engine.profiles import event, raw, route

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.sinks import Applied

DDL = "game string, gamer string, level int"
MERGED, SENT = "outbox.games__profiles__upsert", "outbox.games__profiles__copy"


class CrashError(Exception):
    """Stand for a kill: what comes after it never happens."""


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


def crash_at_the_merge(mark: Callable[..., None]) -> Callable[..., None]:
    """Return what crashes when a merge is done, before that is noted."""

    def marked(store: CheckpointStore, batch: int, key: str, counts: Applied) -> None:
        if key.endswith("/upsert"):
            raise CrashError
        mark(store, batch, key, counts)

    return marked
