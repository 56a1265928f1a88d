"""The sink `kafka`: its options, and one batch of it on the driver."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, SecretStr, field_validator
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Encoder, Encoding, Opening, Outcome, Server, StartError, parse_template, tried
from router_encoders import ToJson
from router_encoders.outbox_rows import PLACE, as_bytes, bounded_batches, own_columns, show_value, with_event
from router_encoders.reports import refused_rows
from router_encoders.templates import text_column
from router_sinks.kafka_topics import CreateTopics, Topics, check_topic, is_fixed, topic_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

    from router_sinks.kafka_client import PublishJob

log = logging.getLogger("router")
ROUTER_HEADER_PREFIX = "router."
"""The prefix of the headers that the sink adds to every record."""
MAX_NEW_TOPICS = 10_000
"""New topic names of one batch at most."""
TAKEN_CLIENT_OPTIONS = {
    "bootstrap.servers": "write `servers`",
    "metadata.broker.list": "write `servers`",
    "acks": "the promise needs `all`",
    "request.required.acks": "the promise needs acks of all",
    "enable.idempotence": "the promise needs it",
    "enable.gapless.guarantee": "the promise needs it",
    "transactional.id": "records are deduplicated by their headers",
    "message.timeout.ms": "write `timeout`",
    "delivery.timeout.ms": "write `timeout`",
    "allow.auto.create.topics": "write `create_topics`",
    "message.send.max.retries": "the promise needs retries without end",
    "retries": "the promise needs retries without end",
    "queuing.strategy": "the promise needs the order of arrival",
    "delivery.report.only.error": "the promise needs every report",
    "plugin.library.paths": "no libraries are loaded",
}
"""Options of librdkafka that the sink sets itself, and what to write instead."""


class Kafka(ApplyingSink):
    """Send events to a Kafka topic, or to one per value of one or more fields.

    `topic: games-{event.game}` sends an event of the game uno to games-uno. SQL in `topic`, `key` and `headers` sees
    the route's columns, also as `event.NAME`, and of the record `_topic`, `_partition`, `_offset`, `_timestamp` and
    `_key`. A topic that does not exist is not created, unless `create_topics` is set.

    The value is a JSON object of the route's columns, or an Avro record or Protobuf message in the frame of a schema
    registry: `router help write-to-kafka`.

    Every record has the headers router.query, router.sink (route/sink), router.batch, router.topic, router.partition
    and router.offset: but for the batch they are the same when a record is sent again, and no other record has them.

    Delivery: at least once, in order per source partition and key. What Kafka, or the schema, refuses for good is a
    dead letter; while Kafka is unavailable, or refuses topic or login, rows wait. Runs as one shuffle by source
    partition and one stage in Python.
    """

    ordered: ClassVar[bool] = True
    previews: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("router_sinks.kafka_client",)

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Return the brokers."""
        return [Server("broker", server.strip()) for server in self.servers.split(",")]

    servers: str = Field(min_length=1, description="host:port, several with commas")
    topic: str = Field(description="a topic, or text followed by fields in braces: games-{event.game}")
    key: str | None = Field(
        default="_key",
        min_length=1,
        description="SQL; binary stays, all else becomes text; null: none. Default: the record's key",
    )
    value: Encoder = Field(default=ToJson(), description="an encoder: to_json, to_avro, to_protobuf, ...")
    headers: dict[str, str] = Field(default_factory=dict, description="name: SQL; a header that is null is left out")
    without: tuple[str, ...] = Field(
        default=(), description="columns of the route that are for topic, key and headers only, not for the value"
    )
    create_topics: CreateTopics | None = Field(
        default=None,
        description="how missing topics are created; options: `partitions`, `replication` (-1: as the "
        "brokers say), `config` (such as retention.ms), `at_most` (topics there may be of this sink's names, 1000)",
    )
    other_cluster: bool = Field(
        default=False,
        description="`servers` are not the source's: a record may go to a topic of the name that it came from",
    )
    mode: Literal["detached", "inline"] = Field(
        default="detached", description="`detached`: a query of its own, tables do not wait; `inline`: the batch waits"
    )
    options: dict[str, SecretStr] = Field(
        default_factory=dict, description="passed to librdkafka as they are: security.protocol, sasl.password, ..."
    )
    timeout: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="seconds without any arrival before all is tried again",
    )

    _opening: Opening | None = PrivateAttr(default=None)
    _encodings: dict[str, Encoding] = PrivateAttr(default_factory=dict)

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        return check_topic(topic)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, sql in headers.items():
            if not name or name.startswith(ROUTER_HEADER_PREFIX):
                raise ValueError(
                    f"a header has a name, and one that does not begin with {ROUTER_HEADER_PREFIX}: "
                    "these are the router's"
                )
            if not sql.strip():
                raise ValueError(f"header {name}: there is no SQL; a text is written '...' in quotes of its own")
        return headers

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in options:
            if name in TAKEN_CLIENT_OPTIONS or name.startswith(("test.", "topic.")):
                raise ValueError(
                    f"the option {name} belongs to the sink: {TAKEN_CLIENT_OPTIONS.get(name, 'remove it')}"
                )
        return options

    @property
    def detached(self) -> bool:
        """Return whether the sink has a query of its own, so that tables do not wait for Kafka."""
        return self.mode == "detached"

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with the schema of its values. Asks Kafka and the registry."""
        from router_sinks.kafka_client import Sender

        prepared = self._opened(opening)
        try:
            encoding = prepared._encoding_of(opening.events)
            prepared._select_rows(opening.events, encoding).schema  # noqa: B018 - analyses the expressions
        except (AnalysisException, ParseException) as error:
            raise StartError(str(error).strip().split("\n")[0]) from error
        Sender(self._settings, self.timeout).check_settings()
        prepared._find_topics(None, trial=opening.trial)
        log.info("values for %s are written as %s", self.topic, encoding.what)
        return prepared

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return the records: `topic`, `key`, `value`, `headers`. No broker is asked, so topics are taken to exist.

        Rows of which no record can be made are left out. Headers of the router that every batch has are, too.
        """
        from router_sinks.kafka_client import outgoing_records

        sink = self._opened(opening)
        encoding = sink._encoding_of(events)
        rows = sink._select_rows(events, encoding).sort(*PLACE).toArrow()
        # As bytes: Spark lets texts pass that are not UTF-8.
        topics = rows["_to"].combine_chunks().field("topic").cast("binary").drop_null().to_pylist()
        names = {topic.decode(errors="replace") for topic in topics}
        possible = frozenset(name for name in names if not topic_fault(name))
        job = sink._job(encoding, Topics(possible, {}, fixed=False), {})
        shown = []
        for part in rows.to_batches():
            for topic, key, value, headers in outgoing_records(part, job)[0]:
                shown.append({
                    "topic": topic,
                    "key": None if key is None else show_value(key),
                    "value": show_value(value),
                    "headers": {name: show_value(content) for name, content in headers},
                })  # fmt: skip
        return shown

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send the rows of one batch. Raises ConnectionError while Kafka or the registry is unavailable."""
        from router_sinks.kafka_client import PUBLISH_REPORT_DDL, publish_task

        encoding = self._encoding_of(events)
        rows = self._select_rows(events, encoding)
        marks = {"query": batch.query, "sink": f"{batch.route}/{batch.sink}", "batch": str(batch.id)}
        job = self._job(encoding, self._find_topics(rows), marks)
        ordered = rows.repartition("_topic", "_partition").sortWithinPartitions(*PLACE)
        with bounded_batches(events.sparkSession):
            # Computed once and kept: reading the reports later must not send the records again.
            reports = ordered.mapInArrow(batch.guarded(publish_task(job)), PUBLISH_REPORT_DDL).localCheckpoint(
                eager=True
            )
        return self._sum_reports(events, reports)

    def _job(self, encoding: Encoding, topics: Topics, marks: Mapping[str, str]) -> PublishJob:
        """Return what tasks need; `marks` are the headers of the router that all rows share."""
        from router_sinks.kafka_client import PublishJob

        return PublishJob(
            settings=self._settings,
            encoding=encoding,
            topics=replace(topics, other_cluster=self.other_cluster),
            headers=tuple(self.headers),
            marks=tuple((f"{ROUTER_HEADER_PREFIX}{name}", text.encode()) for name, text in marks.items()),
            timeout=self.timeout,
        )

    def _sum_reports(self, events: DataFrame, reports: DataFrame) -> Outcome:
        summed = reports.groupBy("kind").agg(F.sum("rows").alias("rows"), F.max("text").alias("text")).collect()
        rows = {report["kind"]: report["rows"] or 0 for report in summed}
        reasons = {report["kind"]: report["text"] for report in summed}
        if "denied" in reasons:
            raise StartError(reasons["denied"])
        if "away" in reasons:
            raise ConnectionError(f"Kafka at {self.servers} does not take records: {reasons['away']}")
        if rows.get("alone"):
            cause = "some were refused, or `batch.size` is above a topic's max.message.bytes"
            log.warning("%d records for %s were sent one by one: %s", rows["alone"], self.topic, cause)
        return Outcome(rows.get("sent", 0), refused_rows(events, reports) if "refused" in rows else None)

    def _opened(self, opening: Opening) -> Self:
        opened = self.model_copy()
        opened._opening = opening
        opened._encodings = {}
        return opened

    def _encoding_of(self, events: DataFrame) -> Encoding:
        """Return the encoding of rows with these columns; it is kept for further batches of these columns."""
        columns = own_columns(events, self.without)
        key = columns.simpleString()
        if key not in self._encodings:
            if self._opening is None:
                raise StartError("the sink is not open: call prepare() before apply()")
            subject = f"{self.topic}-value" if is_fixed(self.topic) else None
            self._encodings[key] = self.value.open(columns, self._opening.folder, subject, trial=self._opening.trial)
        return self._encodings[key]

    def _select_rows(self, events: DataFrame, encoding: Encoding) -> DataFrame:
        value = encoding.column(own_columns(events, self.without).fieldNames())
        return _outgoing_rows(events, self.topic, self.key, self.headers, value)

    def _find_topics(self, rows: DataFrame | None, *, trial: bool = False) -> Topics:
        """Return the topics that rows may be sent to, after creating missing ones; rows: None before the start."""
        from router_sinks.kafka_client import Cluster

        cluster = Cluster(self._settings)
        create = self.create_topics
        if is_fixed(self.topic):
            return cluster.fixed_topics(self.topic, create, running=rows is not None, trial=trial)
        existing = cluster.matching_topics(self.topic)
        if create is None or rows is None:
            return Topics(existing, {}, fixed=False)
        names = [name for name in _new_topics(rows, existing, MAX_NEW_TOPICS) if not topic_fault(name)]
        room = max(0, create.at_most - len(existing))
        refused = cluster.create_topics(names[:room], create)
        created = set(names[:room]) - set(refused)
        refused |= dict.fromkeys(names[room:], f"the sink may have {create.at_most} topics and has them")
        return Topics(existing | created, refused, fixed=False)

    @property
    def _settings(self) -> dict[str, str]:
        """Return the settings of Kafka's client, with the secrets."""
        options = {name: value.get_secret_value() for name, value in self.options.items()}
        return {**options, "bootstrap.servers": self.servers}


