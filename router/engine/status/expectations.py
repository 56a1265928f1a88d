"""The expectations of a stream, as its status has them: what each batch counts, what views note, what a lake says.

They are kept by a key. Those of routes have the one under which a batch counts them (`ROUTE/NAME`, by the route's first
name; `/bronze/NAME`), those of a view `view VIEW/NAME`, which is the name of no route.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.engine.audit.expectation_counts import expectation_counts
from router.engine.balance import sum_by_key, sum_counts
from router.engine.status.snapshot import ExpectationStatus
from router.own_names import BRONZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.config.models import Config
    from router.engine.checkpoint_store import Manifest
    from router.engine.views.note import Note

TREND = 20
"""Batches that a trend has."""
OF_VIEW = "view "


def without_counts(config: Config) -> dict[str, ExpectationStatus]:
    """Return the expectations of a configuration, before anything is known of them."""
    statuses: dict[str, ExpectationStatus] = {}
    if config.bronze is not None:
        for of_bronze in config.bronze.expect:
            statuses[f"{BRONZE}/{of_bronze.name}"] = ExpectationStatus("bronze", of_bronze.name, of_bronze.otherwise)
    for route in config.routes:
        for of_route in route.expect:
            key = f"{route.identity}/{of_route.name}"
            statuses[key] = ExpectationStatus(route.name, of_route.name, of_route.otherwise)
    for view in config.views:
        for of_view in view.expect:
            of = f"{OF_VIEW}{view.name}"
            statuses[f"{of}/{of_view.name}"] = ExpectationStatus(of, of_view.name, of_view.otherwise)
    return statuses


def with_batch(
    statuses: Mapping[str, ExpectationStatus], manifest: Manifest, time: float
) -> dict[str, ExpectationStatus]:
    """Return expectations with the counts of a batch added. A trend leaves out batches without an event for it."""
    updated = dict(statuses)
    violated = sum_by_key(manifest.partitions, "violated")
    events_by_route = sum_by_key(manifest.partitions, "matched")
    # Nothing is expected of the records that `drop: nulls` leaves out of bronze.
    events_by_route[BRONZE] = (
        sum_counts(manifest.partitions, "read") - sum_by_key(manifest.partitions, "dropped")[BRONZE]
    )
    for key, status in statuses.items():
        route, _, _ = key.rpartition("/")
        events = events_by_route.get(route, 0)
        if not events:
            continue
        updated[key] = replace(
            status,
            events=status.events + events,
            violated=status.violated + violated[key],
            last=time if violated[key] else status.last,
            trend=(*status.trend, (events, violated[key]))[-TREND:],
        )
    return updated


def with_view(
    statuses: Mapping[str, ExpectationStatus], view: str, note: Note, time: float | None
) -> dict[str, ExpectationStatus]:
    """Return expectations, of which those of a view are as its last refresh left them, at a time."""
    updated = dict(statuses)
    of = f"{OF_VIEW}{view}"
    violated = note.violation_counts
    for key, status in statuses.items():
        if status.of != of:
            continue
        trend = tuple((rows, by_name.get(status.name, 0)) for rows, by_name in note.trend)
        count = violated.get(status.name, 0)
        updated[key] = replace(
            status, events=note.checked_rows, violated=count, last=time if count else status.last, trend=trend
        )
    return updated


def view_of(status: ExpectationStatus) -> str | None:
    """Return the view of which something is expected; None if it is a route or bronze."""
    if not status.of.startswith(OF_VIEW):
        return None
    return status.of.removeprefix(OF_VIEW)


def expectations_of_lake(config: Config) -> tuple[ExpectationStatus, ...]:
    """Return the expectations by ledger and notes of views; a trend has parts of the ledger's time, or refreshes."""
    statuses = []
    for counts in expectation_counts(config):
        statuses.append(
            ExpectationStatus(
                of=counts.of,
                name=counts.expectation.name,
                otherwise=counts.expectation.otherwise,
                events=counts.events,
                violated=counts.violated,
                last=None if counts.last is None else counts.last.timestamp(),
                trend=tuple((events, violated) for events, violated in counts.trend),
            )
        )
    return tuple(statuses)
