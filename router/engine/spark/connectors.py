"""The jars that Spark needs in addition to its own: Delta, and the connectors that a configuration uses.

Spark's own resolver fetches them once, in a process of its own, so that a failure is one sentence and not the hundred
lines that it prints; from then on a list says where they are. `python -m router.engine.spark.connectors kafka avro`
fetches them ahead. Which Delta goes with which Spark: `PAIRS`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from router import spark_internals
from router.engine.spark.cache_folder import cache_folder
from router.engine.spark.java import provide_java
from router.errors import MachineError
from router.registry import parts_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from router.config.models import Config
    from router.config.yaml_tree import Node

log = logging.getLogger("router")
PAIRS = {"4.0.0": "4.0.1", "4.1.1": "4.3.1", "4.2.0": "4.4.0"}
"""Spark -> the Delta that was tested with it, oldest first. Delta's log classes, which Delta on Spark commits by,
change with Spark's minor version."""
CONNECTORS = {"avro": "spark-avro", "kafka": "spark-sql-kafka-0-10"}
"""What a part or a source asks for -> the artifact of Spark."""
PACKAGES = "spark.jars.packages"
RESOLVING = (PACKAGES, "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.ivy", "spark.jars.excludes")
"""Settings that are for the resolver alone."""
NETWORK = re.compile(
    r"UnknownHost|ConnectException|Socket(Timeout)?Exception|NoRouteToHost|Host (?!repos\.spark-packages)\S+ not found"
)
"""What the resolver prints where no repository can be reached. It asks spark-packages last, which has none of these."""
MAVEN_CACHE = "in local-m2-cache"
"""What the resolver prints of an artifact whose description is in ~/.m2."""
IVY_FOLDER = ".ivy2.5.2"
"""Where Spark 4 keeps jars below the home of the user."""
JVM_OPTIONS = "JAVA_TOOL_OPTIONS"
MARK = "jars of spark-event-router: "


def describe_untested_pair() -> str:
    """Say in a sentence what was not tested about the installed Spark and Delta; empty for a tested pair."""
    spark, delta = pyspark.__version__, delta_version()
    if PAIRS.get(spark) == delta:
        return ""
    newest = f"the newest tested pair is {_newest_pair()}"
    tested = next((pair for pair in PAIRS.items() if _minor(pair[0]) == _minor(spark)), None)
    if tested is None:
        return f"pyspark {spark} was not tested with the router; {newest}"
    tested_spark, tested_delta = tested
    if _minor(delta) != _minor(tested_delta):
        installed = delta or "none"
        return f"pyspark {spark} was tested with delta-spark {tested_delta}, and {installed} is installed; {newest}"
    return f"pyspark {spark} with delta-spark {delta} was not tested, {tested_spark} with {tested_delta} was; {newest}"


def refuse_newer_spark() -> None:
    """Raise MachineError for a Spark whose minor version is newer than any that was tested.

    The router uses parts of Spark that are private, and Delta's classes are made for one minor version.
    """
    newest = list(PAIRS)[-1]
    if _number(pyspark.__version__) > _number(newest):
        what = f"pyspark {pyspark.__version__} is newer than any that this router runs on"
        raise MachineError(what, f"install a tested pair: {_newest_pair()}")


def _newest_pair() -> str:
    spark, delta = list(PAIRS.items())[-1]
    return f"pyspark {spark} with delta-spark {delta}"


def delta_version() -> str:
    """Return the version of delta-spark; nothing where it is not installed as a package, as on Databricks."""
    try:
        return importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _number(version: str) -> tuple[int, int]:
    """Return major and minor version as numbers, to be compared."""
    major, minor = _minor(version).split(".")
    return int(major), int(minor)


def connectors_of(config: Config) -> frozenset[str]:
    """Return the connectors that a configuration uses: of its source, and those that its parts ask for."""
    source = getattr(config, "source", None)  # a session may be asked for without one
    found = {name for part in parts_in(config) for name in part.connectors} if source else set()
    found |= {"kafka"} if source and source.kafka else set()
    found |= {source.format.name} if source and source.format else set()
    found |= {source.files.format} if source and source.files else set()
    return frozenset(found & set(CONNECTORS))


