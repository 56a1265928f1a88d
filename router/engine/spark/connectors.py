"""The jars that Spark needs in addition to its own: Delta, and the connectors that a configuration uses.

Spark's own resolver fetches them once, in a process of its own, so that a failure is one sentence and not the hundred
lines that it prints; from then on a list contains their paths. `python -m router.engine.spark.connectors kafka avro`
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
    from router.config.yaml_tree import YamlNode

log = logging.getLogger("router")
PAIRS = {"4.0.0": "4.0.1", "4.1.1": "4.3.1", "4.2.0": "4.4.0"}
"""Spark -> the Delta that was tested with it, oldest first. Delta's log classes, which Delta on Spark commits by,
change with Spark's minor version."""
CONNECTORS = {"avro": "spark-avro", "kafka": "spark-sql-kafka-0-10"}
"""What a part or a source requires -> the artifact of Spark."""
_PACKAGES = "spark.jars.packages"
RESOLVING = (_PACKAGES, "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.ivy", "spark.jars.excludes")
"""Settings that are for the resolver alone."""
NETWORK = re.compile(
    r"UnknownHost|ConnectException|Socket(Timeout)?Exception|NoRouteToHost|Host (?!repos\.spark-packages)\S+ not found"
)
"""What the resolver prints if no repository can be reached. It asks spark-packages last, which has none of these."""
MAVEN_CACHE = "in local-m2-cache"
"""What the resolver prints of an artifact whose description is in ~/.m2."""
IVY_FOLDER = ".ivy2.5.2"
"""Where Spark 4 keeps jars below the home of the user."""
JVM_OPTIONS = "JAVA_TOOL_OPTIONS"
MARK = "jars of spark-event-router: "


def describe_untested_pair() -> str:
    """Return in a sentence what was not tested about the installed Spark and Delta; empty for a tested pair."""
    spark = pyspark.__version__
    delta = delta_version()
    if PAIRS.get(spark) == delta:
        return ""
    newest = "the newest tested pair is pyspark {} with delta-spark {}".format(*_newest_pair())
    tested_spark, tested_delta = tested_pair()
    if _minor_version(tested_spark) != _minor_version(spark):
        return f"pyspark {spark} was not tested with the router; {newest}"
    if _minor_version(delta) == _minor_version(tested_delta):
        pair = f"{tested_spark} with {tested_delta}"
        jars = "" if delta == tested_delta else f", and the jar of {tested_delta} is used"
        return f"pyspark {spark} with delta-spark {delta} was not tested, {pair} was{jars}; {newest}"
    installed = delta or "none"
    return f"pyspark {spark} was tested with delta-spark {tested_delta}, and {installed} is installed; {newest}"


def tested_pair() -> tuple[str, str]:
    """Return the tested pair of the installed Spark's minor version; the newest one if there is none."""
    pairs = {_minor_version(spark): (spark, delta) for spark, delta in PAIRS.items()}
    return pairs.get(_minor_version(pyspark.__version__), _newest_pair())


def line_of_pip() -> str:
    """Return the command that installs a tested pair: another one, if the installed pair is tested."""
    pair = tested_pair()
    if pair == (pyspark.__version__, delta_version()):
        pair = [other for other in PAIRS.items() if other != pair][-1]
    return "`pip install pyspark=={} delta-spark=={}`".format(*pair)


def refuse_newer_spark() -> None:
    """Raise MachineError for a Spark whose minor version is newer than any that was tested.

    The router uses parts of Spark that are private, and Delta's classes are made for one minor version.
    """
    if _version_number(pyspark.__version__) > _version_number(_newest_pair()[0]):
        fault = f"pyspark {pyspark.__version__} is newer than any that this router runs on"
        raise MachineError(fault, f"install the newest tested pair: {line_of_pip()}")


def _newest_pair() -> tuple[str, str]:
    return list(PAIRS.items())[-1]


def delta_version() -> str:
    """Return the version of delta-spark; an empty text if it is not installed as a package, as on Databricks."""
    try:
        return importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        return ""


def release_of_jars() -> str:
    """Return the version of Delta's jar: the installed one, or its neighbour that was tested with another patch.

    A patch release of the Python package may be there days before its jar, and another one gains a user nothing.
    """
    installed = delta_version()
    tested = {_minor_version(delta): delta for delta in PAIRS.values()}
    return tested.get(_minor_version(installed), installed)


