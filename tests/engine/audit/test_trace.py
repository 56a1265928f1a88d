"""`router trace`: a line about a record that says it was read agrees with the files, and no line claims more."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from router.cli import commands
from router.config.loader import load_config
from router.engine.audit.record_search import TracedPlace
from router.engine.audit.record_trace import RecordTrace, TraceLine, as_facts
from router.engine.spark import session
from router.registry import Registry, load_registry
from router_demo.api import Api
from tests.engine.audit.traced_lake import REFUSED_IDS, TracedLake, build_lake
from tests.engine.query import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router_demo.kafka import EmbeddedKafka
    from tests.engine.audit.traced_lake import KnownRecord

QUARANTINE = "quarantine.games__games__tables"
OWN_PLACE = ("_topic", "_partition", "_offset")
PLACE = ("topic", "partition", "offset")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with Api() as running:
        yield running


@pytest.fixture(scope="module")
def traced(
    spark: SparkSession, broker: EmbeddedKafka, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> TracedLake:
    return build_lake(tmp_path_factory.mktemp("traced"), spark, broker, api, "trace-news")


@dataclass
class IndependentReader:
    """The tables of a lake as delta-rs alone reads them, each once."""

    lake: TracedLake
    loaded: Loaded
    known: dict[tuple[str, int | None], list[dict[str, Any]]] = field(default_factory=dict)

    def rows(self, table: str, version: int | None = None) -> list[dict[str, Any]]:
        if (table, version) not in self.known:
            path = self.lake.folder.joinpath("lake", *table.split("."))
            handle = DeltaTable(str(path), version=version)
            self.known[table, version] = handle.to_pyarrow_table().to_pylist()
        return self.known[table, version]

    def rows_at(self, table: str, place: TracedPlace, version: int | None = None) -> list[dict[str, Any]]:
        """Return the rows with the coordinates of a record, as JSON has them."""
        rows = []
        for row in self.rows(table, version):
            names = OWN_PLACE if "_offset" in row else PLACE
            if tuple(row.get(name) for name in names) == tuple(place):
                rows.append(as_facts(row))
        return rows

    def actions(self, table: str, version: int) -> list[dict[str, Any]]:
        path = self.lake.folder.joinpath("lake", *table.split("."), "_delta_log", f"{version:020}.json")
        return [json.loads(line) for line in path.read_text().splitlines()]


class Checker:
    """What is said of one record, held against the files and against what was sent."""

    def __init__(self, lake: TracedLake, reader: IndependentReader, place: TracedPlace) -> None:
        self.reader = reader
        self.place = place
        assert place.partition is not None
        self.record: KnownRecord = lake.known[place.partition, place.offset]
        trace = RecordTrace(reader.loaded, place)
        self.lines = list(trace.lines())
        assert trace.is_found
        self.by_subject: dict[str, list[TraceLine]] = defaultdict(list)
        for line in self.lines:
            self.by_subject[line.about].append(line)

    def check(self) -> None:
        for line in self.lines:
            if line.known == "read":
                self.check_read(line)
        self.check_record()
        self.check_games()
        self.check_outboxes()

    def check_read(self, line: TraceLine) -> None:
        """Compare what was read with an independent reader."""
        facts = line.facts
        if "commits" in facts:
            for commit in facts["commits"]:
                actions = self.reader.actions(commit["table"], commit["version"])
                ids = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
                stats = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
                ((app_id, number),) = (item for item in ids.items() if item[0].startswith("games:"))
                assert app_id.startswith(f"games:{facts['run']}/{line.about}/")
                assert number == facts["batch"]
                assert commit["rows"] == sum(of_file["numRecords"] for of_file in stats)
                (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
                assert commit["time"].timestamp() == info["timestamp"] / 1000
        elif "row_of" in facts:
            key = facts["key"]
            rows = [row for row in self.reader.rows(facts["table"]) if key.items() <= row.items()]
            rows = [row for row in rows if row.get("is_current", True)]
            found = ["/".join(str(row[name]) for name in OWN_PLACE) for row in rows]
            assert found == [facts["row_of"]]
        elif "version" in facts:
            rows = self.reader.rows_at(QUARANTINE, self.place, facts["version"])
            assert any(facts["row"].items() <= row.items() for row in rows)
        elif "row" in facts:
            rows = self.reader.rows_at(facts["table"], self.place)
            assert (facts["row"] in rows) if facts["row"] else not rows
        elif facts:
            rows = self.reader.rows_at(line.origin, self.place)
            assert any(facts.items() >= row.items() for row in rows), line
        else:
            assert line.text in ("it has no receipt yet",), line

    def check_record(self) -> None:
        """Compare record, batch and dead letters of no route with what was sent."""
        (received,) = self.by_subject["record"]
        value = self.record.value
        assert received.facts["value"] == value[:1000].decode("utf-8", "backslashreplace")
        assert received.facts["batch_id"] == self.record.batch
        assert all(line.text.isprintable() and len(line.text) < 900 for line in self.lines)
        assert [line.facts["batch"] for line in self.by_subject["batch"]] == [self.record.batch]
        stages = {line.facts["stage"] for line in self.by_subject["dead letter"]}
        assert ("decode" in stages) == (self.record.event is None)

    def check_games(self) -> None:
        """Compare the fate of the record on the route with expectations."""
        event = self.record.event or {}
        amount = event.get("amount")
        is_routed = event.get("game") is not None
        lines = self.by_subject["games/tables"]
        letters = [line for line in self.by_subject["dead letter"] if line.facts["route"] == "games"]
        quarantined = [line for line in lines if "quarantine" in line.text or "waits" in line.text]
        assert bool(quarantined) == (is_routed and amount == 120)
        is_unsure = is_routed and amount == -3 and self.record.batch < 2
        reasons = {line.facts["reason"] for line in letters}
        assert ("expectation sure does not hold" in reasons) == is_unsure
        assert all(("replayed" in line.facts and line.facts["replayed"] is not None) for line in letters) or (
            "expectation small does not hold" in reasons
        )
        for line in lines:
            if "version" in line.facts and line.known == "derived":
                assert event["game"] in line.facts["table"]
        commits = {line.facts["run"]: line.facts for line in lines if "commits" in line.facts}
        assert commits.pop(RUN)["batch"] == self.record.batch
        assert commits.keys() == ({line.facts["replayed"] for line in letters} - {None})
        assert not [line for line in lines if line.facts.get("row") and "silver" in line.facts.get("table", "")]

    def check_outboxes(self) -> None:
        """Compare which routes took the record, and what their sinks did, with the event."""
        event = self.record.event or {}
        amount = event.get("amount") or 0
        has_id = event.get("id") is not None
        for sink, takes in {
            "wins/rest": amount > 50,
            "news/kafka": 20 <= amount <= 40,
            "profiles/upsert": has_id,
            "profiles/upsert_2": has_id,
        }.items():
            rows = [line for line in self.by_subject[sink] if line.facts.get("table", "").startswith("outbox.")]
            assert [bool(line.facts["row"]) for line in rows] == [takes], sink
        placed = [line for line in self.by_subject["placed/delta"] if line.facts.get("row")]
        assert bool(placed) == has_id
        receipts = [line for line in self.by_subject["wins/rest"] if "status" in line.facts]
        assert len(receipts) == (amount > 50)
        for line in receipts:
            assert line.facts["status"] == ("dead" if event.get("id") in REFUSED_IDS else "delivered")
        delivered = [line.facts["delivered"] for line in self.by_subject["news/kafka"] if "delivered" in line.facts]
        assert delivered == [True] * (20 <= amount <= 40)


@pytest.mark.timeout(1200)  # each record opens every table anew, as the command does
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_lines_agree_with_the_files_and_with_what_was_sent(traced: TracedLake, count: int) -> None:
    """Without it somebody tells a customer where a record went, and it is not there."""
    reader = IndependentReader(traced, load_config(traced.file, load_registry(), environ={}))
    places = sorted(traced.known)
    chosen = random.Random(1).sample(places, min(count, len(places)))
    for partition, offset in chosen:
        Checker(traced, reader, TracedPlace("events", partition, offset)).check()


@pytest.fixture
def trace(traced: TracedLake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command with the Spark of the tests; return its document and its exit code."""
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)

    def trace(*arguments: str) -> tuple[dict[str, Any], int]:
        done = CliRunner().invoke(commands, ["trace", str(traced.file), *arguments, "--json"], prog_name="router")
        assert isinstance(done.exception, SystemExit | None), done.output
        assert ("this starts Spark" in done.stderr) == bool({"--today", "--then", "--where"} & {*arguments})
        return json.loads(done.stdout), done.exit_code

    return trace


