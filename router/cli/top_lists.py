"""The lists of `router top`: what each has of a stream's status, how it is sorted, and how a value is written.

A status is the document of `/api/status`. Whatever is in it stays a text: a terminal obeys nothing of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from router.engine.status.summary import age
from router.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Row = dict[str, Any]
"""What stands in one line: a part of the status, as JSON has it."""
RATE_SECONDS = 60.0
_BARS = "▁▂▃▄▅▆▇█"
"""Characters for a share of 0 and up to the largest of a trend."""
TREND_BARS = 10
"""Parts of a trend that are drawn: the last ones."""


@dataclass(frozen=True)
class TopColumn:
    """A column of a list. `value` returns what a row has there, to sort and to write it; None if that is not known.

    `moment` is a time in seconds since 1970, which a terminal shows as an age. A `sentence` may be cut off.
    """

    title: str
    kind: Literal["name", "number", "rate", "seconds", "share", "moment", "trend", "sentence"]
    value: Callable[[Row], Any]

    @property
    def is_text(self) -> bool:
        """Return whether a filter looks at it."""
        return self.kind in ("name", "sentence")

    def sort_key(self, row: Row) -> tuple[bool, Any]:
        """Return what rows are sorted by: those of which the value is not known come first."""
        value = self.value(row)
        if self.kind == "trend" and value:
            value = _shares(value)[-1]
        if value is None or value == []:
            return False, 0
        if isinstance(value, str):
            return True, value.lower()
        return True, value

    def text(self, row: Row, now: float | None = None) -> str:
        """Return a row's value as text; `now` makes an age of a time, without it the time is written in UTC."""
        value = self.value(row)
        if value is None or value == "":
            return "-"
        if self.kind == "moment" and now is not None:
            return age(value, now)
        if self.kind == "moment":
            return utc(value)
        if self.kind == "trend":
            return _bars(value)
        if self.kind == "share":
            return f"{100 * value:.2f} %"
        if self.kind == "seconds":
            return f"{value:.1f} s"
        if self.kind == "rate":
            return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
        if self.kind == "number":
            return f"{value:,}"
        return printable(str(value))


@dataclass(frozen=True)
class TopList:
    """A list of `router top`: `field` is where its rows are in a status, and `keys` tell one row from another."""

    title: str
    field: str
    keys: tuple[str, ...]
    columns: tuple[TopColumn, ...]

    def chosen(self, rows: list[Row], wanted: str, sorted_by: int, *, descending: bool) -> list[Row]:
        """Return the rows that have a text anywhere, in the order of a column."""
        # By name first: rows that are equal in the column stay in that order.
        by_name = sorted(rows, key=self.columns[0].sort_key)
        in_order = sorted(by_name, key=self.columns[sorted_by].sort_key, reverse=descending)
        if not wanted:
            return in_order
        return [row for row in in_order if self._has(row, wanted.lower())]

    def _has(self, row: Row, wanted: str) -> bool:
        return any(column.is_text and wanted in column.text(row).lower() for column in self.columns)


def _of(field: str) -> Callable[[Row], Any]:
    # A stream of an older version does not have every field.
    return lambda row: row.get(field)


def _name(title: str, field: str | None = None) -> TopColumn:
    return TopColumn(title, "name", _of(field or title))


def _sentence(title: str, field: str | None = None) -> TopColumn:
    return TopColumn(title, "sentence", _of(field or title))


def _number(title: str, field: str | None = None) -> TopColumn:
    return TopColumn(title, "number", _of(field or title))


def _moment(title: str, field: str) -> TopColumn:
    return TopColumn(title, "moment", lambda row: row.get(field) or None)


def _place(row: Row) -> str:
    return "/".join(part for part in (row["route"], row["sink"]) if part)


def _way(row: Row) -> str:
    way: str = row["way"]
    if way in ("", "full"):
        return way
    return f"by change ({way})"


def _share(row: Row) -> float | None:
    if not row["events"]:
        return None
    share: float = row["violated"] / row["events"]
    return share


def _circuit(row: Row) -> str | None:
    if row["circuit_open"] is None:
        return None
    return "open" if row["circuit_open"] else "closed"


def _last_answers(row: Row) -> str:
    answers = []
    for answer, count in row.get("last_answers", {}).items():
        if count:
            answers.append(f"{count:,} {answer}")
    return ", ".join(answers)


def _batch(row: Row) -> int | None:
    # A table that cannot be written may have got no batch of this process.
    if row["batch"] < 0:
        return None
    batch: int = row["batch"]
    return batch


def _seconds_of_batch(row: Row) -> float | None:
    # The ledger has no seconds.
    if not row["seconds"]:
        return None
    return float(sum(row["seconds"].values()))


def _longest_steps(row: Row) -> str:
    steps = sorted(row["seconds"].items(), key=lambda step: step[1], reverse=True)
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps[:2])