def _minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _version_number(version: str) -> tuple[int, int]:
    """Return major and minor version as numbers, to be compared."""
    major, minor = _minor_version(version).split(".")
    return int(major), int(minor)


def connectors_of(config: Config) -> frozenset[str]:
    """Return the connectors that a configuration uses: those of its source, and those that its parts require."""
    source = getattr(config, "source", None)  # a session may be built without one
    if source is None:
        return frozenset()
    names: set[str] = set()
    for part in parts_in(config):
        names.update(part.connectors)
    if source.kafka:
        names.add("kafka")
    if source.format:
        names.add(source.format.name)
    if source.files:
        names.add(source.files.format)
    return frozenset(names & set(CONNECTORS))


def connectors_in(root: YamlNode) -> frozenset[str]:
    """Return the connectors that a configuration will use, as far as its text tells before any plugin is loaded.

    Avro may be named by a decoder, or found by one that takes all formats (`auto`).
    """
    words = set(re.findall(r"\w+", _node_text(root)))
    if "auto" in words:
        words.add("avro")
    return frozenset(words & {"kafka", "avro"})


def _node_text(node: object) -> str:
    if isinstance(node, str):
        return node
    if hasattr(node, "entries"):
        return " ".join(f"{key} {_node_text(entry.value)}" for key, entry in node.entries.items())
    if hasattr(node, "items"):
        return " ".join(_node_text(item) for item in node.items)
    return str(getattr(node, "text", ""))


def maven_packages(connectors: Collection[str]) -> list[str]:
    """Return the Maven coordinates of connectors, and of a Delta that goes with the installed Spark and Delta."""
    from delta.pip_utils import configure_spark_with_delta_pip  # noqa: PLC0415 - platforms with a Delta of theirs lack it

    extra = [f"org.apache.spark:{CONNECTORS[name]}_2.13:{pyspark.__version__}" for name in sorted(connectors)]
    builder = configure_spark_with_delta_pip(SparkSession.Builder(), extra_packages=extra)
    delta, *others = spark_internals.builder_options(builder)[_PACKAGES].split(",")
    return [f"{delta.rpartition(':')[0]}:{release_of_jars()}", *others]


def known_jars(connectors: Collection[str] = tuple(CONNECTORS), settings: Mapping[str, str] | None = None) -> list[str]:
    """Return the jars that were resolved for these connectors, or for more; none if there is no list of them."""
    # The longest list comes first: an archive of classes fits one class path, and so all configurations have the same.
    for size in range(len(CONNECTORS), len(connectors) - 1, -1):
        for names in combinations(sorted(CONNECTORS), size):
            if not set(connectors) <= set(names):
                continue
            jars = _read_list(_list_path(set(names), settings or {}))
            if jars:
                return jars
    return []


def _read_list(path: Path) -> list[str]:
    """Return the jars of a list; none if one of them is gone."""
    try:
        jars = path.read_text().split("\n")
    except OSError:
        return []
    return jars if all(Path(jar).is_file() for jar in jars) else []


def resolved_jars(connectors: Collection[str], settings: Mapping[str, str]) -> list[str]:
    """Return the jars of Delta and of connectors; fetch them if they are not known.

    `settings` are those of a session: further packages among them are fetched as well, from the repositories that they
    name. Raises MachineError, in one sentence, if a jar cannot be fetched.
    """
    if jars := known_jars(connectors, settings):
        return jars
    java = provide_java()
    if java.fault:
        raise MachineError(java.fault, java.todo)
    of_resolver = {name: value for name, value in settings.items() if name in RESOLVING}
    jars, output = _resolve_by_jvm(connectors, of_resolver, maven_cache=True)
    # A resolver of Ivy's that finds an artifact's description in ~/.m2 does not look for its jar elsewhere. Any user of
    # Maven may have the one without the other, so it is tried once without that folder.
    if not jars and MAVEN_CACHE in output:
        log.info(
            "~/.m2 describes %s and lacks their jars; fetching without it", ", ".join(_missing_artifacts(output)[:3])
        )
        jars, output = _resolve_by_jvm(connectors, of_resolver, maven_cache=False)
    if not jars:
        raise _resolver_error(output)
    return jars


