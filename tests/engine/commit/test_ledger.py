"""The ledger and the reports say what is in the tables, for every batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router import BatchError
from router.config.models import Route
from router.engine.audit.expectation_counts import expectation_counts
from router.engine.audit.verify import Verification
from router.engine.balance import find_imbalances
from router.engine.commit.committers import Committers
from router.engine.ledger import OPTIONAL_COLUMNS, SCHEMA, LedgerEntry, append, read_last_batches
from tests.engine import scenarios
from tests.engine.conftest import COMMITS, EITHER
from tests.engine.parts import Events, Fixed, Where, copied
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from tests.engine.query import Query

OF_A_SINK = {"name", "schema"}


def by_commit(chosen: list[scenarios.Scenario]) -> list[Any]:
    return [
        pytest.param((s, commit), id=f"{s.__name__}-{commit}", marks=scenarios.marks(commit))
        for s in chosen
        for commit in COMMITS
    ]


@pytest.fixture(params=by_commit(scenarios.ALL))
def query(request: pytest.FixtureRequest, played: Callable[..., Query]) -> Query:
    """Return a played query."""
    return played(*request.param)


def ledger(query: Query) -> list[dict[str, Any]]:
    return query.rows("ops.ledger")


def test_every_record_of_every_batch_is_accounted_for(query: Query) -> None:
    """Without it a lost record is noticed by whoever misses it."""
    stages = Counter((row["batch_id"], row["partition"], row["stage"]) for row in query.rows("ops.dead"))
    for batch, taken in query.taken.items():
        sources = [row for row in ledger(query) if row["batch_id"] == batch and row["route"] is None]
        assert sum(row["read"] for row in sources) == len(taken)
        for row in sources if len(taken) else ():
            here = [r for r in taken.to_pylist() if r["partition"] == row["partition"]]
            assert row["read"] == len(here) == row["decoded"] + row["failed"] + row["bare"]
            assert (row["from_offset"], row["to_offset"]) == (here[0]["offset"], here[-1]["offset"])
            assert row["failed"] == stages[batch, row["partition"], "decode"]
            assert row["unmatched"] == stages[batch, row["partition"], "match"]
            assert row["topic"] == "events"


def test_every_match_of_every_route_is_accounted_for(query: Query) -> None:
    """Without it a row that a sink refused is nowhere."""
    letters = query.rows("ops.dead")
    refused = Counter(
        (row["batch_id"], row["partition"], row["route"], row["sink"]) for row in letters if row["stage"] in OF_A_SINK
    )
    by_route = Counter(
        (row["batch_id"], row["partition"], row["route"]) for row in letters if row["stage"] in {"expect", "select"}
    )
    for row in ledger(query):
        if row["route"] is not None and row["matched"] is not None:
            place = (row["batch_id"], row["partition"], row["route"])
            assert row["matched"] == row["landed"] + row["refused"] + row["dropped"]
            assert row["refused"] == refused[(*place, row["sink"])] + by_route[place]


def test_what_landed_is_in_the_tables(query: Query) -> None:
    """Without it the ledger says that rows are safe which no table has."""
    own = {"ops.ledger", "ops.dead", "bronze.all"}
    in_tables = sum(query.content(table).num_rows for table in query.tables() if table not in own)

    assert sum(row["landed"] or 0 for row in ledger(query)) == in_tables
    if query.config.bronze:
        bronze = query.content("bronze.all").drop_columns(["arrival", "batch_id"])
        kept = bronze.to_pydict()
        sent = [row for taken in query.taken.values() for row in taken.to_pylist()]
        assert Counter(map(repr, zip(*kept.values(), strict=True))) == Counter(
            repr(tuple(row.values())) for row in sent
        )


def test_every_table_is_verified(query: Query) -> None:
    """Without it `router verify` calls wrong what nobody harmed, and is believed by nobody the next time."""
    query.write_run_id()
    audits = Verification.of_config(query.config, contents=True).audit_tables()

    assert {audit.table: audit.problems for audit in audits if audit.problems} == {}
    assert {audit.table for audit in audits} == set(query.tables())


@pytest.mark.parametrize("query", by_commit(scenarios.APPLYING), indirect=True)
def test_what_a_sink_applied_is_booked(query: Query) -> None:
    """Without it nobody knows whether a service got its rows."""
    booked = [row for row in ledger(query) if row["applied"] is not None]
    dead = query.letters("batch_id", stage="apply")
    assert booked
    applied = Counter(row["batch"] for row in copied(query.folder / "copy"))
    assert {row["batch_id"]: row["applied"] for row in booked if row["applied"]} == applied
    assert {row["batch_id"]: row["dead"] for row in booked if row["dead"]} == dead
    for row in booked:
        landed = [r["landed"] or 0 for r in ledger(query) if all(r[k] == row[k] for k in ("batch_id", "route", "sink"))]
        assert row["applied"] + row["dead"] == sum(landed)


def test_reports_say_what_the_ledger_says(query: Query) -> None:
    """Without it observers and dashboards show other numbers than the books."""
    assert [report.batch for report in query.reports] == list(query.taken)
    for report in query.reports:
        mine = [row for row in ledger(query) if row["batch_id"] == report.batch]
        sources = [row for row in mine if row["route"] is None]
        for name in ("read", "decoded", "failed", "unmatched"):
            assert getattr(report, name) == sum(row[name] for row in sources)
        for name, counts in report.routes.items():
            sinks = [row for row in mine if row["route"] == name and row["matched"] is not None]
            assert counts["landed"] == sum(row["landed"] for row in sinks)
            assert counts["matched"] * len({row["sink"] for row in sinks}) == sum(row["matched"] for row in sinks)
        letters = [row for row in query.rows("ops.dead") if row["batch_id"] == report.batch]
        assert report.dead_letters == len(letters)
        assert set(report.seconds) == {"plan", "land", "decide", "manifest", "commit", "apply", "ledger"}


def test_what_expectations_do_not_hold_on_is_counted(played: Callable[..., Query]) -> None:
    """Without it `warn` is silent, and nobody knows which expectation drops the most."""
    query = played(scenarios.garbage, "auto")
    route = query.reports[0].routes["games"]
    counted = {one.expectation.name: one for one in expectation_counts(query.config, samples=2)}

    for name, one in counted.items():
        assert one.violated == sum(report.routes["games"][f"violated {name}"] for report in query.reports)
        assert one.events == sum(report.routes["games"]["matched"] for report in query.reports)
        assert (one.events, one.violated) == tuple(map(sum, zip(*one.trend, strict=True)))
        assert (one.last is None) == (one.violated == 0)
    refused = [row for row in query.rows("ops.dead") if row["reason"] == "expectation gamer does not hold"]
    assert counted["gamer"].violated == len(refused)
    newest = sorted((row["timestamp"] for row in refused), reverse=True)[:2]
    assert [row["timestamp"] for row in counted["gamer"].samples] == newest
    assert counted["low"].violated >= route["dropped"] > 0
    assert route["violated sane"] > 0
    assert route["violated shares"] > route["violated sane"]  # 10 / 0 raises, which is a violation


@pytest.mark.parametrize("commit", EITHER)
def test_an_empty_batch_is_in_the_ledger_and_nowhere_else(played: Callable[..., Query], commit: str) -> None:
    """Without it a batch without records stops the stream, or leaves a version in 200 tables."""
    query = played(scenarios.garbage, commit)
    (row,) = [row for row in ledger(query) if row["batch_id"] == 2]

    assert (row["read"], row["topic"], row["partition"], row["route"]) == (0, None, None, None)
    assert (query.reports[2].tables, query.reports[2].files) == (0, 0)


def doctored(partition: Partition, kind: str) -> Partition:
    """Return a partition with one row more of a kind."""
    value = getattr(partition, kind)
    return replace(partition, **{kind: value + 1 if isinstance(value, int) else {**value, next(iter(value)): 99}})


@pytest.mark.parametrize("kind", ["read", "failed", "bare", "matched", "refused", "dropped", "landed", "rejected"])
def test_a_count_that_is_off_by_one_is_found(played: Callable[..., Query], kind: str) -> None:
    """Without it a bug that loses rows is found by a user."""
    query = played(scenarios.garbage, "auto")
    manifest, layout = query.store.read_manifest(0), query.batches.decider.planner.stages.labelling.layout
    assert manifest is not None
    counted, files = manifest.partitions, [file for work in manifest.commits for file in work.files]

    assert find_imbalances(layout, counted, files, True) == []
    wrong = [(*counted[:at], doctored(one, kind), *counted[at + 1 :]) for at, one in enumerate(counted)]
    # where routes overlap on many rows of a partition, its sums only bound what it decoded
    assert any(find_imbalances(layout, parts, files, True) for parts in wrong)


@pytest.mark.parametrize("target", ["/bronze", "/dead_letters", "games/tables", "wins/copy"])
@pytest.mark.parametrize("more", [1, -1], ids=["a row too many", "a row too few"])
def test_a_file_that_is_off_by_one_is_found(played: Callable[..., Query], target: str, more: int) -> None:
    """Without it a row that did not reach its file is lost."""
    query = played(scenarios.garbage, "auto")
    manifest, layout = query.store.read_manifest(0), query.batches.decider.planner.stages.labelling.layout
    assert manifest is not None
    files = [file for work in manifest.commits for file in work.files]
    at = next(i for i, file in enumerate(files) if file.target == target)
    wrong = [*files[:at], replace(files[at], rows=files[at].rows + more), *files[at + 1 :]]

    found = find_imbalances(layout, manifest.partitions, wrong, True)

    assert len(found) == 1
    assert found[0].startswith(target)


class Doubtful(Events):
    """Say of every record both that it is an event and that it is none, against the contract of decoders."""

    def decode(self, raw: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return super().decode(raw).withColumn("_error", F.lit("who knows"))


@pytest.mark.parametrize("commit", COMMITS)
def test_a_batch_that_does_not_balance_stops_before_anything_is_committed(
    make_query: Callable[..., Query], tmp_path: Path, commit: str
) -> None:
    """Without it a broken decoder fills tables with rows that are dead letters as well."""
    route = Route(name="all", match=Where(sql="true"), sinks=(Fixed(name="silver.t"),))
    query = make_query(tmp_path, commit=commit, decode=Doubtful(ddl="n int"), bronze="bronze.all", routes=(route,))

    with pytest.raises(BatchError) as caught:
        query.take(records([{"n": 1}, {"n": 2}]))

    assert (caught.value.query, caught.value.batch) == ("games", 0)
    assert query.tables() == []
    assert query.store.read_manifest(0) is None


def entry(run: str, batch: int | None, route: str | None, at: int, query: str = "games", **more: Any) -> dict[str, Any]:
    """Return a ledger row; `at` is the second in which its batch ended."""
    where = {"query": query, "run": run, "batch_id": batch, "route": route, "sink": route and "rest"}
    return {**dict.fromkeys(SCHEMA.names), **where, "finished": at * 1_000_000, **more}


def test_a_ledger_that_was_made_before_a_column_gets_it(lake: Lake) -> None:
    """Without it a lake has to be given up for a count that is new."""
    older = pa.schema([column for column in SCHEMA if column.name not in OPTIONAL_COLUMNS])
    write_deltalake(lake.address("ops.ledger"), pa.Table.from_pylist([{"query": "games", "read": 1}], older))
    nothing: Any = None
    for version in (0, 1, 1):
        entry = LedgerEntry("ops.ledger", "games:run/ledger", version)
        append(Committers(lake, nothing), entry, [{"query": "games", "unknown": 2, "unknown_fields": [("a.b", 2)]}])

    handle = lake.open("ops.ledger")
    assert handle is not None
    rows = handle.to_pyarrow_table(columns=["read", "unknown", "unknown_fields"]).to_pylist()
    assert sorted(rows, key=repr) == [
        {"read": 1, "unknown": None, "unknown_fields": None},
        *[{"read": None, "unknown": 2, "unknown_fields": [("a.b", 2)]}] * 2,
    ]


def test_the_last_batches_are_those_that_ended_last(lake: Lake) -> None:
    """Without it `router ledger` shows other batches than the last, or needs gigabytes for a ledger of months."""
    written = [
        *([entry("a", batch, route, batch) for route in (None, "x")] for batch in range(30)),
        [entry("b", 0, None, 40), entry("b", 0, "x", 40, matched=1, partition=0), entry("b", 0, "x", 40, matched=2)],
        *([entry("own run", batch, "slow", 3 + batch, applied=batch)] for batch in range(20)),
        [entry("c", 99, None, 99, query="another")],
        [entry("a", None, "x", 5, applied=7)],
        [entry("a", 7, "x", 50, released=4)],
    ]
    for rows in written:
        write_deltalake(lake.address("ops.ledger"), pa.Table.from_pylist(rows, SCHEMA), mode="append")
    config: Any = SimpleNamespace(
        lake=lake.root,
        ledger="ops.ledger",
        name="games",
        revealed_storage_options=dict,
        table_locations=tuple,
        checkpoint_path=lambda: lake.root,
    )

    found = Counter((row["run"], row["batch_id"], row["route"]) for row in read_last_batches(config, 3))

    of_source = {(run, batch, route): 1 for run, batch in (("a", 7), ("a", 29), ("b", 0)) for route in (None, "x")}
    assert found == {**of_source, **{("own run", batch, "slow"): 1 for batch in (17, 18, 19)}}
    assert [row["matched"] for row in read_last_batches(config, 3) if row["run"] == "b" and row["route"]] == [3]
    assert ("a", None, "x") in {(row["run"], row["batch_id"], row["route"]) for row in read_last_batches(config, 40)}
