"""Play a configuration over given records: the only place here that knows how the router runs a batch.

Whoever renames or moves what runs a batch changes this file, and leaves the scenarios and what is saved alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router import Preparation, RouterError
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.preflight.route_tests import InputRecord
from router.engine.quarantine import table as quarantine
from router.engine.stream_destination import stream_batches
from router.registry import load_registry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WAYS = {"auto": "commit: auto\n", "spark": "commit: spark\n"}
"""What each way through the engine adds to a configuration. The first is what is saved."""
PLUGINS = (Path(__file__).with_name("plugin.py"),)
RUN = "run-1"


@dataclass
class Player:
    """A query on a lake in `folder`, as it runs between two restarts."""

    spark: SparkSession
    folder: Path
    way: str
    finished: int = 0
    memory: LearntSchemas = field(default_factory=LearntSchemas)

    def start(self, text: str, beside: Path, schemas: dict[str, tuple[str, ...]]) -> None:
        """Start a configuration, or the next one. `schemas`: files below `beside` in place of a registry."""
        registry, environ = load_registry(PLUGINS), {"LAKE": str(self.folder / "lake"), "FOLDER": str(self.folder)}
        loaded = load_config(beside / "router.yaml", registry, environ=environ, text=text + WAYS[self.way])
        self.beside = beside
        files = {subject: tuple(beside / file for file in named) for subject, named in schemas.items()}
        decoder = loaded.config.decode.tested(files) if files else loaded.config.decode
        decoder = decoder.prepare(Preparation(beside, False, _no_sample, self.memory))
        self.config = loaded.config.model_copy(update={"decode": decoder})
        self.lake = Lake.at(self.config.lake)
        self.store = CheckpointStore(Lake.at(self.config.checkpoint_path()), RUN)
        self.batches = stream_batches(self.config, loaded.fingerprint, self.spark, self.lake, self.store)

    def value(self, record: dict[str, Any]) -> bytes | None:
        """Return the bytes of a record as a route test gives it: value, base64, or an event to be written."""
        given = InputRecord.model_validate(record)
        if given.event is None:
            return given.content
        file = self.beside / given.file if given.file else None
        return self.config.decode.encode(given.event, file, given.message)

    def take(self, records: pa.Table) -> str | None:
        """Process the next batch; return why the stream stops, if it does. That batch comes again then."""
        try:
            self.batches.process(self.spark.createDataFrame(records), self.finished)
        except RouterError as error:
            return str(error)
        self.finished += 1
        return None

    def approve(self) -> None:
        """Approve all that waits for an approval."""
        for found in quarantine.list_quarantined(self.config, self.lake):
            quarantine.write_approval(self.store, found)

    @property
    def root(self) -> Path:
        """Return the folder of the lake, which is another one with `debug: true`."""
        return Path(self.lake.root)


def _no_sample(rows: int) -> DataFrame:
    raise AssertionError("a scenario has no source to sample")
