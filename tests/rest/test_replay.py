"""`router replay`, of what a sink keeps: what was parked or refused is sent again, in the calls of then, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import router.cli
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.ledger import read_last_batches
from router.engine.spark import session
from router.engine.start.run_lock import hold_file_lock, hold_run_lock
from router.engine.stream import run
from router.registry import load_registry
from router_demo.api import Api, Failure, Poison
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in, files_per_batch: 1}}}}
decode: {{json: "n int, name string"}}
bronze: bronze.all
routes:
  - name: wins
    match: {{sql: "event.n IS NOT NULL"}}
    sinks: [{{rest: {sink}}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""
KEYED = "Idempotency-Key"
OUT = {"timeouts": {"connect": "1 s"}, "retry": {"attempts": 1}, "max_outage": {"after": "1 ms", "then": "park"}}


class Games:
    """A lake that a REST sink sends from, and its API."""

    def __init__(self, folder: Path, api: Api, spark: SparkSession) -> None:
        self.folder, self.api, self.spark = folder, api, spark
        self.lake = Lake.at(f"{folder}/lake")
        self.file = folder / "games.yaml"
        (folder / "in").mkdir()
        self.writes()

    def writes(self, **options: Any) -> None:
        """Write the configuration, with some options of the sink."""
        sink = {"url": f"{self.api.url}/wins", "rows_per_call": 5, **OUT, **options}
        self.file.write_text(YAML.format(folder=self.folder, sink=json.dumps(sink)))

    def takes(self, *numbers: int) -> None:
        """Let a file of events come, and a run take it."""
        name = f"{time.time_ns()}.json"
        (self.folder / name).write_text("".join(f'{{"n": {n}, "name": "player {n}"}}\n' for n in numbers))
        (self.folder / name).rename(self.folder / "in" / name)
        registry = load_registry()
        run(load_config(self.file, registry, environ={}), registry, self.spark)

    def replay(self, *arguments: str) -> Result:
        """Run the command, in a terminal that is wide enough; it sends what was parked unless it is told otherwise."""
        chosen = [] if "--status" in arguments else ["--status", "parked"]
        how = [one for one in arguments if one != "--dry-run"] if "--dry-run" in arguments else [*arguments, "--send"]
        command = ["replay", str(self.file), *chosen, *how]
        return CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return read_rows(self.lake, table)

    def receipts(self, status: str, *, replayed: bool = False) -> list[dict[str, Any]]:
        """Return the receipts of a status, of batches or of replays."""
        found = self.rows("ops.receipts")
        return [row for row in found if row["status"] == status and (row["replay"] is not None) is replayed]

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls that the API got since the last reset."""
        return self.api.requests(1000)

    def arrived(self) -> Counter[int]:
        """Return how often each event took effect since the last reset."""
        return self.api.rows("n")

    def booked(self) -> dict[str, int]:
        """Return what the ledger says of the sink, summed."""
        rows = [row for row in self.rows("ops.ledger") if row["sink"] == "rest"]
        names = ("landed", "applied", "dead", "parked", "backlog")
        return {name: sum(row[name] or 0 for row in rows) for name in names}


@pytest.fixture
def games(tmp_path: Path, api: Api, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Games:
    """Return an empty lake, and commands that use the Spark of the tests."""
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    api.reset()
    return Games(tmp_path, api, spark)


def keys(rows: list[dict[str, Any]], name: str = "idempotency_key") -> set[str]:
    return {row[name].strip('"') for row in rows}


def test_what_was_parked_or_refused_arrives_once_by_the_keys_of_its_receipts(games: Games) -> None:
    """Without it rows that an API missed in an outage, or refused by mistake, are sent by hand, or twice, or never."""
    games.api.play(poison=[Poison(field="n", values=(3, 4, 11), status=422)])
    games.takes(*range(20))
    games.api.play(outage="refused")
    games.takes(*range(20, 40))
    games.api.reset()
    parked, dead = games.receipts("parked"), games.receipts("dead")
    assert (len(parked), len(keys(parked)), len(dead), len(keys(dead))) == (20, 4, 3, 3)
    assert games.booked() == {"landed": 40, "applied": 17, "dead": 3, "parked": 20, "backlog": 0}

    dry = games.replay("--dry-run", "--status", "parked", "--status", "dead")

    assert (dry.exit_code, games.calls()) == (0, [])
    shown = [line.split()[:6] for line in dry.output.splitlines() if line.startswith("wins")]
    assert shown == [["wins", "rest", "dead", "422", "3", "3"], ["wins", "rest", "parked", "20", "4", shown[1][5]]]

    document = json.loads(games.replay("--dry-run", "--status", "parked", "--status", "dead", "--json").stdout)
    assert [(row["status"], row["answer"], row["rows"]) for row in document["rows"]] == [
        ("dead", "422", 3),
        ("parked", None, 20),
    ]
    assert (document["sent"], document["dead_letters"]) == ([], [])

    with hold_run_lock(Lake.at(f"{games.folder}/lake/_router/games"), "games"):  # as a run does
        first = games.replay()

    assert first.exit_code == 0, first.output
    assert games.arrived() == Counter(range(20, 40))
    assert keys(games.calls(), "key") == keys(parked) == keys(games.receipts("delivered", replayed=True))
    assert games.booked() == {"landed": 40, "applied": 37, "dead": 3, "parked": 0, "backlog": 0}

    games.api.reset()
    assert "nothing to send" in games.replay().output
    assert "nothing to send" in games.replay("--status", "dead", "--since", "1 ms").output
    assert games.calls() == []

    refused = games.replay("--status", "422", "--since", "2 h", "--json")

    assert refused.exit_code == 0, refused.output
    assert games.arrived() == Counter((3, 4, 11))
    (sent,) = json.loads(refused.stdout)["sent"]
    assert (sent["route"], sent["sink"], sent["delivered"], sent["not_sent"]) == ("wins", "rest", 3, 0)
    assert keys(games.calls(), "key") == keys(dead)
    assert games.booked() == {"landed": 40, "applied": 40, "dead": 0, "parked": 0, "backlog": 0}
    config = load_config(games.file, load_registry(), environ={}).config
    assert [
        row["applied"] for row in read_last_batches(config, 2) if row["sink"] == "rest" and row["batch_id"] is None
    ] == [20, 3]
    books = CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, ["ledger", str(games.file)]).output
    assert [line.split()[:3] for line in books.splitlines() if line.startswith("replay")] == [
        ["replay", "wins", "rest"]
    ] * 2


