"""Time the steps of a batch, show them to the watcher, and report the batch to observers at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.engine.balance import KEYED, keyed, total
from router.parts import BatchReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.engine.checkpoint_store import Manifest
    from router.engine.label.layout import Layout
    from router.sinks import Applied

Watch = Callable[[int, str, int, int], None]
"""Called with (batch id, step, done, of): at a step's start (0 done), on progress inside it, and at its end."""


@dataclass
class Steps:
    """The wall seconds of each step of one batch."""

    batch: int
    watch: Watch | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, of: int = 1) -> Iterator[None]:
        """Time a step; the watcher sees its start and, unless it failed, its end."""
        self.tell(name, 0, of)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.tell(name, of, of)

    def tell(self, name: str, done: int, of: int) -> None:
        """Report progress inside a step."""
        if self.watch:
            self.watch(self.batch, name, done, of)


def report(query: str, layout: Layout, manifest: Manifest, steps: Steps, applied: Mapping[str, Applied]) -> BatchReport:
    """Return the report of a finished batch; `applied` is what sinks did with their outboxes."""
    counted, commits = manifest.partitions, manifest.commits
    by = {kind: keyed(counted, kind) for kind in KEYED}
    routes = {
        route.name: {
            "matched": by["matched"][route.name],
            "landed": sum(by["landed"][target.key] for target in route.targets),
            "refused": by["refused"][route.name] + sum(by["rejected"][k] for t in route.targets for k in t.keys),
            "dropped": by["dropped"][route.name],
            "frozen": sum(by["frozen"][target.key] for target in route.targets),
            "quarantined": sum(by["landed"][key] for target in route.targets for key in target.keys[1:]),
            **{f"warned {name}": by["warned"][f"{route.name}/{name}"] for name in route.warned},
        }
        for route in layout.routes
    }
    read, failed = total(counted, "read"), total(counted, "failed")
    refused = sum(counts.dead for counts in applied.values())
    return BatchReport(
        query=query,
        batch=manifest.batch,
        read=read,
        decoded=read - failed - total(counted, "bare"),
        failed=failed,
        unmatched=total(counted, "unmatched"),
        dead_letters=sum(work.rows for work in commits if work.target == "/dead_letters") + refused,
        tables=len({work.table for work in commits}),
        files=sum(len(work.files) for work in commits),
        seconds={name: round(seconds, 4) for name, seconds in steps.seconds.items()},
        routes=routes,
    )
