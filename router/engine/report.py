"""Report a finished batch to observers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.engine.balance import KEYED, keyed, total
from router.parts import BatchReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.applying import Applied
    from router.engine.label.layout import Layout
    from router.engine.manifest import Manifest
    from router.engine.progress import Steps


def report(query: str, layout: Layout, manifest: Manifest, steps: Steps, applied: Mapping[str, Applied]) -> BatchReport:
    """Return the report of a finished batch; `applied` is what sinks did with their lanes."""
    counted, commits = manifest.partitions, manifest.commits
    by = {kind: keyed(counted, kind) for kind in KEYED}
    routes = {
        route.name: {
            "matched": by["matched"][route.name],
            "landed": sum(by["landed"][target.key] for target in route.targets),
            "refused": by["refused"][route.name] + sum(by["turned"][k] for t in route.targets for k in t.keys),
            "dropped": by["dropped"][route.name],
            "frozen": sum(by["frozen"][target.key] for target in route.targets),
            "waiting": sum(by["landed"][key] for target in route.targets for key in target.keys[1:]),
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
