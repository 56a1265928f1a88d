"""Tables are known to a catalog that outlives a session, and a debugging run beside it leaves the catalog alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from router_demo.embedded import find_java, free_ports, is_open
from tests.chaos import lakes
from tests.chaos.conftest import configuration
from tests.light import LIGHT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 70
LOOK = """
import json, sys
from router.config.models import Config
from router.engine.spark.session import build_session, stop_session
spark = build_session(Config.model_construct(name="look", spark=json.loads(sys.argv[1])), "local[1]")
found = {}
for (layer,) in spark.sql("SHOW SCHEMAS").collect():
    for table in spark.sql(f"SHOW TABLES IN {layer}").collect():
        name = f"{layer}.{table['tableName']}"
        place = spark.sql(f"DESCRIBE DETAIL {name}").first()["location"]
        found[name] = [spark.table(name).count(), place.removeprefix("file:")]
print(json.dumps(found))
stop_session(spark)
"""


@pytest.fixture
def hive(tmp_path) -> dict[str, str]:
    """Return the settings of a Hive metastore in an embedded Derby: one process at a time may use it."""
    database = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    return {
        **LIGHT,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
    }


def catalogued(settings: dict[str, str], cwd: Path) -> dict[str, Any]:
    """Return what a session of its own finds in the catalog: name -> rows and place."""
    command = [sys.executable, "-c", LOOK, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_another_session_knows_the_tables_and_a_debugging_run_changes_none(new_topic, router_run, hive, tmp_path):
    topic = new_topic()
    games = topic.simulate(EVENTS)
    config = configuration(tmp_path, topic, register=True, spark=hive)
    first = router_run(config, "--once")
    assert first.ended() == 0, first.said

    known = catalogued(hive, tmp_path)
    lake = tmp_path / "lake"
    assert {name: rows for name, (rows, _) in known.items() if name.startswith("silver.")} == {
        **{f"silver.{game}": count for game, count in games.items()},
        **({"silver.wins": len(wins)} if (wins := lakes.read(lake, "silver.wins")) else {}),
    }
    assert known["silver.uno"][1] == str(lake / "silver" / "uno")

    debugged = router_run(config, "--once", "--debug")
    assert debugged.ended() == 0, debugged.said
    assert lakes.places(tmp_path / "lake_debug").total() == EVENTS, "it has read the topic, too"

    topic.simulate(EVENTS, seed=1)
    again = router_run(config, "--once")
    assert again.ended() == 0, again.said
    after = catalogued(hive, tmp_path)
    assert {name: after[name][1] for name in known} == {name: place for name, (_, place) in known.items()}
    assert after["bronze.events"][0] == 2 * EVENTS


@contextmanager
def metastore(folder: Path, port: int) -> Iterator[dict[str, str]]:
    """Run Hive's metastore, which Spark's jars have, with its database in a folder; yield Spark's settings for it."""
    database = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    settings = {
        "javax.jdo.option.ConnectionURL": database,
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
        "hive.metastore.schema.verification": "false",
        "datanucleus.schema.autoCreateAll": "true",
    }
    # Its log writes through a library that Spark does not have, unless that is switched off.
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = [str(find_java()), "-Dhive.async.log.enabled=false", "-cp", str(jars)]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    for name, value in settings.items():
        command += ["--hiveconf", f"{name}={value}"]
    with (folder / "metastore.log").open("ab") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: is_open(port), f"a metastore at port {port}")
        yield {
            **LIGHT,
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
        }
    finally:
        server.kill()
        server.wait()


def test_two_runs_fill_one_catalog(new_topic, router_run, tmp_path):
    """Without it the second configuration of a team fails where both register the layers and tables that they share."""
    topic = new_topic()
    games = topic.simulate(EVENTS)
    (port,) = free_ports(1)
    with metastore(tmp_path, port) as settings:
        runs = []
        for name in ("one", "two"):
            changes = {"name": name, "bronze": f"bronze.{name}", "ledger": f"ops.ledger_{name}"}
            lake = {"lake": str(tmp_path / "lake"), "dead_letters": f"ops.dead_{name}"}
            config = configuration(tmp_path / name, topic, register=True, spark=settings, **changes, **lake)
            runs.append(router_run(config, "--once"))
        assert [run.ended() for run in runs] == [0, 0], "\n".join(run.said for run in runs)

        known = catalogued(settings, tmp_path)
        assert {name: rows for name, (rows, _) in known.items() if name in ("bronze.one", "bronze.two")} == {
            "bronze.one": EVENTS,
            "bronze.two": EVENTS,
        }
        for game, events in games.items():
            assert known[f"silver.{game}"] == [2 * events, str(tmp_path / "lake" / "silver" / game)]


def test_a_metastore_that_is_down_holds_up_no_batch(new_topic, router_run, tmp_path):
    """Without it the stream ends when a game appears while the metastore is restarted."""
    topic = new_topic()
    (port,) = free_ports(1)
    with metastore(tmp_path, port) as settings:
        config = configuration(tmp_path, topic, register=True, spark=settings)
        run = router_run(config, "--continuous")
        topic.send([b'{"game": "early", "amount": 1}'])
        run.says("games batch 0: 1 rows")
    topic.send([b'{"game": "late", "amount": 1}'])
    run.says("the catalog does not take silver.late: ")
    run.says("games batch 1: 1 rows")
    assert len(lakes.read(tmp_path / "lake", "silver.late")) == 1

    with metastore(tmp_path, port) as settings:

        def is_registered() -> bool:
            topic.send([b'{"game": "early", "amount": 1}'])  # a batch, after which the catalog is asked again
            time.sleep(2)
            return "the catalog takes tables again" in run.said

        wait_until(is_registered, "a catalog that takes tables again")
        run.send(signal.SIGTERM)
        assert run.ended() == 0, run.said
        assert "silver.late" in catalogued(settings, tmp_path)