def test_a_route_with_another_name_sends_what_was_in_doubt_by_the_same_keys(games: Games) -> None:
    """Without it a call that was in doubt takes effect twice, or what was parked never arrives."""
    games.api.play(failures=[Failure(how="hangup", processed=True)])
    games.takes(*range(12))
    games.api.play()
    parked = games.receipts("parked")
    assert (len(parked), {row["in_doubt"] for row in parked}) == (12, {True})
    games.api.reset()
    text = games.file.read_text()
    games.file.write_text(text.replace("name: wins", "name: victories\n    was: wins"))

    games.takes(20, 21)
    replayed = games.replay("--route", "victories", "--sink", "rest")

    assert replayed.exit_code == 0, replayed.output
    assert games.arrived() == Counter((*range(12), 20, 21))
    assert keys(parked) <= keys(games.calls(), "key")
    assert games.booked() == {"landed": 14, "applied": 14, "dead": 0, "parked": 0, "backlog": 0}
    assert any(line.startswith("victories") for line in replayed.output.splitlines())


@pytest.mark.slow
def test_a_replay_explains_what_is_in_doubt(games: Games) -> None:
    """Without it nobody knows what the words ask for."""
    games.api.play(failures=[Failure(how="hangup", processed=True)])
    games.takes(*range(3))

    replayed = games.replay()

    assert "3 in doubt: an attempt ended without an answer, so the API may have them twice" in replayed.output


@pytest.mark.slow
def test_calls_in_doubt_come_again_as_they_were_and_a_replay_that_was_cut_off_is_ended(games: Games) -> None:
    """Without it what arrived just before an API went away, or a replay was killed, takes effect a second time."""
    games.api.play(failures=[Failure(how="hangup", processed=True)])
    games.takes(*range(12))
    games.api.play()
    assert {row["in_doubt"] for row in games.receipts("parked")} == {True}
    before = {(call["key"], call["sha256"]) for call in games.calls()}
    games.api.reset()
    books, aside = games.folder / "lake/ops/ledger", games.folder / "ledger"
    books.rename(aside)
    books.write_text("no folder")  # so that the replay fails at its last step

    cut_off = games.replay()
    books.unlink()
    aside.rename(books)
    dry, after = games.replay("--dry-run"), games.replay()

    assert cut_off.exit_code != 0
    assert "cut off" in dry.output
    assert "cut off" in after.output
    assert "nothing to send" in after.output
    assert {(call["key"], call["sha256"]) for call in games.calls()} == before
    assert (len(before), games.arrived()) == (3, Counter(range(12)))
    assert games.booked() == {"landed": 12, "applied": 12, "dead": 0, "parked": 0, "backlog": 0}
    assert len({row["replay"] for row in games.receipts("delivered", replayed=True)}) == 1


@pytest.mark.slow
def test_a_body_that_is_another_one_by_now_has_another_key(games: Games) -> None:
    """Without it the API takes the new body for a mistake, and refuses it for good."""
    games.api.play(outage="refused")
    games.takes(*range(10))
    games.api.play(idempotency=KEYED)
    games.writes(body={"wrap": {"events": "$rows"}}, rows_per_call=3)
    parked = keys(games.receipts("parked"))

    games.replay()

    assert games.arrived() == Counter(range(10))
    assert len(games.calls()) == len(parked) == 2  # as large as they were
    assert not keys(games.calls(), "key") & parked


