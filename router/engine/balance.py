"""The balance of a batch: where every record went, and the proof that none is missing.

Per source partition: read = decoded + failed + bare; decoded = matched somewhere + unmatched. Per route and sink:
matched = landed + refused + dropped + quarantined. Per table: the rows its sink counted = the rows in the footers of
its files. Bronze holds what was read, less what it drops; dead letters hold what was failed, unmatched and refused.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.delta.commit import StagedFile
    from router.engine.label.layout import Layout

log = logging.getLogger("router")
BRONZE = "/bronze"
"""The key of bronze, where others are of a route and its sink."""
SUMS = ("read", "failed", "bare", "unmatched", "unknown")
KEYED = ("matched", "refused", "dropped", "violated", "landed", "rejected", "frozen", "quarantined")
NAMED = 50
"""Different fields beyond the schema that are counted by name; a key made of data is another one in every record."""


@dataclass(frozen=True)
class Partition:
    """The counts of one source partition of a batch. Keyed ones are by route, `route/expectation` or `route/sink`,
    those of quarantined rows by `route/sink/table`; in place of a route stands `BRONZE` for what it drops or violates.

    `unknown` events have fields that the decoder's schema lacks; `unknown_fields` has as many of these as `NAMED`.
    """

    topic: str
    partition: int
    first: int
    last: int
    read: int
    failed: int
    bare: int
    unmatched: int
    matched: dict[str, int]
    refused: dict[str, int]
    dropped: dict[str, int]
    violated: dict[str, int]
    landed: dict[str, int]
    rejected: dict[str, int]
    frozen: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)

    @property
    def decoded(self) -> int:
        """Return the records that became events."""
        return self.read - self.failed - self.bare


def partitions(counts: Iterable[dict[str, Any]]) -> tuple[Partition, ...]:
    """Add up the counts of tasks by source partition, sorted."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for count in counts:
        place = {name: count[name] for name in ("topic", "partition", "first", "last")}
        blank = {**place, **{name: Counter() for name in KEYED}, **dict.fromkeys(SUMS, 0), "unknown_fields": {}}
        have = found.setdefault((count["topic"], count["partition"]), blank)
        have["first"] = min(have["first"], count["first"])
        have["last"] = max(have["last"], count["last"])
        for name in SUMS:
            have[name] += count.get(name, 0)
        for name in KEYED:
            have[name].update(count.get(name, {}))
        add_named(have["unknown_fields"], count.get("unknown_fields", {}))
    return tuple(
        Partition(**{**found[key], **{name: dict(found[key][name]) for name in KEYED}}) for key in sorted(found)
    )


def add_named(have: dict[str, int], more: Mapping[str, int]) -> None:
    """Add counts of fields to others, and no more than `NAMED` names: those with the most first."""
    for name in sorted(more, key=lambda name: (-more[name], name)):
        if name in have or len(have) < NAMED:
            have[name] = have.get(name, 0) + more[name]


@dataclass
class UnknownFieldReport:
    """The fields beyond the schema that the log has named: each once, and as many as `NAMED`, while a process lives."""

    named: set[str] = field(default_factory=set)

    def report(self, query: str, counted: tuple[Partition, ...]) -> None:
        """Log the fields that no batch has had before."""
        for name, count in sorted(keyed(counted, "unknown_fields").items()):
            if name not in self.named and len(self.named) < NAMED:
                self.named.add(name)
                what = "%s: the schema lacks the field %s, which %d of %d records have; the ledger counts them"
                log.info(what, query, name, count, total(counted, "read"))
                if len(self.named) == NAMED:
                    log.info("%s: the schema lacks %d fields by now; no other is named", query, NAMED)


def total(counted: Iterable[Partition], kind: str) -> int:
    """Return a sum over source partitions."""
    return sum(getattr(partition, kind) for partition in counted)


def keyed(counted: Iterable[Partition], kind: str) -> Counter[str]:
    """Return the keyed sums over source partitions."""
    sums: Counter[str] = Counter()
    for partition in counted:
        sums.update(getattr(partition, kind))
    return sums


def imbalances(
    layout: Layout, counted: tuple[Partition, ...], files: Iterable[StagedFile], unmatched_are_dead: bool
) -> list[str]:
    """Return a sentence for each sum that does not add up; none when the batch balances.

    The two sides of each comparison come from different places: labels of the plan, counts made while rows are
    sorted, and the footers of the files.
    """
    in_files: Counter[str] = Counter()
    for file in files:
        in_files[file.target] += file.rows
    found = [sentence for partition in counted for sentence in _partition(layout, partition)]
    landed, rejected, refused = (keyed(counted, kind) for kind in ("landed", "rejected", "refused"))
    expected = {target.key: landed[target.key] for target in layout.all_targets}
    if layout.bronze:
        expected[BRONZE] = total(counted, "read") - keyed(counted, "dropped")[BRONZE]
    dead = total(counted, "failed") + sum(rejected.values()) + sum(refused.values())
    expected["/dead_letters"] = dead + (total(counted, "unmatched") if unmatched_are_dead else 0)
    for key in sorted(expected.keys() | in_files.keys()):
        if expected.get(key, 0) != in_files[key]:
            found.append(f"{key}: {expected.get(key, 0)} rows counted, {in_files[key]} rows in its files")
    return found


def _partition(layout: Layout, partition: Partition) -> list[str]:
    where = f"{partition.topic}/{partition.partition}"
    found = []
    if len(layout.routes) == 1:  # with several routes a record may match more than once
        matched = sum(partition.matched.values())
        if partition.decoded != matched + partition.unmatched:
            found.append(f"{where}: {partition.decoded} decoded, {matched} matched and {partition.unmatched} unmatched")
    elif layout.routes:
        matched = max((partition.matched.get(route.name, 0) for route in layout.routes), default=0)
        if not matched <= partition.decoded - partition.unmatched <= sum(partition.matched.values()):
            found.append(f"{where}: {partition.decoded} decoded do not agree with {partition.unmatched} unmatched")
    for route in layout.routes:
        lost = partition.refused.get(route.name, 0) + partition.dropped.get(route.name, 0)
        for target in route.targets:
            went = sum(partition.landed.get(key, 0) + partition.rejected.get(key, 0) for key in target.keys)
            if partition.matched.get(route.name, 0) != went + lost:
                found.append(
                    f"{where}, {target.key}: {partition.matched.get(route.name, 0)} matched, {went} landed, "
                    f"quarantined or refused there, {lost} refused or dropped by the route"
                )
    return found
