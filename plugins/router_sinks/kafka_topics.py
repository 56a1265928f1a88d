"""Name topics: by a fixed name or by fields, within Kafka's naming rule. Needs neither Spark nor Kafka.

Source of the rule: org.apache.kafka.common.internals.Topic, `validate`: letters of ASCII, digits, dots, underscores and
hyphens, at most 249 of them, and neither "." nor "..".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from router import Placeholder, parse_template, template_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOPIC_CHARS = 249
TOPIC_NAME_PATTERN = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC_CHARS}}}")
INTERNAL_TOPIC_PREFIX = "__"
"""The prefix of Kafka's own topics."""


def check_topic(topic: str) -> str:
    """Return a topic, or a template for topics; raise ValueError saying what to change in one that is none."""
    pieces = parse_template(topic)
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if pieces and isinstance(pieces[0], Placeholder):
        raise ValueError(
            "a topic begins with fixed text, such as `games-` in games-{event.game}: data may not name any"
        )
    for text in texts:
        if not TOPIC_NAME_PATTERN.fullmatch(text):
            raise ValueError(f"a topic has letters, digits, dots, underscores and hyphens, not {text!r}")
    if fault := topic_fault("".join(texts)):
        raise ValueError(fault)
    return topic


def is_fixed(topic: str) -> bool:
    """Return whether the topic is the same for all rows."""
    return not template_fields(topic)


def topic_pattern(topic: str) -> re.Pattern[str]:
    """Return the pattern of the names that a template can make."""
    text = ""
    for piece in parse_template(topic):
        text += ".*" if isinstance(piece, Placeholder) else re.escape(piece)
    return re.compile(text, re.DOTALL)


def topic_fault(name: str) -> str | None:
    """Return the reason why rows cannot be sent to a topic of this name; None if they can."""
    if not TOPIC_NAME_PATTERN.fullmatch(name) or name in (".", ".."):
        shown = name if len(name) <= 100 else f"{name[:100]}..."
        return (
            f"unusable topic name {shown!r}: letters, digits, dots, underscores and hyphens, {MAX_TOPIC_CHARS} at most"
        )
    if name.startswith(INTERNAL_TOPIC_PREFIX):
        return f"unusable topic name {name!r}: topics that begin with {INTERNAL_TOPIC_PREFIX} are Kafka's own"
    return None


class CreateTopics(BaseModel):
    """How topics are created that are not there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    partitions: int = Field(ge=1, le=10_000, description="partitions of a new topic")
    replication: int = Field(default=-1, ge=-1, le=100, description="copies; -1: as the brokers say")
    config: dict[str, str] = Field(default_factory=dict, description="settings of a new topic, such as retention.ms")
    at_most: int = Field(default=1000, ge=1, description="topics that there may be of this sink's names")


@dataclass(frozen=True)
class Topics:
    """The topics that rows may be sent to, as the driver found them: `known` exist, `refused` has why others do not.

    `fixed`: the name does not come from data, and its existence was checked before. `other_cluster`: rows may be sent
    to a topic of the same name as that which they came from.
    """

    known: frozenset[str]
    refused: Mapping[str, str]
    fixed: bool
    other_cluster: bool = False

    def refusal_of(self, name: str | None, source: str | None) -> str | None:
        """Return why a row from the topic `source` cannot be sent to a topic; None if it can. Runs on executors."""
        if name is None:
            return "the topic's name is null"
        if name == source and not self.other_cluster:
            return f"topic {name} is where the record came from: it would come for ever (option `other_cluster`)"
        if name in self.known:
            return None
        missing = f"there is no topic {name}; create it, or set `create_topics`"
        return self.refused.get(name) or topic_fault(name) or missing
