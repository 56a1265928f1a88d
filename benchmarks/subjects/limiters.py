"""The REST sink's tasks at a real limiter, and a naive client at the same pace at a limiter of its own.

No Spark: each task runs in a process of its own, as `mapInArrow` would run it, with a lease server and receipts.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.limiter_servers import limiter_server
from benchmarks.runs import Run
from benchmarks.subjects import Subject
from router import Encoding
from router.delta.commit import StagedParts
from router.delta.lake import Lake
from router_encoders.outbox_rows import as_it_is
from router_rest.answers.classifier import Policy
from router_rest.delivery.batcher import LIMIT_KEY_COLUMN, CallSize
from router_rest.delivery.call import RequestForm
from router_rest.delivery.receipts import Owner
from router_rest.delivery.send_plan import SendPlan
from router_rest.delivery.worker import TaskJob, send_task
from router_rest.http_client.response import HttpOptions
from router_rest.limits.lease_client import HeldToken
from router_rest.limits.lease_server import LeaseServer
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from router_rest.logins.credentials import Credentials
from router_rest.templates import body_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.runs import Task

WARM_UP = 5.0
"""Seconds after the first call that do not count; of longer windows two of them."""
IN_FLIGHT = 64
SHARE = 0.98
"""The part of the stated limit at which both clients send."""
OWNER = Owner("limiters", "calls", "rest", 0)
ROWS_LEFT = 3
"""The exit status of a task's process that leaves rows to the next round."""
REFUSED_KEY = b"refused"


def _session(task: Task) -> Any:
    """Return what stands for a session: nothing here needs Spark."""
    return SimpleNamespace(stop=lambda: None)


def _run(spark: SparkSession, task: Task) -> Run:
    """Let the tasks of a sink send for `seconds`, and the naive client beside them."""
    options = task.options
    began = time.perf_counter()
    turns = []
    for turn in range(int(options.get("turns", "1"))):
        folder = Path(task.folder, f"turn-{turn}")
        folder.mkdir(parents=True)
        with limiter_server(folder, options) as url, busy_cores(int(options.get("busy", "0"))):
            if "keys" in options:
                turns.append(_send_keys(url, folder, int(options["keys"])))
            else:
                turns.append(_send_at_a_limit(url, folder, options, task.partitions))
    counts = {}
    for name in turns[0]:
        counts[name] = median(turn[name] for turn in turns)
    return Run(time.perf_counter() - began, read=task.events, counts=counts)


def _send_at_a_limit(url: str, folder: Path, options: dict[str, str], tasks: int) -> dict[str, float]:
    """Send without end at a limit, and count what each client got in the seconds that count.

    `limit` is what the API allows in `window` seconds, `stated` the limit that each of `senders` processes states,
    which may be `none`.
    """
    window = float(options.get("window", "1"))
    allowed = float(options["limit"])
    stated = options.get("stated", options["limit"])
    senders = int(options.get("senders", "1"))
    seconds = float(options["seconds"])
    # Calls per second that may be used. The naive client always knows the limit.
    if stated == "none":
        limit = allowed / window
        limits: tuple[RateLimit, ...] = ()
    else:
        limit = min(allowed, senders * float(stated)) / window
        limits = (RateLimit(float(stated), None, window),)
    pace = Pace(limits, IN_FLIGHT, share=SHARE)
    context = multiprocessing.get_context("spawn")
    naive = context.Process(target=send_naively, args=(f"{url}/naive", limit, seconds))
    naive.start()
    # More rows than can be sent: no task runs out of them.
    rows = int(3 * limit * (seconds + 1) / tasks)
    sender_folders = [folder / f"sender-{number}" for number in range(senders)]
    processes = []
    for sender_folder in sender_folders:
        process = context.Process(target=_send_batches, args=(sender_folder, url, pace, tasks, rows, seconds))
        process.start()
        processes.append(process)
    for process in [*processes, naive]:
        process.join()

    sent_times: list[float] = []
    calls_of_senders = []
    expired_tokens = 0.0
    for sender_folder in sender_folders:
        times = [float(line) for line in (sender_folder / "sent").read_text().split()]
        sent_times += times
        calls_of_senders.append(len(times))
        expired_tokens += float((sender_folder / "lapsed").read_text())
    counts = {
        "highest": float(most_in_a_second(sent_times, window)),
        "lapsed": expired_tokens / limit / seconds,
        "least share": min(calls_of_senders) / len(sent_times),
    }
    begin = WARM_UP
    end = seconds
    if window > 1:
        # Calls of a window of a minute come in bursts: two whole windows count, after two others.
        begin = 2 * window
        end = 4 * window
    for client in ("router", "naive"):
        used, refused = _used_and_refused(folder / f"{client}.log", limit, begin, end, bursts=window > 1)
        counts[f"{client}: used"] = used
        counts[f"{client}: refused"] = refused
    counts["of naive"] = counts["router: used"] / counts["naive: used"]
    return counts


