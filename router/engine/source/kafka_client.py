"""Query the brokers of a Kafka source from the driver's Python, without Spark: by librdkafka, with its options.

The options of the source are those of Kafka's Java client. Options with another name in librdkafka are translated. A
login that librdkafka does not have is refused with the name of the option; callers that only show facts do without.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from router.errors import StartError

if TYPE_CHECKING:
    from router.config.models import KafkaSource

KAFKA_TIMEOUT_SECONDS = 5.0
"""Time limit for an answer of the brokers."""
SECURITY = ("security.", "sasl.", "ssl.")
"""The beginnings of options of a login. Other options, such as sizes of fetches, are not needed for queries."""
EQUALS: dict[str, tuple[str, ...]] = {
    "security.protocol": ("security.protocol",),
    "sasl.mechanism": ("sasl.mechanism",),
    "ssl.key.password": ("ssl.key.password",),
    "ssl.cipher.suites": ("ssl.cipher.suites",),
}
"""Option of Java's client -> the settings of librdkafka that get its value."""
EQUALS_OF_PEM_TRUSTSTORE = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.truststore.certificates": ("ssl.ca.pem",),
}
EQUALS_OF_PEM_KEYSTORE = {
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
    "ssl.keystore.key": ("ssl.key.pem",),
}
EQUALS_OF_PKCS12_KEYSTORE = {
    "ssl.keystore.location": ("ssl.keystore.location",),
    "ssl.keystore.password": ("ssl.keystore.password",),
}
LOGIN_MODULES = re.compile(r"\.(?:PlainLoginModule|ScramLoginModule)\s")
LOGIN_OPTION = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
"""An option of a login module, as Java's JAAS writes it."""
PEM = "PEM"
SILENT = logging.getLogger(f"{__name__}.librdkafka")
SILENT.setLevel(logging.CRITICAL + 1)
"""The logger of clients: librdkafka would write to standard error, and its errors reach us as exceptions."""

_Offsets = dict[tuple[str, int], int]
"""Offsets by topic and partition."""


def client_settings(kafka: KafkaSource) -> dict[str, str]:
    """Return the settings of librdkafka for the brokers of a source.

    Raises StartError for an option of the login that has no counterpart in librdkafka.
    """
    settings = {"bootstrap.servers": kafka.servers}
    options = {key.removeprefix("kafka."): value.get_secret_value() for key, value in kafka.options.items()}
    equals = dict(EQUALS)
    if options.pop("ssl.truststore.type", "JKS").upper() == PEM:
        equals |= EQUALS_OF_PEM_TRUSTSTORE
    keystore = options.pop("ssl.keystore.type", "JKS").upper()
    if keystore == PEM:
        equals |= EQUALS_OF_PEM_KEYSTORE
    if keystore == "PKCS12":
        equals |= EQUALS_OF_PKCS12_KEYSTORE

    for name, value in options.items():
        if not name.startswith(SECURITY):
            continue
        if name == "sasl.jaas.config":
            settings |= _parse_login(value)
        elif name == "ssl.endpoint.identification.algorithm":
            settings[name] = value or "none"
        elif name in equals:
            settings |= dict.fromkeys(equals[name], value)
        else:
            raise StartError(f"librdkafka has no counterpart of kafka.{name} as it is set for the source")
    return settings


def _parse_login(jaas: str) -> dict[str, str]:
    """Return user and password of a login as Java writes it."""
    if not LOGIN_MODULES.search(jaas):
        raise StartError("librdkafka has no counterpart of the login module in kafka.sasl.jaas.config")
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in LOGIN_OPTION.findall(jaas)}
    return {"sasl.username": options.get("username", ""), "sasl.password": options.get("password", "")}


def admin_client(kafka: KafkaSource) -> AdminClient:
    """Return a client for queries about topics and groups. Raises StartError for options that librdkafka refuses."""
    settings: dict[str, Any] = {
        **client_settings(kafka),
        "socket.timeout.ms": str(int(KAFKA_TIMEOUT_SECONDS * 1000)),
        # Otherwise a query about a topic would create it.
        "allow.auto.create.topics": "false",
        "logger": SILENT,
    }
    try:
        return AdminClient(settings)
    except KafkaException:
        # The text of the error contains the values of settings, and so secrets.
        raise StartError("librdkafka refuses the options of the source") from None


def end_offsets(admin: AdminClient, kafka: KafkaSource) -> _Offsets:
    """Return the offset behind the last record of each partition of a source: two requests to the brokers.

    Raises KafkaException or TimeoutError if they do not answer.
    """
    partitions: list[TopicPartition] = []
    for topic, metadata in admin.list_topics(timeout=KAFKA_TIMEOUT_SECONDS).topics.items():
        if kafka.reads_topic(topic):
            partitions += [TopicPartition(topic, number) for number in metadata.partitions]
    if not partitions:
        return {}
    ends: _Offsets = {}
    latest: Any = dict.fromkeys(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    for partition, answer in admin.list_offsets(latest, request_timeout=KAFKA_TIMEOUT_SECONDS).items():
        ends[partition.topic, partition.partition] = answer.result(KAFKA_TIMEOUT_SECONDS).offset
    return ends
