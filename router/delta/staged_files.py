"""Stage what a sink writes about a batch as files in the folder of a table of its own, and commit them once."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Transaction
from pyarrow import fs

from router.delta.commit import StagedFile, TableCommit, commit, has_transaction, to_arrow, to_delta
from router.delta.file_statistics import statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from router.delta.lake import Lake


NOTES = b"router.notes"


@dataclass(frozen=True)
class StagedParts:
    """The staged parts of one batch of one sink: see `router.Parts`.

    `owner` is the transaction id of the sink's table, QUERY:RUN/ROUTE/SINK; its files lie below a folder of that name.
    """

    lake: Lake
    table: str
    owner: str
    batch: int
    notes: dict[str, str] = field(default_factory=dict)

    def write(self, rows: pa.Table, notes: Mapping[str, str] | None = None) -> None:
        """Write a part, with what is to be known about it."""
        about = {**(rows.schema.metadata or {}), NOTES: json.dumps(dict(notes or {})).encode()}
        buffer = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata(about), buffer)
        self.lake.write(f"{self._folder}/{time.time_ns()}-{uuid.uuid4()}.parquet", buffer.getvalue())

    def read(self, columns: Sequence[str] | None = None) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the notes and rows of each part."""
        for path in self._paths():
            with self.lake.files.open_input_file(path) as source:
                rows = pq.read_table(source, columns=None if columns is None else list(columns))
            yield json.loads((rows.schema.metadata or {}).get(NOTES, b"{}")), rows

    def commit(self, schema: pa.Schema) -> None:
        """Add all parts to the table, unless they are in it; a table of an older version gains its columns."""
        files = tuple(self._file(path) for path in self._paths())
        if not files:
            return
        handle = self.lake.open(self.table)
        new = [column for column in schema if handle and column.name not in to_arrow(handle).names]
        work = TableCommit(files[0].target, self.table, self.owner, self.batch, files, to_delta(schema))
        commit(self.lake, replace(work, added=to_delta(pa.schema(new)) if new else None), self.notes, handle)

    def committed(self) -> bool:
        """Say whether the table has the parts of this batch."""
        table = self.lake.open(self.table)
        return table is not None and has_transaction(table, Transaction(self.owner, self.batch))

    def _file(self, path: str) -> StagedFile:
        with self.lake.files.open_input_file(path) as source:
            footer, size = pq.ParquetFile(source).metadata, source.size()
        columns = tuple(footer.schema.to_arrow_schema().names)
        return StagedFile(self.owner, self.table, path, size, footer.num_rows, columns, statistics(footer))

    def _paths(self) -> list[str]:
        found = self.lake.files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(f"{self._folder}/{entry.base_name}" for entry in found if entry.extension == "parquet")

    @property
    def _folder(self) -> str:
        owner = self.owner.replace("/", "__").replace(":", "__")
        return f"{self.table.replace('.', '/')}/{owner}/{self.batch:010d}"
