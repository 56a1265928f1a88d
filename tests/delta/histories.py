"""Histories of batches that nobody would think of, for a keyed table beside a plain model of it."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from router.api.sinks import KeyedTable
from router.delta.keyed import row_versions
from router.delta.keyed.upsert import TableUpsert, upsert_rows
from router.delta.lake import Lake
from tests.delta.model import Model, Record, lane
from tests.kills import CrashError
from tests.lake_rows import read_rows

TABLE = "silver.profiles"
APP = "query/route/upsert"
COLUMNS = {"game": pa.string(), "gamer": pa.int32(), "level": pa.int64(), "name": pa.string()}
LATER = {**COLUMNS, "bonus": pa.float64()}
KEYS = ("game", "gamer")
KINDS = {
    "offset": KeyedTable(KEYS),
    "newest": KeyedTable(KEYS, newest=1),
    "some columns": KeyedTable(KEYS, newest=1, columns=("level",)),
    "ignore": KeyedTable(KEYS, newest=1, when_matched="ignore"),
    "soft": KeyedTable(KEYS, newest=1, soft_delete="gone"),
    "soft, some columns": KeyedTable(KEYS, newest=1, soft_delete="gone", columns=("level", "bonus")),
    "soft, ignore": KeyedTable(KEYS, soft_delete="gone", when_matched="ignore"),
    "history": KeyedTable(KEYS, newest=1, history=True),
}
GAMES = st.sampled_from(["uno", "it's", None])
DRAFTS = st.lists(
    st.tuples(
        st.tuples(GAMES, st.integers(0, 1)),
        st.integers(0, 1),
        st.none() | st.integers(0, 4),
        st.sampled_from([False, False, True]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


class Histories(RuleBasedStateMachine):
    """Take batches, some of them twice, cut off or with records from before."""

    keyed = KeyedTable(KEYS)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.lake = Lake.at(self.folder.name)
        self.model = Model(self.keyed)
        self.sent: list[Record] = []
        self.batches: list[pa.Table] = []
        self.columns = COLUMNS

    @initialize(drafts=DRAFTS)
    def begin(self, drafts: list[Any]) -> None:
        self._take(self._records(drafts))

    @rule(drafts=DRAFTS)
    def a_batch(self, drafts: list[Any]) -> None:
        self._take(self._records(drafts))

    @rule(drafts=DRAFTS, data=st.data())
    def a_batch_with_records_again(self, drafts: list[Any], data: st.DataObject) -> None:
        again = data.draw(st.lists(st.sampled_from(self.sent), max_size=4))
        self._take([*again, *self._records(drafts)])

    @rule(drafts=DRAFTS)
    def a_batch_that_is_cut_off(self, drafts: list[Any]) -> None:
        with pytest.MonkeyPatch.context() as patch, suppress(CrashError):
            self._cut_off(patch)
            self._take(self._records(drafts))
        self._upsert(len(self.batches) - 1)

    @precondition(lambda self: self.keyed.history)
    @rule(drafts=DRAFTS, data=st.data())
    def a_batch_in_pieces_and_in_any_order(self, drafts: list[Any], data: st.DataObject) -> None:
        records = data.draw(st.permutations(self._records(drafts)))
        cut = data.draw(st.integers(0, len(records)))
        for piece in (records[:cut], records[cut:]):
            if piece:
                self._take(list(piece))

    @rule()
    def everything_again(self) -> None:
        self._take(self.sent)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def a_batch_again(self, data: st.DataObject) -> None:
        merged = self._upsert(data.draw(st.integers(0, len(self.batches) - 1)))
        assert (merged.inserted, merged.updated, merged.deleted) == (0, 0, 0)

    @rule()
    def new_columns(self) -> None:
        self.columns = LATER

    @rule()
    def maintenance(self) -> None:
        if table := self.lake.open(TABLE):
            table.optimize.compact()

    @invariant()
    def the_table_is_the_model(self) -> None:
        if self.batches:
            assert self._stored() == sorted(map(_valued, self.model.shown()), key=repr)

    def teardown(self) -> None:
        self.folder.cleanup()

    def _records(self, drafts: list[Any]) -> list[Record]:
        found = []
        for key, partition, newest, deletes, number in drafts:
            values = {"level": number, "name": None if number == 3 else f"n{number}", "bonus": number / 2}
            given = tuple((name, value) for name, value in values.items() if name in self.columns)
            # A partition that came later has small offsets: they say nothing about records of the other one.
            offset = 100 * (1 - partition) + sum(record.partition == partition for record in [*self.sent, *found])
            found.append(Record(key, offset, partition, newest, deletes, number, given, arrival=len(self.batches)))
        return found

    def _take(self, records: list[Record]) -> None:
        self.sent += [record for record in records if record not in self.sent]
        self.model.take(records)
        self.batches.append(lane(records, self.keyed, self.columns))
        merged = self._upsert(len(self.batches) - 1)
        assert merged.applied + len(merged.refused) == len(records)

    def _cut_off(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(row_versions, "remember_deletions", killed)

    def _upsert(self, batch: int) -> Any:
        work = TableUpsert(TABLE, f"{APP}/{TABLE}", batch, self.keyed, {})
        return upsert_rows(self.lake, work, self.batches[batch])

    def _stored(self) -> list[dict[str, Any]]:
        rows = read_rows(self.lake, TABLE)
        return sorted(map(_valued, rows), key=repr)


def _valued(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its nulls: a table gains a column with its first value."""
    return {name: row[name] for name in sorted(row) if row[name] is not None}


def killed(*_: Any) -> None:
    raise CrashError("killed")
