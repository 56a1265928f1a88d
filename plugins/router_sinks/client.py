"""Make clients of Kafka: with settings that are checked, and without anything secret in what they say."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from router import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


@dataclass
class Trouble:
    """What a client said last of its connections; `refused`: it is the login, and waiting does not help."""

    text: str = ""
    refused: bool = False

    def note(self, error: KafkaError) -> None:
        """Take what a client reports."""
        if error.code() in _WITHOUT_A_CAUSE or (self.text and error.code() == KafkaError._ALL_BROKERS_DOWN):
            return  # it says no more than the one before
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
