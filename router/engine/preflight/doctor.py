"""Look at everything that a configuration needs of its machine and of others: a line for each, with the next step.

Starts no JVM, fetches nothing and sends no event. What keeps Spark from starting is found by the same functions that
refuse a start (`java`, `connectors`), so that both report the same.
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
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pyspark
from deltalake.exceptions import DeltaError
from rich.filesize import decimal

from router.api.parts import Server
from router.delta.kept_versions import kept_bytes
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.spark.cache_folder import cache_folder
from router.engine.spark.connectors import (
    CONNECTORS,
    connectors_of,
    delta_version,
    describe_untested_pair,
    known_jars,
    line_of_pip,
    refuse_newer_spark,
)
from router.engine.spark.java import PACKAGE, is_packaged, provide_java
from router.engine.spark.session import spark_env, usable_cores
from router.engine.start.spark_needs import spark_needs
from router.errors import MachineError, RouterError, StartError, first_line
from router.registry import missing_extras, parts_in
from router.storage.addresses import is_local, is_local_path, normalize_address
from router.storage.files import probe_conditional_writes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config, KafkaSource

_SERVER_TIMEOUT_SECONDS = 5.0
"""How long a server may take to answer."""
REPOSITORY = "repo1.maven.org"
"""Where Spark's resolver looks for jars, unless a setting names another place."""
SKEW = 30.0
"""Seconds between two clocks from which on tokens expire early, and rate limits of a window are missed."""
GIB = 1 << 30
LITTLE = 10 * GIB
"""Free bytes of a disk below which there is a warning."""
TOO_LITTLE = GIB
"""Free bytes of a disk below which it is a fault."""
BESIDE_HEAP = 400 << 20
"""Bytes that the driver's JVM takes in addition to its heap: classes, compiled code, Arrow's buffers."""
JAR_SETTINGS = ("spark.jars.packages", "spark.jars", "spark.driver.extraClassPath")
"""The settings of Spark that add jars to its class path."""
PYTHON = 300 << 20
"""Bytes of the driver's Python, and of each worker: landing 1M events on 2 cores takes 2.4 GB with a heap of 1 GB."""


@dataclass(frozen=True)
class Diagnosis:
    """One line: what was looked at, whether it is as it should be, what was seen, and the next step."""

    subject: str
    state: Literal["ok", "warn", "wrong"]
    what: str
    todo: str = ""


def diagnose_machine(config: Config | None = None, folder: Path = Path()) -> Iterator[Diagnosis]:
    """Yield a line about each thing of this machine, and of the lake and servers that a configuration uses.

    `folder` is the configuration's.
    """
    settings = config.spark if config else {}
    yield diagnose_java()
    yield diagnose_spark_and_delta()
    yield diagnose_jars(connectors_of(config) if config else frozenset(CONNECTORS), settings)
    if config is not None:
        yield from diagnose_extras(config)
    yield diagnose_memory(settings, memory_limit())
    if config is None:
        return
    yield diagnose_storage("lake", config.lake, config.revealed_storage_options())
    if config.checkpoint:
        yield diagnose_storage("checkpoint", config.checkpoint, config.revealed_storage_options())
    yield diagnose_kept_versions(config)
    yield from diagnose_file_systems(config)
    yield from diagnose_source_folder(config)
    yield from diagnose_servers(config, folder)


def diagnose_java() -> Diagnosis:
    """Look at the Java that a start would take."""
    if script := spark_env():
        return Diagnosis("Java", "warn", f"{script} may choose it, so it was not looked at")
    java = provide_java()
    if java.fault:
        return Diagnosis("Java", "wrong", java.fault, java.todo)
    if is_packaged(java.program):
        use = "for local runs; spark-submit and clusters need a whole JDK"
        return Diagnosis("Java", "ok", f"{java.version}, of the package {PACKAGE}: {use}")
    return Diagnosis("Java", "ok", f"{java.version}, {java.program}")


def diagnose_spark_and_delta() -> Diagnosis:
    """Look whether the installed pair of Spark and Delta was tested."""
    try:
        refuse_newer_spark()
    except MachineError as error:
        return Diagnosis("Spark and Delta", "wrong", error.what, error.todo)
    if difference := describe_untested_pair():
        return Diagnosis("Spark and Delta", "warn", difference, line_of_pip())
    pair = f"pyspark {pyspark.__version__} with delta-spark {delta_version()}, a tested pair"
    return Diagnosis("Spark and Delta", "ok", pair)


