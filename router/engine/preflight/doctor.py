"""Look at everything that a configuration needs of its machine and of others, one line for each, and say what to do.

Starts no JVM, fetches nothing and sends no event. What keeps Spark from starting is found by the same functions that
refuse a start (java, connectors), so that both say the same.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pyspark

from router.addresses import is_local, normalized
from router.engine.spark.cache_folder import cache_folder
from router.engine.spark.connectors import (
    CONNECTORS,
    connectors_of,
    delta_version,
    describe_untested_pair,
    known_jars,
    refuse_newer_spark,
)
from router.engine.spark.java import PACKAGE, is_packaged, provide_java
from router.engine.spark.session import spark_env
from router.errors import MachineError, StartError, first_line
from router.parts import Server
from router.registry import missing_extras, parts_in
from router.storage import probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config, KafkaSource

SECONDS = 5.0
"""How long a server may take to answer."""
REPOSITORY = "repo1.maven.org"
"""Where Spark's resolver looks for jars, unless it is told of another place."""
SKEW = 30.0
"""Seconds between two clocks from which on tokens expire early, and rate limits of a window are missed."""
LITTLE, TOO_LITTLE = 10 << 30, 1 << 30
"""Bytes of a disk: a warning below the first one, a fault below the second."""
BESIDE_HEAP = 400 << 20
"""Bytes that the driver's JVM takes beside its heap: classes, compiled code, Arrow's buffers."""
PYTHON = 300 << 20
"""Bytes of the driver's Python, and of each worker: landing 1M events on 2 cores takes 2.4 GB with a heap of 1 GB."""


@dataclass(frozen=True)
class Diagnosis:
    """One line: what was looked at, whether it is as it should be, what was seen, and the next step."""

    subject: str
    state: Literal["ok", "warn", "wrong"]
    what: str
    todo: str = ""


def diagnose(config: Config | None = None, folder: Path = Path()) -> Iterator[Diagnosis]:
    """Yield what is found on this machine, and with a configuration what it needs of this and other machines.

    `folder` is the configuration's.
    """
    yield _java()
    yield _pair()
    yield _jars(config)
    yield from _extras(config)
    yield memory(config.spark if config else {}, limit_of_memory())
    if config is not None:
        yield storage("lake", config.lake, config.storage())
        if config.checkpoint:
            yield storage("checkpoint", config.checkpoint, config.storage())
        yield from _servers(config, folder)


def _java() -> Diagnosis:
    if script := spark_env():
        return Diagnosis("Java", "warn", f"{script} may choose it, so it was not looked at")
    java = provide_java()
    if java.fault:
        return Diagnosis("Java", "wrong", java.fault, java.todo)
    if is_packaged(java.program):
        what = f"{java.version}, of the package {PACKAGE}: for local runs; spark-submit and clusters need a whole JDK"
        return Diagnosis("Java", "ok", what)
    return Diagnosis("Java", "ok", f"{java.version}, {java.program}")


def _pair() -> Diagnosis:
    spark, delta = pyspark.__version__, delta_version()
    try:
        refuse_newer_spark()
    except MachineError as error:
        return Diagnosis("Spark and Delta", "wrong", error.what, error.todo)
    if difference := describe_untested_pair():
        return Diagnosis("Spark and Delta", "warn", difference, "pip install a tested pair: docs/how-to/install.md")
    return Diagnosis("Spark and Delta", "ok", f"pyspark {spark} with delta-spark {delta}, a tested pair")


def _jars(config: Config | None) -> Diagnosis:
    connectors = connectors_of(config) if config else frozenset(CONNECTORS)
    jars = known_jars(connectors, config.spark if config else {})
    wanted = ", ".join(["Delta", *sorted(connectors)])
    if jars:
        folders = sorted({str(Path(jar).parent) for jar in jars})
        return Diagnosis("jars", "ok", f"{len(jars)} for {wanted}, in {', '.join(folders)}")
    if elsewhere_or_reached(config.spark if config else {}):
        what = f"those for {wanted} are not here yet: the first start fetches them"
        return Diagnosis("jars", "warn", what, "`router warm-up` fetches them now")
    what = f"those for {wanted} are not here, and {REPOSITORY} takes no connection: Spark cannot fetch them"
    todo = "name a repository of your own by spark.jars.ivySettings under `spark:`, or copy ~/.ivy2.5.2 and "
    return Diagnosis("jars", "wrong", what, f"{todo}{cache_folder()} from a machine that has run `router warm-up`")


