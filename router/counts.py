"""The counts of the ledger: what becomes of records, events and rows. The ledger's columns and sums, reports, metrics,
`router ledger` and docs/reference/system-tables.md take them from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["batch", "source", "route", "sink"]
"""What is counted: a whole batch, outside of the ledger; a source partition; a route, for each of its sinks; a sink
that sends or merges the rows of its outbox."""


@dataclass(frozen=True)
class Count:
    """A count. `meaning` is Markdown, for the reference page.

    A count with `parts` is their sum in every batch; `router.engine.balance` compares those of the source and of
    routes. An `outcome` is in the reports of batches and in the metrics. Ledgers of an older version may lack one that
    is `optional`: the next append adds it. A `logged` one is in the line of each batch in which it is not zero.
    """

    name: str
    scope: Scope
    unit: Literal["records", "events", "rows"]
    meaning: str
    parts: tuple[str, ...] = ()
    outcome: bool = False
    optional: bool = False
    logged: bool = False

    @property
    def equation(self) -> str:
        """Return the equation of the count, the sum of its parts, as text."""
        return f"{self.name} = {' + '.join(self.parts)}"


COUNTS = (
    Count("read", "source", "records", "were read", parts=("decoded", "failed", "bare"), outcome=True),
    Count(
        "decoded",
        "source",
        "records",
        "became events; an event counts once here, and in each route that took it",
        parts=("matched", "unmatched"),
        outcome=True,
    ),
    Count("failed", "source", "records", "could not be decoded", outcome=True),
    Count("bare", "source", "records", "are kept in bronze only, not decoded"),
    Count("unmatched", "source", "events", "no route took", outcome=True),
    Count(
        "matched",
        "route",
        "events",
        "the route took",
        parts=("landed", "refused", "dropped", "quarantined"),
        outcome=True,
    ),
    Count(
        "landed",
        "route",
        "rows",
        "are in a table or outbox; of an outbox, over all batches",
        parts=("applied", "dead", "parked", "backlog"),
        outcome=True,
    ),
    Count("refused", "route", "rows", "became dead letters before the commit", outcome=True),
    Count(
        "dropped",
        "route",
        "events",
        "an expectation with `otherwise: drop` has dropped; without a route, records that `drop: nulls` has skipped",
        outcome=True,
    ),
    Count("applied", "sink", "rows", "were delivered", outcome=True),
    Count("dead", "sink", "rows", "were refused for good, by the sink", outcome=True),
    Count(
        "backlog",
        "sink",
        "rows",
        "were put into an outbox, less those that left it, also of earlier batches: the sum is what waits now",
    ),
    Count(
        "frozen", "route", "rows", "landed without a column that their table may not gain", outcome=True, logged=True
    ),
    Count("quarantined", "route", "rows", "were put into the quarantine with their batch", outcome=True, logged=True),
    Count("released", "route", "rows", "left the quarantine, counted with the last batch that a release covers"),
    Count(
        "lost",
        "source",
        "records",
        "Kafka had deleted before they were read, after `--accept lost-records`; in a batch of their own",
    ),
    Count("parked", "sink", "rows", "the sink has given up for now, and keeps", outcome=True),
    Count("in_doubt", "sink", "rows", "were applied, and may have been applied more than once", outcome=True),
    Count(
        "unknown",
        "source",
        "events",
        "have [fields that the schema lacks](formats.md#json-without-a-registry)",
        optional=True,
    ),
    Count(
        "dead_letters",
        "batch",
        "records",
        "became dead letters, the unmatched ones only with `unmatched: dead_letters`",
        parts=("failed", "unmatched", "refused", "dead"),
        outcome=True,
    ),
)
"""All counts, in the order of the ledger's columns: a new one comes last, and is optional."""
BY_NAME = {count.name: count for count in COUNTS}


def count_names(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of the counts of some scopes."""
    return tuple(count.name for count in COUNTS if count.scope in scopes)


def outcome_names(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of the counts of some scopes that reports and metrics have."""
    return tuple(count.name for count in COUNTS if count.outcome and count.scope in scopes)