def connectors_in(root: Node) -> frozenset[str]:
    """Return the connectors that a configuration will use, as far as its text tells before any plugin is loaded.

    Avro may be named by a decoder, or found by one that takes all formats (`auto`).
    """
    words = set(re.findall(r"\w+", _text(root)))
    return frozenset(({"kafka"} & words) | ({"avro"} if {"avro", "auto"} & words else set()))


def _text(node: object) -> str:
    if isinstance(node, str):
        return node
    if hasattr(node, "entries"):
        return " ".join(f"{key} {_text(entry.value)}" for key, entry in node.entries.items())
    if hasattr(node, "items"):
        return " ".join(_text(item) for item in node.items)
    return str(getattr(node, "text", ""))


def packages(connectors: Collection[str]) -> list[str]:
    """Return the Maven coordinates of Delta and of connectors, for the installed Spark and Delta."""
    from delta.pip_utils import configure_spark_with_delta_pip  # noqa: PLC0415 - platforms with a Delta of theirs lack it

    extra = [f"org.apache.spark:{CONNECTORS[name]}_2.13:{pyspark.__version__}" for name in sorted(connectors)]
    builder = configure_spark_with_delta_pip(SparkSession.Builder(), extra_packages=extra)
    return spark_internals.options_of(builder)[PACKAGES].split(",")


def known_jars(connectors: Collection[str] = tuple(CONNECTORS), asked: Mapping[str, str] | None = None) -> list[str]:
    """Return the jars that were resolved for these connectors, or for more; none where there is no list of them.

    The longest list comes first: an archive of classes fits one class path, and so all configurations have the same.
    """
    lists = (_list(set(names), asked or {}) for names in _supersets(connectors))
    return next((jars for jars in map(_read, lists) if jars), [])


def _supersets(connectors: Collection[str]) -> list[tuple[str, ...]]:
    every = [names for size in range(len(CONNECTORS), -1, -1) for names in combinations(sorted(CONNECTORS), size)]
    return [names for names in every if set(connectors) <= set(names)]


def _read(known: Path) -> list[str]:
    with suppress(OSError):
        jars = known.read_text().split("\n")
        return jars if all(Path(jar).is_file() for jar in jars) else []
    return []


def resolved_jars(connectors: Collection[str], asked: Mapping[str, str]) -> list[str]:
    """Return the jars of Delta and of connectors; fetch them where they are not known.

    `asked` are settings of a session: packages among them are fetched, too, from where they say. Raises MachineError,
    in one sentence, where a jar cannot be had.
    """
    if jars := known_jars(connectors, asked):
        return jars
    if (java := provide_java()).fault:
        raise MachineError(java.fault, java.todo)
    settings = {name: value for name, value in asked.items() if name in RESOLVING}
    said = ""
    for maven_cache in (True, False):
        jars, said = _resolved_by_jvm(connectors, settings, maven_cache=maven_cache)
        if jars:
            return jars
        # A resolver of Ivy's that finds an artifact's description in ~/.m2 does not look for its jar elsewhere. Any
        # user of Maven may have the one without the other, so it is tried once without that folder.
        if MAVEN_CACHE not in said:
            break
        log.info("~/.m2 describes %s and lacks their jars; fetching without it", ", ".join(_missing(said)[:3]))
    raise _failure(said, connectors)


def _resolved_by_jvm(
    connectors: Collection[str], settings: dict[str, str], *, maven_cache: bool
) -> tuple[list[str], str]:
    """Return the jars that Spark's resolver finds in a JVM of its own, none if it fails, and what it has printed.

    Without `maven_cache` it takes an empty folder for the home of the user, and so finds no ~/.m2 there.
    """
    command = [sys.executable, "-m", "router.engine.spark.connectors", "--job"]
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as empty:
        if not maven_cache:
            settings = {"spark.jars.ivy": str(Path.home() / IVY_FOLDER), **settings}
            environment[JVM_OPTIONS] = f"{environment.get(JVM_OPTIONS, '')} -Duser.home={empty}".strip()
        job = json.dumps({"connectors": sorted(connectors), "asked": settings})
        ended = subprocess.run(command, input=job, capture_output=True, text=True, check=False, env=environment)
    for line in ended.stdout.splitlines():
        if line.startswith(MARK):
            return list(map(str, json.loads(line.removeprefix(MARK)))), ""
    return [], ended.stdout + ended.stderr


