"""Name the topics of the source that the broker does not have: Spark's Kafka source only fails, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.engine.source import source
from router.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.config.models import Config

NO_TOPIC = "UnknownTopicOrPartition"
"""Kafka's error for a topic that is missing, also for a moment while the brokers learn of a new one."""

NO_POSITION = "before the position for partition"
"""A part of what Kafka's consumer says after a minute in which it did not find a partition: its topic may be gone."""


def missing_topics(spark: SparkSession, config: Config) -> str:
    """Return a sentence about the configured topics that are missing; empty if there are none, and for a pattern.

    Runs on the driver, asks the brokers with the login of the source.
    """
    kafka = config.source.kafka
    if kafka is None or kafka.pattern:
        return ""
    existing = source.complete_offsets(spark, kafka, {})
    missing = [topic for topic in kafka.topics if topic not in existing]
    if not missing:
        return ""
    return f"the broker has no topic {', '.join(missing)}"


def refuse_missing_topics(spark: SparkSession, config: Config) -> None:
    """Raise StartError if configured topics are missing."""
    if missing := missing_topics(spark, config):
        todo = "create it, or correct `topics`; with --wait-for-topic the run waits for it"
        raise StartError(f"{config.name}: {missing}; {todo}")


def wait_for_topics(spark: SparkSession, config: Config) -> None:
    """Raise OSError, which is tried again, if configured topics are missing."""
    if missing := missing_topics(spark, config):
        raise OSError(f"waiting: {missing}")
