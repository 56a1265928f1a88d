"""Only the jars that a configuration uses are asked for, and jars that cannot be had are one sentence."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from router.config.loader import load_config
from router.config.yaml_tree import parse_yaml
from router.engine.spark import connectors
from router.engine.spark.connectors import (
    CONNECTORS,
    PAIRS,
    connectors_in,
    connectors_of,
    known_jars,
    maven_packages,
    resolved_jars,
)
from router.errors import MachineError
from router.registry import load_registry

FILES = "files: {path: ./in}"
KAFKA = "kafka: {servers: '127.0.0.1:9', topics: [t]}"
JSON = 'json: "a string"'
AVRO = "avro: {registry: http://127.0.0.1:9}"
AUTO = "auto: {registry: http://127.0.0.1:9}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def text_of(source: str, decode: str) -> str:
    return (
        f"name: x\nlake: ./lake\nsource: {{{source}}}\ndecode: {{{decode}}}\nbronze: bronze.b\ndead_letters: ops.dead\n"
    )


@pytest.mark.parametrize(
    ("source", "decode", "wanted"),
    [
        (FILES, JSON, set()),
        (KAFKA, JSON, {"kafka"}),
        (FILES, AVRO, {"avro"}),
        (KAFKA, AUTO, {"kafka", "avro"}),
        (FILES, f"keyed: {{value: {{{AVRO}}}, key: {{{JSON}}}}}", {"avro"}),
    ],
)
def test_a_configuration_asks_for_the_connectors_that_it_uses(
    tmp_path: Path, source: str, decode: str, wanted: set[str]
) -> None:
    """Without it a start fails for a Kafka connector that nobody needs."""
    path = tmp_path / "x.yaml"
    path.write_text(text_of(source, decode))
    assert connectors_of(load_config(path, load_registry()).config) == wanted
    root, _ = parse_yaml(path.read_text(), "x.yaml")
    assert root is not None
    assert connectors_in(root) == wanted  # what a JVM is started with before plugins are imported


def test_the_packages_are_of_the_installed_spark_and_delta() -> None:
    delta, kafka = maven_packages({"kafka"})
    assert delta.startswith("io.delta:delta-spark_")
    assert kafka == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def listed(cache: Path, name: str) -> list[str]:
    jar = cache / f"{name}.jar"
    jar.write_bytes(b"")
    names = "" if name == "all" else f"-{name}"
    (cache / f"spark-jars-{connectors.versions_of_jars()}{names}.txt").write_text(str(jar))
    return [str(jar)]


def test_jars_that_were_resolved_for_more_do_for_less(cache: Path) -> None:
    """Without it every configuration would fetch, and have an archive of classes, of its own."""
    avro = listed(cache, "avro")
    assert known_jars(set()) == avro
    assert known_jars({"avro"}) == avro
    assert known_jars({"kafka"}) == []
    every = listed(cache, "all")
    assert known_jars(set()) == every


def test_a_jar_that_is_gone_is_not_known(cache: Path) -> None:
    (jar,) = listed(cache, "all")
    Path(jar).unlink()
    assert known_jars(set()) == []


def test_other_packages_that_are_asked_for_have_a_list_of_their_own(cache: Path) -> None:
    listed(cache, "all")
    assert known_jars(set(), {"spark.jars.packages": "a:b:1"}) == []


def resolver(said: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    jobs: list[dict[str, object]] = []

    def run(command: list[str], **given: str) -> SimpleNamespace:
        jobs.append(json.loads(given["input"]))
        return SimpleNamespace(stdout=said, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(connectors, "provide_java", lambda: SimpleNamespace(fault="", todo=""))
    return jobs


def test_the_resolver_gets_what_the_configuration_says_about_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = resolver(f'noise\n{connectors.MARK}["/a.jar"]\n', monkeypatch)
    settings = {"spark.jars.ivySettings": "/ivy.xml", "spark.driver.memory": "2g"}
    assert resolved_jars({"kafka"}, settings) == ["/a.jar"]
    assert jobs == [{"connectors": ["kafka"], "settings": {"spark.jars.ivySettings": "/ivy.xml"}}]


DESCRIBED = """\
\tfound com.google.code.findbugs#jsr305;3.0.0 in local-m2-cache
\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/org/slf4j/slf4j-bom-2.0.16.jar
java.lang.RuntimeException: [download failed: com.google.code.findbugs#jsr305;3.0.0!jsr305.jar]
"""
"""What Spark 4.0 printed with a ~/.m2 that described an artifact and lacked its jar."""


def test_a_maven_cache_without_a_jar_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the router does not start for a user of Maven who has an artifact's description and not the jar."""
    answers = [DESCRIBED, f'{connectors.MARK}["/a.jar"]\n']
    homes: list[bool] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        homes.append("-Duser.home=" in env.get("JAVA_TOOL_OPTIONS", ""))
        return SimpleNamespace(stdout=answers.pop(0), stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(connectors, "provide_java", lambda: SimpleNamespace(fault="", todo=""))

    assert resolved_jars({"kafka"}, {}) == ["/a.jar"]
    assert homes == [False, True]


@pytest.mark.slow
@pytest.mark.spark
def test_spark_resolves_jars_past_a_maven_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what Spark prints has changed, and nobody notices that the second try is never made."""
    folder = tmp_path / ".m2/repository/com/google/code/findbugs/jsr305/3.0.0"
    folder.mkdir(parents=True)
    (folder / "jsr305-3.0.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>com.google.code.findbugs</groupId>"
        "<artifactId>jsr305</artifactId><version>3.0.0</version></project>"
    )
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Duser.home={tmp_path}")

    jars = resolved_jars({"kafka"}, {"spark.jars.packages": "org.slf4j:slf4j-nop:1.7.36"})

    assert any("kafka-clients" in jar for jar in jars)


UNREACHED = "java.net.UnknownHostException: repo1.maven.org\n:: unresolved dependency: io.delta#delta;1: not found"
UNKNOWN = ":: unresolved dependency: org.apache.spark#spark-sql-kafka-0-10_2.13;4.2.0: not found"
TESTED = [(spark, delta, "") for spark, delta in PAIRS.items()]


@pytest.mark.parametrize(
    ("said", "names", "todo"),
    [
        (UNREACHED, "io.delta#delta;1", "network"),
        (UNKNOWN, "spark-sql-kafka-0-10", "pip install pyspark=="),
        (f"\tHost repo1.maven.org not found. url=https://repo1.maven.org/a.jar\n{UNKNOWN}", "no repository", "network"),
        ("whatever\n" * 200, "whatever", "network"),
        ("", "its resolver has failed", "network"),
    ],
)  # fmt: skip
def test_jars_that_cannot_be_had_are_one_sentence(
    said: str, names: str, todo: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it there are a hundred lines of Ivy and two tracebacks."""
    resolver(said, monkeypatch)
    with pytest.raises(MachineError) as failed:
        resolved_jars({"kafka"}, {})
    assert names in failed.value.what
    assert todo in failed.value.todo
    assert "\n" not in str(failed.value)
    assert (cache / "spark-jars.log").read_text() == said


def install(spark: str, delta: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", spark)
    monkeypatch.setattr("importlib.metadata.version", lambda name: delta)


@pytest.mark.parametrize(
    ("spark", "delta", "named"),
    [*TESTED, ("4.0.0", "4.4.0", "4.0.1"), ("4.9.0", "4.4.0", "4.9.0"), ("4.2.1", "4.4.0", "4.2.1")],
)
def test_a_pair_that_was_not_tested_is_named(
    spark: str, delta: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nobody learns that this pair runs in no test, or which one does."""
    install(spark, delta, monkeypatch)
    sentence = connectors.describe_untested_pair()
    assert named in sentence
    assert (sentence == "") is (named == "")
    assert not named or "4.2.0" in sentence  # the newest tested


@pytest.mark.parametrize(("spark", "refused"), [("4.0.5", False), ("4.2.1", False), ("4.3.0", True), ("5.0.0", True)])
def test_a_spark_newer_than_any_that_was_tested_is_refused(
    spark: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a query ends in the middle of a batch, on a private part of Spark that has changed."""
    install(spark, "4.4.0", monkeypatch)
    mended = "`pip install pyspark==4.2.0 delta-spark==4.4.0`"
    expectation = pytest.raises(MachineError, match=mended) if refused else nullcontext()
    with expectation:
        connectors.refuse_newer_spark()


@pytest.mark.parametrize(
    ("spark", "delta", "jar"),
    [
        ("4.2.0", "4.4.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.1", "4.4.9", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.1.4", "4.3.0", "io.delta:delta-spark_4.1_2.13:4.3.1"),
        ("4.1.1", "4.3.1", "io.delta:delta-spark_4.1_2.13:4.3.1"),
        ("4.1.1", "4.2.0", "io.delta:delta-spark_4.1_2.13:4.2.0"),  # another minor version: no neighbour was tested
    ],
)
def test_a_patch_release_takes_the_jar_of_its_tested_neighbour(
    spark: str, delta: str, jar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a Python package that is there before its jars ends the first command of a user."""
    install(spark, delta, monkeypatch)
    monkeypatch.setattr("importlib_metadata.version", lambda name: delta)

    assert maven_packages({"kafka"}) == [jar, f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}"]
    assert jar.rpartition(":")[2] in connectors.versions_of_jars()


@pytest.mark.parametrize(
    ("spark", "delta", "line"),
    [
        ("4.1.1", "4.2.0", "pip install pyspark==4.1.1 delta-spark==4.3.1"),
        ("4.0.5", "4.4.0", "pip install pyspark==4.0.0 delta-spark==4.0.1"),
        ("4.2.0", "4.5.0", "pip install pyspark==4.2.0 delta-spark==4.4.0"),
        ("3.9.0", "4.4.0", "pip install pyspark==4.2.0 delta-spark==4.4.0"),
        ("4.1.1", "4.3.1", "pip install pyspark==4.2.0 delta-spark==4.4.0"),  # tested: its repository lacks the jars
        ("4.2.0", "4.4.0", "pip install pyspark==4.1.1 delta-spark==4.3.1"),
    ],
)
@pytest.mark.parametrize("names", [set(), {"kafka"}], ids=["delta", "kafka"])
def test_jars_that_are_not_there_end_with_the_line_that_mends_it(
    spark: str, delta: str, line: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a user has a fault and no command to run."""
    install(spark, delta, monkeypatch)
    resolver(UNKNOWN, monkeypatch)
    with pytest.raises(MachineError) as failed:
        resolved_jars(names, {})
    assert f"`{line}`" in failed.value.todo
    assert failed.value.todo.count("pip install") == 1


def test_jars_that_spark_has_itself_are_left_out(tmp_path: Path) -> None:
    """Without it Delta's older Jackson comes before Spark's own, and no query of Spark 4.1 is planned."""
    for name in ("jackson-databind-2.18.2.jar", "spark-core_2.13-4.1.1.jar"):
        (tmp_path / name).write_bytes(b"")
    own = ["/j/io.delta_delta-spark_4.1_2.13-4.3.1.jar", "/j/org.apache.spark_spark-avro_2.13-4.1.1.jar"]
    older = "/j/com.fasterxml.jackson.core_jackson-databind-2.13.5.jar"
    assert connectors.not_of_spark([*own, older], tmp_path) == own


def test_all_connectors_are_names_of_artifacts() -> None:
    assert all(name.startswith("spark-") for name in CONNECTORS.values())
