"""A router whose lake and checkpoint lie in an object store: killed at steps, two at once, both committers."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pyarrow import fs

from benchmarks.s3_server import Fault, S3Server
from router.delta.lake import Lake
from tests.light import LIGHT
from tests.s3_servers import SERVERS, lake_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FILES, ROWS, GAMES = 3, 20, 3
S3A = sorted(Path(os.environ.get("S3A_JARS", "/nowhere")).glob("*.jar"))
"""hadoop-aws and what it needs, more than 500 MB: a folder that the variable S3A_JARS names."""
needs_s3a = pytest.mark.skipif(not S3A, reason="S3A_JARS names no folder with hadoop-aws and its bundle")
EXPECTED = {f"silver.g{game}": Counter(range(game, FILES * ROWS, GAMES)) for game in range(GAMES)}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    """Run an S3 server."""
    with lake_on(request.param) as found:
        yield found


def configuration(folder: Path, server: S3Server, *, far: bool, **changes: Any) -> Path:
    """Write a configuration that reads three files, a batch each; with `far` the checkpoint is in the bucket, too."""
    (folder / "events").mkdir()
    for file in range(FILES):
        lines = [json.dumps({"game": f"g{n % GAMES}", "n": n}) for n in range(file * ROWS, (file + 1) * ROWS)]
        (folder / "events" / f"{file}.jsonl").write_text("\n".join([*lines, "no JSON"]))
        os.utime(folder / "events" / f"{file}.jsonl", (file + 1, file + 1))
    jars = os.pathsep.join(map(str, S3A))
    text = {
        "name": "games",
        "lake": f"s3://lake/{folder.name}",
        "storage_options": server.options,
        "checkpoint": None if far else str(folder / "checkpoint"),
        "source": {"files": {"path": str(folder / "events"), "files_per_batch": 1}},
        "decode": {"json": {"schema": "game string, n int"}},
        "bronze": "bronze.events",
        "routes": [{"name": "games", "match": {"sql": "true"}, "sinks": [{"tables": "silver.{event.game}"}]}],
        "dead_letters": "ops.dead_letters",
        "spark": {**LIGHT, **({"spark.driver.extraClassPath": jars} if S3A else {})},
        **changes,
    }
    path = folder / "games.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in text.items() if value is not None}))
    return path


def with_the_secret(folder: Path, lake: Lake) -> list[str]:
    """Return the files of lake and checkpoint, and the logs, in which the key of the lake stands."""
    found = [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    listed = lake.files.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
    found += [(info.path, lake.read(info.path) or b"") for info in listed]
    assert any(path.endswith(".log") for path, _ in found)
    assert any("manifests" in path for path, _ in found)
    return [path for path, content in found if b"hush-hush" in content]


def assert_whole(folder: Path, server: S3Server) -> None:
    """Compare the lake with what was sent; no file of it, of its checkpoint, and no log, has its key."""
    lake = Lake.at(f"s3://lake/{folder.name}", server.options)
    assert with_the_secret(folder, lake) == []
    found = {}
    for table in lake.table_names("silver"):
        handle = lake.open(table)
        assert handle is not None
        found[table] = Counter(handle.to_pyarrow_table().column("n").to_pylist())
    assert found == EXPECTED
    for table, rows in (("bronze.events", FILES * (ROWS + 1)), ("ops.dead_letters", FILES)):
        handle = lake.open(table)
        assert handle is not None
        assert handle.to_pyarrow_table().num_rows == rows


@pytest.mark.parametrize("point", ["plan", "manifest", "commits", "ledger"])
@pytest.mark.parametrize("far", [False, pytest.param(True, marks=needs_s3a)], ids=["lake", "lake and checkpoint"])
def test_a_killed_run_goes_on(start: Any, server: S3Server, tmp_path: Path, point: str, *, far: bool) -> None:
    """Without it rows are gone, or twice in a table, after a kill."""
    config = configuration(tmp_path, server, far=far)
    killed = start(config, "--kill", point)

    assert killed.ended() == -signal.SIGKILL
    again = start(config)
    assert again.ended() == 0, again.said
    assert_whole(tmp_path, server)
    assert "hush-hush" not in killed.said + again.said


@needs_s3a
@pytest.mark.parametrize("point", ["plan", "manifest", "commits", "ledger"])
def test_a_chain_goes_on_where_both_runs_were_killed(start: Any, server: S3Server, tmp_path: Path, point: str) -> None:
    """Without it a configuration that reads a table of another one loses rows, or has them twice, after a kill."""
    first = configuration(tmp_path, server, far=False)
    written = yaml.safe_load(first.read_text())
    written |= {
        "name": "chained",
        "checkpoint": str(tmp_path / "chained"),
        "source": {"delta": {"table": "silver.g0", "files_per_batch": 1}},
        "bronze": None,
        "routes": [{"name": "gold", "match": {"sql": "true"}, "sinks": [{"tables": "gold.{event.game}"}]}],
        "dead_letters": "ops.chained_dead_letters",
    }
    second = tmp_path / "chained.yaml"
    second.write_text(yaml.safe_dump(written))

    assert start(first, "--kill", point).ended() == -signal.SIGKILL
    assert start(first).ended() == 0
    killed = start(second, "--kill", point)
    assert killed.ended() == -signal.SIGKILL, killed.said
    again = start(second)
    assert again.ended() == 0, again.said

    assert_whole(tmp_path, server)
    chained = Lake.at(f"s3://lake/{tmp_path.name}", server.options).open("gold.g0")
    assert chained is not None
    assert Counter(chained.to_pyarrow_table().column("n").to_pylist()) == EXPECTED["silver.g0"]


@needs_s3a
@pytest.mark.parametrize("commit", ["auto", "spark"])
def test_both_committers_write_to_a_bucket(start: Any, server: S3Server, tmp_path: Path, commit: str) -> None:
    """Without it `commit: spark` works on a disk only."""
    run = start(configuration(tmp_path, server, far=True, commit=commit))

    assert run.ended() == 0, run.said
    assert_whole(tmp_path, server)


@pytest.mark.parametrize("server", ["moto"], indirect=True)
def test_a_second_run_is_refused_and_a_slow_store_is_waited_for(start: Any, server: S3Server, tmp_path: Path) -> None:
    """Without it two runs share a checkpoint, and one busy answer ends a run."""
    config = configuration(tmp_path, server, far=bool(S3A))
    server.fail(
        Fault("PUT", "part-", "503 Slow Down", times=3),
        Fault("PUT", "_delta_log", "500 Internal Server Error", times=3, done=True),
        Fault("PUT", "manifests", seconds=10.0),
        Fault("GET", "_delta_log", times=3),
    )
    first = start(config)
    lock = Lake.at(f"s3://lake/{tmp_path.name}", server.options)
    wait_until(
        (lambda: lock.read("_router/games/lock")) if S3A else (tmp_path / "checkpoint/lock").exists, "the first runs"
    )
    second = start(config)

    assert second.ended() == 1
    assert "running already" in second.said
    assert first.ended() == 0, first.said
    server.fail()
    assert_whole(tmp_path, server)


@pytest.mark.skipif(bool(S3A), reason="S3A_JARS are on the class path")
def test_a_checkpoint_that_spark_cannot_reach_is_one_sentence(start: Any, server: S3Server, tmp_path: Path) -> None:
    """Without it the first start on a bucket ends in a hundred lines of Java."""
    run = start(configuration(tmp_path, server, far=True))

    assert run.ended() == 2
    assert "Spark cannot reach the checkpoint s3://lake" in run.said
    assert "hush-hush" not in run.said
