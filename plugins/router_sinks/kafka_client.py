"""Clients of Kafka, whose errors name no secret; and the cluster, which is asked for topics and creates them.

The driver opens a client for the cluster in every batch, each task one of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from router import StartError
from router_sinks.kafka_topics import CreateTopics, Topics, pattern, unusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


C = TypeVar("C")

_SILENT = logging.getLogger(f"{__name__}.librdkafka")
_SILENT.setLevel(logging.CRITICAL + 1)
"""librdkafka would write to stderr; what matters of it comes through `error_cb` and delivery reports."""

_OF_THE_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_WITHOUT_A_CAUSE = {
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
}

SECONDS = 10.0
"""Time limit for an answer of the cluster."""
_OF_THE_NAME = {KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION}
"""Errors of a cluster that refuses a topic's name: it collides with another's, or a policy forbids it."""
_OF_THE_REQUEST = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""Errors of a cluster that refuses `create_topics` or the login."""


@dataclass
class Trouble:
    """What a client said last of its connections; `refused`: it is the login, and waiting does not help."""

    text: str = ""
    refused: bool = False

    def note(self, error: KafkaError) -> None:
        """Note an error that a client reports."""
        if error.code() in _WITHOUT_A_CAUSE or (self.text and error.code() == KafkaError._ALL_BROKERS_DOWN):
            return  # less precise than the error before
        self.text = error.str()
        self.refused = error.code() in _OF_THE_LOGIN


def errors_into(kind: Callable[[dict[str, Any]], C], settings: Mapping[str, Any], trouble: Trouble) -> C:
    """Return a client that reports to `trouble`; raise StartError for a setting that is wrong, without its value."""
    try:
        return kind({"logger": _SILENT, **settings, "error_cb": trouble.note})
    except KafkaException as error:
        what = error.args[0].str()
    except (TypeError, ValueError) as error:
        what = str(error)
    for value in sorted({str(value) for value in settings.values()}, key=len, reverse=True):
        what = what.replace(f'"{value}"', "***")
    raise StartError(f"Kafka's client refuses its `options`: {what}")


@dataclass
class Cluster:
    """A connection to a cluster; `settings` are those of librdkafka.

    Every method raises ConnectionError where the cluster does not answer, StartError where settings are wrong.
    """

    settings: dict[str, str]
    trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        settings = {**self.settings, "allow.auto.create.topics": "false"}  # to ask for a topic would make it
        self.admin = errors_into(AdminClient, settings, self.trouble)

    def fixed(self, topic: str, create: CreateTopics | None, *, running: bool, trial: bool = False) -> Topics:
        """Return the one topic of a sink, created as `create` says where it is missing (not in a `trial`).

        Without `create` a missing topic raises StartError, or ConnectionError when the stream is running.
        """
        found = self._metadata(topic).get(topic)
        code = KafkaError.UNKNOWN_TOPIC_OR_PART if found is None else found.error and found.error.code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise StartError(f"topic {topic}: this login may not see it")
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART and not (create and trial):
            refused = self.create([topic], create) if create else {topic: "create it, or set `create_topics`"}
            if refused:
                raise (ConnectionError if running else StartError)(f"there is no topic {topic}: {refused[topic]}")
        return Topics(frozenset({topic}), {}, fixed=True)

    def matching(self, template: str) -> frozenset[str]:
        """Return the topics that a template can name and rows may be sent to."""
        rule = pattern(template)
        return frozenset(name for name in self._metadata(None) if rule.fullmatch(name) and not unusable(name))

    def create(self, names: Iterable[str], create: CreateTopics) -> dict[str, str]:
        """Create topics; return the reasons for those that cannot be created. One that exists already is no error."""
        wanted = [
            NewTopic(name, create.partitions, create.replication, config=dict(create.config)) for name in sorted(names)
        ]
        refused: dict[str, str] = {}
        for name, future in self.admin.create_topics(wanted, request_timeout=SECONDS).items() if wanted else ():
            try:
                future.result()
            except KafkaException as error:
                why = error.args[0]
                if why.code() in _OF_THE_REQUEST:
                    raise StartError(f"topic {name} cannot be created: {why.str()}") from None
                if why.code() in _OF_THE_NAME:
                    refused[name] = f"topic {name} cannot be created: {why.str()}"
                elif why.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ConnectionError(f"topic {name} cannot be created now: {why.str()}") from None
        return refused

    def _metadata(self, topic: str | None) -> dict[str, Any]:
        try:
            found = self.admin.list_topics(topic, timeout=SECONDS)
        except KafkaException as error:
            self.admin.poll(0)  # takes the errors of the connection
            if self.trouble.refused:
                raise StartError(f"Kafka at {self.settings['bootstrap.servers']}: {self.trouble.text}") from None
            what = self.trouble.text or error.args[0].str()
            raise ConnectionError(f"Kafka does not answer at {self.settings['bootstrap.servers']}: {what}") from None
        if not found.brokers:  # a cluster that is starting: its list of topics is not complete yet
            raise ConnectionError(f"Kafka at {self.settings['bootstrap.servers']} is not ready")
        topics: dict[str, Any] = found.topics
        return topics
