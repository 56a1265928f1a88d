"""Tables are made anew of a topic; one that has lost its first records is refused."""

from __future__ import annotations

import signal

import pytest

from router.config.loader import load_config
from router.engine.audit.verify import verify_tables
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.reprocess.context import ReprocessContext
from router.engine.reprocess.refresh import Refresh
from router.errors import StartError
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, WINS, configuration, delete_records_before
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
slow = pytest.mark.slow

LAST = {
    "name": "last",
    "match": {"sql": "event.game IS NOT NULL"},
    "sinks": [{"upsert": {"table": "silver.last", "keys": ["event.game"]}}],
}


@slow
def test_tables_are_made_anew_of_the_topic(drain, new_topic, spark, registry, tmp_path):
    """Without it a lake that keeps no bronze can be brought up to a changed configuration by nobody."""
    topic = new_topic()
    config = configuration(tmp_path, topic, bronze=None, routes=[GAMES, WINS, LAST])
    topic.simulate(400)
    drain(config)
    topic.simulate(400, seed=1)
    drain(config)
    topic.simulate(50, seed=2)  # not read yet: not in the tables either
    loaded = load_config(config, registry).config
    lake, checkpoint = lake_and_checkpoint(loaded)
    before = lakes.contents(tmp_path / "lake")
    silver = [table for table in before if table.startswith("silver.")]
    victim = lake.open("silver.wins")
    victim.delete()

    def refreshed():
        return Refresh(
            ReprocessContext(loaded, spark.newSession(), lake, checkpoint), ("silver.*",), topic=True, accept=True
        ).run()

    done = refreshed()
    after = lakes.contents(tmp_path / "lake")
    assert silver
    assert done.failed == {}
    assert {one.table for one in done.done} == set(silver)
    assert lakes.differences({t: after[t] for t in silver}, {t: before[t] for t in silver}) == []

    delete_records_before(topic, (3, 0, 0))
    with pytest.raises(StartError, match="begins with offset 3"):
        refreshed()


@slow
def test_tables_are_made_anew_beside_a_stream_of_another_process(router_run, new_topic, spark, registry, tmp_path):
    """Without it a refresh takes what the stream lands meanwhile, or lands it twice."""
    topic, rounds = new_topic(), 6
    config = configuration(tmp_path, topic, rows=200, routes=[GAMES, WINS])
    loaded = load_config(config, registry).config
    lake, checkpoint = lake_and_checkpoint(loaded)
    sent = topic.simulate(300)
    router = router_run(config)
    wait_until(lambda: lakes.read(tmp_path / "lake", "ops.ledger"), "the first batch")
    done = 0
    for number in range(rounds):
        sent += topic.simulate(300, seed=number + 1)  # the stream is at work while the tables are made anew
        made = Refresh(ReprocessContext(loaded, spark.newSession(), lake, checkpoint), ("silver.*",)).run()
        assert made.failed == {}
        done += len(made.done)
    wait_until(lambda: len(lakes.read(tmp_path / "lake", "bronze.events")) == 300 * (rounds + 1), "every record")
    wait_until(
        lambda: sum(r["read"] or 0 for r in lakes.read(tmp_path / "lake", "ops.ledger")) == 300 * (rounds + 1), "end"
    )
    router.send(signal.SIGTERM)
    assert router.ended() == 0, router.said
    assert done >= rounds * len(sent)
    found = lakes.contents(tmp_path / "lake")
    assert {game: found[f"silver.{game}"].total() for game in sent} == sent
    assert [problem for audit in verify_tables(loaded) for problem in audit.problems] == []
