"""Records reach a real broker in order; what it refuses is refused by itself; nothing is skipped while it is away."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from router import Encoded, Encoding, StartError
from router_demo.embedded import is_open
from router_demo.kafka import EmbeddedKafka, await_topic
from router_sinks import kafka_client
from router_sinks.kafka_client import (
    BrokerAway,
    Cluster,
    Denied,
    PublishJob,
    Sender,
    outgoing_records,
    publish_task,
)
from router_sinks.kafka_topics import CreateTopics, Topics
from tests.conftest import LightKafka
from tests.sinks.topic import read_topic, topics_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router_sinks.kafka_client import Record

NOBODY = "127.0.0.1:1"


def records(topic: str, count: int, *, size: int = 20, first: int = 0) -> list[Record]:
    """Return numbered records with seven keys."""
    return [
        (topic, b"k%d" % (number % 7), b"%08d" % number + b"." * size, [("n", b"%d" % number)])
        for number in range(first, first + count)
    ]


def numbers(servers: str, topic: str) -> dict[bytes | None, list[int]]:
    """Return the numbers that arrived, by key, in the order of their partition."""
    found = defaultdict(list)
    for one in read_topic(servers, topic):
        assert one.value is not None
        found[one.key].append(int(one.value[:8]))
    return dict(found)


def wanted(count: int, without: tuple[int, ...] = ()) -> dict[bytes | None, list[int]]:
    """Return all numbers by key."""
    keys = {number % 7: b"k%d" % (number % 7) for number in range(count)}
    return {key: [n for n in range(count) if n % 7 == rest and n not in without] for rest, key in keys.items()}


@pytest.fixture
def sender(broker: EmbeddedKafka) -> Sender:
    return Sender({"bootstrap.servers": broker.servers}, timeout=20)


def test_records_arrive_in_order_with_key_and_headers(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it a consumer sees an older state of a player after a newer one."""
    broker.create_topic("sent-in-order", partitions=3)

    for part in (records("sent-in-order", 5000), records("sent-in-order", 5000, first=5000)):
        assert sender.send_records(part) == {}

    assert numbers(broker.servers, "sent-in-order") == wanted(10_000)
    arrived = read_topic(broker.servers, "sent-in-order")
    assert all(one.header("n") == str(int((one.value or b"")[:8])) for one in arrived)
    assert len({one.partition for one in arrived}) > 1
    assert sender.alone == 0