@pytest.mark.slow
def test_what_is_refused_again_stays_dead_and_what_was_parked_becomes_a_dead_letter(games: Games) -> None:
    """Without it a refused row is parked for ever, or a dead letter for each time that it is sent."""
    poison = [Poison(field="n", values=(1, 6))]
    games.api.play(poison=poison)
    games.takes(*range(5))
    games.api.play(outage="refused")
    games.takes(*range(5, 10))
    games.api.play(poison=poison)
    assert [json.loads(row["value"])["n"] for row in games.rows("ops.dead")] == [1]

    result = games.replay("--status", "parked", "--status", "dead")

    assert result.exit_code == 1
    assert "4 delivered, 2 dead" in result.output
    letters = {json.loads(row["value"])["n"]: row["batch_id"] for row in games.rows("ops.dead")}
    assert (sorted(letters), letters[6], len(games.rows("ops.dead"))) == ([1, 6], None, 2)
    assert games.booked() == {"landed": 10, "applied": 8, "dead": 2, "parked": 0, "backlog": 0}


@pytest.mark.slow
def test_a_replay_that_ends_early_keeps_what_it_did(games: Games) -> None:
    """Without it rows that a replay delivered before it failed are sent again by the next."""
    games.api.play(outage="refused")
    games.takes(*range(200))
    games.api.play(failures=[Failure(times=1, status=404)])

    broken = games.replay()
    delivered = len(games.receipts("delivered", replayed=True))
    again = games.replay()

    assert broken.exit_code == 1
    assert "404" in broken.output
    assert (delivered < 200, again.exit_code) == (True, 0)
    assert games.arrived() == Counter(range(200))
    assert games.booked()["parked"] == 0


@pytest.mark.slow
def test_rows_that_left_the_outbox_are_counted(games: Games) -> None:
    """Without it rows that can never be sent are forgotten without a word."""
    games.api.play(outage="refused")
    games.takes(*range(4))
    games.takes(*range(4, 10))
    games.api.play()
    outbox = games.lake.open("outbox.games__wins__rest")
    assert outbox is not None
    outbox.delete("n < 3")

    result = games.replay()

    assert games.arrived() == Counter(range(3, 10))
    assert "3 more rows are not in outbox.games__wins__rest any more" in result.output
    assert "bronze.all has their records" in result.output


def test_two_replays_of_a_sink_do_not_meet(games: Games) -> None:
    """Without it two people who see the same alarm send all rows twice."""
    checkpoint = Lake.at(f"{games.folder}/lake/_router/games")

    with hold_file_lock(checkpoint, "replays/lock", "busy"):
        result = games.replay()

    assert result.exit_code == 2
    assert "another replay" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--status", "lost"], "neither `parked` nor `dead`", id="status"),
        pytest.param(["--since", "2025-01-31"], "neither a time with a zone", id="no zone"),
        pytest.param(["--route", "win"], "games has wins/rest", id="route"),
        pytest.param(["--sink", "rest_2"], "games has wins/rest", id="sink"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(games: Games, arguments: list[str], told: str) -> None:
    """Without it a typing error takes a minute to show, or sends what nobody meant."""
    result = games.replay(*arguments)

    assert told in result.output
    assert result.exit_code == 2


def test_with_several_sinks_one_must_be_named(games: Games) -> None:
    """Without it a replay for one API is sent to another one, too."""
    text = games.file.read_text()
    one = text[text.index("[{rest") + 1 : text.rindex("]")]
    games.file.write_text(text.replace(one, f"{one}, {one}"))

    result = games.replay()

    assert "wins/rest, wins/rest_2" in result.output
    assert result.exit_code == 2


@pytest.mark.slow
def test_a_replay_that_is_killed_sends_nothing_twice_but_what_is_in_doubt(games: Games) -> None:
    """Without it whoever kills a replay that takes long does not know what it did."""
    games.api.play(outage="refused")
    games.takes(*range(2000))
    games.api.play(latency=0.02)
    games.writes(rows_per_call=1, max_in_flight=4, calls_per_second=100)
    command = [sys.executable, "-m", "router", "replay", str(games.file), "--status", "parked", "--send"]
    process = subprocess.Popen(command, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 200
        while games.api.stats().processed < 300:
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    games.writes(rows_per_call=1)

    result = games.replay()

    assert result.exit_code == 0, result.output
    arrived = games.arrived()
    twice = {n for n, times in arrived.items() if times > 1}
    doubtful = {row["offset"] for row in games.receipts("delivered", replayed=True) if row["in_doubt"]}
    assert set(arrived) == set(range(2000))
    assert len(twice) <= len(doubtful) < 1000
    by_row: Counter[str] = Counter(call["key"] for call in games.api.requests(10_000))
    assert len(by_row) == 2000
