"""Send records to Kafka in order, and know of each whether it is there. Runs on executors.

Kafka refuses batches, not records: with one record that is too large or invalid, its neighbours in the batch fail, too,
while the producer goes on with the batches behind them. So two producers take turns:

- The first has `enable.gapless.guarantee`: a batch that fails ends it, and with sequence numbers the broker takes
  nothing of that partition behind the gap. What is there is a beginning of what was to be sent, partition by partition.
- The second sends what is left, every record in a batch of its own. What fails now is refused for good, by itself; what
  follows keeps its order, which is what an idempotent producer sees to.

Neither has a time limit for a message (`message.timeout.ms`), because one that ran out would leave a gap. When nothing
arrives for a while the sender gives up, and the whole batch is sent again later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from router_sinks.client import Trouble, errors_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Record: TypeAlias = "tuple[str, bytes | None, bytes, list[tuple[str, bytes]]]"
"""Topic, key, value and headers."""

LARGEST = 64 << 20
"""Bytes of a record that are handed to a broker at all: it cuts the connection to whoever sends more than 100 MiB."""
SETTINGS = {
    "acks": "all",
    "enable.idempotence": "true",
    "message.timeout.ms": "0",
    "allow.auto.create.topics": "false",
}
"""What is promised depends on these."""
DEFAULTS = {"message.max.bytes": str(LARGEST), "partitioner": "murmur2_random", "linger.ms": "5"}
"""What options may say otherwise. The topic's own limit is the one that counts, and records with a key go to the
partition that Java's producers would choose."""
ALONE = {"batch.num.messages": "1", "linger.ms": "0"}
VERDICTS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.POLICY_VIOLATION,
}
"""What a broker says of a record that it will never take."""
_POLL = 0.1


class BrokerAway(Exception):  # noqa: N818 - it says what happened
    """Why records cannot be sent now."""


class Denied(Exception):  # noqa: N818
    """Why records cannot be sent until somebody changes a setting."""


@dataclass
class Sender:
    """A sender of the records of one task. `patience`: seconds without any arrival after which it gives up.

    `named_by_data`: what forbids one topic is said of its records, not of the configuration. `alone` counts the
    records that had to be sent one by one.
    """

    settings: Mapping[str, str]
    patience: float
    named_by_data: bool = False
    alone: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    producer: Any = None

    def send(self, records: Sequence[Record]) -> dict[int, str]:
        """Return why records are refused for good, by their positions; all others are there.

        Raises BrokerAway and Denied; what was sent before may be there, then, and is always a beginning.
        """
        refused: dict[int, str] = {}
        if self.producer is None:
            self.producer = self._producer({"enable.gapless.guarantee": "true"})
        round_ = _Round(self, self.producer, records)
        left = round_.run(range(len(records)), refused)
        if left:
            self.producer = None  # it ended
            self.alone += len(left)
            rest = _Round(self, self._producer(ALONE), records).run(left, refused, alone=True)
            if rest:
                raise self.away("records are not taken, and no reason is given")
        return refused

    def check(self) -> None:
        """Raise StartError where a setting is wrong; sends nothing."""
        self._producer(ALONE)

    def away(self, otherwise: str) -> BrokerAway | Denied:
        """Return why nothing can be sent."""
        return (Denied if self.trouble.refused else BrokerAway)(self.trouble.text or otherwise)

    def _producer(self, more: Mapping[str, str]) -> Any:
        return errors_into(Producer, {**DEFAULTS, **self.settings, **SETTINGS, **more}, self.trouble)


@dataclass
class _Round:
    """Some records that one producer sends."""

    sender: Sender
    producer: Any
    records: Sequence[Record]
    reports: dict[int, KafkaError | None] = field(default_factory=dict)
    sent: int = 0
    ended: bool = False

    def run(self, chosen: Iterable[int], refused: dict[int, str], alone: bool = False) -> list[int]:
        """Send records; return those, in order, that are neither there nor refused."""
        chosen = list(chosen)
        for position in chosen:
            if self.ended:
                break
            self._send(position, refused, alone)
        self._arrive()
        left = [one for one in chosen if one not in refused and self.reports.get(one, _UNSENT) is not None]
        if alone:
            left = [one for one in left if not self._judged(one, refused)]
        return left

    def _send(self, position: int, refused: dict[int, str], alone: bool) -> None:
        topic, key, value, headers = self.records[position]
        since = time.monotonic()
        while not self.ended:
            try:
                self.producer.produce(
                    topic, value, key, headers=headers, on_delivery=partial(self._report, position, alone)
                )
            except BufferError:
                before = len(self.reports)
                self._poll(_POLL)
                since = time.monotonic() if len(self.reports) > before else since
                self._give_up_after(since)
            except KafkaException as error:
                why = error.args[0]
                if why.code() == KafkaError.MSG_SIZE_TOO_LARGE:  # beyond `message.max.bytes`, which no broker was asked
                    refused[position] = _told(why)
                    return
                self.sender.trouble.note(why)
                self.ended = True
            else:
                self.sent += 1
                self._poll(0)
                return

    def _arrive(self) -> None:
        """Wait until of every record that was handed over it is known what became of it."""
        since, seen = time.monotonic(), len(self.reports)
        purged = False
        while len(self.reports) < self.sent:
            if self.ended and not purged:  # in flight they stay: what has arrived must not be sent again
                self.producer.purge(in_queue=True, in_flight=False)
                purged = True
            self._poll(_POLL)
            if len(self.reports) > seen:
                since, seen = time.monotonic(), len(self.reports)
            self._give_up_after(since)

    def _poll(self, seconds: float) -> None:
        """Take reports. A producer that ended says so by raising, and has the other reports none the less."""
        try:
            self.producer.poll(seconds)
        except KafkaException as error:
            self.sender.trouble.note(error.args[0])
            self.ended = True

    def _report(self, position: int, alone: bool, error: KafkaError | None, message: object) -> None:
        self.reports[position] = error
        if error is not None:
            self.ended = self.ended or not alone
            if error.code() not in VERDICTS:
                self.sender.trouble.note(error)

    def _judged(self, position: int, refused: dict[int, str]) -> bool:
        """Note the verdict on a record that was sent by itself; False where there is none."""
        error = self.reports.get(position)
        if error is None:
            return False
        denied = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        if denied and not self.sender.named_by_data:
            raise Denied(_told(error))
        if denied or error.code() in VERDICTS:
            refused[position] = _told(error)
            return True
        return False

    def _give_up_after(self, since: float) -> None:
        if time.monotonic() - since > self.sender.patience:
            self.producer.purge()
            raise self.sender.away(f"nothing arrived for {self.sender.patience:g} s")


_UNSENT = KafkaError(KafkaError._NOENT)


def _told(error: KafkaError) -> str:
    return f"Kafka refuses it: {error.str()}"
