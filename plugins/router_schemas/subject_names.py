"""Which subjects of a registry count for the records of a decoder.

A Confluent-compatible registry gives one id to one text, so the schema of an id may be a version of several subjects.
Only some of them are of the records of a decoder: `orders-value` and `bills-value` may begin alike and differ later.
Producers name subjects by a strategy (docs.confluent.io, "Subject name strategy").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Strategy = Literal["topic_name", "record_name", "topic_record_name"]
CONTEXT_PREFIX = re.compile(r"^:[^:]*:")
"""What stands before a subject of a context of the registry: `:.staging:orders-value`."""


def context_of(subject: str) -> str:
    """Return the context of a subject, such as `:.staging:`; an empty text for the default one."""
    match = CONTEXT_PREFIX.match(subject)
    return match[0] if match else ""


def qualify_subject(subject: str, context: str) -> str:
    """Return a subject with its context; one without is of the `context` of what refers to it."""
    return subject if context_of(subject) else f"{context}{subject}"


def check_one_context(subjects: Iterable[str]) -> None:
    """Raise ValueError if subjects are of several contexts: an id of a record does not say of which it is."""
    contexts = dict.fromkeys(context_of(subject) for subject in subjects)
    if len(contexts) > 1:
        names = " and ".join(context or "none" for context in contexts)
        raise ValueError(
            f"subjects are of one context of the registry, and these are of {names}: an id would mean several schemas; "
            "use a decoder for each context (`by_topic`)"
        )


def _no_topic(topic: str) -> bool:
    return False


@dataclass(frozen=True)
class CountedSubjects:
    """The subjects that count: those that are `named`; without any, those that the producers' `strategy` makes.

    `reads_topic` returns whether a topic is read here; `part` is what the records' subjects of a topic are of, `value`
    or `key`.
    """

    named: tuple[str, ...] = ()
    strategy: Strategy = "topic_name"
    reads_topic: Callable[[str], bool] = _no_topic
    part: str = "value"

    def counted_versions(self, subjects: Iterable[tuple[str, int]], record: str | None) -> tuple[tuple[str, int], ...]:
        """Return the (subject, version) pairs that count; `record` is the full name of the record, if it has one."""
        return tuple(pair for pair in subjects if self.is_counted(pair[0], record))

    def is_counted(self, subject: str, record: str | None) -> bool:
        """Return whether a subject counts for records of that name."""
        if self.named:
            return subject in self.named
        name = CONTEXT_PREFIX.sub("", subject)
        ending = f"-{self.part}"
        if self.strategy != "topic_name":
            if not record:
                return False
            if self.strategy == "record_name":
                return name == record
            ending = f"-{record}"
        return name.endswith(ending) and self.reads_topic(name.removesuffix(ending))