def test_a_record_that_is_too_large_is_refused_by_itself(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it its neighbours are dead letters with it, or come after those that follow."""
    broker.create_topic("sent-small", config={"max.message.bytes": "20000"})
    sent = records("sent-small", 3000)
    for large in (700, 1500):
        sent[large] = (sent[large][0], sent[large][1], sent[large][2] + b"x" * 30_000, [])

    refused = sender.send_records(sent)

    assert sorted(refused) == [700, 1500]
    assert "too large" in refused[700]
    assert numbers(broker.servers, "sent-small") == wanted(3000, (700, 1500))
    assert sender.send_records(records("sent-small", 10, first=3000)) == {}, "the sender goes on"


@pytest.mark.parametrize(
    ("config", "key", "size", "padding", "reason"),
    [
        pytest.param({"max.message.bytes": "1048588"}, b"k0", 20, 1_100_000, "too large", id="above the limit"),
        pytest.param(
            {"segment.bytes": "1048576", "max.message.bytes": "5000000"},
            *(b"k0", 20, 1_200_000, "segment size"),
            id="above the size of a segment",
        ),
        pytest.param({"cleanup.policy": "compact"}, None, 20_000, 0, "failed to validate", id="without its key"),
    ],
)
def test_a_final_refusal_never_holds_up_a_send(
    broker: EmbeddedKafka,
    sender: Sender,
    config: dict[str, str],
    key: bytes | None,
    size: int,
    padding: int,
    reason: str,
) -> None:
    """Without it records that return to the producer's queue are never reported, and the batch goes out again."""
    topic = f"sent-with-one-refusal-{padding}"
    broker.create_topic(topic, partitions=2, config=config)
    bad_numbers = []
    # Whether records return to the queue depends on how fast the broker answers, so one send proves little.
    for first in range(0, 1600, 200):
        sent = records(topic, 200, size=size, first=first)
        bad_numbers.append(first + 100)
        value = sent[100][2] + b"x" * padding
        sent[100] = (topic, key, value, [])

        refused = sender.send_records(sent)

        assert list(refused) == [100]
        assert reason in refused[100]
    arrived = numbers(broker.servers, topic)
    assert arrived == wanted(1600, tuple(bad_numbers)), "the neighbours are there in order, each once"


def test_records_with_a_timestamp_that_the_topic_forbids_are_refused(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it a topic with narrow limits for timestamps, or a clock that is wrong, holds up all other topics."""
    # Only a record that arrives in the millisecond of its timestamp is taken.
    broker.create_topic("sent-too-late", config={"message.timestamp.before.max.ms": "0"})
    broker.create_topic("sent-beside-too-late", partitions=2)
    for first in range(0, 400, 200):
        sent = []
        for too_late, neighbour in zip(
            records("sent-too-late", 200, size=20_000, first=first),
            records("sent-beside-too-late", 200, first=first),
            strict=True,
        ):
            sent.extend([too_late, neighbour])

        refused = sender.send_records(sent)

        assert refused
        assert all(position % 2 == 0 for position in refused), "only records for the topic with the limits"
        assert all("timestamp" in reason for reason in refused.values()), refused
    assert numbers(broker.servers, "sent-beside-too-late") == wanted(400)


def test_a_batch_that_is_too_large_for_the_topic_is_sent_in_smaller_ones(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it a topic with a small limit refuses good records."""
    broker.create_topic("sent-narrow", config={"max.message.bytes": "5000"})

    assert sender.send_records(records("sent-narrow", 2000, size=100)) == {}

    assert numbers(broker.servers, "sent-narrow") == wanted(2000)
    assert sender.alone > 0


def test_an_invalid_record_is_refused_by_itself(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it one record without a key takes its whole batch with it, or those behind it overtake it."""
    broker.create_topic("sent-compacted", config={"cleanup.policy": "compact"})
    sent = records("sent-compacted", 2000)
    bare = (3, 4, 500, 1999)
    for number in bare:
        sent[number] = (sent[number][0], None, sent[number][2], [])

    refused = sender.send_records(sent)

    assert sorted(refused) == list(bare)
    assert all("validate" in why or "key" in why for why in refused.values()), refused
    assert numbers(broker.servers, "sent-compacted") == wanted(2000, bare)


def test_a_record_beyond_every_limit_is_refused_without_asking(broker: EmbeddedKafka, sender: Sender) -> None:
    """Without it the broker cuts the connection, and the stream waits for ever."""
    broker.create_topic("sent-huge")

    refused = sender.send_records([("sent-huge", None, b"x" * (65 << 20), []), ("sent-huge", b"k0", b"00000000", [])])

    assert list(refused) == [0]
    assert numbers(broker.servers, "sent-huge") == {b"k0": [0]}


def test_a_broker_that_is_not_there_is_said_to_be_away() -> None:
    """Without it good records are refused because a broker is started again."""
    began = time.monotonic()

    with pytest.raises(BrokerAway, match="refused"):
        Sender({"bootstrap.servers": NOBODY}, timeout=1).send_records(records("any", 10))

    assert time.monotonic() - began < 10


def test_a_wrong_setting_is_named_without_its_value() -> None:
    """Without it the stream tries for ever, or the log has the password."""
    for settings in ({"security.protocol": "geheim"}, {"sasl.pass": "geheim"}, {"message.max.bytes": "geheim"}):
        with pytest.raises(StartError) as caught:
            Sender({"bootstrap.servers": NOBODY, **settings}, timeout=1).check_settings()
        assert next(iter(settings)) in str(caught.value)
        assert "geheim" not in str(caught.value)


def login(user: str, password: str = "") -> dict[str, str]:
    """Return the settings of a user of the guarded broker."""
    return {
        **{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
        **{"sasl.username": user, "sasl.password": password or f"{user}-secret"},
    }


class GuardedKafka(LightKafka):
    """A broker that asks for a login and for rights. `writer` writes to `open`, `reader` reads, `admin` does all."""

    def __init__(self) -> None:
        users = " ".join(f'user_{user}="{user}-secret"' for user in ("admin", "reader", "writer"))
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        super().__init__(
            {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin;User:ANONYMOUS",  # ANONYMOUS: the broker as its own controller
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.plaintext.plain.sasl.jaas.config": (
                    f'{plain} required username="admin" password="admin-secret" {users};'
                ),
            }
        )

    def settings_of(self, user: str, password: str = "") -> dict[str, str]:
        """Return what a client of a user needs."""
        return {"bootstrap.servers": self.servers, **login(user, password)}

    def _answers(self) -> bool:
        return is_open(self._port) and bool(AdminClient(self.settings_of("admin")).list_topics(timeout=10).brokers)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedKafka]:
    """Run a broker with three topics: each may be seen by all but `hidden`, and `writer` may write to `open`."""
    with GuardedKafka() as kafka:
        admin = AdminClient(kafka.settings_of("admin"))
        for topic in ("open", "forbidden", "hidden"):
            admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=30)
            await_topic(admin, topic, 2)
        rights = [("reader", "open", AclOperation.DESCRIBE), ("writer", "open", AclOperation.WRITE)]
        rights += [("reader", "forbidden", AclOperation.DESCRIBE), ("writer", "forbidden", AclOperation.DESCRIBE)]
        for user, topic, operation in rights:
            right = AclBinding(
                *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*"),
                *(operation, AclPermissionType.ALLOW),
            )
            admin.create_acls([right])[right].result(timeout=30)
        yield kafka


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        pytest.param("writer", "wrong-secret", "Invalid username or password", id="a wrong password"),
        pytest.param("nobody", "", "Invalid username or password", id="no such user"),
        pytest.param("reader", "", "Cluster authorization failed", id="a user who may write to no topic"),
    ],
)
def test_a_login_that_is_refused_is_not_waited_for(
    guarded: GuardedKafka, user: str, password: str, reason: str
) -> None:
    """Without it a wrong password looks like a broker that is away."""
    with pytest.raises(Denied, match=reason) as caught:
        Sender(guarded.settings_of(user, password), timeout=2, named_by_data=True).send_records(records("open", 10))

    assert "secret" not in str(caught.value)


def test_a_fixed_topic_that_a_login_may_not_write_to_is_named(guarded: GuardedKafka) -> None:
    """Without it a person has to guess for which of many topics a right is missing."""
    with pytest.raises(Denied, match=r"topic forbidden: .*Topic authorization failed"):
        Sender(guarded.settings_of("writer"), timeout=20).send_records(records("forbidden", 10))


@pytest.mark.parametrize("topic", ["forbidden", "hidden", "__consumer_offsets", "no topic"])
def test_topics_that_kafka_refuses_are_the_end_of_their_own_records_only(guarded: GuardedKafka, topic: str) -> None:
    """Without it one name in the data holds up all other topics, whose records are sent again and again."""
    # So short a queue that the client knows of the topic's fault before it has all records: then it refuses by itself.
    settings = {**guarded.settings_of("writer"), "queue.buffering.max.messages": "100"}
    before = len(read_topic(guarded.servers, "open", login("admin")))
    sent = []
    for refused_record, neighbour in zip(records(topic, 1000), records("open", 1000), strict=True):
        sent.extend([refused_record, neighbour])

    refused = Sender(settings, timeout=20, named_by_data=True).send_records(sent)

    assert sorted(refused) == list(range(0, 2000, 2))
    assert {reason.partition(":")[0] for reason in refused.values()} == {f"Kafka refuses records for topic {topic}"}
    arrived = defaultdict(list)
    for record in read_topic(guarded.servers, "open", login("admin")):
        arrived[record.key].append(int((record.value or b"")[:8]))
    assert sum(map(len, arrived.values())) == before + 1000, "each once"
    wanted_numbers = wanted(1000)
    for key, numbers_of_key in arrived.items():
        assert numbers_of_key[-len(wanted_numbers[key]) :] == wanted_numbers[key]


def test_topics_whose_records_do_not_arrive_are_named(broker: EmbeddedKafka) -> None:
    """Without it a person has to guess which of many topics has no leader."""
    for topic in ("sent-then-deleted", "sent-beside-deleted"):
        broker.create_topic(topic)
    sender = Sender({"bootstrap.servers": broker.servers}, timeout=8, named_by_data=True)
    assert sender.send_records(records("sent-then-deleted", 10)) == {}
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.delete_topics(["sent-then-deleted"])["sent-then-deleted"].result(timeout=30)

    with pytest.raises(BrokerAway, match=r"^nothing arrived for 8 s, for example in sent-then-deleted$"):
        sender.send_records([*records("sent-beside-deleted", 10), *records("sent-then-deleted", 10)])


def test_a_record_that_no_queue_of_the_client_can_hold_is_refused_by_itself(broker: EmbeddedKafka) -> None:
    """Without it the sink waits for room that there will never be."""
    broker.create_topic("sent-queued", config={"max.message.bytes": "5000000"})
    sender = Sender({"bootstrap.servers": broker.servers, "queue.buffering.max.kbytes": "1000"}, timeout=20)
    sent = records("sent-queued", 300, size=10_000)
    sent[100] = (sent[100][0], sent[100][1], b"x" * 2_000_000, [])

    refused = sender.send_records(sent)

    assert refused == {100: "it is larger than `queue.buffering.max.kbytes`"}
    assert numbers(broker.servers, "sent-queued") == wanted(300, (100,))


@pytest.mark.timeout(180)
def test_what_is_there_when_a_broker_goes_is_a_beginning(own_broker: EmbeddedKafka) -> None:
    """Without it a record is overtaken by those behind it, and who skips repetitions ends with the old one."""
    own_broker.create_topic("cut", partitions=3)
    sent = records("cut", 20_000, size=2000)
    sender = Sender({"bootstrap.servers": own_broker.servers, "linger.ms": "50", "batch.size": "20000"}, timeout=2)
    killer = threading.Timer(0.15, own_broker.kill)
    killer.start()
    try:
        sender.send_records(sent)
        pytest.skip("the broker was too quick")
    except BrokerAway:
        pass
    finally:
        killer.join()
    own_broker.start()

    before = numbers(own_broker.servers, "cut")
    for key, found in before.items():
        assert found == wanted(20_000)[key][: len(found)], "a gap"
    assert Sender({"bootstrap.servers": own_broker.servers}, timeout=30).send_records(sent) == {}
    after = numbers(own_broker.servers, "cut")
    assert after == {key: before.get(key, []) + every for key, every in wanted(20_000).items()}


@pytest.mark.timeout(180)
def test_a_short_absence_costs_nothing(own_broker: EmbeddedKafka) -> None:
    """Without it every election of a leader sends a batch twice."""
    own_broker.create_topic("blink")
    sender = Sender({"bootstrap.servers": own_broker.servers}, timeout=60)
    assert sender.send_records(records("blink", 100)) == {}
    own_broker.stop()
    starter = threading.Timer(2, own_broker.start)
    starter.start()

    assert sender.send_records(records("blink", 100, first=100)) == {}

    starter.join()
    assert numbers(own_broker.servers, "blink") == wanted(200)


def test_no_topic_is_created_by_accident(own_broker: EmbeddedKafka) -> None:
    """Without it every typing mistake, and every name in the data, makes a topic with the broker's defaults."""
    cluster = Cluster({"bootstrap.servers": own_broker.servers})

    with pytest.raises(StartError, match=r"there is no topic mistyped: create it, or set `create_topics`"):
        cluster.fixed_topics("mistyped", None, running=False)
    with pytest.raises(ConnectionError):
        cluster.fixed_topics("mistyped", None, running=True)
    assert cluster.matching_topics("mis{x}") == frozenset()
    with pytest.raises(BrokerAway):
        Sender({"bootstrap.servers": own_broker.servers}, timeout=2).send_records(records("mistyped", 1))
    assert "mistyped" not in topics_of(own_broker.servers)


def test_topics_are_created_as_said(broker: EmbeddedKafka) -> None:
    """Without it a new game has no topic until somebody makes one."""
    cluster, create = (
        Cluster({"bootstrap.servers": broker.servers}),
        CreateTopics(partitions=3, config={"retention.ms": "1"}),
    )
    broker.create_topic("made-a.b")

    refused = cluster.create_topics(["made-uno", "made-a.b", "made-a_b"], create)
    await_topic(cluster.admin, "made-uno", 3)  # a broker lists a topic a moment after it was created

    assert list(refused) == ["made-a_b"], "a name that Kafka cannot tell from another's"
    assert cluster.matching_topics("made-{x}") == {"made-uno", "made-a.b"}
    assert cluster.fixed_topics("made-uno", None, running=False).known == {"made-uno"}
    assert cluster.fixed_topics("made-fixed", create, running=False).fixed
    await_topic(cluster.admin, "made-fixed", 3)
    assert "made-fixed" in topics_of(broker.servers)
    with pytest.raises(StartError, match="made-odd cannot be created"):
        cluster.create_topics(["made-odd"], CreateTopics(partitions=1, config={"no.such": "1"}))
    with pytest.raises(StartError, match="made-odd cannot be created"):
        cluster.create_topics(["made-odd"], CreateTopics(partitions=1, replication=3))


def test_a_cluster_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a router that starts together with its broker ends."""
    monkeypatch.setattr("router_sinks.kafka_client.CLUSTER_SECONDS", 1)
    with pytest.raises(ConnectionError, match=f"Kafka does not answer at {NOBODY}"):
        Cluster({"bootstrap.servers": NOBODY}).matching_topics("a-{x}")


def encode(array: pa.Array, argument: None) -> Encoded:
    """Take values as they are; a null cannot be encoded."""
    values = array.to_pylist()
    return Encoded(values, {at: "it is null" for at, value in enumerate(values) if value is None})


@pytest.fixture
def rows() -> pa.RecordBatch:
    """Return rows for topics that are there or not, with values or without."""
    names = ["games-uno", "games-x", None, "games-uno", "games-uno", "games-uno"]
    keys, headers = [b"k", None, b"a", b"z", None, b"y"], [b"h", None, None, b"q", None, None]
    parts = [pa.array(names), pa.array(keys, pa.binary()), pa.array(headers, pa.binary())]
    to = pa.StructArray.from_arrays(parts, ["topic", "c0", "c1"], mask=pa.array([False] * 3 + [True] + [False] * 2))
    columns = [pa.array(["events"] * 6), pa.array([3] * 6, pa.int32()), pa.array(range(5, 11)), to]
    values = pa.array([b"v0", b"v1", b"v2", b"v3", b"v4", None])
    return pa.RecordBatch.from_arrays([*columns, values], ["_topic", "_partition", "_offset", "_to", "_row"])


@pytest.fixture
def job() -> PublishJob:
    topics = Topics(frozenset({"games-uno"}), {}, fixed=False)
    return PublishJob({}, Encoding(encode, None, ""), topics, ("h",), (("router.query", b"q"),), 1)


@pytest.mark.parametrize(("trouble", "kind"), [(BrokerAway("it is down"), "away"), (Denied("no such user"), "denied")])
def test_a_task_that_cannot_send_says_why(
    rows: pa.RecordBatch, job: PublishJob, monkeypatch: pytest.MonkeyPatch, trouble: Exception, kind: str
) -> None:
    """Without it a batch counts as sent while Kafka is away, and its rows are lost."""

    def fails(sender: Sender, records: object) -> dict[int, str]:
        raise trouble

    monkeypatch.setattr(kafka_client.Sender, "send_records", fails)

    reports = [row for batch in publish_task(job)(iter([rows, rows])) for row in batch.to_pylist()]

    assert [(row["kind"], row["text"]) for row in reports if row["kind"] != "alone"] == [(kind, str(trouble))]


def test_every_row_is_a_record_or_has_a_reason(rows: pa.RecordBatch, job: PublishJob) -> None:
    """Without it a row vanishes, or takes the key, headers or place of its neighbour."""
    records, at, refused = outgoing_records(rows, job)

    def marks(offset: bytes) -> list[tuple[str, bytes]]:
        return [
            ("router.query", b"q"),
            ("router.topic", b"events"),
            ("router.partition", b"3"),
            ("router.offset", offset),
        ]

    assert records == [
        ("games-uno", b"k", b"v0", [("h", b"h"), *marks(b"5")]),
        ("games-uno", None, b"v4", marks(b"9")),
    ]
    assert at == [0, 4]
    assert {row: reason.split(";")[0] for row, reason in refused.items()} == {
        1: "there is no topic games-x",
        2: "the topic's name is null",
        3: "its topic, key or headers cannot be evaluated",
        5: "it is null",
    }
