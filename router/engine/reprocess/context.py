"""What every kind of reprocessing works with."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from router.api.parts import Preparation
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas, lake_and_checkpoint
from router.engine.source import source
from router.engine.spark.executors import Executors
from router.engine.start.checks import executors_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.registry import Registry


@dataclass(frozen=True)
class ReprocessContext:
    """A configuration with its lake and checkpoint, and the Spark that processes its records again.

    `folder` is the folder of the configuration, `fingerprint` names what stands in it. `stop` ends the work early.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    fingerprint: str = ""
    folder: Path = field(default_factory=Path)
    stop: threading.Event = field(default_factory=threading.Event)
    executors: Executors = field(default_factory=Executors)

    @classmethod
    def of(cls, loaded: Loaded, spark: SparkSession, stop: threading.Event) -> ReprocessContext:
        """Return the context of a configuration, for a Spark that reaches lake and checkpoint.

        Its decoder is not prepared yet.
        """
        config = loaded.config
        lake, checkpoint = lake_and_checkpoint(config)
        return cls(config, spark, lake, checkpoint, loaded.fingerprint, loaded.path.parent, stop)

    @property
    def memory(self) -> LearntSchemas:
        """Return the schemas that decoder and planner have learnt."""
        return LearntSchemas(CheckpointStore(self.checkpoint))

    def with_executors(self, registry: Registry, command: str) -> ReprocessContext:
        """Return the context with executors that have been looked at. `command` names the work that is done."""
        executors = executors_of(self.spark, registry, self.config, self.lake, command)
        executors.check_started(self.spark)
        return replace(self, executors=executors)

    def with_decoder(self, trial: LearntSchemas | None = None) -> ReprocessContext:
        """Return the context with a decoder that has learnt what it needs; in a `trial` nothing is written but that."""
        config = self.config

        def sample(rows: int) -> DataFrame:
            return source.read_sample(self.spark, config, rows)

        preparation = Preparation(
            self.folder, False, sample, trial or self.memory, reads_topic=config.source.reads_topic, trial=bool(trial)
        )
        return replace(self, config=config.model_copy(update={"decode": config.decode.prepare(preparation)}))


@dataclass
class Reprocessing:
    """Work on records that are processed again, with what it takes from its context at hand."""

    context: ReprocessContext

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake
