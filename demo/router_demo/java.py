"""Find the Java that runs the embedded servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from router import StartError

OLDEST = 17
"""Kafka 4 needs it; Spark 4 runs on 17 and 21 only, the broker also on newer ones."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else of PATH; raise StartError when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise StartError(f"no java found by {where}: install Java 17 or 21, or point JAVA_HOME at one")
    version = java_version(java)
    if version < OLDEST:
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
