"""Run the task of a REST sink without Spark: a real API, a real lease server, parts in a real folder."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from router import Batch, Encoding
from router.delta.commit import StagedParts
from router_encoders.outbox_rows import as_it_is
from router_rest.answers.classifier import Policy
from router_rest.delivery import job as delivery_job
from router_rest.delivery.batcher import LIMIT_KEY_COLUMN, CallSize
from router_rest.delivery.call import RequestForm
from router_rest.delivery.job import BatchJob, allowed_refusals
from router_rest.delivery.partitioner import PartitionPlan
from router_rest.delivery.receipts import Owner
from router_rest.delivery.send_plan import SendPlan
from router_rest.delivery.worker import TaskJob, send_task
from router_rest.http_client.response import HttpOptions
from router_rest.limits import backpressure, coordinator
from router_rest.limits.lease_server import LeaseServer
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from router_rest.logins.credentials import Credentials
from router_rest.templates import body_of
from tests.rest.killing import most_in_a_second

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    import pytest

    from router.delta.lake import Lake
    from router_demo.api import Api

OWNER = Owner("games", "wins", "rest", 0)
HTTP = HttpOptions(connect=2.0, read=5.0, total=10.0, most=1 << 20, in_flight=8)
PACE = Pace(in_flight=8, retry_floor=1000.0)
KEYED = "Idempotency-Key"


def pace_per_second(calls: float, in_flight: int = 64) -> Pace:
    """Return the pace of an API that takes so many calls in any second."""
    return Pace((RateLimit(calls, None, 1.0),), in_flight)


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
            "_order": pa.array(lanes or [None] * len(offsets), pa.binary()),
            "_to": pa.nulls(len(offsets)),
            "_row": pa.array(bodies),
        }
    )


def _more(more: dict[str, Any], at: int) -> bytes:
    return b"".join(b',"%b":%d' % (name.encode(), at in places) for name, places in more.items())


@dataclass
class Sent:
    """What a task reported and left behind."""

    counts: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    dead: list[dict[str, Any]] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    """Calls that are left although they were sent, by their rows."""

    def add(self, report: dict[str, Any]) -> None:
        """Take in a row of a report."""
        if report["kind"] == "dead":
            self.dead.append(report["receipt"])
        elif report["kind"] == "end":
            end = json.loads(report["text"])
            self.counts.update(end["counts"])
            self.texts |= {kind: text for kind, text in end["texts"].items() if text}
            self.tried += [json.dumps(call["rows"]) for call in end["tried"]]


def changed(job: TaskJob, **changes: Any) -> TaskJob:
    """Return a job with some of its fields, or those of its plan, changed."""
    of_plan = {name: changes.pop(name) for name in [*changes] if name in SendPlan.__dataclass_fields__}
    return replace(job, plan=replace(job.plan, **of_plan), **changes)


@dataclass
class Tasks:
    """Run tasks one after the other against an API."""

    api: Api
    parts: StagedParts
    leases: LeaseServer
    pace: Pace = PACE

    def job(self, path: str = "/events", **changes: Any) -> TaskJob:
        """Return a job: one row per call, unless `cut` says more."""
        cut = changes.pop("cut", CallSize())
        many = "array" if cut.rows > 1 else "object"
        form = RequestForm(
            "POST", self.api.url + path, {}, body_of(many, "application/json"), changes.pop("keyed", KEYED)
        )
        credentials = Credentials(changes.pop("auth", None))
        limit = changes.pop("limit", "api")
        pace = changes.pop("pace", self.pace)
        address = self.leases.admit_sink(OWNER.name, limit, pace, credentials=credentials.current_credentials)
        plan = SendPlan(limit, form, cut, Policy(first=0.01, longest=0.1), HTTP)
        job = TaskJob(plan, OWNER, self.parts, Encoding(as_it_is, None, "JSON"), address, 10)
        return changed(job, **changes)

    def run(self, job: TaskJob, *batches: pa.RecordBatch) -> Sent:
        """Run a task to its end."""
        sent = Sent()
        for report in send_task(job)(iter(batches)):
            for row in report.to_pylist():
                sent.add(row)
        return sent

    def together(self, job: TaskJob, *batches: pa.RecordBatch) -> Sent:
        """Run a task for each batch, all at once; return what they come to together."""
        whole = Sent()
        with ThreadPoolExecutor(len(batches)) as threads:
            for sent in threads.map(lambda rows: self.run(job, rows), batches):
                whole.counts.update(sent.counts)
                whole.texts |= sent.texts
                whole.dead += sent.dead
                whole.tried += sent.tried
        return whole

    def drain(self, job: TaskJob, *batches: pa.RecordBatch) -> list[Sent]:
        """Run jobs until no row is left, as a driver does; return what each came to."""
        jobs = [self.together(job, *batches)]
        while jobs[-1].counts["left"]:
            assert "wrong" not in jobs[-1].texts, jobs[-1].texts
            time.sleep(min(1.0, max(0.02, self.leases.outlook(job.address.name).retry_after)))
            jobs.append(self.together(job, *batches))
        return jobs

    @contextmanager
    def under_way(self, job: TaskJob, *batches: pa.RecordBatch, after: int) -> Iterator[Future[Sent]]:
        """Run tasks beside the block, which begins when so many of their calls arrived."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(self.together, job, *batches)
            while self.api.stats().arrived < after:
                assert not running.done(), running.result()
                time.sleep(0.01)
            yield running

    def prove(self, *batches: pa.RecordBatch, keyed: bool, limit: float | None = None) -> None:
        """Assert that the API has every row, twice only where that is said, and was not asked for more than its limit.

        keyed: it honoured keys, and has every row once. limit: calls of any second, wherever it begins.
        """
        every = {(partition, at) for one in batches for partition, at in _places(one)}
        arrived, told = self.api.rows("partition", "offset"), self.receipts()
        assert set(arrived) == every
        receipts = Counter((row["partition"], row["offset"]) for row in told)
        assert (every - receipts.keys(), [place for place, times in receipts.items() if times > 1]) == (set(), [])
        twice = {place for place, times in arrived.items() if times > 1}
        assert not twice if keyed else twice <= {(row["partition"], row["offset"]) for row in told if row["in_doubt"]}
        if limit is not None:
            assert most_in_a_second(self.api) <= limit

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts that were written, in the order of rows."""
        found = [row for _, part in self.parts.read() for row in part.to_pylist()]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def _places(rows: pa.RecordBatch) -> list[tuple[int, int]]:
    return list(zip(rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist(), strict=True))


@contextmanager
def run_tasks(api: Api, lake: Lake) -> Iterator[Tasks]:
    """Run what tasks need for as long as a `with` block."""
    leases = LeaseServer().start()
    api.reset()
    try:
        yield Tasks(api, StagedParts(lake, "ops.receipts", "games:run/wins/rest", 0), leases)
    finally:
        leases.stop()


def shorten_outages(patch: pytest.MonkeyPatch) -> None:
    """Let an outage last for tenths of a second: what is done about it is the same."""
    patch.setattr(coordinator, "MAX_TOKEN_WAIT_SECONDS", 0.3)
    patch.setattr(backpressure, "PROBE_PAUSE", 0.2)
    patch.setattr(backpressure, "RAMP_SECONDS", 0.3)


class Placed:
    """The rows of one task, through which the functions of tasks are run without Spark."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self.batches = batches
        self.made: list[pa.RecordBatch] = []

    def mapInArrow(self, function: Any, schema: str) -> Placed:  # noqa: N802 - Spark's name
        done = Placed()
        done.made = list(function(iter(self.batches)))
        return done

    def filter(self, condition: str) -> Placed:
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        table = pa.Table.from_batches(self.made)
        return table.filter(pc.not_equal(table["kind"], "tick"))

    def collect(self) -> list[dict[str, Any]]:
        return [row for one in self.made for row in one.to_pylist()]


