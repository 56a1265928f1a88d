"""Run the task of a REST sink without Spark: a real API, a real lease server, parts in a real folder."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router import Encoding
from router.delta.kept import KeptParts
from router_encoders.json_texts import as_it_is
from router_rest.bodies import body_of
from router_rest.credentials import Credentials, apply
from router_rest.cutting import Cut
from router_rest.lease_server import LeaseServer
from router_rest.making import Form
from router_rest.policy import Policy
from router_rest.receipts import Owner
from router_rest.sending import Job
from router_rest.task import task
from router_rest.terms import Pace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router.delta.lake import Lake
    from router_demo.api import Api

OWNER = Owner("games", "wins", "rest", 0)
WIRE = {"connect": 2.0, "read": 5.0, "total": 10.0, "most": 1 << 20, "in_flight": 8, "verify": True, "cert": None}
PACE = Pace(in_flight=8, retry_floor=1000.0)
KEYED = "Idempotency-Key"


def rows(
    offsets: Sequence[int], *, partition: int = 0, lanes: Sequence[bytes | None] | None = None, **more: Any
) -> pa.RecordBatch:
    """Return rows of one partition as a task gets them, with their coordinates in the body."""
    bodies = [b'{"partition":%d,"offset":%d%b}' % (partition, at, _more(more, at)) for at in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "_topic": pa.array(["events"] * len(offsets)),
            "_partition": pa.array([partition] * len(offsets), pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_lane": pa.array(lanes or [None] * len(offsets), pa.binary()),
            "_to": pa.nulls(len(offsets)),
            "_row": pa.array(bodies),
        }
    )


def _more(more: dict[str, Any], at: int) -> bytes:
    return b"".join(b',"%b":%d' % (name.encode(), at in places) for name, places in more.items())


@dataclass
class Sent:
    """Be what a task reported and left behind."""

    counts: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    dead: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Tasks:
    """Run tasks one after the other against an API."""

    api: Api
    parts: KeptParts
    leases: LeaseServer
    pace: Pace = PACE

    def job(self, path: str = "/events", **changes: Any) -> Job:
        """Return a job: one row per call, unless `cut` says more."""
        cut = changes.pop("cut", Cut())
        many = "array" if cut.rows > 1 else "object"
        form = Form("POST", self.api.url + path, {}, body_of(many, "application/json"), changes.pop("keyed", KEYED))
        credentials = Credentials(changes.pop("auth", None))
        limit = changes.pop("limit", "api")
        address = self.leases.admit(OWNER.name, limit, self.pace, credentials=credentials.current)
        policy = Policy(first=0.01, longest=0.1)
        job = Job(OWNER, self.parts, Encoding(as_it_is, None, "JSON"), form, cut, policy, address, WIRE, apply, 10)
        return replace(job, **changes)

    def run(self, job: Job, *batches: pa.RecordBatch) -> Sent:
        """Run a task to its end."""
        sent = Sent()
        for report in task(job)(iter(batches)):
            for row in report.to_pylist():
                if row["kind"] == "dead":
                    sent.dead.append(row["receipt"])
                elif row["text"]:
                    sent.texts[row["kind"]] = row["text"]
                else:
                    sent.counts[row["kind"]] += row["rows"]
        return sent

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts that were written, in the order of rows."""
        found = [row for _, part in self.parts.read() for row in part.to_pylist()]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))


@contextmanager
def tasks(api: Api, lake: Lake) -> Iterator[Tasks]:
    """Run what tasks need for as long as a `with` block."""
    leases = LeaseServer().start()
    api.reset()
    try:
        yield Tasks(api, KeptParts(lake, "ops.receipts", "games:run/wins/rest", 0), leases)
    finally:
        leases.stop()