LISTS = (
    TopList(
        "Tables",
        "tables",
        ("table",),
        (
            _name("table"),
            _number("rows"),
            TopColumn("rows/s", "rate", lambda row: row.get("rate")),
            _moment("got rows", "committed"),
            TopColumn("batch", "number", _batch),
            _name("committer"),
            TopColumn("written by", "name", lambda row: row["target"].removeprefix("/")),
            _sentence("cannot be written", "blocked"),
        ),
    ),
    TopList(
        "Views",
        "views",
        ("view",),
        (
            _name("view"),
            _number("tables"),
            _number("rows"),
            _moment("refreshed", "refreshed"),
            TopColumn("how", "name", _way),
            TopColumn("took", "seconds", _of("seconds")),
            _name("into"),
            _sentence("cannot be refreshed", "failed"),
        ),
    ),
    TopList(
        "Expectations",
        "expectations",
        ("of", "name"),
        (
            _name("expectation", "name"),
            _name("of"),
            _number("did not hold", "violated"),
            TopColumn("share", "share", _share),
            TopColumn("trend", "trend", _of("trend")),
            _moment("last", "last"),
            _name("otherwise"),
        ),
    ),
    TopList(
        "Dead letters",
        "dead_letters",
        ("stage", "route", "sink", "reason"),
        (
            _name("stage"),
            _number("records", "count"),
            _moment("last", "last"),
            TopColumn("route and sink", "name", _place),
            _sentence("reason"),
        ),
    ),
    TopList(
        "Quarantine",
        "quarantined",
        ("table", "route", "sink", "waits_for"),
        (
            _name("table"),
            _number("rows"),
            _name("waits for", "waits_for"),
            _moment("oldest", "oldest"),
            _sentence("why", "cause"),
        ),
    ),
    TopList(
        "Sinks",
        "sinks",
        ("route", "sink"),
        (
            TopColumn("sink", "name", _place),
            TopColumn("circuit", "name", _circuit),
            TopColumn("limit used", "share", _of("limit_used")),
            TopColumn("last answers", "name", _last_answers),
            _number("rows that wait", "backlog"),
            _moment("oldest", "oldest"),
            _number("sent", "applied"),
            _number("dead"),
            _number("parked"),
            _number("in doubt", "in_doubt"),
        ),
    ),
    TopList(
        "Partitions",
        "partitions",
        ("topic", "partition"),
        (
            _name("topic"),
            _number("partition"),
            _number("lag"),
            _moment("asked", "read"),
        ),
    ),
    TopList(
        "Batches",
        "batches",
        ("batch",),
        (
            _number("batch"),
            _moment("ended", "ended"),
            _number("read"),
            _number("dead letters", "dead_letters"),
            TopColumn("took", "seconds", _seconds_of_batch),
            TopColumn("longest steps", "name", _longest_steps),
        ),
    ),
)


class TableRates:
    """Rows a second of tables: what they have got from the end of one batch to that of another one, a minute later.

    Between two moments of a terminal there may be a whole batch more or less.
    """

    def __init__(self) -> None:
        self._totals: deque[tuple[float, dict[str, int | None]]] = deque()

    def add_to(self, status: Mapping[str, Any]) -> None:
        """Give each table of a status its `rate`, if that is known yet."""
        if status["batches"]:
            self._keep(status["batches"][0]["ended"], status["tables"])
        if len(self._totals) < 2:
            return
        began, before = self._totals[0]
        ended, _ = self._totals[-1]
        for table in status["tables"]:
            if table["rows"] is None:
                continue
            if status["now"] - ended > RATE_SECONDS:
                table["rate"] = 0.0
            else:
                table["rate"] = max(0, table["rows"] - (before.get(table["table"]) or 0)) / (ended - began)

    def _keep(self, ended: float, tables: list[Row]) -> None:
        if self._totals and ended <= self._totals[-1][0]:
            return
        self._totals.append((ended, {table["table"]: table["rows"] for table in tables}))
        while len(self._totals) > 2 and self._totals[1][0] <= ended - RATE_SECONDS:
            self._totals.popleft()


def event_rate(status: Mapping[str, Any]) -> float | None:
    """Return the records a second of the last batch; None if there is no batch before it."""
    batches = status["batches"]
    if len(batches) < 2:
        return None
    seconds = batches[0]["ended"] - batches[1]["ended"]
    return batches[0]["read"] / seconds if seconds > 0 else None


def _shares(trend: list[list[int]]) -> list[float]:
    return [violated / events if events else 0.0 for events, violated in trend]


def _bars(trend: list[list[int]]) -> str:
    """Return a bar for each of the last parts of a trend, as high as its share of the largest one."""
    shares = _shares(trend)[-TREND_BARS:]
    largest = max(shares)
    if not largest:
        return _BARS[0] * len(shares)
    bars = ""
    for share in shares:
        height = share / largest * (len(_BARS) - 1)
        bars += _BARS[round(height)]
    return bars


def utc(moment: float) -> str:
    """Return a time in seconds since 1970 as it stands in a line."""
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
