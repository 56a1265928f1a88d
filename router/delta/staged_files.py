"""Parquet files in tables' folders that no commit refers to yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from router.delta.file_statistics import statistics_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.delta.lake import Lake


@dataclass(frozen=True)
class StagedFile:
    """A Parquet file in a table's folder that no commit refers to yet.

    `target` is `route/sink`, `/bronze` or `/dead_letters`. `path` is relative to the lake. `statistics` is the JSON of
    the add action. `partition`: column -> its value in all rows of the file, as Delta's log writes it; the file itself
    does not contain these columns.
    """

    target: str
    table: str
    path: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    statistics: str
    partition: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> StagedFile:
        """Return the file of a dictionary that `asdict` made and that was written as JSON."""
        return cls(**{**stored, "columns": tuple(stored["columns"])})


def staged_parts(lake: Lake, files: Iterable[StagedFile], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of staged files part by part, with the columns of the table that the files themselves lack."""
    for file in files:
        with lake.files.open_input_file(file.path) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(batch_size=1_000):
                rows = pa.Table.from_batches([batch])
                for name, text in file.partition.items():
                    rows = rows.append_column(
                        name, pa.array([text] * len(rows), pa.string()).cast(columns.field(name).type)
                    )
                yield rows


def staged_file(lake: Lake, target: str, table: str, path: str) -> StagedFile:
    """Return an existing Parquet file as one that a commit can add. Reads its footer."""
    with lake.files.open_input_file(path) as source:
        footer = pq.ParquetFile(source).metadata
        size = source.size()
    return StagedFile(
        target=target,
        table=table,
        path=path,
        bytes=size,
        rows=footer.num_rows,
        columns=tuple(footer.schema.to_arrow_schema().names),
        statistics=statistics_json(footer),
    )