def elsewhere_or_reached(asked: Mapping[str, str]) -> bool:
    """Say whether jars can be fetched, as far as one connection tells: not where they come by a way of their own."""
    java = " ".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    if "proxyHost" in java or {"spark.jars.ivySettings", "spark.jars.repositories"} & asked.keys():
        return True
    return _reached(Server("jars", f"{REPOSITORY}:443")).state == "ok"


def _extras(config: Config | None) -> Iterator[Diagnosis]:
    if config is None:
        return
    missing = missing_extras(config)
    for what in missing.values():
        said, _, todo = what.partition("; ")
        yield Diagnosis("extras", "wrong", said, todo)
    if not missing:
        wanted = sorted({module for part in parts_in(config) for module in part.extras})
        yield Diagnosis("extras", "ok", f"{', '.join(wanted)} installed" if wanted else "none needed")


# ---- memory


def limit_of_memory(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this machine, or its container, lets processes have; 0 where nobody says."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # `max` is no number
            found.append(int(root.joinpath(name).read_text()))
    return min(found, default=0)


def memory(asked: Mapping[str, str], limit: int) -> Diagnosis:
    """Hold the memory of a local run (the heap, and Python's workers) against what there is."""
    text = asked.get("spark.driver.memory", "1g")
    heap = size_of(text)
    if heap is None:
        todo = "write a number and a unit: 2g"
        return Diagnosis("memory", "wrong", f"spark.driver.memory is {text}, which is no size", todo)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    want = heap + BESIDE_HEAP + PYTHON * (1 + cores)
    what = f"a heap of {text} and {cores} Python workers take about {want / 2**30:.1f} GiB"
    what += f" of {limit / 2**30:.1f} GiB" if limit else ""
    if limit and heap + BESIDE_HEAP > limit:
        return Diagnosis("memory", "wrong", what, "lower spark.driver.memory, or give the container more")
    if limit and want > limit:
        return Diagnosis("memory", "warn", what, "lower spark.driver.memory or the cores (--master 'local[2]')")
    return Diagnosis("memory", "ok", what)


def size_of(text: str) -> int | None:
    """Return the bytes of a size as Spark's settings have it: 512m, 2g; None where it is none."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", text.lower())
    return int(found[1]) << {"": 20, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]] if found else None


# ---- storage


def storage(subject: str, place: str, options: dict[str, str]) -> Diagnosis:
    """Say whether a lake or a checkpoint can be written, never one file in place of another, and how much is free."""
    try:
        root = normalized(place)
        if is_local(root):
            return _folder(subject, Path(root), options)
        probe(root, options)
    except StartError as error:
        return Diagnosis(subject, "wrong", str(error), "check address, credentials (storage_options) and rights")
    except Exception as error:  # the storage's client raises what it likes
        todo = "check path, credentials (storage_options) and rights"
        return Diagnosis(subject, "wrong", f"{place} cannot be written: {first_line(error)}", todo)
    return Diagnosis(subject, "ok", f"{place} can be written, and no file in place of another")


def _folder(subject: str, folder: Path, options: dict[str, str]) -> Diagnosis:
    """Look at a folder, or at the one that it will be made in."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    with tempfile.TemporaryDirectory(prefix=".router-doctor-", dir=there) as trial:
        probe(trial, options)
    free = shutil.disk_usage(there).free
    what = f"{folder} can be written, {free / 2**30:,.1f} GiB free"
    if free < TOO_LITTLE:
        return Diagnosis(subject, "wrong", what, "make room")
    return Diagnosis(subject, "warn" if free < LITTLE else "ok", what, "make room" if free < LITTLE else "")


# ---- servers


def _servers(config: Config, folder: Path) -> Iterator[Diagnosis]:
    """Ask every server once, all at the same time; then hold their clocks against this one."""
    servers = {(one.kind, one.address): one for part in parts_in(config) for one in part.talks_to(folder)}
    http = [one for one in servers.values() if one.address.startswith(("http://", "https://"))]
    others = [one for one in servers.values() if one not in http]
    with ThreadPoolExecutor(8) as pool:
        kafka = pool.submit(_kafka, config.source.kafka) if config.source.kafka else None
        asked, reached = list(pool.map(_asked, http)), list(pool.map(_reached, others))
        found, newest = kafka.result() if kafka else ([], None)
    yield from found
    yield from reached
    yield from (said for said, _ in asked)
    skews = {one.address: skew for one, (_, skew) in zip(http, asked, strict=True) if skew is not None}
    if newest is not None:
        skews["the newest record"] = max(0.0, newest)  # an old record says nothing
    yield clocks(skews)


def _reached(server: Server) -> Diagnosis:
    host, _, port = server.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except (OSError, ValueError) as error:
        todo = "start it, or correct the address; a firewall may stand between"
        return Diagnosis(server.kind, "wrong", f"{server.address} takes no connection: {first_line(error)}", todo)
    return Diagnosis(server.kind, "ok", f"{server.address} takes connections")


def _asked(server: Server) -> tuple[Diagnosis, float | None]:
    """Ask an HTTP server for its head, which does nothing there; return also how far its clock is ahead."""
    import requests  # noqa: PLC0415 - slow to import

    parts = urlsplit(server.address)
    try:
        began = time.time()
        answer = requests.head(f"{parts.scheme}://{parts.netloc}/", timeout=SECONDS, verify=server.verify)
        skew = _ahead(answer.headers.get("Date"), (began + time.time()) / 2)
    except OSError as error:  # those of requests, and a file of certificates that is not there
        reason = "its certificate is not trusted" if isinstance(error, requests.exceptions.SSLError) else "no answer"
        todo = "start it, or correct the URL; a proxy or a firewall may stand between"
        what = f"{server.address}: {reason if isinstance(error, requests.RequestException) else first_line(error)}"
        return Diagnosis(server.kind, "wrong", what, todo), None
    try:
        if server.ask:
            server.ask()
    except Exception as error:  # what a part asks is its own affair
        return Diagnosis(server.kind, "wrong", first_line(error), "check URL, login and rights"), skew
    return Diagnosis(server.kind, "ok", f"{server.address} answers"), skew


def _ahead(date: str | None, now: float) -> float | None:
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(date or "").timestamp() - now
    return None


def clocks(skews: Mapping[str, float]) -> Diagnosis:
    """Say whether this machine's clock goes with those of others: seconds by which each is ahead."""
    if not skews:
        return Diagnosis("clocks", "ok", "nobody was asked who says the time")
    who, most = max(skews.items(), key=lambda pair: abs(pair[1]))
    if abs(most) < SKEW:
        return Diagnosis("clocks", "ok", f"{len(skews)} asked, within {SKEW:g} s of this machine's")
    what = f"{who} is {abs(most):,.0f} s {'ahead of' if most > 0 else 'behind'} this machine"
    return Diagnosis("clocks", "warn", what, "let both keep time by NTP: tokens and rate limits go by the clock")


def _kafka(kafka: KafkaSource) -> tuple[list[Diagnosis], float | None]:
    """Look at the brokers of the source and its topics; return also how far its newest record is in the future."""
    found = [_reached(Server("broker", server.strip())) for server in kafka.servers.split(",")]
    if not any(one.state == "ok" for one in found) or any("security" in key or "sasl" in key for key in kafka.options):
        return found, None  # Spark's client logs in by options that this one does not know
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415

    try:
        admin = AdminClient({"bootstrap.servers": kafka.servers, "socket.timeout.ms": int(SECONDS * 1000)})
        topics = admin.list_topics(timeout=SECONDS).topics
        wanted = [name for name in topics if re.fullmatch(kafka.pattern, name)] if kafka.pattern else kafka.topics
        if absent := [name for name in wanted if name not in topics]:
            todo = "create it, or correct `topics`"
            found.append(Diagnosis("topics", "wrong", f"the broker has no topic {', '.join(absent)}", todo))
        parts = [
            TopicPartition(name, number) for name in wanted if name in topics for number in topics[name].partitions
        ]
        latest = admin.list_offsets({part: OffsetSpec.max_timestamp() for part in parts}) if parts else {}  # type: ignore[no-untyped-call]
        stamps = [future.result(SECONDS).timestamp for future in latest.values()]
    except (KafkaException, TimeoutError) as error:
        todo = "check the listeners that the broker advertises"
        found.append(Diagnosis("broker", "wrong", f"{kafka.servers} does not answer: {first_line(error)}", todo))
        return found, None
    newest = max((stamp for stamp in stamps if stamp and stamp > 0), default=None)
    return found, None if newest is None else newest / 1000 - time.time()
