"""Tables are made anew of a topic; one that has lost its first records is refused."""

from __future__ import annotations

import pytest

from router.config.loader import load
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.tables.refresh import Refresh
from router.errors import StartError
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, WINS, configuration
from tests.chaos.test_lost_records import delete_before

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

LAST = {
    "name": "last",
    "match": {"sql": "event.game IS NOT NULL"},
    "sinks": [{"upsert": {"table": "silver.last", "keys": ["event.game"]}}],
}


def test_tables_are_made_anew_of_the_topic(drain, new_topic, spark, registry, tmp_path):
    """Without it a lake that keeps no bronze can be brought up to a changed configuration by nobody."""
    topic = new_topic()
    config = configuration(tmp_path, topic, bronze=None, routes=[GAMES, WINS, LAST])
    topic.simulate(400)
    drain(config)
    topic.simulate(400, seed=1)
    drain(config)
    topic.simulate(50, seed=2)  # not read yet: not in the tables either
    loaded = load(config, registry).config
    lake, checkpoint = lake_and_checkpoint(loaded)
    before = lakes.contents(tmp_path / "lake")
    silver = [table for table in before if table.startswith("silver.")]
    victim = lake.open("silver.wins")
    victim.delete()

    def refreshed():
        return Refresh(loaded, spark.newSession(), lake, checkpoint, ("silver.*",), topic=True, accept=True).run()

    done = refreshed()
    after = lakes.contents(tmp_path / "lake")
    assert silver
    assert done.failed == {}
    assert {one.table for one in done.done} == set(silver)
    assert lakes.differences({t: after[t] for t in silver}, {t: before[t] for t in silver}) == []

    delete_before(topic, (3, 0, 0))
    with pytest.raises(StartError, match="begins with offset 3"):
        refreshed()
