"""Judge a batch by the share of its records that become dead letters, before anything of it is committed.

A schema that no longer fits makes a dead letter of every good record. The batch balances then, and nothing has failed:
without a word in the log the loss is found by whoever misses the rows.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.delta.commit import StagedFile
    from router.delta.lake import Lake

log = logging.getLogger("router")
DEAD_LETTERS = "/dead_letters"
FEWEST = 100
"""Records from which on a batch is judged: of a few records any share is chance."""
SHARE = 0.5
"""The share of a batch above which its dead letters are logged as a warning."""
REASONS = 3
RECORD = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class DeadLetterShare:
    """How many records of a batch become dead letters, of how many, and the most frequent reasons."""

    records: int
    read: int
    reasons: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the share of the records."""
        return self.records / self.read

    def __str__(self) -> str:
        return (
            f"{self.records:,} of {self.read:,} records ({self.share:.1%}) become dead letters: "
            f"{'; '.join(self.reasons)}"
        )


@dataclass
class DeadLetterLimit:
    """The share of a batch's records that a stream may make dead letters; one batch may have more where accepted.

    It is kept while the process runs: the accepted batch may be decided again after a failure, another may not pass.
    """

    at_most: float | None = None
    accepts_one_batch: bool = False
    accepted_batch: int | None = None

    @property
    def smallest_share(self) -> float:
        """Return the share above which a batch is looked at."""
        return SHARE if self.at_most is None else min(SHARE, self.at_most)

    def is_exceeded(self, share: DeadLetterShare, batch: int) -> bool:
        """Say whether a batch has to stop; note the batch that passes because a person has accepted it."""
        if self.at_most is None or share.share <= self.at_most:
            return False
        if self.accepts_one_batch and self.accepted_batch in (None, batch):
            self.accepted_batch = batch
            return False
        return True


def dead_letter_share(
    lake: Lake, files: Iterable[StagedFile], read: int, *, above: float = SHARE
) -> DeadLetterShare | None:
    """Return the share of a batch of so many records; None if these are few, or the share cannot be above a number.

    Reads coordinates and reasons of the staged dead letters, on the driver. A record may have several: one for each
    route and sink that has refused it.
    """
    dead = [file for file in files if file.target == DEAD_LETTERS]
    if read < FEWEST or sum(file.rows for file in dead) <= above * read:
        return None
    records: list[pa.Table] = []
    reasons: Counter[str] = Counter()
    for file in dead:
        with lake.files.open_input_file(file.path) as source:
            rows = pq.read_table(source, columns=[*RECORD, "stage", "reason"])
        records.append(rows.select(RECORD))
        counts = rows.group_by(["stage", "reason"]).aggregate([([], "count_all")])
        for row in counts.to_pylist():
            reasons[f"{row['stage']}: {row['reason']}"] += row["count_all"]
    distinct = pa.concat_tables(records).group_by(RECORD).aggregate([]).num_rows
    first_reasons = [f"{reason} ({count:,})" for reason, count in reasons.most_common(REASONS)]
    return DeadLetterShare(distinct, read, tuple(first_reasons))