def test_today_shows_verdicts_with_the_values_that_rules_read(traced: TracedLake, trace: Callable[..., Any]) -> None:
    """Without it somebody reads the rules and the record, and guesses which of them took it."""
    wanted = {"game": "uno", "id": 5, "amount": 120}
    partition, offset = next(place for place, record in traced.known.items() if record.event == wanted)
    before = {path: path.stat().st_mtime_ns for path in (traced.folder / "lake").rglob("*")}

    document, code = trace(f"events/{partition}/{offset}", "--today")

    assert code == 0
    lines = [line for line in document["lines"] if "as it is now" in line["origin"]]
    assert {line["known"] for line in lines} == {"derived"}
    verdicts = {
        (line["about"], line["facts"]["verdict"]): line["facts"]["values"]
        for line in lines
        if "verdict" in line["facts"]
    }
    assert verdicts == {
        ("route games", "takes it"): {"event.game": "uno"},
        ("route games", "expectation small does not hold"): {"event.amount": 120},
        ("route placed", "takes it"): {"event.id": 5},
        ("route profiles", "takes it"): {"event.id": 5},
        ("route wins", "takes it"): {"event.amount": 120},
        ("route news", "does not take it"): {"event.amount": 120},
    }
    assert [line["facts"] for line in lines if line["about"] == "event"] == [wanted]
    places = {line["facts"]["table"] for line in lines if "table" in line["facts"]}
    assert places == {QUARANTINE, "gold.placed", "gold.profiles", "gold.states", "wins/rest"}
    assert {path: path.stat().st_mtime_ns for path in (traced.folder / "lake").rglob("*")} == before


