"""Records that Kafka deletes before they are read: the stream stops with their number, and goes on when told to."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from router import StartError
from router.engine import ledger
from router.engine.retryable_errors import is_temporary
from router.engine.start.spark_checkpoint import SparkNotes
from tests.chaos import lakes
from tests.chaos.conftest import PARTITIONS, configuration, delete_records_before
from tests.kills import CrashError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENT = b'{"game": "rummy", "amount": 1}'
SENT = (4, 3, 5)
"""Records of each partition in one round."""
KEPT = (6, 3, 7)
"""Where each partition begins after two rounds, when the broker has deleted 2, 0 and 2 records that nobody read."""
LOST = 2 + 0 + 2


def send(topic) -> None:
    for partition, many in enumerate(SENT):
        topic.send([EVENT] * many, partition)


@pytest.fixture
def expired(drain, new_topic, tmp_path):
    """Read one round, send another, and let some of it be deleted; return the configuration."""
    topic = new_topic()
    config = configuration(tmp_path, topic)
    send(topic)
    drain(config)
    send(topic)
    delete_records_before(topic, KEPT)
    return config, topic


def balanced(lake, events: int) -> None:
    """Assert that what was not deleted is there, each once, and that the ledger has the rest."""
    assert len(lakes.places(lake)) == lakes.places(lake).total() == events
    rows = lakes.read(lake, "ops.ledger")
    assert sum(row["read"] or 0 for row in rows) == events
    gaps = {(row["partition"], row["from_offset"], row["to_offset"], row["lost"]) for row in rows if row["lost"]}
    assert gaps == {(0, 4, 5, 2), (2, 5, 6, 2)}
    spans = sorted(
        (row["partition"], row["from_offset"], row["to_offset"])
        for row in rows
        if row["topic"] is not None and row["route"] is None
    )
    for number in range(PARTITIONS):
        ends = [(first, last) for partition, first, last in spans if partition == number]
        assert [first for first, _ in ends[1:]] == [last + 1 for _, last in ends[:-1]], (
            "the ledger has every offset once"
        )


def test_lost_records_stop_the_stream_until_they_are_accepted(drain, expired, tmp_path):
    config, topic = expired

    with pytest.raises(StartError, match="--accept lost-records") as refused:
        drain(config)
    assert not is_temporary(refused.value)
    assert refused.value.exit_code == 2
    assert f"{topic.name}/0 4 to 5 (2), {topic.name}/2 5 to 6 (2)" in str(refused.value)
    assert "has deleted 4 records" in str(refused.value)

    drain(config, accept={"lost-records"})
    balanced(tmp_path / "lake", 2 * sum(SENT) - LOST)
    send(topic)
    drain(config)
    balanced(tmp_path / "lake", 3 * sum(SENT) - LOST)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["ledger", "commits"])
def test_going_on_after_lost_records_may_be_cut_off(drain, expired, tmp_path, monkeypatch, step):
    config, _ = expired
    original = SparkNotes.write

    def crash(*_):
        raise CrashError

    def write(self, path, text):
        if path.partition("/")[0] == step:
            raise CrashError
        original(self, path, text)

    monkeypatch.setattr(SparkNotes, "write", write)
    if step == "ledger":
        monkeypatch.setattr(ledger, "append", crash)
    with pytest.raises(CrashError):
        drain(config, accept={"lost-records"})
    monkeypatch.undo()

    with pytest.raises(StartError, match="--accept lost-records"):
        drain(config)
    drain(config, accept={"lost-records"})
    balanced(tmp_path / "lake", 2 * sum(SENT) - LOST)


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(drain, new_topic, broker, tmp_path):
    topic = new_topic()
    config = configuration(tmp_path, topic)
    send(topic)
    drain(config)
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.delete_topics([topic.name], operation_timeout=60)[topic.name].result(60)
    broker.create_topic(topic.name, PARTITIONS)
    topic.send([EVENT], 0)

    for accept in (frozenset(), {"lost-records"}):
        with pytest.raises(StartError, match="created again"):
            drain(config, accept=accept)
    assert lakes.places(tmp_path / "lake").total() == sum(SENT)
