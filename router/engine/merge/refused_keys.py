"""Find the keys whose rows no engine can merge into their table, and note them: all other rows of the table are merged.

The rows are merged by halves into empty tables with the schema and partitioning of their own. If these take all rows,
or none, the table is the cause and not a row. Runs on the driver.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from threading import Timer
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.api.halving import by_halves
from router.delta.keyed.row_order import REFUSED
from router.engine.retryable_errors import is_temporary
from router.errors import RouterError, first_line
from router.own_names import STAGING
from router.spark_internals import causes_in_jvm, first_cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame

    from router.api.sinks import KeyedTable
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.merge.delta_rs import MergeJob

    Reasons = dict[str, str]

log = logging.getLogger("router")
SEARCH_SECONDS = 30.0
"""Seconds of all searches of one outbox in one batch: other sinks and tables wait meanwhile."""
MOST_KEYS = 100_000
"""Keys of a table in one batch, at most, for a search."""
OF_COMMIT_TIMES = ("delta.enableInCommitTimestamps", "delta.inCommitTimestamp")
"""Beginnings of properties for which each commit must have a time of its own; an empty table does without them."""


@dataclass
class RefusedKeys:
    """The keys that tables of one sink refuse in its last such batch, in the checkpoint store: table -> hash -> reason.

    A retry must refuse the same: the table may have the batch's other rows already.
    """

    store: CheckpointStore
    key: str
    content: dict[str, Any] = field(init=False)
    causes: set[str] = field(default_factory=set)
    """Tables that are themselves the cause, as a search of this process has found: no batch is searched again."""

    def __post_init__(self) -> None:
        self.content = self.store.load(self._note_path) or {"batch": [], "tables": {}}

    def read_reasons(self, job: MergeJob) -> dict[str, Reasons]:
        """Return table -> hash of a key -> why its rows are refused in this batch."""
        tables: dict[str, Reasons] = self.content["tables"]
        return tables if self.content["batch"] == [job.app, job.batch] else {}

    def note_reasons(self, job: MergeJob, table: str, reasons: Reasons) -> None:
        """Note the refused keys of a table, before its other rows are merged."""
        self.content = {"batch": [job.app, job.batch], "tables": {**self.read_reasons(job), table: reasons}}
        self.store.write(self._note_path, json.dumps(self.content).encode())

    @property
    def _note_path(self) -> str:
        return f"refused/{self.key.replace('/', '__')}.json"


def is_caused_by_rows(error: BaseException) -> bool:
    """Return whether rows may have caused the failure of a merge: it can neither pass, nor is it one of the plan."""
    if isinstance(error, RouterError) or is_temporary(error):
        return False
    causes = causes_in_jvm(error)
    return bool(causes) and not any(name.endswith("AnalysisException") for name, _ in causes)


def without_refused(rows: DataFrame, keyed: KeyedTable, reasons: Reasons) -> DataFrame:
    """Return rows, those of refused keys with the reason in `_refused`. Lazy."""
    if not reasons:
        return rows
    hashed = _key_hash(keyed)
    reason = F.coalesce(*[F.when(hashed == int(number), F.lit(why)) for number, why in reasons.items()])
    return rows.withColumn(REFUSED, reason)


def find_refused(
    lake: Lake, table: str, rows: DataFrame, keyed: KeyedTable, merge: Callable[[str, DataFrame], object], ends: float
) -> Reasons | None:
    """Return hash -> reason of the keys whose rows an empty table refuses; None if it refuses none, and is to blame.

    `merge` merges rows into a table. The search ends at `ends`, by the monotonic clock, and has found nothing then.
    """
    hashed = _key_hash(keyed)
    context = rows.sparkSession.sparkContext
    folder = f"{STAGING}.merge-{uuid.uuid4().hex}"
    timer = Timer(max(0, ends - time.monotonic()), context.cancelJobsWithTag, [folder])
    context.addJobTag(folder)
    timer.start()
    try:
        found = rows.select(hashed).distinct().limit(MOST_KEYS + 1).collect()
        hashes = sorted(row[0] for row in found)
        handle = lake.open(table)
        if len(hashes) > MOST_KEYS or handle is None:
            return None
        empty_log = _log_of_empty(handle)

        def merge_part(start: int, stop: int) -> None:
            if time.monotonic() >= ends:
                raise TimeoutError(f"the search has taken {SEARCH_SECONDS:.0f} s")
            empty = f"{folder}.keys-{start}-{stop}"
            lake.create(f"{empty.replace('.', '/')}/_delta_log/{0:020}.json", empty_log)
            merge(empty, rows.filter(hashed.between(hashes[start], hashes[stop - 1])))

        # A job that was cancelled at the end of the time has failed for no row.
        pieces = by_halves(merge_part, len(hashes), lambda error: time.monotonic() < ends and is_caused_by_rows(error))
    except Exception as error:  # the rows wait then, as if nobody had searched
        log.warning("the rows that %s refuses were not found: %s", table, first_line(error))
        return None
    finally:
        timer.cancel()
        context.removeJobTag(folder)
        if lake.files.get_file_info(folder.replace(".", "/")).type.name == "Directory":
            lake.files.delete_dir(folder.replace(".", "/"))
    reasons = {}
    for piece in pieces:
        if isinstance(piece.error, Exception):
            reasons[str(hashes[piece.start])] = f"the table cannot store it: {first_cause(piece.error)}"
    if not reasons:
        return None
    # A table that refuses each row may be the cause itself; if not, a later batch has a row that it takes.
    return reasons if len(reasons) < len(hashes) else {}


def _key_hash(keyed: KeyedTable) -> Column:
    """Return 64 bits that tell the keys of a batch apart, whatever types they have."""
    return F.xxhash64(*[F.col(quote_identifier(key)) for key in keyed.keys])


def _log_of_empty(table: DeltaTable) -> bytes:
    """Return the first commit of an empty table with protocol, schema, partitioning and properties of another."""
    protocol = table.protocol()
    metadata = table.metadata()
    versions: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    for name, features in (("reader", protocol.reader_features), ("writer", protocol.writer_features)):
        if features is not None:
            versions[f"{name}Features"] = features
    configuration = metadata.configuration.items()
    content = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": {name: value for name, value in configuration if not name.startswith(OF_COMMIT_TIMES)},
        "createdTime": int(time.time() * 1000),
    }
    return f"{json.dumps({'protocol': versions})}\n{json.dumps({'metaData': content})}\n".encode()
