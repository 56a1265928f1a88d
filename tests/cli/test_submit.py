"""`router submit` packs what a cluster needs, and says how spark-submit is called."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from router.cli import commands
from router.cli.archives import ship_distributions
from tests.cli.test_cli import TESTS

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
name: games
lake: /shared/lake
source: {kafka: {servers: "${KAFKA:-127.0.0.1:9092}", topics: [game-events]}}
decode: {json: {schema_file: ../schemas/games.schema.json}}
routes:
  - {name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}
dead_letters: ops.dead_letters
spark: {spark.driver.memory: 2g, spark.sql.shuffle.partitions: 8}
"""
PLUGIN = "from router import hookimpl\n\n@hookimpl\ndef router_rules():\n    return {}\n"
SCHEMA = '{"type": "object", "properties": {"game": {"type": "string"}}}'


@pytest.fixture
def configuration(tmp_path):
    for folder in ("conf", "schemas"):
        (tmp_path / folder).mkdir()
    (tmp_path / "schemas" / "games.schema.json").write_text(SCHEMA)
    (tmp_path / "schemas" / "data.json").write_text("{}")
    (tmp_path / "conf" / "region.py").write_text(PLUGIN)
    path = tmp_path / "conf" / "games.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def submit(configuration, monkeypatch, tmp_path):
    """Run the command with --print; return what it says, and the words of the command."""
    monkeypatch.delenv("SPARK_HOME", raising=False)

    def submit(*options: str) -> tuple[str, list[str]]:
        words = ["submit", str(configuration), "--print", "--to", str(tmp_path / "to"), *options]
        done = CliRunner().invoke(commands, words)
        return done.output, shlex.split(done.stdout) if not done.exit_code else []

    return submit


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_driver_on_this_machine_gets_the_file_and_executors_the_archives(submit, configuration, tmp_path):
    _, words = submit("--master", "spark://host:7077", "--conf", "spark.executor.memory=1g", "--", "--once")

    assert words[0].endswith("bin/spark-submit")
    assert after(words, "--master") == "spark://host:7077"
    assert after(words, "--py-files").startswith(str(tmp_path / "to" / "spark_event_router-"))
    assert "io.delta:delta-spark" in after(words, "--packages")
    assert "--archives" not in words
    assert {"spark.driver.memory=2g", "spark.executor.memory=1g", f"spark.pyspark.driver.python={sys.executable}"} < {
        *words
    }
    assert "spark.sql.shuffle.partitions=8" not in words, "the session sets it by itself"
    assert words[words.index("run") - 1].endswith("router/__main__.py")
    assert words[words.index("run") :] == ["run", str(configuration), "--once"]


def test_with_a_driver_in_the_cluster_the_configuration_travels_with_what_it_names(submit, configuration, tmp_path):
    plugin = configuration.with_name("region.py")
    said, words = submit("--master", "yarn", "--deploy-mode", "cluster", "--plugin", str(plugin))

    archive, _, name = after(words, "--archives").partition("#")
    assert zipfile.ZipFile(archive).namelist() == [
        "conf/games.yaml",
        "plugins/region.py",
        "schemas/games.schema.json",
    ]
    assert words[words.index("run") :] == ["run", f"{name}/conf/games.yaml", "--plugin", f"{name}/plugins/region.py"]
    assert "variables that the driver needs there: KAFKA" in said


def test_where_all_is_installed_only_the_configuration_travels(submit):
    _, words = submit("--master", "k8s://https://host:6443", "--deploy-mode", "cluster", "--installed")

    assert "--py-files" not in words
    assert "--packages" not in words
    assert words[words.index("run") - 1] == "local:///opt/router/__main__.py"


def test_jars_that_are_given_are_not_fetched(submit):
    _, words = submit("--master", "yarn", "--conf", "spark.jars=/opt/jars/delta.jar")

    assert "--packages" not in words


def test_further_packages_come_beside_the_connectors(submit):
    """Without it a cluster has no Delta and no Kafka as soon as the configuration names hadoop-aws, unlike a laptop."""
    _, words = submit("--master", "yarn", "--conf", "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0")

    coordinates = after(words, "--packages").split(",")
    assert any(one.startswith("io.delta:delta-spark") for one in coordinates)
    assert "org.apache.hadoop:hadoop-aws:3.5.0" in coordinates


