"""`router submit`: pack what a configuration needs on a cluster, and hand it to spark-submit."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.cli.archives import configuration_files, ship_distributions, write_zip
from router.cli.values import parse_pairs
from router.config.loader import load_config
from router.config.variables import substitute_variables
from router.config.yaml_tree import Keys, Scalar, child_nodes
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from router.config.loader import Loaded
    from router.config.yaml_tree import YamlNode

INSTALLED_PROGRAM = "local:///opt/router/__main__.py"
"""The program in an image that is built as docs/deploy/Dockerfile says."""
SETTINGS_AHEAD = ("spark.driver.", "spark.jars", "spark.kubernetes.", "spark.submit.", "spark.yarn.")
"""What settings begin with that are too late once a driver has started: its session sets all others by itself."""
VARIABLE_REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w*)(?::-[^}]*)?\}")


@click.command()
@config_argument
@click.option("--master", required=True, help="spark://HOST:7077, yarn, k8s://https://HOST:6443, local[4].")
@click.option(
    "--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", help="Where the driver runs."
)
@click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark setting of spark-submit.")
@click.option("--installed", is_flag=True, help="Router, plugins and jars are on all machines: an image, for example.")
@click.option("--print", "only_print", is_flag=True, help="Print the command instead of running it.")
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
    deltalake, ...) must be installed on the machines. With --deploy-mode cluster the configuration also travels, with
    its plugin files and the schemas that it names by relative paths. Options after -- are those of `router run`:

        router submit games.yaml --master yarn --conf spark.executor.memory=4g -- --every "1 min"
    """
    from router.engine.spark.cache_folder import cache_folder

    loaded = load_config(file, load_registry(plugin_files))
    submission = Submission(
        loaded=loaded,
        master=master,
        in_cluster=deploy_mode == "cluster",
        asked=parse_pairs(settings, "--conf"),
        plugins=plugin_files,
        installed=installed,
        folder=folder or cache_folder() / "submit" / loaded.config.name,
    )
    command = submission.make_command(arguments)
    for note in submission.notes:
        click.echo(note, err=True)
    if only_print:
        click.echo(_for_shell(command))
        return
    # Signals go to Spark, and its exit code is ours.
    sys.stdout.flush()
    os.execv(command[0], command)


def _for_shell(command: Sequence[str]) -> str:
    """Return a command for a shell, an option on each line."""
    line = " ".join(shlex.quote(word) for word in command)
    return re.sub(r" (?=--(?:master|deploy|name|conf|packages|py-files|archives)\b)", " \\\n  ", line)


