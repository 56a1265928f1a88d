"""How the rows of a sink are sent: all that tasks, and the driver for them, get of its checked options."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from math import ceil
from typing import TYPE_CHECKING

from router_rest.answers.classifier import Policy
from router_rest.delivery.batcher import HOST_AS_LIMIT_KEY, Batcher, Call, CallSize, RowReader
from router_rest.delivery.call import RequestForm
from router_rest.http_client.response import HttpOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from router import Encoding
    from router_rest.delivery.receipts import Status
    from router_rest.options import MaxOutage, RestOptions

CALLS_IN_FLIGHT_PER_TASK = 64
"""Calls in flight that one task can handle."""
CALLS_PER_SECOND_PER_TASK = 1000.0
"""Calls per second that one task can make, with a reserve."""
ORDERS_PER_TASK = 256
"""Orders of a task where rows keep one: more than calls in flight, because some keys have more rows than others."""
MAX_OPEN_GROUPS = 4096
"""Keys of `group_by` whose calls are filled at once: with more, calls that are not full go out."""
DEFAULT_HEADERS = {
    "User-Agent": f"spark-event-router/{version('spark-event-router')}",
    "Accept": "application/json, */*;q=0.5",
}
"""Headers that every call has unless the configuration says otherwise."""
KEY_TOKENS_AHEAD_SECONDS = 0.05
"""Seconds for which tokens of one key are asked for at a time."""
EXCERPT_READ_BYTES, ANSWER_READ_BYTES, BULK_READ_BYTES = 1 << 16, 1 << 20, 1 << 24
"""Bytes of an answer that are read: for its receipt, to be landed or asked by rules, to be read by row."""


@dataclass(frozen=True)
class SendPlan:
    """The checked options of a sink as tasks take them; it is pickled to executors, so nothing in it is secret.

    `limit` is the name of the limit that calls are under. `cut` says how large they are. Where each key has its own
    limit, with `by_host` each host, so many `calls_of_key` ask for a token at a time; 0: none has. The calls of a task
    take about `bytes_in_flight` of memory.

    For the driver: a call that fails in `rounds` while others are taken is set aside, with the status `set_aside_as`.
    `configuration` tells configurations apart.
    """

    limit: str
    form: RequestForm
    cut: CallSize
    policy: Policy
    http: HttpOptions
    bytes_in_flight: int = 64 << 20
    calls_of_key: int = 0
    by_host: bool = False
    max_outage: MaxOutage | None = None
    rounds: int = 3
    set_aside_as: Status = "parked"
    configuration: str = ""

    @classmethod
    def from_options(cls, options: RestOptions, folder: Path, cut: CallSize, tasks: int) -> SendPlan:
        """Return the plan of checked options, for a batch that was cut so, and goes out from so many tasks."""
        return cls(
            limit=options.limit,
            form=form_of(options),
            cut=cut,
            policy=policy_of(options),
            http=http_options(options, folder, tasks),
            bytes_in_flight=options.bytes_in_flight,
            calls_of_key=calls_of_key(options),
            by_host=options.limit_by == HOST_AS_LIMIT_KEY,
            max_outage=options.max_outage,
            rounds=options.retry.rounds,
            set_aside_as="dead" if options.retry.then == "dead" else "parked",
            configuration=hashlib.sha256(options.model_dump_json().encode()).hexdigest(),
        )

    def row_reader(self, encoding: Encoding) -> RowReader:
        """Return a reader of the rows of which calls are made."""
        return RowReader(encoding, self.form.body, by_host=self.by_host)

    def cut_calls(self, encoding: Encoding, batches: Iterable[pa.RecordBatch]) -> Iterator[Call]:
        """Yield the calls of all rows of a task; a row that cannot be sent as `Call.of_unsendable`."""
        batcher = Batcher(self.cut)
        reader = self.row_reader(encoding)
        for batch in batches:
            for row in reader.read_rows(batch):
                if row.why is None:
                    yield from batcher.add_row(*row[:6])
                else:
                    yield Call.of_unsendable(row.place, row.why)
        yield from batcher.flush_calls()


def tasks_of(sink: RestOptions, spark: SparkSession | None = None) -> int:
    """Return how many tasks send: as many as configured, else as few as the limits need, and one per core at most."""
    if sink.tasks is not None:
        return sink.tasks
    tasks = ceil(sink.max_in_flight / CALLS_IN_FLIGHT_PER_TASK)
    calls_per_second = _slowest_limit(sink)
    if calls_per_second is not None:
        tasks = max(tasks, ceil(calls_per_second / CALLS_PER_SECOND_PER_TASK))
    if spark is None:
        return tasks
    return min(tasks, spark.sparkContext.defaultParallelism)


def _slowest_limit(sink: RestOptions) -> float | None:
    """Return the calls per second that the limits allow; None if no limit counts calls."""
    return min((limit.calls / limit.per for limit in sink.stated_limits() if limit.calls is not None), default=None)


def cut_of(sink: RestOptions) -> CallSize:
    """Return the size of calls."""
    bytes_of_rows = sink.bytes_per_call - sink.body_maker.frame_bytes(1)
    return CallSize(
        sink.rows_per_call,
        max(1, bytes_of_rows),
        orders=ORDERS_PER_TASK if sink.ordered_by else 0,
        open=max(2 * bytes_of_rows, sink.bytes_in_flight // 4),
        groups=MAX_OPEN_GROUPS if sink.group_by else 0,
    )


def form_of(sink: RestOptions) -> RequestForm:
    """Return the form that all requests share, without secrets: these come with the credentials."""
    has_own_key = sink.idempotency_key == "uuid5"
    return RequestForm(
        method="" if sink.method.sql else sink.method.name,
        url="" if sink.template.fields else sink.url,
        headers=DEFAULT_HEADERS,
        body=sink.body_maker,
        key_header=sink.key_header if has_own_key else None,
        named=tuple(sink.rendered_headers),
        row_key=not has_own_key and sink.key_header is not None,
        quoted=sink.id_header is None,
    )


def policy_of(sink: RestOptions) -> Policy:
    """Return the rules by which calls are sent again."""
    statuses = sink.retry.statuses
    return Policy(
        attempts=sink.retry.attempts,
        elapsed=sink.retry.elapsed,
        again=None if statuses is None else frozenset(statuses),
        results=sink.results,
        rules=tuple(answer.rule for answer in sink.answers),
    )


def calls_of_key(sink: RestOptions) -> int:
    """Return how many calls of one key may ask for a token at a time: as many as its limits allow soon."""
    if sink.limit_by is None:
        return 0
    calls_per_second = _slowest_limit(sink) or CALLS_PER_SECOND_PER_TASK
    return max(1, min(sink.max_in_flight // 2, ceil(calls_per_second * KEY_TOKENS_AHEAD_SECONDS)))


def http_options(sink: RestOptions, folder: Path, tasks: int) -> HttpOptions:
    """Return the options of a task's HttpClient.

    Tasks get about as many rows each. With an order a source partition is one task's, so a task may have twice its
    share of calls in flight while others need fewer.
    """
    tls = sink.tls.resolve_paths(folder)
    times = sink.timeouts
    shares = 2 if sink.ordered_by else 1
    # What is read of an answer is in memory for each call in flight: no more than somebody looks at.
    answer_bytes = EXCERPT_READ_BYTES
    if sink.results:
        answer_bytes = BULK_READ_BYTES
    elif sink.responses or sink.answers:
        answer_bytes = ANSWER_READ_BYTES
    return HttpOptions(
        connect=times.connect,
        read=times.read,
        total=times.total,
        most=answer_bytes,
        in_flight=min(sink.max_in_flight, shares * ceil(sink.max_in_flight / tasks)),
        age=times.connection,
        verify=tls.verify,
        cert=tls.cert,
    )