def test_then_shows_verdicts_of_the_configuration_of_the_batch(
    traced: TracedLake, trace: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a rule that was mended since is said to have let the record pass."""
    partition, offset = next(
        place
        for place, record in traced.known.items()
        if record.event and record.event.get("game") and record.event["amount"] == -3 and record.batch < 2
    )

    def faults(option: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in trace(f"events/{partition}/{offset}", option)[0]["lines"]:
            if "verdict" in line["facts"] and line["about"] == "route games":
                found.setdefault(line["origin"], []).append(line["facts"]["verdict"])
        return found

    unsure = ["takes it", "expectation sure does not hold"]
    assert faults("--today") == {"a trial of FILE as it is now": ["takes it"]}
    assert faults("--then") == {"a trial of deploy 1": unsure}
    monkeypatch.setattr(Registry, "versions", lambda *_: ("router 9",))
    ((origin, verdicts),) = faults("--then").items()
    assert verdicts == unsure
    assert origin.startswith("a trial of deploy 1, which ran with router 0")
    assert origin.endswith("; here is router 9")


def test_today_shows_why_a_record_is_a_dead_letter(traced: TracedLake, trace: Callable[..., Any]) -> None:
    """Without it a record that does not decode has a trial without a line."""
    partition, offset = next(place for place, record in traced.known.items() if record.value == b"{")
    document, _ = trace(f"events/{partition}/{offset}", "--today")
    lines = [line for line in document["lines"] if "as it is now" in line["origin"]]
    assert [(line["about"], line["facts"]["stage"]) for line in lines] == [("dead letter", "decode")]


def test_records_are_found_by_their_event_within_a_bound(traced: TracedLake, trace: Callable[..., Any]) -> None:
    """Without it nobody finds the records of a player, whose id stands in the value."""
    document, code = trace("--where", "event.id = 5 AND event.amount > 90", "--last", "100000")
    places = {row["place"] for row in document["records"]}
    expected = set()
    for (partition, offset), record in traced.known.items():
        event = record.event or {}
        if event.get("id") == 5 and event["amount"] > 90:
            expected.add(f"events/{partition}/{offset}")
    assert (places, code) == (expected, 0)
    assert trace("--where", "event.id = 5000", "--last", "10") == ({"name": "games", "records": []}, 1)
