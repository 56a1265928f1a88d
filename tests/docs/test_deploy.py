"""The files that people copy to a cluster can be read by what they are for, and say what the code says."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.cli.submit import INSTALLED_PROGRAM
from router.config.loader import load_config
from router.config.models import Ui
from router.errors import StartError
from router.registry import load_registry

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
GAMES = """
name: games
lake: /shared/lake
source: {kafka: {servers: "${KAFKA}", topics: [game-events]}}
decode: {json: "game string"}
routes: [{name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}]
dead_letters: ops.dead_letters
"""
ROUTER = f"""#!/bin/sh
exec {shlex.quote(sys.executable)} -m router "$@"
"""
NOTES = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >>"$NOTES"
printf '\\n' >>"$NOTES"
"""


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_read_by_its_shell(script):
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.stat().st_mode & 0o100, "it can be started"


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.y*ml")), ids=lambda path: path.name)
def test_a_manifest_is_yaml(file):
    assert all(yaml.safe_load_all(file.read_text()))


# ---- Kubernetes


def test_the_configuration_in_the_manifest_is_good(tmp_path):
    maps = [one for one in documents("kubernetes.yaml") if one["kind"] == "ConfigMap"]
    path = tmp_path / "games.yaml"
    path.write_text(maps[0]["data"]["games.yaml"])

    config = load_config(path, load_registry(), environ={"KAFKA": "broker:9092", "UI_TOKEN": "x"}).config
    assert config.name == "games"
    assert config.ui is not None
    (job,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [config.ui.host_and_port[1]], "the probes ask it"


def test_kubernetes_asks_the_health_checks():
    """Without it a stream that is stuck stays so until somebody looks."""
    (job,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    named = {port["name"] for port in container["ports"]}
    assert {container[name]["httpGet"]["port"] for name in probes} <= named


def test_kubernetes_starts_no_driver_again_for_which_a_person_has_to_act():
    """Without it a refused start, exit code 2, is repeated a thousand times."""
    (job,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never", "Kubernetes refuses the policy with another one"


KINDS = {
    "ServiceAccount": "v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "ConfigMap": "v1",
    "Job": "batch/v1",
    "Pod": "v1",
}


@pytest.mark.parametrize("name", ["kubernetes.yaml", "driver-pod.yaml", "executor-pod.yaml"])
def test_what_pods_refer_to_is_there(name):
    """Without it a pod waits for ever for a volume, or starts without rights."""
    all_of_it = documents("kubernetes.yaml")
    made = {(one["kind"], one["metadata"]["name"]) for one in all_of_it}
    head = "".join(re.findall(r"(?m)^#.*\n", (DEPLOY / "kubernetes.yaml").read_text()))
    made |= {("ConfigMap", found) for found in re.findall(r"create configmap (\S+)", head)}
    made |= {("Secret", found) for found in re.findall(r"create secret generic (\S+)", head)}
    for one in documents(name):
        assert one["apiVersion"] == KINDS[one["kind"]]
        if one["kind"] == "RoleBinding":
            assert all(("ServiceAccount", who["name"]) in made and who["namespace"] for who in one["subjects"])
        pod = one["spec"]["template"]["spec"] if one["kind"] == "Job" else one["spec"] if one["kind"] == "Pod" else {}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        for volume in volumes.values():
            assert ("ConfigMap", volume.get("configMap", {}).get("name")) in made or (
                "PersistentVolumeClaim",
                volume.get("persistentVolumeClaim", {}).get("claimName"),
            ) in made
        for container in pod.get("containers", ()):
            assert all(("Secret", source["secretRef"]["name"]) in made for source in container.get("envFrom", ()))
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == {*volumes}
            given = {variable["name"] for variable in container.get("env", ())}
            assert set(re.findall(r"\$\((\w+)\)", " ".join(container.get("args", ())))) <= given
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in made


def test_spark_finds_its_container_in_the_templates_of_pods():
    """Spark takes the first container where none has its name, and then a sidecar is the driver."""
    for role in ("driver", "executor"):
        (pod,) = documents(f"{role}-pod.yaml")
        assert [container["name"] for container in pod["spec"]["containers"]] == [f"spark-kubernetes-{role}"]


def test_the_job_calls_the_image_as_its_entry_point_takes_it(tmp_path):
    (job,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    tools = stubs(tmp_path, "tini")

    said = called(
        ["bash", str(DEPLOY / "entrypoint.sh"), *container["args"]],
        tools,
        SPARK_HOME="/opt/router/spark",
        SPARK_DRIVER_BIND_ADDRESS="10.0.0.7",
    )

    assert said[0][:5] == ["tini", "-s", "--", "/opt/router/spark/bin/spark-submit", "--deploy-mode"]
    assert said[0][5] == "client", "the driver is the Job's pod: its exit code is that of the run"
    assert "spark.driver.bindAddress=10.0.0.7" in said[0]
    assert said[0][-3:] == [INSTALLED_PROGRAM, "run", "/etc/router/games.yaml"]


def test_the_program_of_an_image_is_where_a_submission_looks_for_it():
    program = INSTALLED_PROGRAM.removeprefix("local://")

    assert program in (DEPLOY / "kubernetes.yaml").read_text()
    assert f'"$home/{Path(program).name}"' in (DEPLOY / "install.sh").read_text()
    assert f"${{ROUTER_HOME:-{Path(program).parent}}}" in (DEPLOY / "install.sh").read_text()


def test_an_image_gets_all_that_the_package_is_built_from():
    """Without it `router init`, `router bench` and `router help` are missing in the image, and only there."""
    repository = DEPLOY.parents[1]
    wheel = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = set(re.findall(r"^COPY (\S+) /source/\1$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))

    assert {path.split("/")[0] for path in wheel["only-include"]} <= copied


# ---- systemd


def test_the_unit_starts_a_run_and_leaves_alone_what_a_person_has_to_mend():
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string((DEPLOY / "event-router@.service").read_text())
    service = unit["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"].replace("%i", "games"))
    assert (Path(program).name, command) == ("router", "run")
    assert arguments == ["games.yaml", "--ui", "${UI}"]
    assert Ui(address=service["Environment"].removeprefix("UI=")).host_and_port == ("127.0.0.1", 4480)
    assert program == "/opt/router/venv/bin/router", "install.sh puts it there"
    assert (service["Restart"], int(service["RestartPreventExitStatus"])) == ("on-failure", StartError.exit_code)
    assert service["KillMode"] == "mixed", "a run ends after its batch, and needs its JVM for it"


# ---- others


def stubs(folder: Path, *names: str) -> Path:
    """Return a folder of programs that note how they are called, and the router itself."""
    tools = folder / "tools"
    tools.mkdir()
    for name, text in {"router": ROUTER, **dict.fromkeys(names, NOTES)}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return tools


def called(command: list[str], tools: Path, **variables: str) -> list[list[str]]:
    """Run a script in the folder of the tools; return how it has called them."""
    notes = tools / "notes"
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NOTES": str(notes), **variables}
    done = subprocess.run(command, cwd=tools.parent, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split("\0")[:-1] for line in notes.read_text().splitlines()]


@pytest.fixture
def games(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "games.yaml").write_text(GAMES)
    return tmp_path


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_step_of_emr_is_what_is_submitted_with_its_archives_in_s3(games):
    tools = stubs(games, "aws")

    copied, added = called(["bash", str(DEPLOY / "emr.sh"), "bucket", "j-1"], tools, KAFKA="broker:9092")

    assert copied == ["aws", "s3", "cp", "--recursive", "build", "s3://bucket/router/"]
    assert added[-2:] == ["--steps", "file://build/steps.json"]
    (step,) = json.loads((games / "build" / "steps.json").read_text())
    words = step["Args"]
    assert after(words, "--archives") == "s3://bucket/router/games.zip#games"
    archives = after(words, "--py-files").split(",")
    assert "io.delta:delta-spark" in after(words, "--packages")
    assert words[-3:] == ["s3://bucket/router/__main__.py", "run", "games/games.yaml"]
    for place in (*archives, "/games.zip", "/__main__.py"):
        assert (games / "build" / place.rpartition("/")[2]).is_file(), "it is copied"


def test_a_job_of_dataproc_is_what_is_submitted_with_its_archives_in_the_bucket(games):
    tools = stubs(games, "gcloud")

    copied, words = called(["bash", str(DEPLOY / "dataproc.sh"), "bucket", "c", "r"], tools, KAFKA="broker:9092")

    assert copied[:3] == ["gcloud", "storage", "cp"]
    there = {path.rpartition("/")[2] for path in copied[3:-1]}
    assert {path.rpartition("/")[2] for path in after(words, "--py-files").split(",")} < there
    assert after(words, "--archives") == "gs://bucket/router/games.zip#games"
    settings = after(words, "--properties").removeprefix("^|^").split("|")
    assert "spark.submit.deployMode=cluster" in settings
    assert any(setting.startswith("spark.jars.packages=io.delta:delta-spark") for setting in settings)
    assert words[words.index("--") + 1 :] == ["run", "games/games.yaml"]


def test_a_submission_to_yarn_has_the_archives_of_python_and_of_the_configuration(games):
    tools = stubs(games)
    (tools / "bin").mkdir()
    (tools / "bin" / "spark-submit").write_text(NOTES)
    (tools / "bin" / "spark-submit").chmod(0o755)

    (words,) = called(["bash", str(DEPLOY / "yarn.sh")], tools, KAFKA="broker:9092", SPARK_HOME=str(tools))

    assert after(words, "--master") == "yarn"
    assert after(words, "--archives").endswith("games.zip#games")
    assert "spark.yarn.dist.archives=env.tar.gz#env" in words


def test_a_job_of_databricks_has_a_cluster_of_its_own():
    (bundle,) = documents("databricks-job.yml")
    (task,) = bundle["resources"]["jobs"]["games"]["tasks"]

    assert task["new_cluster"]["data_security_mode"] == "SINGLE_USER"
    assert (DEPLOY / task["spark_python_task"]["python_file"]).is_file()
    (script,) = task["new_cluster"]["init_scripts"]
    assert (DEPLOY / script["workspace"]["destination"].rpartition("/")[2]).is_file()
    compile((DEPLOY / "databricks_main.py").read_text(), "databricks_main.py", "exec")


def test_every_file_stands_in_the_table_of_where_it_runs():
    text = (DEPLOY.parent / "how-to" / "run-on-a-cluster.md").read_text()

    assert [file.name for file in DEPLOY.iterdir() if f"deploy/{file.name}" not in text] == []
