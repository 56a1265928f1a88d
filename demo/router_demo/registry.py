"""Run a real Confluent-compatible schema registry, Apicurio, for as long as a `with` block, and register schemas."""

from __future__ import annotations

import shutil
import tarfile
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar

import requests

from router import StartError
from router_demo.embedded import HOST, Embedded, fetched_once, find_java, free_ports, resolve
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from router_schemas.model import Kind

APICURIO = "3.0.9"
"""The newest release whose archive runs on Java 17."""
API = "/apis/ccompat/v7"
_ARTIFACT = "apicurio-registry-app"
_DEPENDENCY = f"""\
    <dependency org="io.apicurio" name="{_ARTIFACT}" rev="{APICURIO}" transitive="false" conf="default->default">
      <artifact name="{_ARTIFACT}" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>"""
# Without POMs: the archive needs nothing, and mirrors do not always have the parents of a POM that is not needed.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class EmbeddedRegistry(Embedded):
    """A registry on loopback: it has written what it answered, so that `stop()` may kill it."""

    what: ClassVar[str] = "registry"
    start_seconds: ClassVar[int] = 120

    @property
    def url(self) -> str:
        """Return the URL of the Confluent-compatible API, for clients; the same after a restart."""
        return f"http://{self._address()}{API}"

    def _prepare(self, folder: Path) -> None:
        (self._port,) = free_ports(1)

    def _command(self, folder: Path) -> list[str]:
        # Compiled lightly, for a quick start: it answers a few calls.
        command = [str(find_java()), "-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={folder}"]
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
    label = f"the schema registry Apicurio {APICURIO} (109 MB, once)"
    folder = fetched_once(f"apicurio-{APICURIO}", label, _fetch_archive)
    jars = sorted(folder.rglob("*runner.jar"))
    if not jars:
        raise StartError(f"no runnable jar in {folder}: remove that folder, and it is fetched again")
    return jars[0]


def _fetch_archive(part: Path) -> Path:
    settings = part / "settings.xml"
    settings.write_text(_SETTINGS)
    options = ["-retrieve", f"{part}/[artifact]-[revision](-[classifier]).[ext]", "-types", "tar.gz"]
    name = f"io.apicurio:{_ARTIFACT}:{APICURIO}"
    resolve(name, _DEPENDENCY, part, "-settings", str(settings), *options)
    archives = sorted(part.glob("*.tar.gz"))
    if not archives:
        raise StartError(f"{name} could not be fetched: the resolver found no archive of it")
    unpacked = part / "unpacked"
    unpack(archives[0], unpacked)
    return unpacked


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


class Subject:
    """A subject of a registry. `on_register` gets the id of each schema that is registered through this."""

    def __init__(self, client: RegistryClient, name: str, on_register: Callable[[int], None] | None = None) -> None:
        self._client = client
        self._name = name
        self._on_register = on_register

    def register(self, kind: Kind, text: str) -> int:
        """Register a schema and return its id. Raises RegistryError when the registry does not take it."""
        number = self._client.register(self._name, kind, text)
        if self._on_register:
            self._on_register(number)
        return number


@contextmanager
def subject_in(url: str, name: str, on_register: Callable[[int], None] | None = None) -> Iterator[Subject]:
    """Hold a connection to a registry. Raises StartError for what is not the URL of one."""
    try:
        registry = RegistryOptions(url=(url,))
    except ValueError:
        raise StartError(f"{url!r} is not the URL of a registry: write http(s)://host[:port][/path]") from None
    with RegistryClient(registry) as client:
        yield Subject(client, name, on_register)