def diagnose_jars(connectors: frozenset[str], settings: Mapping[str, str]) -> Diagnosis:
    """Look whether the jars of Delta and of connectors are here, or can be fetched."""
    jars = known_jars(connectors, settings)
    names = ", ".join(["Delta", *sorted(connectors)])
    if jars:
        folders = sorted({str(Path(jar).parent) for jar in jars})
        return Diagnosis("jars", "ok", f"{len(jars)} for {names}, in {', '.join(folders)}")
    if can_fetch_jars(settings):
        return Diagnosis(
            "jars",
            "warn",
            what=f"those for {names} are not here yet: the first start fetches them",
            todo="`router warm-up` fetches them now",
        )
    return Diagnosis(
        "jars",
        "wrong",
        what=f"those for {names} are not here, and {REPOSITORY} takes no connection: Spark cannot fetch them",
        todo="name a repository of your own by spark.jars.ivySettings under `spark:`, or copy ~/.ivy2.5.2 and "
        f"{cache_folder()} from a machine that has run `router warm-up`",
    )


def can_fetch_jars(settings: Mapping[str, str]) -> bool:
    """Return whether jars can be fetched, as far as one connection tells."""
    # A proxy or a repository of the user's own cannot be judged by a connection to the usual repository.
    java_options = os.environ.get("JAVA_TOOL_OPTIONS", "") + os.environ.get("JDK_JAVA_OPTIONS", "")
    has_repository = "spark.jars.ivySettings" in settings or "spark.jars.repositories" in settings
    if has_repository or "proxyHost" in java_options:
        return True
    return try_connecting(Server("jars", f"{REPOSITORY}:443")).state == "ok"


def diagnose_extras(config: Config) -> Iterator[Diagnosis]:
    """Look whether the Python modules that the parts of a configuration need are installed."""
    missing = missing_extras(config)
    for sentence in missing.values():
        fault, _, todo = sentence.partition("; ")
        yield Diagnosis("extras", "wrong", fault, todo)
    if not missing:
        modules = sorted({module for part in parts_in(config) for module in part.extras})
        yield Diagnosis("extras", "ok", f"{', '.join(modules)} installed" if modules else "none needed")


# ---- memory


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this machine, or its container, lets processes have; 0 if that is unknown."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # Version 2 of cgroups, then version 1.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # `max` is no number
            limits.append(int(root.joinpath(name).read_text()))
    return min(limits, default=0)


def diagnose_memory(settings: Mapping[str, str], limit: int) -> Diagnosis:
    """Compare the memory that a local run takes (the heap, and Python's workers) with the limit; 0 for none."""
    heap_text = settings.get("spark.driver.memory", "1g")
    heap = parse_size(heap_text)
    if heap is None:
        fault = f"spark.driver.memory is {heap_text}, which is no size"
        return Diagnosis("memory", "wrong", fault, "write a number and a unit: 2g")
    cores = usable_cores()
    jvm = heap + BESIDE_HEAP
    needed = jvm + PYTHON * (1 + cores)
    sentence = f"a heap of {heap_text} and {cores} Python workers take about {needed / GIB:.1f} GiB"
    if limit:
        sentence += f" of {limit / GIB:.1f} GiB"
    if limit and jvm > limit:
        return Diagnosis("memory", "wrong", sentence, "lower spark.driver.memory, or give the container more")
    if limit and needed > limit:
        return Diagnosis("memory", "warn", sentence, "lower spark.driver.memory or the cores (--master 'local[2]')")
    return Diagnosis("memory", "ok", sentence)


def parse_size(text: str) -> int | None:
    """Return the bytes of a size as Spark's settings have it: 512m, 2g; None if it is no size."""
    size = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", text.lower())
    if size is None:
        return None
    return int(size[1]) << {"": 20, "k": 10, "m": 20, "g": 30, "t": 40}[size[2]]


# ---- storage


def diagnose_storage(subject: str, place: str, options: dict[str, str]) -> Diagnosis:
    """Try to write a lake or a checkpoint: new files only, never in place of another; a disk must have room."""
    try:
        root = normalize_address(place)
        if is_local(root):
            return _diagnose_folder(subject, Path(root), options)
        probe_conditional_writes(root, options)
    except StartError as error:
        return Diagnosis(subject, "wrong", str(error), "check address, credentials (storage_options) and rights")
    except Exception as error:  # the storage's client raises what it likes
        fault = f"{place} cannot be written: {first_line(error)}"
        return Diagnosis(subject, "wrong", fault, "check path, credentials (storage_options) and rights")
    return Diagnosis(subject, "ok", f"{place} can be written, and no file in place of another")