def _outgoing_rows(
    events: DataFrame, topic: str, key: str | None, headers: Mapping[str, str], value: Column
) -> DataFrame:
    """Return kafka_client.PUBLISHED_COLUMNS. `_to` is null in a row on which an expression raises.

    Raises StartError for a key or header that is not one value.
    """
    rows = with_event(events)
    expressions = {"key": key or "null"}
    for name, sql in headers.items():
        expressions[f"header {name}"] = sql
    types = rows.select(*map(F.expr, expressions.values())).schema
    fields = [text_column(parse_template(topic)).alias("topic")]
    for (what, sql), column in zip(expressions.items(), types, strict=True):
        fields.append(as_bytes(F.expr(sql), column.dataType, what).alias(f"c{len(fields)}"))
    # The condition is always true, which no optimiser knows: see `tried`.
    to = tried(F.when(F.col("_offset") >= 0, F.struct(*fields)))
    return rows.select(*PLACE, to.alias("_to"), value.alias("_row"))


def _new_topics(rows: DataFrame, existing: frozenset[str], most: int) -> list[str]:
    """Return the names of missing topics that rows are for. One Spark job."""
    names = rows.select(F.col("_to.topic").alias("name")).filter(F.col("name").isNotNull()).distinct()
    if existing:
        names = names.filter(~F.col("name").isin(*existing))
    return sorted(row["name"] for row in names.limit(most).collect())