@contextmanager
def busy_cores(loops: int) -> Iterator[None]:
    """Keep cores busy with so many loops in a `with` block."""
    processes = [multiprocessing.get_context("spawn").Process(target=_loop, daemon=True) for _ in range(loops)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _loop() -> None:
    while True:
        pass


def _send_batches(folder: Path, url: str, pace: Pace, tasks: int, rows: int, seconds: float) -> None:
    """Send as one router does, and write down when calls were written, and how many tokens expired."""
    batches = [task_rows(f"{url}/router", partition, rows) for partition in range(tasks)]
    sent_times, expired_tokens = send_rows(folder, pace, batches, seconds=seconds)
    (folder / "sent").write_text("\n".join(map(str, sent_times)))
    (folder / "lapsed").write_text(str(expired_tokens))


def _used_and_refused(log: Path, limit: float, begin: float, end: float, *, bursts: bool) -> tuple[float, float]:
    """Return the part of a limit per second that was used, and the part of calls that was refused, by a log.

    What counts came from `begin` to `end` seconds after the first call.
    """
    calls = sorted(line.split() for line in log.read_text().splitlines())
    started = float(calls[0][0])
    first = started + begin
    last = started + end
    if not bursts:
        # A client that a busy machine started late has sent for a shorter time.
        last = min(last, float(calls[-1][0]))
    statuses = [status for time_of_call, status in calls if first <= float(time_of_call) < last]
    accepted = statuses.count("200")
    return accepted / limit / (last - first), 1 - accepted / len(statuses)


def _send_keys(url: str, folder: Path, keys: int) -> dict[str, float]:
    """Send two rows for each key, without and with rows of one more key that is always refused."""
    pace = Pace((RateLimit(5, None, 1.0),), IN_FLIGHT, share=SHARE, keyed=True)
    names = [b"key %d" % (number % keys) for number in range(2 * keys)]
    log = folder / "router.log"

    def all_have_arrived() -> bool:
        return _lines(log) >= 2 * keys

    counts = {}
    for case, refused_rows in (("without", 0), ("with", 40)):
        log.write_text("")
        # The rows that are refused stand between the first row of each key and the second.
        row_keys = [*names[:keys], *[REFUSED_KEY] * refused_rows, *names[keys:]]
        rows = task_rows(f"{url}/router", 0, len(row_keys), row_keys, f"{url}/refused")
        send_rows(folder / case, pace, [rows], of_key=4, until=all_have_arrived)
        times = [float(line.split()[0]) for line in log.read_text().splitlines()]
        counts[case] = max(times) - min(times)
        counts[f"{case}: delivered"] = float(len(times))
    return counts


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def task_rows(url: str, partition: int, size: int, keys: Sequence[bytes] = (), refused_url: str = "") -> pa.RecordBatch:
    """Return rows as a task gets them, with the URL and the key of each."""
    urls = [url] * size
    if keys:
        urls = [refused_url if key == REFUSED_KEY else url for key in keys]
    columns = {
        "_topic": pa.array(["events"] * size),
        "_partition": pa.array([partition] * size, pa.int32()),
        "_offset": pa.array(range(size), pa.int64()),
        "_order": pa.nulls(size, pa.binary()),
        "_to": pa.array([{"target": row_url, "fault": None} for row_url in urls], _TARGET),
        "_row": pa.array([b'{"n": %d}' % number for number in range(size)]),
    }
    if keys:
        columns[LIMIT_KEY_COLUMN] = pa.array(keys, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


_TARGET = pa.struct([("target", pa.string()), ("fault", pa.string())])


def send_rows(
    folder: Path,
    pace: Pace,
    batches: list[pa.RecordBatch],
    *,
    seconds: float = math.inf,
    of_key: int = 0,
    until: Any = lambda: False,
) -> tuple[list[float], float]:
    """Run a task for each batch, at once, until `seconds` have passed, `until` holds or no row is left.

    Return when calls were written, by the senders' clock, and how many tokens expired unused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    leases = LeaseServer().start()
    try:
        credentials = Credentials(None)
        address = leases.admit_sink(
            OWNER.name,
            "api",
            pace,
            credentials=credentials.current_credentials,
            stop=lambda: ended.is_set() or until(),
        )
        lake = Lake.at(str(folder / "lake"))
        plan = SendPlan(
            limit="api",
            form=RequestForm(
                method="POST",
                url="",  # rows name theirs
                headers={},
                body=body_of("object", "application/json"),
                key_header="Idempotency-Key",
            ),
            cut=CallSize(),
            policy=Policy(),
            http=HttpOptions(connect=5.0, read=10.0, total=10.0, most=1 << 20, in_flight=IN_FLIGHT),
            calls_of_key=of_key,
        )
        job = TaskJob(
            plan=plan,
            owner=OWNER,
            parts=StagedParts(lake, "ops.receipts", owner="limiters:run/calls/rest", batch=0),
            encoding=Encoding(as_it_is, None, "JSON"),
            address=address,
            dead_at_most=10,
        )
        logs = [folder / f"sent-{number}" for number in range(len(batches))]
        process = multiprocessing.get_context("spawn").Process
        deadline = time.monotonic() + seconds
        while True:
            tasks = [process(target=run_task, args=(job, rows, log)) for rows, log in zip(batches, logs, strict=True)]
            for running in tasks:
                running.start()
            for running in tasks:
                # Without a deadline a task is waited for as long as it takes.
                seconds_left = None
                if deadline != math.inf:
                    seconds_left = max(0.0, deadline - time.monotonic())
                running.join(seconds_left)
            # Tasks end if nothing may go out for long, as in a window of a minute, and leave calls that were refused as
            # often as a call is tried: a batch starts others then.
            until_open = leases.outlook("api").retry_after
            is_done = all(running.exitcode == 0 for running in tasks)
            if is_done or until() or time.monotonic() + until_open >= deadline:
                break
            if any(running.exitcode not in {None, 0, ROWS_LEFT} for running in tasks):
                raise RuntimeError("a task has failed")
            time.sleep(until_open)
        ended.set()
        for running in tasks:
            running.join()
        sent_times: list[float] = []
        for log in logs:
            sent_times += [float(line) for line in log.read_text().split()]
        return sent_times, leases.report_totals("api")["lapsed"]
    finally:
        leases.stop()


def run_task(job: TaskJob, rows: pa.RecordBatch, log: Path) -> None:
    """Run a task in a process of its own; note when its calls were written, and exit with ROWS_LEFT if it left some."""
    rows_left = False
    with sent_calls() as sent:
        for report in send_task(job)(iter([rows])):
            for end in report.filter(pc.equal(report["kind"], "end"))["text"].to_pylist():
                rows_left = "left" in json.loads(end)["counts"]
    with log.open("a") as file:
        file.writelines(f"{moment}\n" for moment in sent)
    if rows_left:
        sys.exit(ROWS_LEFT)


@contextmanager
def sent_calls() -> Iterator[list[float]]:
    """Note when each call is written, by the sender's clock, in a `with` block."""
    sent: list[float] = []
    in_time = HeldToken.in_time

    async def noted(token: HeldToken) -> None:
        await in_time(token)
        sent.append(time.monotonic())

    HeldToken.in_time = noted  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        HeldToken.in_time = in_time  # type: ignore[method-assign]


def most_in_a_second(times: Sequence[float], window: float = 1.0) -> int:
    """Return the most calls of any second, or of so many seconds, wherever these begin."""
    inside: deque[float] = deque()
    most = 0
    for now in sorted(times):
        inside.append(now)
        while inside[0] <= now - window:
            inside.popleft()
        most = max(most, len(inside))
    return most


def send_naively(url: str, limit: float, seconds: float) -> None:
    """Send at a pace, send what was refused again at the next slot, and back off nowhere."""
    asyncio.run(_send_naively(url, SHARE * limit, seconds))


async def _send_naively(url: str, rate: float, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
        calls = set()
        slot = begin = loop.time()
        while slot < begin + seconds:
            await asyncio.sleep(slot - loop.time())
            call = asyncio.ensure_future(_post(session, url))
            calls.add(call)
            call.add_done_callback(calls.discard)
            slot += 1 / rate
        await asyncio.gather(*calls)


async def _post(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url, data=b'{"n": 1}') as answer:
        await answer.read()


LIMITERS = Subject("limiters", "router", _session, _run, lambda *_: "")