def _diagnose_folder(subject: str, folder: Path, options: dict[str, str]) -> Diagnosis:
    # If the folder is missing, the nearest one above it is tried: a look makes no lake.
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with tempfile.TemporaryDirectory(prefix=".router-doctor-", dir=existing) as trial:
        probe_conditional_writes(trial, options)
    free = shutil.disk_usage(existing).free
    sentence = f"{folder} can be written, {free / GIB:,.1f} GiB free"
    if free >= LITTLE:
        return Diagnosis(subject, "ok", sentence)
    return Diagnosis(subject, "wrong" if free < TOO_LITTLE else "warn", sentence, "make room")


def diagnose_kept_versions(config: Config) -> Diagnosis:
    """Say what the versions cost that tables had when changed configurations began."""
    try:
        size = kept_bytes(lake_and_checkpoint(config)[0])
    except (RouterError, DeltaError, OSError) as error:
        return Diagnosis("old versions", "warn", f"their size is not known: {first_line(error)}")
    why = f"for `history: {{keep: {config.history.keep}}}`"
    return Diagnosis("old versions", "ok", f"those before deploys have {decimal(size)} of files of their own, {why}")


def diagnose_source_folder(config: Config) -> Iterator[Diagnosis]:
    """Look for the local folder of a source of files; a pattern may have no file yet."""
    files = config.source.files
    if files is None or not is_local_path(files.path) or set("*?[{") & set(files.path):
        return
    if Path(normalize_address(files.path)).exists():
        yield Diagnosis("source", "ok", f"{files.path} is there")
    else:
        todo = "create it, or correct source.files.path"
        yield Diagnosis("source", "wrong", f"there is no folder {files.path}", todo)


def diagnose_file_systems(config: Config) -> Iterator[Diagnosis]:
    """Look whether Spark itself has a file system for a lake or a checkpoint in a bucket, if it needs one.

    Without a JVM it is only known whether the configuration adds jars: those of a cluster are not seen.
    """
    places = [(config.lake, spark_needs(config))]
    if config.checkpoint:
        places.append((config.checkpoint, ["its checkpoint"]))
    else:
        places[0][1].append("its checkpoint")
    adds_jars = any(config.spark.get(name) for name in JAR_SETTINGS)
    for place, needs in places:
        if is_local(normalize_address(place)) or not needs:
            continue
        needed_for = f"Spark itself has to reach {place} for {', '.join(needs)}"
        if adds_jars:
            yield Diagnosis("file system", "ok", f"{needed_for}; `spark:` adds jars, which were not looked at")
        else:
            todo = "on a cluster that has it, nothing; elsewhere: `router help object-storage`, Spark's own part"
            yield Diagnosis("file system", "warn", f"{needed_for}, and `spark:` names no jars", todo)


# ---- servers


def diagnose_servers(config: Config, folder: Path) -> Iterator[Diagnosis]:
    """Ask every server once, all at the same time; then compare their clocks with this machine's."""
    servers: dict[tuple[str, str], Server] = {}
    for part in parts_in(config):
        for server in part.talks_to(folder):
            servers[server.kind, server.address] = server
    skews: dict[str, float] = {}
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(ask_server, servers.values())
        if config.source.kafka:
            diagnoses, newest_record = diagnose_kafka(config.source.kafka)
            yield from diagnoses
            if newest_record is not None:
                # An old record tells nothing about a clock; one in the future does.
                skews["the newest record"] = max(0.0, newest_record)
    for server, (diagnosis, skew) in zip(servers.values(), answers, strict=True):
        yield diagnosis
        if skew is not None:
            skews[server.address] = skew
    yield diagnose_clocks(skews)


def try_connecting(server: Server) -> Diagnosis:
    """Look whether a server takes connections."""
    host, _, port = server.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SERVER_TIMEOUT_SECONDS).close()
    except (OSError, ValueError) as error:
        todo = "start it, or correct the address; a firewall may stand between"
        return Diagnosis(server.kind, "wrong", f"{server.address} takes no connection: {first_line(error)}", todo)
    return Diagnosis(server.kind, "ok", f"{server.address} takes connections")