def _failure(said: str, connectors: Collection[str]) -> MachineError:
    """Return the error for what Spark's resolver has printed, which is kept in a file."""
    missing = _missing(said)
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "its resolver has failed")
    what = f"jars that Spark needs cannot be fetched ({', '.join(missing[:3]) or last[:200]})"
    offline = NETWORK.search(said) is not None
    what += ": no repository can be reached" if offline else ""
    log = cache_folder() / "spark-jars.log"
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(said)
        what += f"; all that it said is in {log}"
    todo = "check the network, or name a repository of your own by spark.jars.ivySettings under `spark:`"
    if not offline and connectors:
        todo += f"; or take another tested pair of pyspark and delta-spark: {_pairs()}"
    return MachineError(what, todo)


def _missing(said: str) -> list[str]:
    """Return the artifacts that the resolver names as missing."""
    return sorted(set(re.findall(r"(?:unresolved dependency|download failed): ([\w.-]+#[\w.-]+;[\w.-]+)", said)))


def _pairs() -> str:
    return ", ".join(f"{spark} with {delta}" for spark, delta in PAIRS.items())


def _resolve(connectors: Collection[str], asked: Mapping[str, str]) -> list[str]:
    """Let Spark resolve packages in a JVM of this process, and note where they are."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    wanted = [*packages(connectors), *filter(None, asked.get(PACKAGES, "").split(","))]
    conf = SparkConf(loadDefaults=False).setAll([*asked.items(), (PACKAGES, ",".join(wanted))])
    found = not_of_spark(spark_internals.jars_of_new_jvm(conf), Path(os.environ["SPARK_HOME"], "jars"))
    known = _list(set(connectors), asked)
    with suppress(OSError):  # a read-only home costs seconds at the next start, no more
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text("\n".join(found))
    return found


def not_of_spark(jars: list[str], shipped: Path) -> list[str]:
    """Return the jars whose like Spark does not ship: on the class path they would come before its own.

    Delta 4.3 asks for a Jackson that is years older than that of Spark 4.1, with which Spark does not plan a query.
    """
    own = {_artifact(jar.name) for jar in shipped.glob("*.jar")}
    return [jar for jar in jars if _artifact(Path(jar).name.partition("_")[2]) not in own]


def _artifact(file: str) -> str:
    """Return a jar's name without its version; Ivy puts the organisation and _ in front, which is to be cut off."""
    return re.sub(r"-\d[^_]*\.jar$", "", file)


def _list(connectors: set[str], asked: Mapping[str, str]) -> Path:
    """Return the file that lists the resolved jars of exactly these versions, connectors and further packages."""
    names = "" if connectors == set(CONNECTORS) else "-" + "-".join(sorted(connectors) or ["delta"])
    more = asked.get(PACKAGES, "")
    names += f"-{hashlib.sha256(more.encode()).hexdigest()[:8]}" if more else ""
    return cache_folder() / f"spark-jars-{versions_of_jars()}{names}.txt"


def versions_of_jars() -> str:
    """Return the versions that the jars are of, as a part of a file's name."""
    return f"{pyspark.__version__}-delta-{delta_version()}"


def _main() -> None:
    if sys.argv[1:] == ["--job"]:
        job = json.load(sys.stdin)
        sys.stdout.write(f"{MARK}{json.dumps(_resolve(job['connectors'], job['asked']))}\n")
        return
    try:
        wanted = set(sys.argv[1:] or CONNECTORS) & set(CONNECTORS)  # `delta` alone: none of them
        sys.stdout.write("\n".join(resolved_jars(wanted, {})) + "\n")
    except MachineError as error:
        sys.exit(f"router: {error}")


if __name__ == "__main__":
    _main()
