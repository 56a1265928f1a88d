"""Make the archive of the JVM's classes that sessions start with: `router warm-up`, in a process of its own.

Class data sharing of the JVM (JEP 350, dynamic archives): a JVM that was started so writes at its end which classes it
has loaded, and later ones map them. The process runs a small configuration, which loads what a batch needs (reading,
decoding, landing, committing), and then the classes of the Kafka source by name: there is no broker to read from.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JJavaError

from router.cli.session import spark_session
from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.spark.connectors import CONNECTORS, known_jars, resolved_jars
from router.engine.spark.session import class_archive
from router.engine.stream import RunOptions, run
from router.errors import StartError
from router.registry import load_registry
from router.spark_internals import jvm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

EVENT_COUNT = 1000
NOTE_SUFFIX = ".of"
"""The end of the name of a file beside an archive: it has the path of the PySpark that the archive is for."""
UNFINISHED_PREFIX = "warm-up-"
"""The beginning of the names of folders in which archives are made."""
SECONDS_PER_DAY = 86_400
KAFKA_CLASSES = (
    "org/apache/kafka/clients/",
    "org/apache/kafka/common/",
    "org/apache/spark/sql/kafka010/",
    "org/apache/spark/kafka010/",
)


def make_class_archive() -> Path:
    """Run a small configuration in a process of its own, keep the archive of its classes, and return where it is.

    Raises MachineError if Spark cannot start here, StartError when the run fails or leaves no archive.
    """
    # An archive holds the classes of the class path, so that the jars must be there before the run.
    resolved_jars(tuple(CONNECTORS), {})
    target = class_archive()
    target.parent.mkdir(parents=True, exist_ok=True)
    delete_useless_archives(target.parent)
    with TemporaryDirectory(dir=target.parent, prefix=UNFINISHED_PREFIX) as folder:
        archive = Path(folder, "classes.jsa")
        settings = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
        process = _run_alone(Path(folder, "run"), settings)
        if process.returncode or not archive.is_file():
            raise StartError(f"the run for the archive of classes failed:\n{process.stdout[-2000:]}")
        # A start at this moment sees the old archive or the new one.
        target.with_suffix(NOTE_SUFFIX).write_text(pyspark.__file__)
        archive.replace(target)
    return target


def make_archive_later() -> None:
    """Make the archive in a process that nobody waits for, unless there is one or it was tried within a day.

    For the end of a run: a batch does not share its cores then.
    """
    tried = class_archive().with_suffix(".tried")
    if class_archive().is_file() or (tried.is_file() and time.time() - tried.stat().st_mtime < SECONDS_PER_DAY):
        return
    with suppress(OSError):  # no folder for it, or no more processes: a run has ended well all the same
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()
        code = "import os; os.nice(19); from router.cli import main; main()"
        nowhere = subprocess.DEVNULL
        subprocess.Popen(
            [sys.executable, "-c", code, "warm-up"],
            start_new_session=True,
            cwd=tried.anchor,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
        )


def delete_useless_archives(folder: Path) -> None:
    """Delete the archives of installations that are gone (200 MB each), and what a killed process has left."""
    for note in folder.glob(f"classes-*{NOTE_SUFFIX}"):
        if not Path(note.read_text()).exists():
            note.with_suffix(".jsa").unlink(missing_ok=True)
            note.unlink(missing_ok=True)
    for unfinished in folder.glob(f"{UNFINISHED_PREFIX}*"):
        if time.time() - unfinished.stat().st_mtime > SECONDS_PER_DAY:
            shutil.rmtree(unfinished, ignore_errors=True)


def _run_alone(folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    command = [sys.executable, "-m", __name__, str(_small_configuration(folder, settings))]
    # The pipe ends when the JVM has also ended, which writes the archive after Python is gone.
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)  # noqa: PLW1510 - the caller looks


def _small_configuration(folder: Path, settings: dict[str, str]) -> Path:
    events = Path(folder, "events")
    events.mkdir()
    lines = []
    for number in range(EVENT_COUNT):
        event = {"game": f"game_{number % 3}", "at": "2026-01-01T00:00:00Z", "amount": number}
        lines.append(json.dumps(event))
    # The last line becomes a dead letter, so that their classes are also loaded.
    lines.append("not JSON")
    Path(events, "events.jsonl").write_text("\n".join(lines) + "\n")
    configuration = {
        "name": "warm_up",
        "lake": str(folder / "lake"),
        "source": {"files": {"path": str(events)}},
        "decode": {"json": {"schema": "game string, at timestamp, amount double"}},
        "bronze": "bronze.events",
        "routes": [
            {
                "name": "games",
                "match": {"sql": "event.game IS NOT NULL"},
                "sinks": [{"tables": {"table": "silver.{event.game}"}}],
            }
        ],
        "dead_letters": "ops.dead_letters",
        "spark": settings,
    }
    path = Path(folder, "warm_up.yaml")
    # JSON is YAML.
    path.write_text(json.dumps(configuration))
    return path


def _run_here(path: Path) -> None:
    """Run a configuration in this process, then load the classes of the Kafka source."""
    registry = load_registry()
    loaded = load_config(path, registry)
    with spark_session(loaded.config) as session:
        run(loaded, registry, session, RunOptions(trigger=Trigger(once=True)))
        _load_kafka(session)


def _load_kafka(session: SparkSession) -> None:
    java = jvm(session).java.lang
    loader = java.ClassLoader.getSystemClassLoader()
    for name in _kafka_classes():
        # Some classes need a library that is optional.
        with suppress(Py4JJavaError):
            java.Class.forName(name, False, loader)


def _kafka_classes() -> Iterator[str]:
    for jar in known_jars():
        with zipfile.ZipFile(jar) as content:
            for name in content.namelist():
                if name.startswith(KAFKA_CLASSES) and name.endswith(".class"):
                    yield name.removesuffix(".class").replace("/", ".")


if __name__ == "__main__":
    _run_here(Path(sys.argv[1]))
