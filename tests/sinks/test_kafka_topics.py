"""Which topics a configuration and its data may name, without Kafka."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_sinks.kafka_topics import Topics, check_topic, is_fixed, topic_fault, topic_pattern


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        ("", "unusable"),
        ("a/b", "not 'a/b'"),
        ("ä", "not 'ä'"),
        ("..", "unusable"),
        ("a" * 250, "not 'aaa"),
        ("__consumer_offsets", "Kafka's own"),
        ("__{event.game}", "Kafka's own"),
        ("{event.game}", "begins with fixed text"),
        ("games-{event.game", "has no partner"),
        ("games-{ }", "hold no field"),
        ("games {event.game}", "not 'games '"),
    ],
    ids=lambda text: text[:20],
)
def test_a_topic_that_kafka_would_refuse_is_refused_when_it_is_read(topic: str, word: str) -> None:
    """A wrong configuration never starts."""
    with pytest.raises(ValueError, match=word):
        check_topic(topic)


@given(st.text(max_size=6) | st.sampled_from([".", "..", "a" * 249, "a" * 250, "__x", "A.b_c-1", "a\n", "."]))
def test_a_name_from_data_follows_the_rule_or_has_a_reason(name: str) -> None:
    """Without it a record names any topic there is, or one that stops the batch."""
    legal = 1 <= len(name) <= 249 and all(sign.isascii() and (sign.isalnum() or sign in "._-") for sign in name)
    own = name.startswith("__")

    assert (topic_fault(name) is None) == (legal and name not in (".", "..") and not own)


def test_a_template_matches_what_it_can_make() -> None:
    """Without it records reach topics that the sink was not meant for."""
    rule = topic_pattern("games.{event.game}-v1")

    assert rule.fullmatch("games.uno-v1")
    assert not rule.fullmatch("gamesxuno-v1")
    assert not rule.fullmatch("games.uno-v1x")
    assert is_fixed("games")
    assert not is_fixed("games-{game}")


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        ("games-uno", "events", None),
        (None, "events", "is null"),
        ("games-uno", "games-uno", "for ever"),
        ("games-new", "events", "there is no topic games-new"),
        ("games-full", "events", "may have 2 topics"),
        ("games-../x", "events", "unusable"),
        ("__games", "events", "Kafka's own"),
    ],
)
def test_a_row_is_refused_with_a_reason(name: str | None, source: str, word: str | None) -> None:
    """Without it one bad name stops the stream, makes a topic, or sends records round for ever."""
    topics = Topics(frozenset({"games-uno"}), {"games-full": "the sink may have 2 topics and has them"}, fixed=False)

    why = topics.refusal_of(name, source)

    assert why is None if word is None else word in (why or "")


def test_a_topic_of_another_cluster_may_have_the_name_of_the_source() -> None:
    """Without it a topic cannot be copied from one cluster to another."""
    there = Topics(frozenset({"events"}), {}, fixed=True)

    assert there.refusal_of("events", "events") is not None
    assert replace(there, other_cluster=True).refusal_of("events", "events") is None
