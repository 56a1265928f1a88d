"""Find records by their key, for `router trace`. Nothing is written, and Spark is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from router.delta.dataset import dataset_of
from router.engine.audit.record_search import TracedPlace
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.reprocess.records import BronzeRecords
from router.errors import StartError
from router.record import PLACE

if TYPE_CHECKING:
    from router.config.models import Config


def find_by_key(config: Config, key: bytes, since: float | None, last: int | None) -> list[TracedPlace]:
    """Return the records of bronze with a key: those since a time, or of about the newest `last`.

    Raises StartError without bronze.
    """
    lake, _ = lake_and_checkpoint(config)
    bronze = BronzeRecords.newest(lake, config)
    if not bronze.versions:
        raise StartError(f"{config.name} has no bronze with records to search")
    is_chosen = pc.field("key") == key
    if since is not None:
        is_chosen &= pc.field("timestamp") >= pa.scalar(round(since * 1_000_000), pa.timestamp("us", "UTC"))
    if last is not None:
        is_chosen &= pc.field("batch_id") >= bronze.batch_of_newest(lake, last)
    places: list[TracedPlace] = []
    for table in bronze.versions:
        handle = lake.open(table)
        if handle is not None:
            rows = dataset_of(handle, "timestamp", "batch_id").to_table(columns=[*PLACE], filter=is_chosen)
            places += [TracedPlace(**row) for row in rows.to_pylist()]
    return sorted(places, key=repr)
