"""`router submit`: pack what a configuration needs on a cluster, and hand it to spark-submit."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.cli.archives import configuration_files, pack, ship_distributions
from router.config.loader import load
from router.config.variables import substitute
from router.config.yaml_tree import Keys, Scalar, children
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from router.config.loader import Loaded
    from router.config.yaml_tree import Node

INSTALLED_PROGRAM = "local:///opt/router/__main__.py"
"""The program in an image that is built as docs/deploy/Dockerfile says."""
AHEAD = ("spark.driver.", "spark.jars", "spark.kubernetes.", "spark.submit.", "spark.yarn.")
"""What settings begin with that are too late once a driver has started: its session sets all others by itself."""
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)(?::-[^}]*)?\}")


@click.command(short_help="Run a configuration on a cluster, by spark-submit.")
@config_argument
@click.option("--master", required=True, help="spark://HOST:7077, yarn, k8s://https://HOST:6443, local[4].")
@click.option(
    "--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", help="Where the driver runs."
)
@click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark setting of spark-submit.")
@click.option("--installed", is_flag=True, help="Router, plugins and jars are on all machines: an image, for example.")
@click.option("--print", "only_print", is_flag=True, help="Print the command in place of running it.")
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Where to put the archives.")
@plugin_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF router run]")
def submit(
    file: Path,
    master: str,
    deploy_mode: str,
    settings: tuple[str, ...],
    installed: bool,
    only_print: bool,
    folder: Path | None,
    plugin_files: tuple[Path, ...],
    arguments: tuple[str, ...],
) -> None:
    """Run the configuration FILE on a cluster: check it, pack what it needs there, and start spark-submit.

    The router and all plugins that are installed here travel as archives of Python; what has native code (pyarrow,
    deltalake, ...) must be installed on the machines. With --deploy-mode cluster the configuration travels, too, with
    its plugin files and the schemas that it names by relative paths. Options after -- are those of `router run`:

        router submit games.yaml --master yarn --conf spark.executor.memory=4g -- --every "1 min"
    """
    loaded = load(file, load_registry(plugin_files))
    place = folder or import_module("router.engine.spark.cache_folder").cache_folder() / "submit" / loaded.config.name
    asked = Submission(loaded, master, deploy_mode == "cluster", _pairs(settings), plugin_files, installed, place)
    command = asked.command(arguments)
    for note in asked.notes:
        click.echo(note, err=True)
    if only_print:
        click.echo(_shown(command))
        return
    sys.stdout.flush()
    os.execv(command[0], command)  # signals go to Spark, and its exit code is ours


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    if wrong := [text for text in settings if "=" not in text]:
        raise click.BadParameter(f"{wrong[0]!r} is not KEY=VALUE", param_hint="--conf")
    return dict(text.split("=", 1) for text in settings)


def _shown(command: Sequence[str]) -> str:
    """Return a command for a shell, an option on each line."""
    words = [shlex.quote(word) for word in command]
    return re.sub(r" (?=--(?:master|deploy|name|conf|packages|py-files|archives)\b)", " \\\n  ", " ".join(words))


class Submission:
    """A configuration on its way to a cluster. `notes` say what a person has to see to, and are there after `command`.

    `in_cluster`: the driver runs there, too. Archives are written into `folder`.
    """

    def __init__(
        self,
        loaded: Loaded,
        master: str,
        in_cluster: bool,
        settings: Mapping[str, str],
        plugins: Sequence[Path],
        installed: bool,
        folder: Path,
    ) -> None:
        self.loaded, self.master, self.in_cluster = loaded, master, in_cluster
        self.plugins, self.installed, self.folder = plugins, installed, folder
        self.notes: list[str] = []
        path = loaded.path.resolve()
        self.filled, _ = substitute(loaded.document.root, os.environ, path.parent, str(path))
        self.settings = {**self._defaults(), **dict(self._own_settings()), **settings}
        self._refuse()

    def command(self, arguments: Sequence[str] = ()) -> list[str]:
        """Write the archives; return the command with the arguments of `router run`. Raises StartError."""
        words = [spark_submit(), "--master", self.master, "--deploy-mode", "cluster" if self.in_cluster else "client"]
        words += ["--name", f"router {self.loaded.config.name}"]
        for key, value in self.settings.items():
            words += ["--conf", f"{key}={value}"]
        program = INSTALLED_PROGRAM if self.installed and self.in_cluster else _program()
        if not self.installed:
            words += self._packages()
            words += ["--py-files", ",".join(str(archive) for archive in self._archives())]
        file, plugins = str(self.loaded.path.resolve()), [str(plugin.resolve()) for plugin in self.plugins]
        if self.in_cluster:
            name = self.loaded.config.name
            archive = self._configuration()
            words += ["--archives", f"{archive.path}#{name}"]
            file, plugins = f"{name}/{archive.file}", [f"{name}/plugins/{plugin.name}" for plugin in self.plugins]
        given = [word for plugin in plugins for word in ("--plugin", plugin)]
        return [*words, program, "run", file, *given, *arguments]

    def _defaults(self) -> dict[str, str]:
        session = import_module("router.engine.spark.session")
        limits = " ".join(session.AVRO_LIMITS)
        found = {"spark.driver.defaultJavaOptions": limits, "spark.executor.defaultJavaOptions": limits}
        if not self.in_cluster:
            found["spark.pyspark.driver.python"] = sys.executable
        return found

    def _own_settings(self) -> Iterator[tuple[str, str]]:
        """Return what the file says under `spark:` and a JVM has to know before it reads the file.

        What comes from a variable may be a secret, and everybody on a machine can read command lines.
        """
        spark = self.filled.entries.get("spark") if isinstance(self.filled, Keys) else None
        entries = spark.value.entries if spark and isinstance(spark.value, Keys) else {}
        for key, entry in entries.items():
            if key.startswith(AHEAD) and isinstance(entry.value, Scalar):
                if entry.value.tainted:
                    self.notes.append(f"{key} comes from a variable and is not on the command line: give it by --conf")
                else:
                    yield key, entry.value.text

    def _refuse(self) -> None:
        """Raise StartError for what cannot work, before anything is packed."""
        session, config = import_module("router.engine.spark.session"), self.loaded.config
        if by := session.connect_by(self.settings, self.master):
            raise StartError(session.NO_CONNECT.format(by))
        if self.in_cluster and self.master.startswith("spark://"):
            raise StartError("a standalone cluster runs no Python driver: leave --deploy-mode cluster out")
        places = {"lake": config.lake, "checkpoint": config.checkpoint or config.lake}
        for name, place in places.items():
            if self.in_cluster and "://" not in place and not Path(place).is_absolute():
                raise StartError(
                    f"{name}: {place} would be a folder of whichever machine the driver runs on, and gone with it; "
                    "write a URI, or the absolute path of a folder that all machines share"
                )

    def _packages(self) -> list[str]:
        """Return where the connectors come from, unless the settings say so."""
        if {"spark.jars", "spark.jars.packages"} & self.settings.keys():
            return []
        connectors = import_module("router.engine.spark.connectors")
        return ["--packages", ",".join(connectors.packages(connectors.connectors_of(self.loaded.config)))]

    def _archives(self) -> tuple[Path, ...]:
        shipped = ship_distributions(self.folder)
        for name in shipped.native:
            self.notes.append(f"{name} has native code and does not travel: install it on every machine")
        return shipped.archives

    def _configuration(self) -> PackedConfiguration:
        path = self.loaded.path.resolve()
        files = configuration_files(path, self.plugins, _texts(self.filled))
        if needed := sorted(set(VARIABLE.findall(path.read_text("utf-8-sig")))):
            names = ", ".join(needed)
            self.notes.append(
                f"variables that the driver needs there: {names} (YARN: spark.yarn.appMasterEnv.NAME, Kubernetes: "
                "spark.kubernetes.driverEnv.NAME, or a secret)"
            )
        inside = next(name for name, file in files.items() if file == path)
        return PackedConfiguration(pack(self.folder / f"{self.loaded.config.name}.zip", files), inside)


@dataclass(frozen=True)
class PackedConfiguration:
    """An archive with a configuration, and the name of the file in it."""

    path: Path
    file: str


def _texts(node: Node) -> Iterator[str]:
    if isinstance(node, Scalar):
        yield node.text
    for _, child in children(node):
        yield from _texts(child)


def _program() -> str:
    return str(Path(__file__).resolve().parents[1] / "__main__.py")


def spark_submit() -> str:
    """Return the spark-submit of SPARK_HOME, or that of the installed PySpark."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    program = Path(home, "bin", "spark-submit")
    if not program.is_file():
        raise StartError(f"there is no {program}; set SPARK_HOME to an installation of Spark, or unset it")
    return str(program)
