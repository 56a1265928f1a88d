"""Fetch the servers of the demo once, with the resolver that ships inside PySpark, and find the Java that runs them."""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from router import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KAFKA = "4.1.1"
_KAFKA_MODULES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    # Kafka's own jars bring no backend for its logging: without one a failed start would say nothing.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_IVY_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="router" module="demo"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default->default"/>'
OLDEST_JAVA = 17
"""Kafka 4 needs it; Spark 4 runs on 17 and 21 only, the broker also on newer ones."""
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

log = logging.getLogger(__name__)


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars; fetch them first (43 MB, about half a minute) when they are missing."""
    return fetched_once(f"kafka-{KAFKA}", f"Kafka {KAFKA} (43 MB, about half a minute, once)", _fetch_kafka)


def _fetch_kafka(part: Path) -> Path:
    dependencies = "\n".join(_DEPENDENCY.format(*module) for module in _KAFKA_MODULES)
    names = ", ".join(":".join(module) for module in _KAFKA_MODULES)
    pattern = "jars/[artifact]-[revision](-[classifier]).[ext]"
    resolve(names, dependencies, part, "-retrieve", f"{part}/{pattern}", "-types", "jar", "bundle")
    return part / "jars"


def fetched_once(name: str, what: str, fetch: Callable[[Path], Path]) -> Path:
    """Return a folder of fetched files; when it is missing, let one process fetch it, and appear when it is complete.

    `fetch` gets a temporary folder beside it and returns what is in it then; `what` is what the log says of it.
    """
    folder = _cache_home() / name
    if folder.is_dir():
        return folder
    with _locked(folder):
        if not folder.is_dir():
            log.info("fetching %s", what)
            _fetch(folder, fetch)
    return folder


def _fetch(folder: Path, fetch: Callable[[Path], Path]) -> None:
    prefix = f"{folder.name}.part-"
    for left in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        fetch(part).replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _cache_home() -> Path:
    """Return the folder of fetched servers: ROUTER_CACHE, or one below the user's cache folder."""
    named = os.environ.get("ROUTER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "spark-event-router"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch this folder; the kernel frees the lock of a killed one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def resolve(names: str, dependencies: str, part: Path, *options: str) -> None:
    """Run the resolver in `part`, with a cache of its own: it does not lock the shared one, where damage would last.

    `dependencies` is XML of Ivy. Raises StartError, which calls them `names`, when they cannot be fetched.
    """
    wanted = part / "wanted.xml"
    wanted.write_text(_IVY_MODULE.format(dependencies=dependencies))
    command = [str(find_java()), "-jar", str(_resolver()), "-cache", str(part / "cache"), "-ivy", str(wanted), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise StartError(f"{names} could not be fetched: is the network up, and the proxy set for Java?\n{tail}")


def _resolver() -> Path:
    """Return the resolver's jar without importing PySpark, which takes a while."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StartError("pyspark is not installed: install this project with its dependencies")
    found = sorted(Path(spec.origin).with_name("jars").glob("ivy-*.jar"))
    if not found:
        raise StartError(f"no ivy-*.jar in {Path(spec.origin).with_name('jars')}: reinstall pyspark")
    return found[-1]


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else of PATH; raise StartError when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise StartError(f"no java found by {where}: install Java 17 or 21, or point JAVA_HOME at one")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise StartError(f"the java found by {where} is version {version}: set JAVA_HOME to a Java 17 or 21")
    return Path(java)


def java_version(java: str) -> int:
    """Return the feature version of an executable: 17 for 17.0.15, 8 for 1.8.0, 0 when it does not say."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(answer.stderr)
    if found is None:
        return 0
    major, minor = found.groups()
    return int(minor or 0) if major == "1" else int(major)
