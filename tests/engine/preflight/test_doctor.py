"""`router doctor` says one line for each thing that a configuration needs, and what to do where it is not there."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from router import registry as parts_on_offer
from router.cli import commands
from router.config.loader import load_config
from router.engine.preflight import doctor
from router.engine.preflight.doctor import diagnose_clocks, diagnose_memory, diagnose_storage, memory_limit
from router.errors import StartError
from router_demo.embedded import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIB = 1 << 30


class Handler(BaseHTTPRequestHandler):
    """A server that notes what it is asked, and whose clock may be wrong."""

    asked: list[str]
    status = 200
    ahead = 0.0

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        type(self).asked.append(f"{self.command} {self.path}")
        body = b"[]" if self.status == 200 else b"{}"
        self.send_response_only(self.status)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Handler]]]:
    monkeypatch.setenv("NO_PROXY", "*")
    handler = type("Own", (Handler,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


NOWHERE = "http://127.0.0.1:1"


def configuration(folder: Path, url: str, registry: str, servers: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(
        f"name: x\nlake: {folder}/lake\n"
        f"source: {{kafka: {{servers: '{servers}', topics: [t]}}}}\n"
        f"decode: {{avro: {{registry: '{registry}'}}}}\n"
        "routes:\n"
        "  - name: all\n"
        "    match: {sql: 'true'}\n"
        f"    sinks: [{{rest: {{url: '{url}/events/{{event.a}}'}}}}]\n"
        "dead_letters: ops.dead\n"
    )
    return path


def said(*arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    result = CliRunner().invoke(commands, ["doctor", "--json", *arguments])
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(result.stdout):
        found.setdefault(one["subject"], []).append(one)
    return result.exit_code, found


def test_without_a_configuration_the_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, found = said()
    assert code == 1
    assert found["Java"][0]["state"] == "wrong"
    assert str(tmp_path) in found["Java"][0]["what"]
    assert {"Spark and Delta", "jars", "memory"} <= set(found)


@pytest.mark.parametrize(
    ("spark", "reached", "state"),
    [({}, True, "warn"), ({}, False, "wrong"), ({"spark.jars.ivySettings": "ivy.xml"}, False, "warn")],
    ids=["network", "no network", "a repository of their own"],
)
def test_jars_that_are_not_here_are_named_and_whether_they_can_be_fetched(
    spark: dict[str, str], reached: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a machine without a network learns at its first start, after minutes, what it lacks."""

    def connection(address: tuple[str, int], seconds: float) -> socket.socket:
        if not reached:
            raise OSError("Network is unreachable")
        return socket.socket()

    monkeypatch.setattr(doctor, "known_jars", lambda *_: [])
    monkeypatch.setattr(socket, "create_connection", connection)
    found = doctor.diagnose_jars(frozenset({"kafka"}), spark)
    assert found.state == state
    assert found.todo
    assert "\n" not in found.what + found.todo


def test_a_server_that_answers_is_ok_and_got_no_event(tmp_path: Path, api: tuple[str, type[Handler]]) -> None:
    url, handler = api
    _, found = said(str(configuration(tmp_path, url, url, f"127.0.0.1:{free_ports(1)[0]}")))
    assert found["API"][0]["state"] == "ok"
    assert found["schema registry"][0]["state"] == "ok"
    assert sorted(set(handler.asked)) == ["GET /subjects", "HEAD /"]
    assert found["clocks"][0]["state"] == "ok"
    assert not (tmp_path / "lake").exists()  # a look leaves nothing


