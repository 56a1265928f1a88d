"""Tables are known to a catalog that outlives a session, and a debugging run beside it leaves the catalog alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import configuration
from tests.light import LIGHT

if TYPE_CHECKING:
    from pathlib import Path

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
