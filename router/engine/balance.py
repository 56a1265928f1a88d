"""Count what became of every record of a batch, and check that none is missing.

The equations of the source and of routes are those of `router.counts`. Per table: the rows its sink counted = the rows
in the footers of its files. Bronze has the records that were read, less those that it drops; dead letters have the
failed, unmatched and refused ones.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from router.counts import count_names, outcome_names
from router.own_names import BRONZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.delta.staged_files import StagedFile
    from router.engine.label.layout import Layout

log = logging.getLogger("router")
MAX_NAMED_FIELDS = 50
"""How many fields that the schema lacks are counted by name: keys that contain data differ from record to record."""


@dataclass
class Partition:
    """The counts of one source partition, in a task or in a batch. Keyed ones are by route, `route/expectation` or
    `route/sink`, those of quarantined rows by `route/sink/table`; in place of a route stands `BRONZE` for what it drops
    or violates. A task and `add_up_partitions` add to them, nobody else.

    `unknown` events have fields that the decoder's schema lacks; `unknown_fields` has at most `MAX_NAMED_FIELDS` of
    these.
    """

    topic: str
    partition: int
    first: int
    last: int
    read: int = 0
    failed: int = 0
    bare: int = 0
    unmatched: int = 0
    matched: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)
    landed: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    frozen: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)

    @property
    def decoded(self) -> int:
        """Return the records that became events."""
        return self.read - self.failed - self.bare


_COUNT_FIELDS = {field.name for field in fields(Partition)}
SUMS = tuple(name for name in count_names("source") if name in _COUNT_FIELDS)
"""The counts of the source that tasks make; the others are computed, or are of no batch."""
COUNTS_BY_KEY = (*outcome_names("route"), "violated", "rejected")


def add_up_partitions(counts: Iterable[dict[str, Any]]) -> tuple[Partition, ...]:
    """Add up the counts of tasks by source partition, sorted."""
    sums: dict[tuple[str, int], Partition] = {}
    for count in counts:
        source = (count["topic"], count["partition"])
        partition = sums.setdefault(source, Partition(*source, count["first"], count["last"]))
        partition.first = min(partition.first, count["first"])
        partition.last = max(partition.last, count["last"])
        for name in SUMS:
            setattr(partition, name, getattr(partition, name) + count.get(name, 0))
        for name in COUNTS_BY_KEY:
            by_key = getattr(partition, name)
            for key, more in count.get(name, {}).items():
                by_key[key] = by_key.get(key, 0) + more
        add_named(partition.unknown_fields, count.get("unknown_fields", {}))
    return tuple(sums[source] for source in sorted(sums))


def add_named(have: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts of fields to others, up to `MAX_NAMED_FIELDS` names: the most frequent first."""
    for name in sorted(more, key=lambda name: (-more[name], name)):
        if name in have or len(have) < MAX_NAMED_FIELDS:
            have[name] = have.get(name, 0) + more[name]


@dataclass
class UnknownFieldReport:
    """The fields that the schema lacks and that were logged: each once in a process, up to `MAX_NAMED_FIELDS`."""

    named: set[str] = field(default_factory=set)

    def log_new_fields(self, query: str, counted: tuple[Partition, ...]) -> None:
        """Log the fields that no earlier batch had."""
        for name, count in sorted(sum_by_key(counted, "unknown_fields").items()):
            if name in self.named or len(self.named) >= MAX_NAMED_FIELDS:
                continue
            self.named.add(name)
            message = "%s: the schema lacks the field %s, which %d of %d records have; the ledger counts them"
            log.info(message, query, name, count, sum_counts(counted, "read"))
            if len(self.named) == MAX_NAMED_FIELDS:
                log.info("%s: the schema lacks %d fields by now; no other is named", query, MAX_NAMED_FIELDS)


def sum_counts(counted: Iterable[Partition], kind: str) -> int:
    """Return a sum over source partitions."""
    return sum(getattr(partition, kind) for partition in counted)


def sum_by_key(counted: Iterable[Partition], kind: str) -> Counter[str]:
    """Return the keyed sums over source partitions."""
    sums: Counter[str] = Counter()
    for partition in counted:
        sums.update(getattr(partition, kind))
    return sums


def find_imbalances(
    layout: Layout, counted: tuple[Partition, ...], files: Iterable[StagedFile], unmatched_are_dead: bool
) -> list[str]:
    """Return a sentence for each sum that does not add up; none if the batch balances.

    The two sides of each comparison come from different places: labels of the plan, counts made while rows are
    sorted, and the footers of the files.
    """
    sentences = []
    for partition in counted:
        sentences += _imbalances_of_partition(layout, partition)

    landed = sum_by_key(counted, "landed")
    expected = {target.key: landed[target.key] for target in layout.all_targets}
    if layout.bronze:
        expected[BRONZE] = sum_counts(counted, "read") - sum_by_key(counted, "dropped")[BRONZE]
    dead = (
        sum_counts(counted, "failed") + sum_by_key(counted, "rejected").total() + sum_by_key(counted, "refused").total()
    )
    if unmatched_are_dead:
        dead += sum_counts(counted, "unmatched")
    expected["/dead_letters"] = dead

    in_files: Counter[str] = Counter()
    for file in files:
        in_files[file.target] += file.rows
    for key in sorted(expected.keys() | in_files.keys()):
        rows = expected.get(key, 0)
        if rows != in_files[key]:
            sentences.append(f"{key}: {rows} rows counted, {in_files[key]} rows in its files")
    return sentences


def _imbalances_of_partition(layout: Layout, partition: Partition) -> list[str]:
    source = f"{partition.topic}/{partition.partition}"
    decoded = partition.decoded
    unmatched = partition.unmatched
    sentences = []
    if len(layout.routes) == 1:
        matched = sum(partition.matched.values())
        if decoded != matched + unmatched:
            sentences.append(f"{source}: {decoded} decoded, {matched} matched and {unmatched} unmatched")
    elif layout.routes:
        # With several routes a record may match more than once, so their sum is an upper bound only.
        most_of_a_route = max(partition.matched.get(route.name, 0) for route in layout.routes)
        if not most_of_a_route <= decoded - unmatched <= sum(partition.matched.values()):
            sentences.append(f"{source}: {decoded} decoded do not agree with {unmatched} unmatched")

    for route in layout.routes:
        matched = partition.matched.get(route.name, 0)
        not_landed = partition.refused.get(route.name, 0) + partition.dropped.get(route.name, 0)
        for target in route.targets:
            landed = sum(partition.landed.get(key, 0) + partition.rejected.get(key, 0) for key in target.keys)
            if matched != landed + not_landed:
                sentences.append(
                    f"{source}, {target.key}: {matched} matched, {landed} landed, "
                    f"quarantined or refused there, {not_landed} refused or dropped by the route"
                )
    return sentences
