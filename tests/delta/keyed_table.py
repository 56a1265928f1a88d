"""A keyed table that takes batches of records, merged as a task merges them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router.api.sinks import KeyedTable
from router.delta.keyed.upsert import TableUpsert, UpsertResult, upsert_rows
from tests.delta.model import Record, lane

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.delta.lake import Lake


TABLE = "silver.profiles"
KEYED = KeyedTable(("k",))
COLUMNS = {"k": pa.string(), "v": pa.int64()}


def record(key: Any, offset: int, value: Any = None, **about: Any) -> Record:
    """Return a record of a key, with a value in the column `v`."""
    return Record((key,), offset, values=(("v", value),), **about)


@dataclass
class MergedTable:
    """One keyed table that takes batches."""

    lake: Lake
    keyed: KeyedTable = KEYED
    columns: dict[str, pa.DataType] = field(default_factory=lambda: dict(COLUMNS))
    batches: int = 0
    name: str = TABLE

    def take(self, *records: Record, batch: int | None = None, **options: Any) -> UpsertResult:
        """Merge records as the next batch, or as one of before."""
        return self.merge(lane(records, self.keyed, self.columns), batch, **options)

    def merge(
        self, rows: pa.Table, batch: int | None = None, merged: int | None = None, **options: Any
    ) -> UpsertResult:
        """Merge the rows of a lane as the next batch, or as one of before."""
        self.batches += batch is None
        version, about = self.batches if batch is None else batch, (self.name, "query/route/upsert")
        work = TableUpsert(*about, version, self.keyed, {}, known=self.batches > 1, merged=merged)
        return upsert_rows(self.lake, work, rows, **options)

    @property
    def handle(self) -> DeltaTable:
        """Open the table, which exists."""
        found = self.lake.open(self.name)
        assert found is not None
        return found

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        """Read some columns of all rows, in a stable order."""
        found = self.handle.to_pyarrow_table().select(list(columns or ("k", "v", "_offset")))
        return sorted(found.to_pylist(), key=repr)