def ask_server(server: Server) -> tuple[Diagnosis, float | None]:
    """Ask an HTTP server for its head, which does nothing there; return also how far its clock is ahead.

    With a server that does not speak HTTP only a connection is made.
    """
    if not server.address.startswith(("http://", "https://")):
        return try_connecting(server), None
    import requests  # noqa: PLC0415 - slow to import

    parts = urlsplit(server.address)
    began = time.time()
    try:
        answer = requests.head(
            f"{parts.scheme}://{parts.netloc}/", timeout=_SERVER_TIMEOUT_SECONDS, verify=server.verify
        )
    except OSError as error:  # those of requests, and a file of certificates that is not there
        reason = first_line(error)
        if isinstance(error, requests.exceptions.SSLError):
            reason = "its certificate is not trusted"
        elif isinstance(error, requests.RequestException):
            reason = "no answer"
        todo = "start it, or correct the URL; a proxy or a firewall may stand between"
        return Diagnosis(server.kind, "wrong", f"{server.address}: {reason}", todo), None
    # The answer was written about half-way between request and receipt.
    skew = seconds_ahead(answer.headers.get("Date"), (began + time.time()) / 2)
    try:
        if server.ask:
            server.ask()
    except Exception as error:  # what a part asks is its own affair
        return Diagnosis(server.kind, "wrong", first_line(error), "check URL, login and rights"), skew
    return Diagnosis(server.kind, "ok", f"{server.address} answers"), skew


def seconds_ahead(date: str | None, now: float) -> float | None:
    """Return how far the date of an HTTP header is ahead of a time; None without a readable date."""
    with suppress(TypeError, ValueError, OverflowError, OSError):  # a year that no clock has
        return parsedate_to_datetime(date or "").timestamp() - now
    return None


def diagnose_clocks(skews: Mapping[str, float]) -> Diagnosis:
    """Compare this machine's clock with those of others: `skews` has the seconds by which each is ahead."""
    if not skews:
        return Diagnosis("clocks", "ok", "no server that sends the time was asked")
    server, skew = max(skews.items(), key=lambda pair: abs(pair[1]))
    if abs(skew) < SKEW:
        return Diagnosis("clocks", "ok", f"{len(skews)} asked, within {SKEW:g} s of this machine's")
    direction = "ahead of" if skew > 0 else "behind"
    return Diagnosis(
        "clocks",
        "warn",
        what=f"{server} is {abs(skew):,.0f} s {direction} this machine",
        todo="let both keep time by NTP: tokens and rate limits go by the clock",
    )


def diagnose_kafka(kafka: KafkaSource) -> tuple[list[Diagnosis], float | None]:
    """Look at the brokers of the source and its topics; return also how far its newest record is in the future."""
    diagnoses = [try_connecting(Server("broker", server.strip())) for server in kafka.servers.split(",")]
    if all(diagnosis.state != "ok" for diagnosis in diagnoses):
        return diagnoses, None
    # Spark's client logs in by options of its own, which the client used here does not have.
    if any("security" in name or "sasl" in name for name in kafka.options):
        return diagnoses, None

    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415

    partitions = []
    newest = 0
    try:
        admin = AdminClient(
            {"bootstrap.servers": kafka.servers, "socket.timeout.ms": int(_SERVER_TIMEOUT_SECONDS * 1000)}
        )
        topics = admin.list_topics(timeout=_SERVER_TIMEOUT_SECONDS).topics
        names = kafka.topics
        if kafka.pattern:
            names = tuple(name for name in topics if kafka.reads_topic(name))
        missing = [name for name in names if name not in topics]
        if missing:
            fault = f"the broker has no topic {', '.join(missing)}"
            diagnoses.append(Diagnosis("topics", "wrong", fault, "create it, or correct `topics`"))
        for name in names:
            if name in topics:
                partitions += [TopicPartition(name, number) for number in topics[name].partitions]
        if partitions:
            latest: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
            for future in admin.list_offsets(dict.fromkeys(partitions, latest)).values():
                newest = max(newest, future.result(_SERVER_TIMEOUT_SECONDS).timestamp or 0)  # an empty partition has -1
    except (KafkaException, TimeoutError) as error:
        fault = f"{kafka.servers} does not answer: {first_line(error)}"
        diagnoses.append(Diagnosis("broker", "wrong", fault, "check the listeners that the broker advertises"))
        return diagnoses, None
    if newest == 0:
        return diagnoses, None
    return diagnoses, newest / 1000 - time.time()