def _resolve_by_jvm(
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
        job = json.dumps({"connectors": sorted(connectors), "settings": settings})
        ended = subprocess.run(command, input=job, capture_output=True, text=True, check=False, env=environment)
    for line in ended.stdout.splitlines():
        if line.startswith(MARK):
            return list(map(str, json.loads(line.removeprefix(MARK)))), ""
    return [], ended.stdout + ended.stderr


def _resolver_error(output: str) -> MachineError:
    """Return the error for what Spark's resolver has printed, which is kept in a file."""
    missing = _missing_artifacts(output)
    reason = ", ".join(missing[:3])
    if not reason:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reason = lines[-1][:200] if lines else "its resolver has failed"
    fault = f"jars that Spark needs cannot be fetched ({reason})"
    todo = "check the network, or name a repository of your own by spark.jars.ivySettings under `spark:`"
    if NETWORK.search(output):
        fault += ": no repository can be reached"
    elif missing:
        todo = f"{line_of_pip()}, or name a repository that has these jars by spark.jars.ivySettings under `spark:`"
    path = cache_folder() / "spark-jars.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(output)
        fault += f"; its whole output is in {path}"
    return MachineError(fault, todo)


def _missing_artifacts(output: str) -> list[str]:
    """Return the artifacts that the resolver names as missing."""
    return sorted(set(re.findall(r"(?:unresolved dependency|download failed): ([\w.-]+#[\w.-]+;[\w.-]+)", output)))


def _resolve_packages(connectors: Collection[str], settings: Mapping[str, str]) -> list[str]:
    """Let Spark resolve packages in a JVM of this process, and note their paths."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    coordinates = [*maven_packages(connectors), *filter(None, settings.get(_PACKAGES, "").split(","))]
    conf = SparkConf(loadDefaults=False).setAll([*settings.items(), (_PACKAGES, ",".join(coordinates))])
    jars = not_of_spark(spark_internals.jars_of_new_jvm(conf), Path(os.environ["SPARK_HOME"], "jars"))
    path = _list_path(set(connectors), settings)
    with suppress(OSError):  # a read-only home costs seconds at the next start, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(jars))
    return jars


def not_of_spark(jars: list[str], shipped: Path) -> list[str]:
    """Return the jars that Spark does not ship in another version: on the class path they would come before its own.

    Delta 4.3 requires a Jackson that is years older than that of Spark 4.1, with which Spark does not plan a query.
    """
    own = {_artifact_name(jar.name) for jar in shipped.glob("*.jar")}
    return [jar for jar in jars if _artifact_name(Path(jar).name.partition("_")[2]) not in own]


def _artifact_name(file: str) -> str:
    """Return a jar's name without its version; callers cut off the organisation and _ that Ivy puts in front."""
    return re.sub(r"-\d[^_]*\.jar$", "", file)


def _list_path(connectors: set[str], settings: Mapping[str, str]) -> Path:
    """Return the file that lists the resolved jars of exactly these versions, connectors and further packages."""
    name = f"spark-jars-{versions_of_jars()}"
    if connectors != set(CONNECTORS):
        name += "-" + "-".join(sorted(connectors) or ["delta"])
    if settings.get(_PACKAGES):
        name += f"-{hashlib.sha256(settings[_PACKAGES].encode()).hexdigest()[:8]}"
    return cache_folder() / f"{name}.txt"


def versions_of_jars() -> str:
    """Return the versions of Spark and Delta that the jars belong to, as a part of a file's name."""
    return f"{pyspark.__version__}-delta-{release_of_jars()}"


def _main() -> None:
    if sys.argv[1:] == ["--job"]:
        job = json.load(sys.stdin)
        sys.stdout.write(f"{MARK}{json.dumps(_resolve_packages(job['connectors'], job['settings']))}\n")
        return
    try:
        connectors = set(sys.argv[1:] or CONNECTORS) & set(CONNECTORS)  # `delta` alone: none of them
        sys.stdout.write("\n".join(resolved_jars(connectors, {})) + "\n")
    except MachineError as error:
        sys.exit(f"router: {error}")


if __name__ == "__main__":
    _main()
