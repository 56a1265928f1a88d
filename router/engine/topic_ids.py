"""Notice that a topic was deleted and created again: its records have the offsets of other records that were read.

A topic's id tells it from an earlier one of its name. The ids are noted in each manifest and in the ledger. A topic
with another id is held: none of its records are read under this name, since within a partition the offset alone decides
which records were read, and which of two is newer.

Brokers before 2.8, and some that only speak Kafka's protocol, give no ids. For these the last record that was read is
compared with bronze, at each start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from router.delta.dataset import dataset_of
from router.delta.unreadable_values import as_rows
from router.engine import ledger
from router.engine.checkpoint_store import held_topics
from router.engine.source import source
from router.engine.start.checks import last_manifest, read_resume_offsets
from router.engine.start.missing_topics import NO_TOPIC
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake

log = logging.getLogger("router")
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's id of zeros: the broker gives none. Source: org.apache.kafka.common.Uuid.ZERO_UUID."""
NO_ANSWER = "errors.TimeoutException"
"""Kafka's exception after `default.api.timeout.ms` without an answer, a minute."""
COMPARED = ("key", "value", "timestamp")
"""The columns in which a record is compared with bronze."""


@dataclass
class TopicIds:
    """The topics of a Kafka source as a query has read them. Runs on the driver, asks the brokers.

    `noted` has the id that each topic had when its first record was read, `held` the topics that have another one now.
    """

    spark: SparkSession
    config: Config
    noted: dict[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    _admin: Any = None

    @classmethod
    def of(
        cls, spark: SparkSession, config: Config, lake: Lake, checkpoint: Lake, *, by_ledger: bool
    ) -> TopicIds | None:
        """Return the topics of a source, compared with the brokers'; None for a source without topics.

        With `by_ledger` the checkpoint is lost, and the ledger has the ids. Raises StartError if all topics are held.
        """
        if config.source.kafka is None:
            return None
        noted: dict[str, str] = {}
        if not by_ledger:
            # The ledger has what stood in a damaged manifest. That of a batch that was cut off is refused later.
            try:
                manifest = last_manifest(checkpoint)
            except StartError:
                by_ledger = True
            else:
                noted = manifest.topic_ids if manifest else {}
        if by_ledger:
            noted = ledger.topic_ids(lake, config)
        topics = cls(spark, config, noted)
        topics.compare_ids(noted)
        if not noted:
            topics.compare_with_bronze(lake)
        if topics.held and topics.held >= set(config.source.kafka.topics or noted):
            raise StartError(topics.describe_held())
        return topics

    def current_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids that topics have now. Those that the brokers do not have, or give no id, are left out.

        Raises ConnectionError if no broker answers.
        """
        kafka = self.config.source.kafka
        assert kafka is not None
        if self._admin is None:
            self._admin = source.open_admin(self.spark, kafka)
        names = sorted(topics)
        answers = self._admin.describeTopics(names).topicNameValues()
        ids = {}
        # Not over `answers` itself: its iterator takes 55 ms of calls to the JVM, for one topic also.
        for topic in names:
            try:
                topic_id = answers.get(topic).get().topicId().toString()
            except Py4JJavaError as error:
                if NO_TOPIC in str(error):
                    continue
                if NO_ANSWER in str(error):
                    raise ConnectionError(f"no broker answers at {kafka.servers}") from error
                raise
            if topic_id != NO_ID:
                ids[topic] = topic_id
        return ids

    def compare_ids(self, topics: Iterable[str]) -> bool:
        """Note the ids of topics that have none yet, and hold those that have another one; return whether any is new.

        Call it after the records of a batch were read, and before anything is decided about them: a topic that is made
        again later is found with the next batch.
        """
        before = set(self.held)
        # A batch without records has no topics: nothing is to be asked.
        names = set(topics) - self.held
        if not names:
            return False
        for topic, topic_id in self.current_ids(names).items():
            if self.noted.setdefault(topic, topic_id) != topic_id:
                self.held.add(topic)
        if self.held == before:
            return False
        log.warning("%s", self.describe_held())
        return True

    def compare_with_bronze(self, lake: Lake) -> None:
        """Hold the topics whose last record in bronze is another one in Kafka now. One that is gone says nothing."""
        kafka = self.config.source.kafka
        bronze = self.config.bronze_tables()
        if kafka is None or bronze is None or lake.open(self.config.ledger) is None:
            return
        next_offsets = read_resume_offsets(lake, self.config.ledger, self.config.name)
        retained = source.retained_offsets(self.spark, kafka, next_offsets)
        begins: source.Offsets = {}
        ends: source.Offsets = {}
        for topic, spans in retained.items():
            for partition, (first, end) in spans.items():
                next_offset = next_offsets[topic][partition]
                if first < next_offset <= end:
                    begins.setdefault(topic, {})[partition] = next_offset - 1
                    ends.setdefault(topic, {})[partition] = next_offset
        if not begins:
            return
        for record in as_rows(source.records_between(self.spark, kafka, begins, ends).toArrow()):
            table = lake.open(bronze.table_of(record["topic"]))
            if table is None:
                continue
            is_record = pc.field("topic") == record["topic"]
            for place in ("partition", "offset"):
                is_record &= pc.field(place) == record[place]
            kept = as_rows(dataset_of(table).to_table(columns=[*COMPARED], filter=is_record))
            if kept and {name: record[name] for name in COMPARED} not in kept:
                self.held.add(record["topic"])
        if self.held:
            log.warning("%s", self.describe_held())

    def without_held(self, records: DataFrame) -> DataFrame:
        """Return the records of a batch without those of held topics. Lazy."""
        if not self.held:
            return records
        return records.filter(~F.col("topic").isin(sorted(self.held)))

    def describe_held(self) -> str:
        """Return the fault of the held topics, and the next step."""
        return f"{self.config.name}: {held_topics(self.held)}"

    def close(self) -> None:
        """Close the connections to the brokers."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
