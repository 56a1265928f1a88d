"""Write and parse the ids of Delta transactions: which rows a table has is told from the ids in its log.

A commit of the router has an id and a number, and no table takes the same pair twice. QUERY is the query with its run,
NAME:RUN; a replay or a backfill has a run of its own. The number is that of a batch where the table does not say more.

| kind | id | is in the log of, and says |
|---|---|---|
| rows | QUERY/ROUTE/SINK/TABLE | a sink's table or outbox: rows of a batch |
| deletions | QUERY/ROUTE/SINK/TABLE/deletions | the remembered deletions of a table |
| merge_refusals | QUERY/ROUTE/SINK/TABLE/dead_letters | dead letters: rows that a merge into TABLE refused |
| moved_rows | QUERY/ROUTE/SINK/TABLE/quarantine | a quarantine: rows whose commit to TABLE failed |
| quarantine | QUERY/ROUTE/SINK/quarantine/TABLE | a quarantine, TABLE: rows that wait there since they landed |
| sink | QUERY/ROUTE/SINK | tables that a sink keeps itself, as receipts |
| sink_refusals | QUERY/ROUTE/SINK/dead_letters | dead letters: rows that a sink refused |
| bronze | QUERY/bronze/TABLE | bronze |
| dead_letters | QUERY/dead_letters/TABLE | dead letters: records of a batch |
| replayed | QUERY/dead_letters/replayed/PART | dead letters: what a replay took; the number is 0 |
| release, unblock, held | QUERY/KIND/ROUTE/SINK/TABLE | a sink's table: rows that left the quarantine |
| discard | QUERY/discard/ROUTE/SINK/TABLE | dead letters: rows that somebody discarded from the quarantine |
| refuse | QUERY/refuse/REASON/ROUTE/SINK/TABLE | dead letters: rows that TABLE refused when they were released |
| ledger | QUERY/ledger | the ledger: a batch |
| ledger_move | QUERY/ledger/REASON/ROUTE/SINK/TABLE | the ledger: rows that left the quarantine |
| repair | QUERY/repair/TABLE | a table whose content a repair replaced; the number is a time |
| spark_repair | QUERY/repair | the same, by Delta on Spark |
| widening | QUERY/wider | a table that was rewritten with wider types; the number is a time |
| view | NAME/views/VIEW/TABLE | a table of a view; the number is that of the refresh |
| keyed | router/keyed | a table with one row per key; the number is the version of the commit |

No name has a slash, table names alone have a dot, and all have one: so each id is of one kind, whatever routes and
sinks are called. A table that a repair merges below the staging folder has ids, too (`repair/TABLE` and what follows
from it); nobody reads them, and `parse` knows none of them.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from deltalake import Transaction

from router.table_names import underscored

if TYPE_CHECKING:
    from collections.abc import Mapping

ReleaseKind = Literal["release", "unblock", "held"]
"""Rows leave the quarantine: after an approval, since their table can be written again, or let in by a person."""
Kind = Literal[
    "rows",
    "deletions",
    "merge_refusals",
    "moved_rows",
    "quarantine",
    "sink",
    "sink_refusals",
    "bronze",
    "dead_letters",
    "replayed",
    "release",
    "unblock",
    "held",
    "discard",
    "refuse",
    "ledger",
    "ledger_move",
    "repair",
    "spark_repair",
    "widening",
    "view",
    "keyed",
]
RELEASES: tuple[ReleaseKind, ...] = get_args(ReleaseKind)

FORMATS: dict[Kind, str] = {
    "rows": "{query}/{route}/{sink}/{table}",
    "deletions": "{query}/{route}/{sink}/{table}/deletions",
    "merge_refusals": "{query}/{route}/{sink}/{table}/dead_letters",
    "moved_rows": "{query}/{route}/{sink}/{table}/quarantine",
    "quarantine": "{query}/{route}/{sink}/quarantine/{table}",
    "sink": "{query}/{route}/{sink}",
    "sink_refusals": "{query}/{route}/{sink}/dead_letters",
    "bronze": "{query}/bronze/{table}",
    "dead_letters": "{query}/dead_letters/{table}",
    "replayed": "{query}/dead_letters/replayed/{part}",
    "release": "{query}/release/{route}/{sink}/{table}",
    "unblock": "{query}/unblock/{route}/{sink}/{table}",
    "held": "{query}/held/{route}/{sink}/{table}",
    "discard": "{query}/discard/{route}/{sink}/{table}",
    "refuse": "{query}/refuse/{reason}/{route}/{sink}/{table}",
    "ledger": "{query}/ledger",
    "ledger_move": "{query}/ledger/{reason}/{route}/{sink}/{table}",
    "repair": "{query}/repair/{table}",
    "spark_repair": "{query}/repair",
    "widening": "{query}/wider",
    "view": "{name}/views/{view}/{table}",
    "keyed": "router/keyed",
}
_NAME = "[a-z][a-z0-9_-]*"
_VALUES = {
    "query": f"{_NAME}:[^/:]+",
    "name": _NAME,
    "route": _NAME,
    "sink": "[a-z][a-z0-9_]*",
    "view": "[a-z][a-z0-9_]*",
    "table": r"[A-Za-z0-9][A-Za-z0-9_]*\.[A-Za-z0-9][A-Za-z0-9_]*",
    "reason": "release|unblock|held|discard|repair",
    "part": "0|[1-9][0-9]*",
}
"""What may stand for each field of a format: the rules of the configuration for names, and of tables for theirs."""


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of a format; no format has a character that means something to a pattern."""
    return re.compile(re.sub(r"\{(\w+)\}", lambda field: f"(?P<{field[1]}>{_VALUES[field[1]]})", template), re.ASCII)