def test_what_is_away_is_named_with_the_next_step(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    code, found = said(str(configuration(tmp_path, url, url, f"127.0.0.1:{port}")))
    assert code == 1
    for subject in ("broker", "API", "schema registry"):
        (one,) = found[subject]
        assert one["state"] == "wrong"
        assert str(port) in one["what"]
        assert one["todo"]


def test_a_registry_that_refuses_the_login_is_wrong(tmp_path: Path, api: tuple[str, type[Handler]]) -> None:
    url, handler = api
    handler.status = 401
    _, found = said(str(configuration(tmp_path, url, url, f"127.0.0.1:{free_ports(1)[0]}")))
    assert found["schema registry"][0]["state"] == "wrong"
    assert found["API"][0]["state"] == "ok"  # what its login takes only a call would tell


def test_a_file_of_certificates_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = configuration(tmp_path, "https://127.0.0.1:9", "http://127.0.0.1:9", "127.0.0.1:9")
    path.write_text(path.read_text().replace("{event.a}'", "{event.a}', tls: {ca: gone.pem}"))
    _, found = said(str(path))
    assert found["API"][0]["state"] == "wrong"
    assert str(tmp_path / "gone.pem") in found["API"][0]["what"]


def test_a_clock_that_is_wrong_is_named(tmp_path: Path, api: tuple[str, type[Handler]]) -> None:
    url, handler = api
    handler.ahead = 3600
    _, found = said(str(configuration(tmp_path, url, url, f"127.0.0.1:{free_ports(1)[0]}")))
    assert found["clocks"][0]["state"] == "warn"
    assert "ahead" in found["clocks"][0]["what"]
    assert "behind" in diagnose_clocks({"x": -3600}).what


@pytest.mark.parametrize(
    ("checkpoint", "jars", "states"),
    [
        (None, None, ["warn"]),
        ("s3://lake/checkpoint", None, ["warn", "warn"]),
        ("/checkpoint", "org.apache.hadoop:hadoop-aws:3.5.0", ["ok"]),
    ],
    ids=["in the lake", "in a bucket", "jars are named"],
)
def test_a_bucket_that_spark_has_to_reach_is_named(
    tmp_path: Path, checkpoint: str | None, jars: str | None, states: list[str]
) -> None:
    """Without it the doctor finds nothing, and the start is refused."""
    loaded = load_config(configuration(tmp_path, NOWHERE, NOWHERE, "127.0.0.1:1"), parts_on_offer.load_registry([]))
    changes = {"lake": "s3://lake/a", "checkpoint": checkpoint, "spark": {"spark.jars.packages": jars} if jars else {}}
    found = [*doctor.diagnose_file_systems(loaded.config.model_copy(update=changes))]
    assert [line.state for line in found] == states
    assert "the sink rest of the route all (Spark reads its outbox)" in found[0].what
    assert not [*doctor.diagnose_file_systems(loaded.config)]


def test_a_faulty_configuration_is_named_and_the_machine_is_looked_at_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\n")
    code, found = said(str(path))
    assert code == 1
    assert all(one["state"] == "wrong" for one in found["configuration"])
    assert "Java" in found


@pytest.mark.parametrize(
    ("path", "states"),
    [("in", ["ok"]), ("nowhere", ["wrong"]), ("nowhere/*.json", []), ("s3://nowhere/in", [])],
    ids=["folder", "missing", "pattern", "bucket"],
)
def test_a_folder_of_the_source_that_is_missing_is_named(tmp_path: Path, path: str, states: list[str]) -> None:
    (tmp_path / "in").mkdir()
    place = path if "://" in path else tmp_path / path
    configured = configuration(tmp_path, NOWHERE, NOWHERE, "127.0.0.1:1")
    text = configured.read_text().replace("kafka: {servers: '127.0.0.1:1', topics: [t]}", f"files: {{path: '{place}'}}")
    configured.write_text(text)

    _, found = said(str(configured))
    assert [one["state"] for one in found.get("source", [])] == states


def test_people_get_a_line_for_each(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = configuration(tmp_path, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}", f"127.0.0.1:{port}")
    result = CliRunner().invoke(commands, ["doctor", str(path)])
    assert all(line.split()[0] in ("ok", "warn", "wrong") for line in result.stdout.splitlines())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_wrong(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert diagnose_storage("lake", str(tmp_path / "lake"), {}).state == "wrong"


def test_a_file_in_the_place_of_the_lake_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("")
    assert diagnose_storage("lake", str(tmp_path / "lake"), {}).state == "wrong"


def test_a_file_system_without_atomic_create_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it two commits of one version overwrite each other on a mounted bucket."""

    def refused(place: str, options: dict[str, str]) -> None:
        raise StartError(f"{place} cannot hold a lake")

    monkeypatch.setattr(doctor, "probe_conditional_writes", refused)
    assert diagnose_storage("lake", str(tmp_path), {}).state == "wrong"


@pytest.mark.parametrize(("free", "state"), [(GIB // 2, "wrong"), (5 * GIB, "warn"), (50 * GIB, "ok")])
def test_a_disk_that_fills_is_named(tmp_path: Path, free: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: doctor.shutil._ntuple_diskusage(0, 0, free))
    assert diagnose_storage("lake", str(tmp_path), {}).state == state


@pytest.mark.parametrize(
    ("heap", "limit", "state"),
    [("1g", 64, "ok"), ("1g", 2, "warn"), ("8g", 4, "wrong"), ("much", 64, "wrong"), ("1g", 0, "ok")],
)
def test_a_heap_that_does_not_fit_is_named(heap: str, limit: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert diagnose_memory({"spark.driver.memory": heap}, limit * GIB).state == state


def test_the_limit_of_a_container_counts_before_that_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert memory_limit(tmp_path) == GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) > GIB


def test_an_extra_that_is_missing_is_one_sentence_of_check_and_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the stream says so when its first batch comes."""
    path = tmp_path / "x.yaml"
    path.write_text(
        f"name: x\nlake: {tmp_path}/lake\nbronze: b.b\nsource: {{files: {{path: ./in}}}}\n"
        "decode: {protobuf: {registry: 'http://127.0.0.1:9'}}\ndead_letters: ops.dead\n"
    )
    assert CliRunner().invoke(commands, ["check", str(path)]).exit_code == 0
    monkeypatch.setattr(parts_on_offer, "_is_installed", lambda module: False)
    result = CliRunner().invoke(commands, ["check", str(path)])
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
    assert "spark-event-router[protobuf]" in result.stdout
    _, found = said(str(path))
    assert found["extras"][0]["state"] == "wrong"
    assert "pip install" in found["extras"][0]["todo"]
