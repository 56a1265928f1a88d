"""Many tables as one frame: one Delta log that names the files of all of them, so that Spark plans and reads one table.

A load for each of 200 tables takes Spark longer than reading them. The log is written for one refresh, below the
checkpoint; it names data files where they are, as a shallow clone does (Delta protocol, "Add File": a path may be
absolute), and has the table of each file as the value of a partition. Tables whose files do not say all about their
rows (deletion vectors, mapped columns, partitions, types that Parquet's reader does not widen) are loaded one by one.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.addresses import is_local
from router.columns import quoted
from router.delta.commit import to_delta
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router.engine.views.sources import File, Snapshot

TABLE_COLUMN = "_table"
"""The column with the whole name of the table of a row: silver.uno."""
NARROW_INTEGERS = (pa.int8(), pa.int16(), pa.int32())


class Part(NamedTuple):
    """What is read of one table: these files, or all of it."""

    table: Snapshot
    files: tuple[File, ...] | None = None


@dataclass(frozen=True)
class Relations:
    """The frames of one refresh; `folder` is where their logs are, below the checkpoint."""

    session: SparkSession
    lake: Lake
    checkpoint: Lake
    folder: str

    def frame(self, parts: Iterable[Part], columns: pa.Schema) -> DataFrame:
        """Return the rows of parts of tables with these columns, and `_table`. Lazy, at pinned versions."""
        listed, single = list[Part](), list[Part]()
        for part in parts:
            whole = part.table.plain and _widens(part.table.columns, columns)
            (listed if whole else single).append(part)
        frames = [self._loaded(part.table, columns) for part in single]
        if listed:
            frames.append(self._listed(listed, columns))
        return reduce(DataFrame.unionByName, frames) if frames else self.empty(columns)

    def empty(self, columns: pa.Schema) -> DataFrame:
        """Return a frame of these columns, and `_table`, without a row."""
        kinds = to_spark_columns(columns, ntz=True).add(TABLE_COLUMN, "string")
        return self.session.createDataFrame([], kinds)

    def clean(self) -> None:
        """Delete the logs of this refresh, and of one of the same view that was killed."""
        self.checkpoint.files.delete_dir_contents(self.folder, missing_dir_ok=True)

    def _loaded(self, table: Snapshot, columns: pa.Schema) -> DataFrame:
        reader = self.session.read.format("delta").option("versionAsOf", table.version)
        frame = reader.load(self.lake.spark_address(table.name))
        have = {name.lower() for name in frame.columns}
        chosen = []
        for kind in to_spark_columns(columns, ntz=True):
            column = F.col(quoted(kind.name)) if kind.name.lower() in have else F.lit(None)
            chosen.append(column.cast(kind.dataType).alias(kind.name))
        return frame.select(*chosen, F.lit(table.name).alias(TABLE_COLUMN))

    def _listed(self, parts: list[Part], columns: pa.Schema) -> DataFrame:
        folder = f"{self.folder}/{uuid.uuid4().hex}"
        lines = [json.dumps(action) for action in (*_about(columns), *self._files(parts))]
        self.checkpoint.write(f"{folder}/_delta_log/{0:020}.json", "\n".join(lines).encode())
        return self.session.read.format("delta").load(self.checkpoint.for_spark(folder))

    def _files(self, parts: list[Part]) -> Iterator[dict[str, object]]:
        for table, files in parts:
            place = self.lake.spark_address(table.name)
            base = f"file://{quote(place)}" if is_local(place) else quote(place, safe="/:@")
            for file in table.files() if files is None else files:
                path = file.path if "://" in file.path or file.path.startswith("/") else f"{base}/{file.path}"
                about = {"path": path, "partitionValues": {TABLE_COLUMN: table.name}, "size": file.bytes}
                yield {"add": {**about, "modificationTime": 0, "dataChange": True}}


def _about(columns: pa.Schema) -> Iterator[dict[str, object]]:
    """Yield the protocol and the metadata of the log."""
    schema = to_delta(columns.append(pa.field(TABLE_COLUMN, pa.string())))
    if "timestamp_ntz" in schema:
        feature = ["timestampNtz"]
        named = {"readerFeatures": feature, "writerFeatures": feature}
        yield {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **named}}
    else:
        yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    about = {"id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    yield {"metaData": {**about, "partitionColumns": [TABLE_COLUMN], "configuration": {}, "createdTime": 0}}


def _widens(have: pa.Schema, want: pa.Schema) -> bool:
    """Say whether Spark's reader of Parquet gives the values of files the wanted types."""
    kinds = {column.name.lower(): column.type for column in have}
    return all(_read_as(kinds[one.name.lower()], one.type) for one in want if one.name.lower() in kinds)


def _read_as(have: pa.DataType, want: pa.DataType) -> bool:
    if have == want:
        return True
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        inside = {child.name: child.type for child in want}
        return all(child.name in inside and _read_as(child.type, inside[child.name]) for child in have)
    if pa.types.is_list(have) and pa.types.is_list(want):
        return _read_as(have.value_type, want.value_type)
    if pa.types.is_map(have) and pa.types.is_map(want):
        return _read_as(have.key_type, want.key_type) and _read_as(have.item_type, want.item_type)
    if have in NARROW_INTEGERS:
        return bool(pa.types.is_integer(want)) or want == pa.float64()
    return bool(have == pa.float32() and want == pa.float64())