_PATTERNS = {kind: _pattern(template) for kind, template in FORMATS.items()}
_FIELDS = {kind: frozenset(pattern.groupindex) for kind, pattern in _PATTERNS.items()}


@dataclass(frozen=True)
class TransactionId:
    """A transaction id of the router; `str` writes it. A field that its kind does not have is empty.

    `query` is the query with its run, NAME:RUN; a view has the `name` of its query only. `reason` says why rows left
    the quarantine: the kind of their release, `discard` or `repair`.
    """

    kind: Kind
    query: str = ""
    route: str = ""
    sink: str = ""
    table: str = ""
    reason: str = ""
    part: str = ""
    name: str = ""
    view: str = ""

    def __post_init__(self) -> None:
        filled = {field.name for field in fields(self) if field.name != "kind" and getattr(self, field.name) != ""}
        if filled != _FIELDS[self.kind]:
            what = ", ".join(sorted(filled)) or "nothing"
            raise ValueError(f"a transaction id `{FORMATS[self.kind]}` cannot be made of {what}")

    def __str__(self) -> str:
        return FORMATS[self.kind].format_map(vars(self))

    @property
    def query_name(self) -> str:
        """Return the name of the query, without the run."""
        return self.name or self.query.partition(":")[0]

    @property
    def run(self) -> str:
        """Return the run of the query; nothing where the id has none."""
        return self.query.partition(":")[2]

    @property
    def target(self) -> str:
        """Return the key of the target whose rows of a batch the commit brought, as manifests have it; else nothing."""
        if self.kind == "rows":
            return f"{self.route}/{self.sink}"
        if self.kind == "quarantine":
            return f"{self.route}/{self.sink}/quarantine"
        return f"/{self.kind}" if self.kind in ("bronze", "dead_letters") else ""

    def transaction(self, version: int) -> Transaction:
        """Return what a commit is given to have this id with a number."""
        return Transaction(str(self), version)


@lru_cache(maxsize=10_000)  # the commits of a table have the same few ids, thousands of times
def parse(app_id: str) -> TransactionId | None:
    """Return what a transaction id says; None for an id that the router does not write."""
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(app_id)
        if match is None:
            continue
        transaction_id = TransactionId(kind, **match.groupdict())
        # A sink may be called `quarantine`, and QUERY/release/ROUTE/quarantine/TABLE is a release of it, but for the
        # one table that is the quarantine of a route called `release`.
        if kind != "quarantine" or transaction_id.table == _quarantine(transaction_id):
            return transaction_id
    return None


def _quarantine(rows: TransactionId) -> str:
    """Return the name of the quarantine of a sink."""
    name = rows.query.partition(":")[0]
    return f"quarantine.{underscored(name)}__{underscored(rows.route)}__{rows.sink}"


def transactions(ids: Mapping[str, int]) -> list[Transaction]:
    """Return what a commit is given to have ids with their numbers."""
    return [Transaction(app_id, version) for app_id, version in ids.items()]


def batch_id(query: str, target: str, table: str) -> TransactionId:
    """Return the id of the rows that batches of a query (with its run) bring to a table.

    `target` is the key in manifests: ROUTE/SINK, ROUTE/SINK/quarantine, /bronze or /dead_letters.
    """
    if target == "/bronze":
        return TransactionId("bronze", query, table=table)
    if target == "/dead_letters":
        return TransactionId("dead_letters", query, table=table)
    route, sink, *quarantine = target.split("/")
    return TransactionId("quarantine" if quarantine else "rows", query, route, sink, table)


# What follows from a commit has an id that follows from the commit's, whatever that is.


def table_id(sink: str, table: str) -> str:
    """Return the id of rows that are merged into a table, from the id of their sink."""
    return f"{sink}/{table}"


def deletions_id(rows: str) -> str:
    """Return the id under which a table's deletions are remembered, from the id of the rows that brought them."""
    return f"{rows}/deletions"


def merge_refusals_id(rows: str) -> str:
    """Return the id of the dead letters of a merge, from the id of the rows that were merged."""
    return f"{rows}/dead_letters"


def moved_rows_id(rows: str) -> str:
    """Return the id of rows that go to the quarantine, from the id of their commit, which failed."""
    return f"{rows}/quarantine"


def widening(rows: str) -> Transaction:
    """Return the id and number of a rewrite with wider types, from the id of the commit that needs it.

    By its query it is known as one of the router's own. Every rewrite has a larger number than those before.
    """
    return Transaction(f"{rows.partition('/')[0]}/wider", time.time_ns())


GUARD = str(TransactionId("keyed"))
"""A second id of every commit to a table with one row per key: two commits with one id that began from one version
conflict. delta-rs lets an append pass beside a merge otherwise, and a key that both have would be there twice."""
STAGED_MERGES = "repair"
"""What stands for the sink in the ids of a table that a repair merges below the staging folder."""
