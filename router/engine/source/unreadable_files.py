"""Find the files of a batch that cannot be read: each becomes one dead letter of the stage `read`; all others land.

Files are read to their end, without anything being written, by halves until those are known that fail alone. A file is
to blame only if the storage gives all of its bytes, or says that there is none: else the storage is away. By the class
of an error that cannot be told, as readers of damaged content raise IOException as well. Runs on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from router import spark_internals
from router.api.halving import by_halves
from router.engine.source.position import BLOCK, FILE, MODIFIED
from router.record import UNREADABLE, raw_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession


class ListedFile(NamedTuple):
    """A file of a source: its URL, its path as readers take it, and when it was changed, in µs since 1970."""

    url: str
    path: str
    changed: int


def with_unreadable() -> pa.Schema:
    """Return the columns of raw records, and UNREADABLE: why a record cannot be read, and what tasks must not see."""
    raw = raw_arrow_schema()
    hidden = [pa.field("reason", pa.string()), *(raw.field(name) for name in ("key", "value", "headers"))]
    return raw.append(pa.field(UNREADABLE, pa.struct(hidden)))


def unreadable_files(
    spark: SparkSession, files: list[ListedFile], read: Callable[[list[str]], Iterable[DataFrame]]
) -> dict[str, str]:
    """Return why some files cannot be read, each alone, by URL. `read` opens files, given by their paths."""

    def read_all(start: int, stop: int) -> bool:
        for frame in read([file.path for file in files[start:stop]]):
            frame.write.format("noop").mode("overwrite").save()
        return True

    reasons = {}
    for halved in by_halves(read_all, len(files)):
        if halved.error is not None:
            url = files[halved.start].url
            if not spark_internals.storage_answers(spark, url):
                raise halved.error
            reasons[url] = f"the file cannot be read: {spark_internals.first_cause(halved.error)}"
    return reasons


def records_of_unreadable(spark: SparkSession, files: Iterable[ListedFile], reasons: dict[str, str]) -> DataFrame:
    """Return a raw record without a value for each file with a reason, which is in the column UNREADABLE."""
    places = [pa.field(MODIFIED, pa.int64()), pa.field(FILE, pa.string()), pa.field(BLOCK, pa.int64())]
    records: list[dict[str, Any]] = []
    for file in files:
        if file.url in reasons:
            records.append(
                {
                    "topic": file.url,
                    "partition": 0,
                    UNREADABLE: {"reason": reasons[file.url]},
                    MODIFIED: file.changed,
                    FILE: file.url,
                    BLOCK: 0,
                }
            )
    return spark.createDataFrame(pa.Table.from_pylist(records, pa.schema([*with_unreadable(), *places])))