def test_a_setting_from_a_variable_is_not_on_the_command_line(submit, configuration, monkeypatch):
    monkeypatch.setenv("KEY", "hunter2")
    configuration.write_text(GOOD.replace("spark.driver.memory: 2g", '"spark.yarn.key": "${KEY}"'))

    said, words = submit("--master", "yarn")

    assert words
    assert "hunter2" not in said
    assert "spark.yarn.key comes from a variable" in said


@pytest.mark.parametrize(
    ("options", "lake", "says"),
    [
        (["--master", "spark://h:7077", "--deploy-mode", "cluster"], "/lake", "runs no Python driver"),
        (["--master", "yarn", "--deploy-mode", "cluster"], "./lake", "lake: ./lake would be a folder of whichever"),
        (["--master", "sc://h:15002"], "/lake", "needs a Spark driver of its own"),
        (["--master", "yarn", "--conf", "spark.remote=sc://h"], "/lake", "spark.remote is sc://h"),
        (["--master", "yarn", "--conf", "spark.executor.memory"], "/lake", "is not KEY=VALUE"),
    ],
    ids=["standalone", "relative lake", "connect", "remote", "no pair"],
)
def test_what_cannot_work_is_refused_before_anything_is_packed(submit, configuration, tmp_path, options, lake, says):
    configuration.write_text(GOOD.replace("/shared/lake", lake))

    said, _ = submit(*options)

    assert says in " ".join(said.split())
    assert not (tmp_path / "to").exists()


def test_a_configuration_with_a_mistake_does_not_travel(submit, configuration):
    configuration.write_text(GOOD.replace("decode:", "decoed:"))

    said, words = submit("--master", "yarn")

    assert not words
    assert "decoed: unknown key; did you mean `decode`?" in said


def unpacked(archives, folder: Path) -> Path:
    for archive in archives:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    return folder


def run_with(path: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a path before, and without the checkout: its packages are looked for there alone."""
    roots = [str(TESTS.parent / folder) for folder in ("", "plugins", "demo")]
    code = f"import sys; sys.path[:] = [{path!r}, *(p for p in sys.path if p not in {['', *roots]!r})]; {words[0]}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_the_archive_of_a_checkout_has_every_package_and_its_plugins_are_found(tmp_path):
    (archive,) = ship_distributions(tmp_path / "to").archives

    code = (
        "import router, router_rest, router_http, router_schemas; from router.registry import load_registry;"
        "print(router.__file__, 'rest' in load_registry().entries['sink'])"
    )
    done = run_with(str(archive), code, cwd=tmp_path)

    assert done.stdout.split() == [f"{archive}/router/__init__.py", "True"], done.stderr
    assert not [name for name in zipfile.ZipFile(archive).namelist() if name.startswith(("tests", "benchmarks"))]


def test_an_installed_package_packs_the_same_and_leaves_what_has_native_code(tmp_path, monkeypatch):
    """A wheel unpacked where Python looks, as pip leaves it; beside it a stranger's plugins, one of them in C."""
    (archive,) = ship_distributions(tmp_path / "to").archives
    site = unpacked([archive], tmp_path / "site")
    _as_installed(site, "spark_event_router")
    for name, file in (("region_rules", "region_rules.py"), ("fast_rules", "fast_rules.so")):
        (site / file).write_text(PLUGIN if file.endswith(".py") else "")
        about = site / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[event_router]\n{name} = {name}\n")
        _as_installed(site, name)
    code = (
        "from pathlib import Path; from router.cli.archives import ship_distributions;"
        f"found = ship_distributions(Path({str(tmp_path / 'again')!r}));"
        "print(*(p.name for p in found.archives), *found.native)"
    )
    done = run_with(str(site), code, cwd=tmp_path)

    version = Distribution.from_name("spark-event-router").version
    assert sorted(done.stdout.split()) == [
        "fast_rules",
        "region_rules-1.0.zip",
        f"spark_event_router-{version}.zip",
    ], done.stderr
    again = zipfile.ZipFile(tmp_path / "again" / archive.name).namelist()
    assert set(zipfile.ZipFile(archive).namelist()) <= {*again}
    shutil.rmtree(site)


def _as_installed(site: Path, name: str) -> None:
    """Write the RECORD of a distribution, as an installer does."""
    (about,) = site.glob(f"{name}-*.dist-info")
    tops = [name] if not name.startswith("spark") else ["router*"]
    files = [file for top in tops for file in (*site.glob(f"{top}/**/*"), *site.glob(f"{top}.*")) if file.is_file()]
    files += about.iterdir()
    (about / "RECORD").write_text("".join(f"{file.relative_to(site)},,\n" for file in files))
