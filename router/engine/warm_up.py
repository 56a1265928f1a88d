"""Make the archive of the classes that a run loads, which the JVM of the next session maps instead of loading them.

Class data sharing of the JVM (JEP 350, dynamic archives): the archive is written when a JVM ends that was told to. It
holds what one small run loads: reading files, decoding, landing, committing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from router.engine.session import class_archive
from router.errors import StartError

EVENTS = 1000


def warm_up() -> Path:
    """Run a small configuration in a process of its own, keep the archive, and return where it is.

    Raises StartError when the run fails or leaves no archive. Needs the connectors' jars: the first run resolves them.
    """
    target = class_archive()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:
        archive = Path(folder, "classes.jsa")
        command = [sys.executable, "-m", "router", "run", str(_configuration(Path(folder), archive)), "--once"]
        # The pipe ends when the JVM has ended too, which writes the archive after Python is gone.
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)  # noqa: PLW1510 - read below
        if ended.returncode or not archive.is_file():
            raise StartError(f"the run for the archive of classes failed:\n{ended.stdout[-2000:]}")
        os.replace(archive, target)  # noqa: PTH105 - a start at this moment sees the old archive or the new one
    return target


def _configuration(folder: Path, archive: Path) -> Path:
    events = Path(folder, "events")
    events.mkdir()
    lines = (json.dumps({"game": f"game_{i % 3}", "at": "2026-01-01T00:00:00Z", "amount": i}) for i in range(EVENTS))
    Path(events, "events.jsonl").write_text("\n".join(lines) + "\nnot JSON\n")
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
        "spark": {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -XX:+UseParallelGC"},
    }
    path = Path(folder, "warm_up.yaml")
    path.write_text(json.dumps(configuration))  # JSON is YAML
    return path
