"""Compute how large a job must be: cores, partitions, memory, files and requests for a rate and a latency.

Computed from measured constants (sizing.yaml, each with its source), not from a run: `router bench` measures. The
model is a line: a batch takes a fixed time, some for each table that it touches, and some of a core for each event.
A record waits for the batch that runs when it comes, then for its own: a latency holds two batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from router.api.sinks import ApplyingSink, LakeSink, MergingSink
from router.config.models import parse_interval
from router.delta.maintenance import LEAST_AGE, LOG_AGE, REPLACED_TIMES
from router.errors import StartError
from router.registry import parts_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config

BUSY = 0.7
"""The share of the cores that the rate may take: the rest catches up after a pause, and takes the peaks."""
USUAL_EVENT = 190
"""Bytes of the events that the constants were measured with."""
EXECUTOR_CORES = 4
ONE_MACHINE = 16
"""Cores up to which one machine does, and no cluster is needed."""
SMALL_FILES = 8
"""Tables from which on a batch writes one file for each (their rows are brought together), not one for each task."""
_DAY = 86_400


@dataclass(frozen=True)
class Constants:
    """The measured figures, in seconds and bytes."""

    batch_seconds: float
    table_seconds: float
    event_seconds: dict[str, float]
    spark_rule_seconds: float
    stored_share: float
    driver_bytes: float
    worker_bytes: float
    merge_bytes_per_row: float
    requests_per_table: float
    requests_per_batch: float
    lock_seconds: float

    @classmethod
    def read(cls) -> Constants:
        """Read the file of constants that is installed next to this module."""
        text = files("router.engine.preflight").joinpath("sizing.yaml").read_text("utf-8")
        return cls(**{name: entry["value"] for name, entry in yaml.safe_load(text).items()})

    def fixed_seconds(self, tables: int) -> float:
        """Return the seconds that a batch takes without any event."""
        return self.batch_seconds + self.table_seconds * tables

    def estimate_batch(
        self, events: float, tables: int, cores: float, kind: str, event_bytes: int = USUAL_EVENT
    ) -> float:
        """Return the seconds that a batch takes."""
        return self.fixed_seconds(tables) + events * self.core_seconds(kind, event_bytes) / cores

    def core_seconds(self, kind: str, event_bytes: int = USUAL_EVENT, *, spark_rule: bool = False) -> float:
        """Return the seconds of a core for an event: in proportion for a larger one, not less for a smaller one."""
        seconds = self.event_seconds[kind] * max(1.0, event_bytes / USUAL_EVENT)
        if spark_rule:
            seconds += self.spark_rule_seconds
        return seconds


@dataclass(frozen=True)
class Load:
    """What comes in, and how soon it has to be in its tables; bytes are those of a record's value."""

    events_per_second: float
    latency_seconds: float
    tables: int
    event_bytes: int = USUAL_EVENT
    table_rows: int = 0
    spark_rule: bool = False


@dataclass(frozen=True)
class Size:
    """What a job needs, and what a day of it leaves behind; bytes, seconds, counts."""

    decoded_as: str
    cores: int
    partitions: int
    executors: int
    executor_cores: int
    batch_seconds: float
    rows_per_batch: int
    batches_per_day: int
    driver_memory: int
    worker_memory: int
    merge_memory: int
    files_per_day: int
    requests_per_day: int
    stored_per_day: int
    cost_drivers: tuple[str, ...]


def size_job(config: Config, load: Load, constants: Constants | None = None) -> Size:
    """Return the size of a job; raise StartError for a latency that no number of cores reaches."""
    constants = constants or Constants.read()
    kind = decoded_as(config)
    touched_tables = load.tables + bool(config.bronze) + 1  # one is the ledger
    fixed = constants.fixed_seconds(touched_tables)
    pause = 0.0
    if config.trigger.every:
        pause = parse_interval(config.trigger.every).total_seconds()
    if fixed + max(pause, fixed) >= load.latency_seconds:
        pace = f" and begins every {pause:g} s" if pause else ""
        raise StartError(
            f"a batch into {touched_tables} tables takes {fixed:.1f} s before its first event{pace}, so no number of "
            f"cores brings records there within {load.latency_seconds:g} s; allow more, route to fewer tables, or give "
            "tables a job of their own"
        )
    # `busy` cores work on events all the time. The fixed part of each batch has to fit into what they leave.
    busy = load.events_per_second * constants.core_seconds(kind, load.event_bytes, spark_rule=load.spark_rule)
    cores = _fewest_cores(busy, fixed, pause, load.latency_seconds)
    every = max(pause, fixed / (1 - busy / cores))
    batches = math.ceil(_DAY / every)
    data_files = batches * _files_per_batch(load.tables, cores, bronze=config.bronze is not None)
    stored = load.events_per_second * load.event_bytes * constants.stored_share
    executors = 0
    executor_cores = 0
    if cores > ONE_MACHINE:
        executors = math.ceil(cores / EXECUTOR_CORES)
        executor_cores = EXECUTOR_CORES
    requests_per_batch = constants.requests_per_batch + constants.requests_per_table * touched_tables
    requests = _DAY / constants.lock_seconds + batches * requests_per_batch + data_files
    merge = 0
    if _has_merging_sink(config):
        merge = int(load.table_rows * constants.merge_bytes_per_row)
    return Size(
        decoded_as=kind,
        cores=cores,
        partitions=cores,
        executors=executors,
        executor_cores=executor_cores,
        batch_seconds=round(every, 2),
        rows_per_batch=math.ceil(load.events_per_second * every),
        batches_per_day=batches,
        driver_memory=int((1 << 30) + constants.driver_bytes),
        worker_memory=int(constants.worker_bytes + merge),
        merge_memory=merge,
        files_per_day=data_files,
        requests_per_day=int(requests),
        stored_per_day=int(stored * _DAY),
        cost_drivers=tuple(_cost_drivers(config, load, constants, busy=busy, fixed=fixed, every=every)),
    )


