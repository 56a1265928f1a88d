"""What the REST sink promises, through a whole run: source, decoding, outbox, tasks, receipts, ledger.

Other tests run its parts with a task of their own. Here each sink of one configuration has a server with one story.
"""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from router.config.loader import load_config
from router.config.models import Trigger
from router.delta.lake import Lake
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from tests.lake_rows import read_rows
from tests.rest.scripted import Scripted
from tests.rest.tasks import shorten_outages
from tests.rest.test_signing import AWS, HUSH, verify_aws

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.api import Api
    from tests.rest.scripted import Talk

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, game string"}}
routes: {routes}
trigger: {{once: true}}
dead_letters: ops.dead
"""
ROWS = 12
GAMES = ("uno", "go", "chess")
PASSWORD = "correct horse battery"
KEY = ec.generate_private_key(ec.SECP256R1())
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class Story:
    """What a server does; it remembers by row what it has answered."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()

    def __call__(self, talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            is_packed = seen.headers.get("content-encoding") == "gzip"
            row = json.loads(gzip.decompress(seen.body) if is_packed else seen.body)
            self.times[row["n"]] += 1
            if not self.answer(talk, row["n"], self.times[row["n"]]):
                return

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        """Answer one attempt of a row; False: the connection is closed."""
        talk.answer()
        return True


class FirstIsInDoubt(Story):
    """Break the connection on the first attempt at row 5, say 409 to the second, and take the third."""

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        if number != 5 or attempt > 2:
            talk.answer()
        elif attempt == 2:
            talk.answer(b"{}", "409 Conflict")
        else:
            talk.reset()
            return False
        return True


class Folded(Story):
    """Answer with a header over two lines, as servers of old do."""

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        talk.send(b"HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\nContent-Length: 2\r\n\r\nok")
        return True


class TwoLengths(Story):
    """Answer row 3 with a length and in chunks, which proxies read in two ways."""

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        length = b"Transfer-Encoding: chunked\r\n" if number == 3 else b""
        body = b"2\r\nok\r\n0\r\n\r\n" if number == 3 else b"ok"
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + length + b"\r\n" + body)
        return number != 3


class FailsFirst(Story):
    """Fail the first attempt at each row."""

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        talk.answer(b"", "200 OK" if attempt > 1 else "500 Oops")
        return True


class Echoes(Story):
    """Refuse row 7 with all that it has sent."""

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        echo = json.dumps(dict(talk.server.seen[-1].headers)).encode()
        talk.answer(echo, "400 Bad Request" if number == 7 else "200 OK")
        return True


class Ran:
    """What is left of a run."""

    def __init__(self, lake: Lake, servers: dict[str, Scripted]) -> None:
        self.lake = lake
        self.servers = servers

    def receipts(self, route: str) -> list[dict[str, Any]]:
        """Return the receipts of a route's sink."""
        return [row for row in self.rows("ops.receipts") if row["route"] == route]

    def statuses(self, route: str) -> Counter[str]:
        """Return how many receipts say what."""
        return Counter(row["status"] for row in self.receipts(route))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return read_rows(self.lake, table)


STORIES: dict[str, tuple[type[Story], dict[str, Any]]] = {
    "doubt": (FirstIsInDoubt, {}),
    "folded": (Folded, {}),
    "lengths": (TwoLengths, {"retry": {"attempts": 1, "rounds": 1}}),
    "headers": (Story, {"headers": {"X-Game": "{event.game}", "X-Kind": "win"}}),
    "order": (FailsFirst, {"ordering": "per_key", "key": "event.game"}),
    "sigv4": (Story, {"auth": {"sigv4": AWS}, "gzip": True}),
    "jwt": (Story, {"auth": {"jwt": {"private_key": PEM, "issuer": "router", "subject": "s", "audience": "api"}}}),
    "basic": (Echoes, {"auth": {"basic": {"user": "router", "password": PASSWORD}}}),
}


def write_configuration(folder: Path, rows: list[dict[str, Any]], routes: list[dict[str, Any]]) -> Path:
    """Write rows, and a configuration that reads them; return its file."""
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text("\n".join(map(json.dumps, rows)))
    file = folder / "games.yaml"
    file.write_text(YAML.format(folder=folder, routes=json.dumps(routes)))
    return file


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run one configuration with all stories."""
    folder = tmp_path_factory.mktemp("through")
    rows = [{"n": number, "game": GAMES[number % len(GAMES)]} for number in range(ROWS)]
    registry = load_registry()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        shorten_outages(patch)
        servers = {}
        routes = []
        for name, (story, options) in STORIES.items():
            servers[name] = stack.enter_context(Scripted(story()))
            sink = {"url": servers[name].url, "rows_per_call": 1, **options}
            routes.append({"name": name, "match": {"sql": "true"}, "sinks": [{"rest": sink}]})
        file = write_configuration(folder, rows, routes)
        run(load_config(file, registry, environ={}), registry, spark)
    return Ran(Lake.at(f"{folder}/lake"), servers)


def test_a_409_to_a_row_in_doubt_is_no_refusal(ran: Ran) -> None:
    """Without it a row that arrived, and whose first attempt is still at work, is a dead letter."""
    attempts = [seen for seen in ran.servers["doubt"].seen if json.loads(seen.body)["n"] == 5]

    assert len(attempts) == 3
    assert len({seen.headers["idempotency-key"] for seen in attempts}) == 1
    assert ran.statuses("doubt") == {"delivered": ROWS}
    doubtful = [row["offset"] for row in ran.receipts("doubt") if row["in_doubt"]]
    assert len(doubtful) == 1


def test_a_header_over_two_lines_is_read(ran: Ran) -> None:
    """Without it each answer of an old server leaves its row in doubt."""
    assert ran.statuses("folded") == {"delivered": ROWS}
    assert not any(row["in_doubt"] for row in ran.receipts("folded"))


def test_an_answer_with_two_lengths_sets_its_row_aside(ran: Ran) -> None:
    """Without it one answer that nobody can read holds up all other rows."""
    assert ran.statuses("lengths") == {"delivered": ROWS - 1, "parked": 1}
    (parked,) = (row for row in ran.receipts("lengths") if row["status"] == "parked")
    assert parked["in_doubt"]


def test_headers_have_the_values_of_their_row(ran: Ran) -> None:
    """Without it a row goes to the account of another."""
    for seen in ran.servers["headers"].seen:
        assert seen.headers["x-game"] == json.loads(seen.body)["game"]
        assert seen.headers["x-kind"] == "win"


def test_rows_of_a_key_stay_in_order_while_all_are_tried_again(ran: Ran) -> None:
    """Without it a player's last state is overtaken by the one before."""
    arrived: dict[str, list[int]] = defaultdict(list)
    for seen in ran.servers["order"].seen:
        row = json.loads(seen.body)
        arrived[row["game"]].append(row["n"])

    for game, numbers in arrived.items():
        assert numbers == sorted(numbers), game
    assert Counter(number for numbers in arrived.values() for number in numbers) == dict.fromkeys(range(ROWS), 2)
    assert ran.statuses("order") == {"delivered": ROWS}


