"""What each deploy of a configuration changed, and what became of its records, for `router history`. Needs no Spark."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.config.changes import describe_changes
from router.delta.dataset import dataset_of
from router.engine.audit.dead_letters import DeadLetterGroup, DeadLetterSelection, dead_letter_groups
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.deploys import Deploy, read_deploys
from router.engine.source.position import BATCH_BITS
from router.stages import Stage

if TYPE_CHECKING:
    from router.config.models import Config
    from router.delta.lake import Lake

SUMMED = ("read", "landed", "quarantined", "dead", "parked")
"""The counts of the ledger that are added up over the batches of a deploy."""


@dataclass
class DeployHistory:
    """A deploy, the `number`-th of its query from 1 on, and what became of the records of its batches.

    `last` is its last batch in the ledger, None if there is none. `counts` are sums of the ledger, without replays:
    `read` of records, `landed` and `quarantined` of rows, `dead` and `parked` of rows that a sink was refused.
    `dead_letters` are those of its records, but for the ones that a sink was refused: they do not say when their record
    arrived. `changes` are sentences about its text and versions beside those of the deploy before.
    """

    number: int
    deploy: Deploy
    last: int | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0))
    changes: list[str] = field(default_factory=list)
    dead_letters: list[DeadLetterGroup] = field(default_factory=list)

    @property
    def refused_by_sinks(self) -> int:
        """Return how many dead letters more there are: rows that a sink was refused."""
        return max(
            0, self.counts["dead"] - sum(group.count for group in self.dead_letters if group.stage == Stage.APPLY)
        )


def deploys_of(config: Config) -> list[Deploy]:
    """Return what has run by the checkpoint of a configuration, oldest first."""
    _, checkpoint = lake_and_checkpoint(config)
    return read_deploys(CheckpointStore(checkpoint))


def deploy_histories(config: Config, deploys: list[Deploy], last: int) -> list[DeployHistory]:
    """Return the history of the last of all deploys. Raises TableError if the dead letters cannot be read."""
    lake, _ = lake_and_checkpoint(config)
    histories = [DeployHistory(number, deploy) for number, deploy in enumerate(deploys, 1)]
    _add_ledger(histories, config, lake)
    for history in histories[-last:]:
        before = deploys[history.number - 2] if history.number > 1 else None
        if before is not None:
            history.changes = _describe_versions(before, history.deploy)
            history.changes += describe_changes(before.text, history.deploy.text)
            history.changes = history.changes or ["an order or a secret is another one"]
        following = deploys[history.number : history.number + 1]
        arrivals = (history.deploy.arrival, following[0].arrival if following else sys.maxsize)
        history.dead_letters = dead_letter_groups(config, DeadLetterSelection(replayed=True, arrivals=arrivals))
    return histories[-last:]


def _describe_versions(before: Deploy, now: Deploy) -> list[str]:
    sentences = [f"{version}: new" for version in now.versions if version not in before.versions]
    return sentences + [f"{version}: gone" for version in before.versions if version not in now.versions]


def _add_ledger(histories: list[DeployHistory], config: Config, lake: Lake) -> None:
    """Add the counts of all batches to their deploys, part by part: a ledger has millions of rows after some months."""
    table = lake.open(config.ledger)
    if table is None or not histories:
        return
    # A ledger of an older version has fewer columns.
    summed = [name for name in SUMMED if name in {field.name for field in table.schema().fields}]
    of_query = (pc.field("query") == config.name) & pc.field("batch_id").is_valid()
    for batch in dataset_of(table).scanner(["run", "batch_id", "finished", *summed], filter=of_query).to_batches():
        rows = pa.table(batch)
        places = _deploys_of_rows(rows, [history.deploy for history in histories])
        rows = rows.append_column("deploy", pa.array(places)).filter(pc.greater_equal(pa.array(places), 0))
        for row in rows.group_by("deploy").aggregate([(name, "sum") for name in summed]).to_pylist():
            history = histories[row["deploy"]]
            for name in summed:
                history.counts[name] += row[f"{name}_sum"] or 0
        is_source = pc.is_in(rows["run"], pa.array({history.deploy.run for history in histories}))
        for row in rows.filter(is_source).group_by("deploy").aggregate([("batch_id", "max")]).to_pylist():
            history = histories[row["deploy"]]
            history.last = max(row["batch_id_max"], history.last or 0)


def _deploys_of_rows(rows: pa.Table, deploys: list[Deploy]) -> np.ndarray:
    """Return the place of each ledger row's deploy, -1 for rows from before the first.

    A batch of the stream is of the newest deploy that had begun. Batches of a detached sink are numbered on their own:
    such a row is of the newest deploy that had begun when it ended.
    """
    ordinals = {deploy.run: deploy.arrival >> BATCH_BITS for deploy in deploys}
    run_places = pc.index_in(rows["run"], pa.array([*ordinals])).fill_null(-1).to_numpy()
    # The one that is added stands for the runs of detached sinks.
    ordinals_of_rows = np.array([*ordinals.values(), 0])[run_places]
    arrivals = (ordinals_of_rows << BATCH_BITS) + rows["batch_id"].to_numpy()
    of_stream = np.searchsorted(np.array([deploy.arrival for deploy in deploys]), arrivals, side="right") - 1
    begins = np.array([deploy.since * 1000 for deploy in deploys])
    of_sinks = np.searchsorted(begins, rows["finished"].cast(pa.int64()).to_numpy(), side="right") - 1
    places: np.ndarray = np.where(run_places < 0, of_sinks, of_stream)
    return places