def _fewest_cores(busy: float, fixed: float, pause: float, latency: float) -> int:
    """Return the fewest cores that keep up with the rate, and with which two batches fit into the latency."""
    cores = max(1, math.ceil(busy / BUSY))
    while _batch_latency(busy / cores, fixed, pause) > latency:
        cores += 1
    return cores


def _batch_latency(busy: float, fixed: float, pause: float) -> float:
    every = max(pause, fixed / (1 - busy))
    return every + fixed + busy * every


def _files_per_batch(tables: int, tasks: int, *, bronze: bool) -> int:
    """Return the data files of a batch before maintenance joins them; the ledger writes one."""
    files_per_table = tasks if tables < SMALL_FILES else 1
    return tables * files_per_table + tasks * bronze + 1


def decoded_as(config: Config) -> str:
    """Return the format that a configuration's events are measured as: the dearest that its decoders may read."""
    names = set()
    for part in parts_in(config.decode):
        names |= {type(part).__name__.lower(), part.part_name}
    if names & {"avro", "auto"}:
        return "avro"
    return "protobuf" if "protobuf" in names else "json"


def _has_merging_sink(config: Config) -> bool:
    return any(isinstance(sink, MergingSink) for _, _, sink in config.all_sinks())


def _cost_drivers(
    config: Config, load: Load, constants: Constants, *, busy: float, fixed: float, every: float
) -> Iterator[str]:
    """Yield what the size comes from, the largest first, and what would lower it."""
    events = f"{load.events_per_second:,.0f} events/s of {decoded_as(config)}"
    if load.spark_rule:
        events += ", with a rule that needs Spark"
    yield f"{events} take {busy:.1f} cores; another {1 / BUSY - 1:.0%} is for catching up"
    for_tables = constants.table_seconds * load.tables
    yield f"a batch takes {fixed:.2f} s without its events, {for_tables:.2f} s of them for its tables"
    # More batches than the latency needs make files and requests for nothing.
    if every < load.latency_seconds / 4:
        longest = load.latency_seconds / 2
        yield (
            f"a batch every {every:.1f} s makes files and requests: `trigger: {{every: {longest:.0f} s}}` keeps the "
            f"latency and makes {every / longest:.0%} of them"
        )
    if load.event_bytes > USUAL_EVENT:
        yield f"events of {load.event_bytes} bytes count as {load.event_bytes / USUAL_EVENT:.1f} of {USUAL_EVENT}"
    rows = load.events_per_second * every
    kafka = config.source.kafka
    if kafka and rows > kafka.rows_per_batch:
        yield (
            f"`rows_per_batch` is {kafka.rows_per_batch:,}, and {rows:,.0f} records come while a batch runs: it falls "
            f"behind until the source allows that many"
        )
    if _has_merging_sink(config):
        yield "what upserts cost beyond appending is not counted: `router bench` measures a merge of your keys"
        in_an_hour = math.ceil(LOG_AGE.total_seconds() / every)
        copies = min(in_an_hour, max(REPLACED_TIMES, math.ceil(LEAST_AGE.total_seconds() / every)))
        minutes = LEAST_AGE.total_seconds() / 60
        yield (
            f"a batch may rewrite the tables that it merges into, and old versions stay for {minutes:.0f} minutes at "
            f"least: on disk up to {copies:,} times their size; a longer `trigger: {{every: ...}}` makes that less"
        )
    if config.views:
        yield "views are not counted: each costs what its query costs, as often as it is refreshed"
    if _has_merging_sink(config) and load.table_rows:
        yield f"a table of {load.table_rows:,} rows is merged within one task: `memory` of the sink bounds it, by disk"
    if any(isinstance(sink, ApplyingSink) for _, _, sink in config.all_sinks()):
        yield "sinks that send are not counted: an API's limit is theirs, and `router bench --send` measures them"


def count_tables(config: Config) -> tuple[int, bool]:
    """Return how many tables a configuration names, and whether data may name more."""
    templates = []
    for _, _, sink in config.all_sinks():
        if isinstance(sink, LakeSink):
            templates.append(sink.table_template())
    open_ended = any(not template or "{" in template for template in templates)
    return max(1, len(templates)), open_ended