def test_calls_are_signed_for_aws(ran: Ran) -> None:
    """Without it AWS answers 403 to a sink whose parts were tested well."""
    assert len(ran.servers["sigv4"].seen) == ROWS
    for seen in ran.servers["sigv4"].seen:
        verify_aws(seen)


def test_calls_have_a_token_that_the_driver_signed(ran: Ran) -> None:
    """Without it tasks would need the private key, or have no token."""
    for seen in ran.servers["jwt"].seen:
        scheme, _, token = seen.headers["authorization"].partition(" ")
        claims = jwt.decode(token, KEY.public_key(), algorithms=["ES256"], audience="api")
        assert (scheme, claims["iss"], claims["sub"]) == ("Bearer", "router", "s")


def test_an_answer_that_echoes_the_password_keeps_it_nowhere(ran: Ran) -> None:
    """Without it a password stands in a table that many may read."""
    encoded = base64.b64encode(f"router:{PASSWORD}".encode()).decode()
    assert all(seen.headers["authorization"] == f"Basic {encoded}" for seen in ran.servers["basic"].seen)
    assert ran.statuses("basic") == {"delivered": ROWS - 1, "dead": 1}
    for table in ("ops.receipts", "ops.dead"):
        written = repr(ran.rows(table))
        assert "idempotency-key" in written, "the rest of the echo is there"
        for secret in (PASSWORD, encoded, HUSH, PEM.splitlines()[1]):
            assert secret not in written


class Slow(Story):
    """Take time for each answer, and count the calls that are under way together."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.under_way = 0
        self.most = 0

    def answer(self, talk: Talk, number: int, attempt: int) -> bool:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(0.3)
        with self.lock:
            self.under_way -= 1
        talk.answer()
        return True


@pytest.mark.parametrize(("gzip", "together"), [(False, 4), (True, 3)], ids=["plain", "gzip"])
def test_large_calls_under_way_stay_within_the_bound_on_memory(
    spark: SparkSession, tmp_path: Path, gzip: bool, together: int
) -> None:
    """Without it a task holds all its calls in memory, each up to three times: the rows, the body and its gzip."""
    rows = [{"n": number, "game": "uno"} for number in range(ROWS)]
    story = Slow()
    with Scripted(story) as server:
        sink = {"url": server.url, "rows_per_call": 1, "bytes_in_flight": 9_500_000, "tasks": 1, "gzip": gzip}
        select = ["event.n", "repeat('x', 1000000) AS pad"]
        routes = [{"name": "large", "match": {"sql": "true"}, "select": select, "sinks": [{"rest": sink}]}]
        file = write_configuration(tmp_path, rows, routes)
        registry = load_registry()
        run(load_config(file, registry, environ={}), registry, spark)

    assert sorted(story.times) == [*range(ROWS)]
    assert 1 < story.most <= together


def test_a_limit_of_an_hour_is_kept_over_restarts(
    api: Api, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each restart has an hour's calls of its own, and the account is blocked."""
    shorten_outages(monkeypatch)
    api.reset()
    sink = {"url": f"{api.url}/wins", "rows_per_call": 1, "limits": [{"calls": 50, "per": "hour"}]}
    routes = [{"name": "wins", "match": {"sql": "true"}, "sinks": [{"rest": sink}]}]
    file = write_configuration(tmp_path, [{"n": number} for number in range(60)], routes)
    registry = load_registry()

    for start in range(3):
        stop = threading.Event()
        options = RunOptions(Trigger(once=True), stop=stop)
        stream = threading.Thread(target=run, args=(load_config(file, registry, environ={}), registry, spark, options))
        stream.start()
        if start == 0:
            until_arrived(api, 50)
        time.sleep(1.0)  # time in which a call too many would come
        stop.set()
        stream.join(60)
        assert not stream.is_alive()
        assert api.stats().arrived == 50, f"start {start + 1}"

    assert sum(api.rows("n").values()) == 50


def until_arrived(api: Api, calls: int) -> None:
    """Wait until so many calls have arrived."""
    end = time.monotonic() + 120
    while api.stats().arrived < calls:
        assert time.monotonic() < end
        time.sleep(0.05)
