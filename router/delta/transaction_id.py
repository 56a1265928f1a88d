"""Write and parse the ids of Delta transactions. The ids in a table's log tell which batches are in the table.

A commit of the router has an id and a number, and no table takes the same pair twice. QUERY is the query with its run,
NAME:RUN; a replay or a backfill has a run of its own. The number is that of a batch, unless stated below.

| kind | id | in the log of: what was committed |
|---|---|---|
| rows | QUERY/ROUTE/SINK/TABLE | a sink's table or outbox: rows of a batch |
| deletions | QUERY/ROUTE/SINK/TABLE/deletions | the remembered deletions of a table |
| merge_refusals | QUERY/ROUTE/SINK/TABLE/dead_letters | dead letters: rows that a merge into TABLE refused |
| moved_rows | QUERY/ROUTE/SINK/TABLE/quarantine | a quarantine: rows whose commit to TABLE failed |
| quarantine | QUERY/ROUTE/SINK/quarantine/TABLE | a quarantine, TABLE: rows that landed there |
| sink | QUERY/ROUTE/SINK | a table that a sink writes itself, as receipts |
| sink_refusals | QUERY/ROUTE/SINK/dead_letters | dead letters: rows that a sink refused |
| bronze | QUERY/bronze/TABLE | bronze |
| dead_letters | QUERY/dead_letters/TABLE | dead letters: records of a batch |
| replayed | QUERY/dead_letters/replayed/PART | dead letters: the ones that a replay took; the number is 0 |
| release, unblock, held | QUERY/KIND/ROUTE/SINK/TABLE | a sink's table: rows that left the quarantine |
| discard | QUERY/discard/ROUTE/SINK/TABLE | dead letters: rows that a person discarded from the quarantine |
| refuse | QUERY/refuse/REASON/ROUTE/SINK/TABLE | dead letters: rows that TABLE refused when they were released |
| ledger | QUERY/ledger | the ledger: a batch |
| ledger_move | QUERY/ledger/REASON/ROUTE/SINK/TABLE | the ledger: rows that left the quarantine, or a backlog |
| repair | QUERY/repair/TABLE | a table: content replaced by a repair; the number is a time |
| spark_repair | QUERY/repair | the same, by Delta on Spark |
| widening | QUERY/wider | a table: its rows rewritten with wider types; the number is a time |
| view | NAME/views/VIEW/TABLE | a table of a view; the number is that of the refresh |
| keyed | router/keyed | a table with one row per key; the number is the version of the commit |

No name has a slash, and table names, all with a dot, are the only ones with one. So each id is of one kind, whatever
routes and sinks are called. A table that a repair merges below the staging folder also has ids (`repair/TABLE`, and
those made from it); nothing reads them, and `parse_transaction_id` returns None for them.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from deltalake import Transaction

from router.table_names import to_underscores

if TYPE_CHECKING:
    from collections.abc import Mapping

ReleaseKind = Literal["release", "unblock", "held"]
"""Why rows leave the quarantine: an approval, their table can be written again, or a person let them in."""
IdKind = Literal[
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

FORMATS: dict[IdKind, str] = {
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
    "reason": "release|unblock|held|discard|repair|backlog",
    "part": "0|[1-9][0-9]*",
}
"""The pattern of each field of a format: the configuration's rules for names, and the rule for names of tables."""


