"""Fetch the servers of the demo once, with the dependency resolver that ships inside PySpark."""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from router import StartError
from router_demo.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KAFKA = "4.1.1"
_KAFKA_MODULES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    # Kafka's own jars bring no backend for its logging: without one a failed start would say nothing.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_WANTED = """\
<ivy-module version="2.0">
  <info organisation="router" module="demo"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default->default"/>'

log = logging.getLogger(__name__)


def cache_home() -> Path:
    """Return the folder of fetched servers: ROUTER_CACHE, or one below the user's cache folder."""
    named = os.environ.get("ROUTER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "spark-event-router"


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars; fetch them first (43 MB, about half a minute) when they are missing."""
    folder = cache_home() / f"kafka-{KAFKA}"
    if folder.is_dir():
        return folder
    with locked(folder):
        if not folder.is_dir():
            log.info("fetching Kafka %s (43 MB, about half a minute, once)", KAFKA)
            _fetch(_KAFKA_MODULES, into=folder)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch this folder; the kernel frees the lock of a killed one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(modules: Sequence[tuple[str, str, str]], *, into: Path) -> None:
    """Fetch modules with everything they need, and let the folder appear only when it is complete."""
    prefix = f"{into.name}.part-"
    for left in into.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=into.parent))
    try:
        _resolve(modules, part)
        (part / "jars").replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _resolve(modules: Sequence[tuple[str, str, str]], part: Path) -> None:
    """Run the resolver in `part`, with a cache of its own: it does not lock the shared one, where damage would last."""
    wanted = part / "wanted.xml"
    wanted.write_text(_WANTED.format(dependencies="\n".join(_DEPENDENCY.format(*module) for module in modules)))
    command = [str(find_java()), "-jar", str(resolver()), "-cache", str(part / "cache"), "-ivy", str(wanted)]
    command += ["-retrieve", f"{part}/jars/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        names = ", ".join(":".join(module) for module in modules)
        raise StartError(f"{names} could not be fetched: is the network up, and the proxy set for Java?\n{tail}")


def resolver() -> Path:
    """Return the resolver's jar without importing PySpark, which takes a while."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StartError("pyspark is not installed: install this project with its dependencies")
    found = sorted(Path(spec.origin).with_name("jars").glob("ivy-*.jar"))
    if not found:
        raise StartError(f"no ivy-*.jar in {Path(spec.origin).with_name('jars')}: reinstall pyspark")
    return found[-1]
