"""A standalone Spark cluster on this machine: a master and workers as processes, without the checkout on their path."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

SPARK_HOME = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"
OPTIONS = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Cluster:
    """A master and its workers, each worker with one core. They live until `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "127.0.0.1", "--port", str(port))
        self._says("master", "I have been elected leader")

    def worker(self, name: str, host: str = "127.0.0.1", before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a worker under a command (`unshare -m ...`), if any; return its process when the master knows it."""
        words = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{name}"), self.master)
        process = self._start("worker", host, *words, name=name, before=before)
        self._says(name, "Successfully registered with master")
        return process

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its executors at once, as a machine that loses its power."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        """Kill all processes of the cluster."""
        for process in self.started:
            if process.poll() is None:
                self.kill(process)

    def _start(
        self, kind: str, host: str, *arguments: str, name: str | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        program = f"{DEPLOY}.{kind}.{kind.capitalize()}"
        home = os.environ.get("JAVA_HOME")
        java = [str(Path(home, "bin", "java")) if home else "java", *OPTIONS, "-cp", f"{SPARK_HOME / 'jars'}/*"]
        local = self.folder / "local"
        local.mkdir(exist_ok=True)
        env = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
        env |= {"SPARK_SCALA_VERSION": "2.13"}  # as Spark's own scripts set it
        env |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(local), "TMPDIR": str(local)}
        with (self.folder / f"{name or kind}.log").open("ab") as log:
            process = subprocess.Popen(
                [*before, *java, program, "--host", host, "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=local,
                env=env,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def _says(self, name: str, text: str) -> None:
        log = self.folder / f"{name}.log"
        wait_until(lambda: text in log.read_text(errors="replace"), f"{text!r} in {log}")


def bare_python(folder: Path) -> Path:
    """Make a Python that has all packages of this one but the router, and return it: that of a cluster's machines."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    mine = Path(pyspark.__file__).parents[1]
    for entry in mine.iterdir():
        if "spark_event_router" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def installed(module: Path, site: Path) -> Path:
    """Install one module as a distribution that offers plugins, as pip leaves it; return the folder for PYTHONPATH."""
    about = site / f"{module.stem}-1.0.dist-info"
    about.mkdir(parents=True)
    (site / module.name).write_text(module.read_text())
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[event_router]\n{module.stem} = {module.stem}\n")
    files = (module.name, *(f"{about.name}/{name}" for name in ("METADATA", "entry_points.txt", "RECORD")))
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return site