@dataclass
class Submission:
    """A configuration on its way to a cluster. `notes` say what a person has to see to, complete after `make_command`.

    `in_cluster`: the driver also runs there. `asked` are the settings of the command line. Archives are written into
    `folder`.
    """

    loaded: Loaded
    master: str
    in_cluster: bool
    asked: Mapping[str, str]
    plugins: Sequence[Path]
    installed: bool
    folder: Path
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.loaded.path.resolve()
        self.filled, _ = substitute_variables(self.loaded.document.root, os.environ, self.path.parent, str(self.path))
        self.settings = {**self._default_settings(), **dict(self._own_settings()), **self.asked}
        self._refuse_impossible()

    def make_command(self, arguments: Sequence[str] = ()) -> list[str]:
        """Write the archives; return the command with the arguments of `router run`. Raises StartError."""
        name = self.loaded.config.name
        words = [spark_submit(), "--master", self.master, "--deploy-mode", "cluster" if self.in_cluster else "client"]
        words += ["--name", f"router {name}"]
        for key, value in self.settings.items():
            words += ["--conf", f"{key}={value}"]
        if not self.installed:
            words += self._package_options()
            words += ["--py-files", ",".join(str(archive) for archive in self._pack_distributions())]

        file = str(self.path)
        plugins = [str(plugin.resolve()) for plugin in self.plugins]
        if self.in_cluster:
            # The driver finds the archive unpacked below its own folder, under the name after the #.
            archive, name_in_archive = self._pack_configuration()
            words += ["--archives", f"{archive}#{name}"]
            file = f"{name}/{name_in_archive}"
            plugins = [f"{name}/plugins/{plugin.name}" for plugin in self.plugins]
        words += [self._program_path(), "run", file]
        for plugin in plugins:
            words += ["--plugin", plugin]
        return [*words, *arguments]

    def _program_path(self) -> str:
        if self.installed and self.in_cluster:
            return INSTALLED_PROGRAM
        return str(Path(__file__).resolve().parents[1] / "__main__.py")

    def _default_settings(self) -> dict[str, str]:
        from router.engine.spark.session import AVRO_LIMITS

        limits = " ".join(AVRO_LIMITS)
        settings = {"spark.driver.defaultJavaOptions": limits, "spark.executor.defaultJavaOptions": limits}
        if not self.in_cluster:
            settings["spark.pyspark.driver.python"] = sys.executable
        return settings

    def _own_settings(self) -> Iterator[tuple[str, str]]:
        """Yield what the file says under `spark:` and a JVM has to know before it reads the file.

        What comes from a variable may be a secret, and everybody on a machine can read command lines.
        """
        assert isinstance(self.filled, Keys)  # or it would not have been loaded
        spark = self.filled.entries.get("spark")
        if spark is None or not isinstance(spark.value, Keys):
            return
        for key, entry in spark.value.entries.items():
            if not key.startswith(SETTINGS_AHEAD) or not isinstance(entry.value, Scalar):
                continue
            if entry.value.tainted:
                # A person can still decide to put it there.
                self.notes.append(f"{key} comes from a variable and is not on the command line: give it by --conf")
                continue
            yield key, entry.value.text

    def _refuse_impossible(self) -> None:
        """Raise StartError for what cannot work, before anything is packed."""
        from router.engine.spark.session import NO_CONNECT, connect_by

        connect = connect_by(self.settings, self.master)
        if connect:
            raise StartError(NO_CONNECT.format(connect))
        if not self.in_cluster:
            return
        if self.master.startswith("spark://"):
            raise StartError("a standalone cluster runs no Python driver: leave --deploy-mode cluster out")
        config = self.loaded.config
        places = {"lake": config.lake, "checkpoint": config.checkpoint or config.lake}
        for name, place in places.items():
            if "://" not in place and not Path(place).is_absolute():
                raise StartError(
                    f"{name}: {place} would be a folder of whichever machine the driver runs on, and gone with it; "
                    "write a URI, or the absolute path of a folder that all machines share"
                )

    def _package_options(self) -> list[str]:
        """Return where the connectors come from, unless the settings name jars; further packages come beside them."""
        from router.engine.spark.connectors import connectors_of, maven_packages

        if "spark.jars" in self.settings:
            return []
        further = self.settings.get("spark.jars.packages", "")
        # Spark takes this option instead of the setting, so it has to name both.
        coordinates = [*maven_packages(connectors_of(self.loaded.config)), *filter(None, further.split(","))]
        return ["--packages", ",".join(coordinates)]

    def _pack_distributions(self) -> tuple[Path, ...]:
        """Pack the router and the plugins; note what has native code and does not travel."""
        shipped = ship_distributions(self.folder)
        for name in shipped.native:
            self.notes.append(f"{name} has native code and does not travel: install it on every machine")
        return shipped.archives

    def _pack_configuration(self) -> tuple[Path, str]:
        """Pack the configuration and what it names; return the archive, and the name of the file in it."""
        files = configuration_files(self.path, self.plugins, _texts_in(self.filled))
        variables = sorted(set(VARIABLE_REFERENCE.findall(self.path.read_text("utf-8-sig"))))
        if variables:
            self.notes.append(
                f"variables that the driver needs there: {', '.join(variables)} (YARN: spark.yarn.appMasterEnv.NAME, "
                "Kubernetes: spark.kubernetes.driverEnv.NAME, or a secret)"
            )
        name = next(name for name, file in files.items() if file == self.path)
        return write_zip(self.folder / f"{self.loaded.config.name}.zip", files), name


def _texts_in(node: YamlNode) -> Iterator[str]:
    if isinstance(node, Scalar):
        yield node.text
    for _, child in child_nodes(node):
        yield from _texts_in(child)


def spark_submit() -> str:
    """Return the spark-submit of SPARK_HOME, or that of the installed PySpark."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    program = Path(home, "bin", "spark-submit")
    if not program.is_file():
        raise StartError(f"there is no {program}; set SPARK_HOME to an installation of Spark, or unset it")
    return str(program)
