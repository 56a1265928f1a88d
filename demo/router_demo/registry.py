"""Run a real Confluent-compatible schema registry, Apicurio, for as long as a `with` block: loopback only."""

from __future__ import annotations

import logging
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import ClassVar

import requests

from router import StartError
from router_demo.embedded import HOST, Embedded, free_ports
from router_demo.jars import cache_home, locked, resolver
from router_demo.java import find_java

APICURIO = "3.0.9"
"""The newest release whose archive runs on Java 17."""
API = "/apis/ccompat/v7"
_ARTIFACT = "apicurio-registry-app"
_WANTED = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="router" module="demo"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="{_ARTIFACT}" rev="{APICURIO}" transitive="false" conf="default->default">
      <artifact name="{_ARTIFACT}" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
# Without POMs: the archive needs nothing, and mirrors do not always have the parents of a POM that nobody asked for.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

log = logging.getLogger(__name__)


class EmbeddedRegistry(Embedded):
    """Hold a registry: it has written what it answered, so that `stop()` may kill it."""

    what: ClassVar[str] = "registry"
    start_seconds: ClassVar[int] = 120

    @property
    def url(self) -> str:
        """Return the URL of the Confluent-compatible API, for clients; the same after a restart."""
        return f"http://{self._address()}{API}"

    def _prepare(self, folder: Path) -> None:
        (self._port,) = free_ports(1)

    def _command(self, folder: Path) -> list[str]:
        command = [str(find_java()), "-Xmx512m", f"-Djava.io.tmpdir={folder}"]
        # By default the database is in memory, and one in a file writes half a second after it has answered.
        command += [f"-Dapicurio.datasource.url=jdbc:h2:file:{folder}/schemas;WRITE_DELAY=0"]
        command += [f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self._port}"]
        return [*command, "-jar", str(registry_jar())]

    def _answers(self) -> bool:
        with requests.Session() as session:
            session.trust_env = False  # no proxy lies between this machine and itself
            try:
                return session.get(f"{self.url}/subjects", timeout=5).status_code == 200
            except requests.RequestException:
                return False


def registry_jar() -> Path:
    """Return the registry's runnable jar; fetch and unpack it first (109 MB) when it is missing."""
    folder = cache_home() / f"apicurio-{APICURIO}"
    if not folder.is_dir():
        with locked(folder):
            if not folder.is_dir():
                log.info("fetching the schema registry Apicurio %s (109 MB, once)", APICURIO)
                _fetch(into=folder)
    found = sorted(folder.rglob("*runner.jar"))
    if not found:
        raise StartError(f"no runnable jar in {folder}: remove that folder, and it is fetched again")
    return found[0]


def unpack(archive: Path, into: Path) -> None:
    """Unpack the files and folders of a tar archive; raise StartError for anything that would leave the folder."""
    into.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise StartError(f"{archive.name} is not what it should be: it holds {member.name!r}; nothing is used")
            target = into / path
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None  # of a file there is one
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)


def _fetch(*, into: Path) -> None:
    """Fetch and unpack the archive, and let the folder appear only when it is complete."""
    prefix = f"{into.name}.part-"
    for left in into.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=into.parent))
    try:
        unpack(_archive(part), part / "unpacked")
        (part / "unpacked").replace(into)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _archive(part: Path) -> Path:
    """Fetch the archive into `part` with the resolver that ships inside PySpark, and a cache of its own."""
    wanted, settings = part / "wanted.xml", part / "settings.xml"
    wanted.write_text(_WANTED)
    settings.write_text(_SETTINGS)
    command = [str(find_java()), "-jar", str(resolver()), "-settings", str(settings), "-ivy", str(wanted)]
    command += ["-cache", str(part / "cache")]
    command += ["-retrieve", f"{part}/[artifact]-[revision](-[classifier]).[ext]", "-types", "tar.gz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(part.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        name = f"io.apicurio:{_ARTIFACT}:{APICURIO}"
        raise StartError(f"{name} could not be fetched: is the network up, and the proxy set for Java?\n{tail}")
    return found[0]
