"""What the page says is wrong with a stream, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from router.delta.lake import DAMAGED_LOG
from router.engine.status.findings import find_troubles, overdue_findings, verdict
from router.engine.status.snapshot import (
    BatchStatus,
    PartitionStatus,
    QuarantineStatus,
    SinkStatus,
    StreamSnapshot,
    TableStatus,
    ViewStatus,
)

NOW = 10_000.0


def found(state: Any = "running", file: str = "games.yaml", **fields: Any) -> list[tuple[str, str]]:
    snapshot = StreamSnapshot("games", "1.0", state, since=NOW, started=NOW, **{"progress": NOW, **fields})
    return [(finding.severity, finding.command) for finding in find_troubles(snapshot, file, 600.0, NOW)]


@pytest.mark.parametrize("state", ["starting", "running", "ended"])
def test_a_stream_that_is_well_has_none(state: str) -> None:
    """Without it somebody is woken up for nothing."""
    assert found(state) == []


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("failed", {"cause": "the batch does not balance"}, ("act", "router run games.yaml")),
        ("down", {}, ("act", "router run games.yaml")),
        ("running", {"progress": NOW - 601}, ("act", "")),
        ("waiting", {"cause": "no broker answers"}, ("look", "router doctor games.yaml")),
        ("running", {"tables": (TableStatus("silver.uno", blocked="damaged"),)}, ("look", "router tables games.yaml")),
        (
            "running",
            {"quarantined": (QuarantineStatus("silver.uno", "r", "s", "approval", 3),)},
            ("look", "router quarantine list games.yaml"),
        ),
        (
            "running",
            {
                "tables": tuple(
                    TableStatus(f"silver.{name}", blocked=f"{DAMAGED_LOG} damaged") for name in ("uno", "go")
                )
            },
            ("look", "router rebuild games.yaml silver.uno silver.go"),
        ),
        ("running", {"sinks": (SinkStatus("r", "api", circuit_open=True),)}, ("look", "")),
        ("running", {"sinks": (SinkStatus("r", "api", waits="no route"),)}, ("look", "router doctor games.yaml")),
        ("running", {"views": (ViewStatus("v", "gold.v", failed="gone"),)}, ("look", "router views games.yaml")),
        (
            "running",
            {"views": (ViewStatus("v", "gold.v", seconds=600.0, every=60.0), ViewStatus("w", "gold.w", seconds=600.0))},
            ("look", "router views games.yaml --plan"),
        ),
        ("running", {"held_topics": ("uno",)}, ("look", "")),
        ("running", {"unread": {"ledger": "it is damaged"}}, ("look", "router doctor games.yaml")),
    ],
    ids=[
        "failed",
        "down",
        "stuck",
        "waiting",
        "blocked",
        "quarantined",
        "damaged",
        "circuit",
        "waits",
        "view",
        "slow",
        "topic",
        "unread",
    ],
)
def test_what_is_wrong_has_the_next_step(state: str, fields: dict[str, Any], expected: tuple[str, str]) -> None:
    """Without it an operator knows that something is wrong, and not what to type."""
    assert found(state, **fields) == [expected]


@pytest.mark.parametrize(
    "cause",
    [
        "the merge failed: Could not open Parquet input source 'a.parquet': Parquet magic bytes not found in footer",
        "the merge failed: Generic DeltaTable error: Parquet error: EOF",
        "Object at location silver/uno/part-0.parquet not found: No such file or directory (os error 2)",
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file part-0.parquet",
    ],
)
def test_a_table_with_a_damaged_data_file_is_rebuilt(cause: str) -> None:
    """Without it a person is sent to a command that says of the table that it is well."""
    assert found("running", tables=(TableStatus("silver.uno", blocked=cause),)) == [
        ("look", "router rebuild games.yaml silver.uno")
    ]


BATCH = BatchStatus(1, NOW, 1, 1, 0, 0, 0, tables=1, files=1, seconds={})


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("starting", {"batches": (BATCH,)}, "unknown"),
        ("running", {}, "unknown"),
        ("ended", {}, "unknown"),
        ("running", {"partitions": (PartitionStatus("t", 0, 5, 9, NOW),)}, "unknown"),
        ("running", {"partitions": (PartitionStatus("t", 0, 9, 9, NOW),)}, "well"),
        ("running", {"batches": (BATCH,)}, "well"),
        ("ended", {"batches": (BATCH,)}, "well"),
        ("starting", {"held_topics": ("uno",)}, "look"),
        ("down", {}, "act"),
    ],
)
def test_all_is_well_only_if_that_is_known(state: Any, fields: dict[str, Any], expected: str) -> None:
    """Without it a stream that has not read a record yet says that all is well."""
    snapshot = StreamSnapshot("games", "1.0", state, since=NOW, started=NOW, progress=NOW, **fields)
    assert verdict(snapshot, find_troubles(snapshot, "games.yaml", 600.0, NOW)) == expected


ANSWERS = {"ok": 5, "failed": 0}


@pytest.mark.parametrize(
    ("sink", "fields", "seconds"),
    [
        ({"backlog": 9, "oldest": NOW - 500, "called": NOW - 90}, {}, 90),
        ({"backlog": 9, "oldest": NOW - 80}, {}, 80),
        ({"called": NOW - 900}, {"batch": 3, "step": "apply r/api", "progress": NOW - 70}, 70),
        ({"failing": NOW - 75, "called": NOW - 900}, {}, 75),
        ({"failing": NOW - 50, "called": NOW - 900}, {}, None),
        ({"backlog": 9, "oldest": NOW - 50, "called": NOW - 900}, {}, None),
        ({"backlog": 9, "oldest": NOW - 500, "called": NOW - 59}, {}, None),
        ({"backlog": 9, "oldest": NOW - 500, "called": NOW - 90, "limit_used": 1.0}, {}, None),
        ({"backlog": 9, "oldest": NOW - 500, "called": NOW - 90, "answers": {}}, {}, None),
        ({"called": NOW - 900}, {"batch": 3, "step": "apply r/other", "progress": NOW - 70}, None),
        ({"called": NOW - 900}, {}, None),
    ],
    ids=[
        "silent",
        "never",
        "in a batch",
        "time-outs",
        "time-outs are new",
        "rows are new",
        "called",
        "limit",
        "no calls",
        "another sink",
        "no rows",
    ],
)
def test_a_sink_that_calls_nobody_while_rows_wait_is_named(
    sink: dict[str, Any], fields: dict[str, Any], seconds: int | None
) -> None:
    """Without it a sink that hangs is seen when a partner asks for its rows."""
    status = SinkStatus("r", "api", **{"answers": ANSWERS, **sink})
    snapshot = StreamSnapshot(
        "games", "1.0", "running", since=NOW, started=0.0, **{"progress": NOW, "sinks": (status,), **fields}
    )
    named = [finding.text for finding in find_troubles(snapshot, "games.yaml", 600.0, NOW)]
    assert [f"No call of r/api was answered for {seconds} s" in text for text in named] == [True] * bool(seconds)


def test_an_api_that_does_not_work_is_named_with_its_answer() -> None:
    """Without it a person at night calls the wrong partner, or runs a doctor who says that all is well."""
    sink = SinkStatus(
        "r",
        "api",
        backlog=7,
        circuit_open=True,
        fails_since=NOW - 300,
        url="https://api.test/wins",
        failure="answers 503",
    )
    snapshot = StreamSnapshot("games", "1.0", "running", since=NOW, started=NOW, progress=NOW, sinks=(sink,))
    (finding,) = find_troubles(snapshot, "games.yaml", 600.0, NOW)
    assert finding.text == (
        "The API of r/api is unavailable since 02:41:40 UTC (5 min): https://api.test/wins answers 503; "
        "7 rows wait, and are sent when it answers again."
    )


@pytest.mark.parametrize("fields", [{"circuit_open": True}, {"waits": "no route"}])
def test_rows_of_a_batch_that_has_not_ended_are_not_none(fields: dict[str, Any]) -> None:
    """Without it a stuck sink of the batch has "0 rows that wait", and nobody looks."""
    sink = SinkStatus("r", "api", **fields)
    snapshot = StreamSnapshot("games", "1.0", "running", since=NOW, started=NOW, progress=NOW, sinks=(sink,))
    (finding,) = find_troubles(snapshot, "games.yaml", 600.0, NOW)
    assert "0 rows" not in finding.text
    assert "its rows of the batch wait" in finding.text.lower()


def batch(minutes_ago: float, read: int, dead: int) -> BatchStatus:
    return BatchStatus(1, NOW - 60 * minutes_ago, read, read, 0, 0, dead, tables=1, files=1, seconds={})


@pytest.mark.parametrize(
    ("batches", "is_rise"),
    [
        ((batch(1, 1000, 500), batch(2, 1000, 0), batch(9, 100_000, 200)), True),
        ((batch(1, 1000, 500), batch(9, 100_000, 0)), True),
        ((batch(1, 1000, 500),), False),
        ((batch(1, 1000, 99), batch(9, 100_000, 0)), False),
        ((batch(1, 100_000, 500), batch(9, 100_000, 200)), False),
        ((batch(6, 1000, 500), batch(9, 100_000, 0)), False),
        ((batch(1, 1000, 500), batch(61, 100_000, 0)), False),
    ],
    ids=["tenfold", "from none", "first batch", "few", "as before", "over", "other times"],
)
def test_a_rise_of_dead_letters_is_named(batches: tuple[BatchStatus, ...], is_rise: bool) -> None:
    """Without it half of the records of a new producer are dead letters until somebody misses them."""
    assert found(batches=batches) == [("look", "router dead-letters games.yaml")] * is_rise


def test_a_lake_does_not_say_when_a_stream_made_a_step() -> None:
    """Without it each stream without a page is stuck since 1970."""
    assert found(progress=0.0) == []


@pytest.mark.parametrize(
    ("lag", "ended", "is_overdue"),
    [(0, None, False), (None, None, True), (9, NOW - 300, False), (9, NOW - 301, True), (None, NOW - 301, True)],
    ids=["no record", "nothing known", "in time", "late", "lag unknown"],
)
def test_a_batch_is_overdue_if_records_wait(lag: int | None, ended: float | None, is_overdue: bool) -> None:
    """Without it cron wakes somebody up because nobody plays at night, or nobody while nothing is known."""
    found = [(finding.severity, finding.command) for finding in overdue_findings(lag, ended, 300.0, "games.yaml", NOW)]
    assert found == ([("act", "router doctor games.yaml")] if is_overdue else [])


def test_the_command_can_be_pasted_into_a_shell() -> None:
    """Without it a file with a blank in its name, or worse, is another command."""
    assert found("down", "my games; rm -rf ~.yaml") == [("act", "router run 'my games; rm -rf ~.yaml'")]


def test_many_tables_are_counted() -> None:
    """Without it the sentence on top of the page has 5,000 names."""
    tables = tuple(TableStatus(f"silver.t{number}", blocked="damaged") for number in range(5_000))
    snapshot = StreamSnapshot("games", "1.0", "running", since=NOW, started=NOW, progress=NOW, tables=tables)
    (finding,) = find_troubles(snapshot, "games.yaml", 600.0, NOW)
    assert "silver.t2 and 4,997 more" in finding.text


def test_a_table_that_cannot_be_written_is_one_finding_with_its_cause() -> None:
    """Without it one fault reads like two, and a person has to run a command to learn why."""
    waiting = (
        QuarantineStatus("silver.uno", "games", "tables", "table", 18_204, "its log is damaged"),
        QuarantineStatus("silver.go", "games", "tables", "approval", 3),
    )
    tables = (TableStatus("silver.uno", blocked=f"its log is damaged{'!' * 500}"),)
    snapshot = StreamSnapshot(
        "games", "1.0", "running", since=NOW, started=NOW, progress=NOW, tables=tables, quarantined=waiting
    )
    blocked, approval = find_troubles(snapshot, "games.yaml", 600.0, NOW)

    assert "silver.uno" in blocked.text
    assert "18,204 so far" in blocked.text
    assert "Why: its log is damaged!" in blocked.text
    assert len(blocked.text) < 400
    assert approval.text.startswith(
        "Other quarantined rows: 3, of silver.go. After a look, `router quarantine release`"
    )


@pytest.mark.parametrize("other", ["approval", "release"])
def test_each_quarantined_row_is_in_one_figure(other: str) -> None:
    """Without it the sentence says 3,937 rows, the table below it 3,313, and the others seem to land by themselves."""
    waiting = (
        QuarantineStatus("silver.uno", "games", "tables", "table", 3_313, "its log is damaged"),
        QuarantineStatus("silver.uno", "games", "tables", other, 624),
        QuarantineStatus("silver.go", "games", "tables", other, 3),
        QuarantineStatus("silver.late", "games", "tables", "table", 5, "it works again, and its rows are released"),
    )
    snapshot = StreamSnapshot(
        "games",
        "1.0",
        "running",
        since=NOW,
        started=NOW,
        progress=NOW,
        tables=(TableStatus("silver.uno", blocked="its log is damaged"),),
        quarantined=waiting,
    )
    blocked, others = find_troubles(snapshot, "games.yaml", 600.0, NOW)
    assert "(3,313 so far)" in blocked.text
    assert others.text.startswith("Other quarantined rows: 632, of silver.go, silver.late, silver.uno. ")


def test_the_graph_is_told_which_places_are_broken() -> None:
    """Without it the box of a view that fails looks like all others."""
    snapshot = StreamSnapshot(
        "games",
        "1.0",
        "running",
        since=NOW,
        started=NOW,
        progress=NOW,
        views=(ViewStatus("v", "gold.v", failed="gone"), ViewStatus("w", "gold.w")),
        sinks=(SinkStatus("r", "api", circuit_open=True), SinkStatus("r", "more")),
    )

    assert [finding.places for finding in find_troubles(snapshot, "f", 600.0, NOW)] == [("view/v",), ("sink/r/api",)]
