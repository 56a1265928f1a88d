"""The files that people copy to a cluster can be read by what they are for, and say what the code says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from router.cli.submit import INSTALLED_PROGRAM
from router.config.loader import load
from router.registry import load_registry

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_can_be_read_by_its_shell(script):
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.stat().st_mode & 0o100, "it can be started"


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.y*ml")), ids=lambda path: path.name)
def test_a_manifest_is_yaml(file):
    assert all(yaml.safe_load_all(file.read_text()))


def test_the_configuration_in_the_manifest_is_good(tmp_path):
    maps = [one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if one["kind"] == "ConfigMap"]
    path = tmp_path / "games.yaml"
    path.write_text(maps[0]["data"]["games.yaml"])

    assert load(path, load_registry(), environ={"KAFKA": "broker:9092"}).config.name == "games"


def test_the_program_of_an_image_is_where_a_submission_looks_for_it():
    program = INSTALLED_PROGRAM.removeprefix("local://")

    assert program in (DEPLOY / "kubernetes.yaml").read_text()
    assert 'cp "$(' in (DEPLOY / "install.sh").read_text()
    assert f"${{ROUTER_HOME:-{Path(program).parent}}}" in (DEPLOY / "install.sh").read_text()


def test_every_file_stands_in_the_table_of_where_it_runs():
    text = (DEPLOY.parent / "where-it-runs.md").read_text()

    assert [file.name for file in DEPLOY.iterdir() if f"deploy/{file.name}" not in text] == []