def whole(tasks: Tasks, *batches: pa.RecordBatch, job: Any, **options: Any) -> BatchJob:
    """Return the job of a batch, whose tasks run here."""
    batch = Batch("games", 0, "wins", "rest", stop=threading.Event())
    events: Any = SimpleNamespace(sparkSession=None)
    plan = PartitionPlan(job.plan.cut, 1, sum(one.num_rows for one in batches))
    allowed = allowed_refusals(plan.rows, 0.05)
    job = changed(job, dead_at_most=allowed, **options)
    made = BatchJob(events, lambda rows: rows, batch, plan, job, tasks.leases)
    made._place_rows = lambda: Placed(*batches)  # type: ignore[method-assign,assignment,return-value]
    return made


def shorten_rounds(patch: pytest.MonkeyPatch) -> None:
    """Let rounds and outages last for tenths of a second, without Spark: what is done about them is the same."""
    for module, name, seconds in (
        (delivery_job, "FIRST_ROUND_PAUSE_SECONDS", 0.1),
        (delivery_job, "MAX_ROUND_PAUSE_SECONDS", 0.3),
        (delivery_job, "MIN_JOB_PAUSE_SECONDS", 0.02),
        (delivery_job, "MAX_LOOK_PAUSE_SECONDS", 0.05),
        (coordinator, "MAX_TOKEN_WAIT_SECONDS", 0.3),
        (backpressure, "PROBE_PAUSE", 0.1),
    ):
        patch.setattr(module, name, seconds)
    patch.setattr(delivery_job, "bounded_batches", nullcontext)


def rows_of_accounts(accounts: Sequence[str | None], *, first: int = 0) -> pa.RecordBatch:
    """Return rows of accounts, as a task gets them."""
    found = rows(range(first, first + len(accounts)))
    keys = pa.array([None if one is None else one.encode() for one in accounts], pa.binary())
    return pa.RecordBatch.from_arrays([*found.columns, keys], [*found.schema.names, LIMIT_KEY_COLUMN])