def _format_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of a format. Besides its fields a format has no character that is special in a pattern."""
    pattern = template
    for field, values in _VALUES.items():
        pattern = pattern.replace(f"{{{field}}}", f"(?P<{field}>{values})")
    return re.compile(pattern, re.ASCII)


_PATTERNS = {kind: _format_pattern(template) for kind, template in FORMATS.items()}
_FIELDS = {kind: frozenset(pattern.groupindex) for kind, pattern in _PATTERNS.items()}


@dataclass(frozen=True)
class TransactionId:
    """A transaction id of the router, parsed; `str` gives its text. A field that its kind does not have is empty.

    `query` is the query with its run, NAME:RUN; a view has the `name` of its query only. `reason` is why rows left the
    quarantine: the kind of their release, `discard` or `repair`; or `backlog`, if they left an outbox at a start.
    Raises ValueError for other fields than the kind's.
    """

    kind: IdKind
    query: str = ""
    route: str = ""
    sink: str = ""
    table: str = ""
    reason: str = ""
    part: str = ""
    name: str = ""
    view: str = ""

    def __post_init__(self) -> None:
        filled = {field.name for field in fields(self) if getattr(self, field.name) != ""} - {"kind"}
        if filled != _FIELDS[self.kind]:
            names = ", ".join(sorted(filled)) or "nothing"
            raise ValueError(f"a transaction id `{FORMATS[self.kind]}` cannot be made of {names}")

    def __str__(self) -> str:
        return FORMATS[self.kind].format_map(vars(self))

    @property
    def query_name(self) -> str:
        """Return the name of the query, without the run."""
        return self.name or self.query.partition(":")[0]

    @property
    def run(self) -> str:
        """Return the run of the query, an empty text if the id has none."""
        return self.query.partition(":")[2]

    @property
    def target(self) -> str:
        """Return the target of a batch's rows, as manifests name it; an empty text for ids of other commits."""
        if self.kind == "rows":
            return f"{self.route}/{self.sink}"
        if self.kind == "quarantine":
            return f"{self.route}/{self.sink}/quarantine"
        if self.kind in ("bronze", "dead_letters"):
            return f"/{self.kind}"
        return ""

    def to_transaction(self, version: int) -> Transaction:
        """Return this id with a number, as delta-rs takes it."""
        return Transaction(str(self), version)


@lru_cache(maxsize=10_000)  # the commits of a table have the same few ids, thousands of times
def parse_transaction_id(app_id: str) -> TransactionId | None:
    """Return the parsed transaction id; None for an id that the router does not write."""
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(app_id)
        if match is None:
            continue
        transaction_id = TransactionId(kind, **match.groupdict())
        # QUERY/release/ROUTE/quarantine/TABLE can be read in two ways, as a route may be called `release` and a sink
        # `quarantine`. It is of the kind `quarantine` only if TABLE is the quarantine of that route and sink.
        if kind == "quarantine" and transaction_id.table != _quarantine_table(transaction_id):
            continue
        return transaction_id
    return None


def _quarantine_table(rows: TransactionId) -> str:
    """Return the name of the quarantine of a sink."""
    return f"quarantine.{to_underscores(rows.query_name)}__{to_underscores(rows.route)}__{rows.sink}"


def to_transactions(ids: Mapping[str, int]) -> list[Transaction]:
    """Return ids with their numbers, as delta-rs takes them."""
    return [Transaction(app_id, version) for app_id, version in ids.items()]


def batch_id(query: str, target: str, table: str) -> TransactionId:
    """Return the id under which batches of a query (with its run) commit rows to a table.

    `target` is the key in manifests: ROUTE/SINK, ROUTE/SINK/quarantine, /bronze or /dead_letters.
    """
    if target == "/bronze":
        return TransactionId("bronze", query, table=table)
    if target == "/dead_letters":
        return TransactionId("dead_letters", query, table=table)
    route, sink, *quarantine = target.split("/")
    kind: IdKind = "quarantine" if quarantine else "rows"
    return TransactionId(kind, query, route, sink, table)


# A commit that follows from another one has an id made from the other's, of whichever kind that is.


def table_id(sink: str, table: str) -> str:
    """Return the id of rows that are merged into a table, from the id of their sink."""
    return f"{sink}/{table}"


def deletions_id(rows: str) -> str:
    """Return the id under which a table's deletions are remembered, from the id of the rows that delete."""
    return f"{rows}/deletions"


def merge_refusals_id(rows: str) -> str:
    """Return the id of the dead letters of a merge, from the id of the rows that were merged."""
    return f"{rows}/dead_letters"


def moved_rows_id(rows: str) -> str:
    """Return the id of rows that move to the quarantine, from the id of their commit, which failed."""
    return f"{rows}/quarantine"


def widening_transaction(rows: str) -> Transaction:
    """Return the id and number of a rewrite with wider types, from the id of the commit that needs it.

    The query in the id marks the commit as the router's own. The number is a time, so that it always grows.
    """
    return Transaction(f"{rows.partition('/')[0]}/wider", time.time_ns())


GUARD = str(TransactionId("keyed"))
"""A second id of every commit to a table with one row per key. Two commits with the same id that began from the same
version conflict. Without it delta-rs would let an append pass next to a merge, and insert a key of both twice."""
STAGED_MERGES = "repair"
"""The name in place of the sink in the ids of a table that a repair merges below the staging folder."""
