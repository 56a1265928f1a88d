"""The share of a batch's records that become dead letters, found before any of its rows are committed.

A schema that no longer fits makes a dead letter of every good record. The counts of such a batch balance, and nothing
has failed: without a log line the first to notice is a reader of the tables who misses the rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from router.record import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile

log = logging.getLogger("router")
_DEAD_LETTERS = "/dead_letters"
MIN_RECORDS = 100
"""Batches with fewer records are not checked: of a few records any share is chance."""
WARNING_SHARE = 0.5
"""The share of a batch above which its dead letters are logged as a warning."""
_SHOWN_REASONS = 3


@dataclass(frozen=True)
class DeadLetterShare:
    """How many `records` of those that a batch has `read` become dead letters, and the most frequent reasons."""

    records: int
    read: int
    reasons: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the share of the records."""
        return self.records / self.read

    def __str__(self) -> str:
        share = f"{self.records:,} of {self.read:,} records ({self.share:.1%})"
        return f"{share} become dead letters: {'; '.join(self.reasons)}"


@dataclass
class DeadLetterLimit:
    """The share of a batch's records that may become dead letters, and one batch that may exceed it once accepted.

    The accepted batch is kept while the process runs: it may be decided again after a failure, and no other may pass.
    """

    at_most: float = 1.0
    accepts_one_batch: bool = False
    accepted_batch: int | None = None

    @property
    def smallest_share(self) -> float:
        """Return the share above which a batch is logged or stopped."""
        return min(WARNING_SHARE, self.at_most)

    def is_exceeded(self, share: DeadLetterShare, batch: int) -> bool:
        """Return whether a batch has to stop; note the batch that passes because a person has accepted it."""
        if share.share <= self.at_most:
            return False
        if self.accepts_one_batch and self.accepted_batch in (None, batch):
            self.accepted_batch = batch
            return False
        return True


def dead_letter_share(
    lake: Lake, files: Iterable[StagedFile], read: int, *, above: float = WARNING_SHARE
) -> DeadLetterShare | None:
    """Return the share of a batch that has `read` so many records; None if it is not `above` a share, or of few.

    Reads coordinates and reasons of the staged dead letters, on the driver. A record may have several: one for each
    route and sink that has refused it.
    """
    dead_letter_files = [file for file in files if file.target == _DEAD_LETTERS]
    if read < MIN_RECORDS or sum(file.rows for file in dead_letter_files) <= above * read:
        return None
    records: list[pa.Table] = []
    reasons: Counter[str] = Counter()
    for file in dead_letter_files:
        with lake.files.open_input_file(file.path) as source:
            rows = pq.read_table(source, columns=[*PLACE, "stage", "reason"])
        records.append(rows.select(list(PLACE)))
        counts = rows.group_by(["stage", "reason"]).aggregate([([], "count_all")])
        for row in counts.to_pylist():
            reasons[f"{row['stage']}: {row['reason']}"] += row["count_all"]
    # The dead letters of one record are one record.
    distinct = pa.concat_tables(records).group_by(list(PLACE)).aggregate([]).num_rows
    frequent_reasons = [f"{reason} ({count:,})" for reason, count in reasons.most_common(_SHOWN_REASONS)]
    share = DeadLetterShare(distinct, read, tuple(frequent_reasons))
    return share if share.share > above else None
