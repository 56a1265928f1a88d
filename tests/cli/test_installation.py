"""A wheel in an empty environment, far from any checkout: pip takes a tested pair, and what a user does first works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from router.engine.spark.connectors import PAIRS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # a machine without uv's cache fetches 700 MB

CHECKOUT = Path(__file__).parents[2]
TUTORIAL = CHECKOUT / "docs" / "tutorial" / "first-route.md"
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
OF_A_PAIR = re.compile(r"(pyspark|delta-spark|py4j|importlib-metadata)==")


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and nothing else, and a folder to work in."""

    python: Path
    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python without what the user or the folder would add to its path."""
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        command = [str(self.python), "-I", *words]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def router(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the router."""
        return self.run("-m", "router", *words)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build a wheel, and install it into an environment of its own as a user would, with the tutorial's first files.

    By uv, which links what this machine's own set-up has fetched. All but Spark and Delta have the pinned versions.
    """
    place = tmp_path_factory.mktemp("installed")
    uv = str(Path(sys.executable).with_name("uv"))
    environ = {**os.environ, "UV_DEFAULT_INDEX": index(), "VIRTUAL_ENV": str(place / "venv")}
    pins = re.sub(r" \\\n( +--hash=\S+( \\)?\n)+", "\n", CHECKOUT.joinpath("constraints.txt").read_text())
    (place / "pins.txt").write_text("\n".join(pin for pin in pins.splitlines() if not OF_A_PAIR.match(pin)))
    for words in (
        ["build", "--quiet", "--out-dir", str(place), str(CHECKOUT)],  # the wheel is made of the sdist
        ["venv", "--quiet", "--python", sys.executable, str(place / "venv")],
    ):
        subprocess.run([uv, *words], env=environ, check=True)
    (wheel,) = place.glob("*.whl")
    subprocess.run(
        [uv, "pip", "install", "--quiet", "-c", str(place / "pins.txt"), str(wheel)], env=environ, check=True
    )
    subprocess.run(["timeout", "30", uv, "cache", "prune", "--quiet"], env=environ, check=False)  # see scripts/setup.sh
    found = Installed(place / "venv" / "bin" / "python", place / "work")
    for name, text in FILE.findall(TUTORIAL.read_text().partition("## 4.")[0]):
        path = found.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return found


def index() -> str:
    """Return pip's index, which uv does not read from pip's settings."""
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    said = subprocess.run(pip, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or said or "https://pypi.org/simple"


def test_pip_takes_a_tested_pair(installed: Installed) -> None:
    """Without it the first start fails in Spark's own code, or for want of jars."""
    asked = "from importlib.metadata import version as v; print(v('pyspark'), v('delta-spark'))"

    spark, delta = installed.run("-c", asked).stdout.split()

    assert (spark, delta) == list(PAIRS.items())[-1]


def test_the_tutorial_is_diagnosed_and_run(installed: Installed) -> None:
    """Without it the first commands fail for everybody but us."""
    diagnosed = installed.router("doctor", "--json", "orders.yaml")
    found = {one["subject"]: one for one in json.loads(diagnosed.stdout)}
    assert [one for one in found.values() if one["state"] == "wrong"] == []
    assert "a tested pair" in found["Spark and Delta"]["what"]
    ran = installed.router("run", "orders.yaml", "--once")
    assert ran.returncode == 0, ran.stderr
    assert "not tested" not in ran.stderr

    lake = installed.folder / "lake"
    tables = ("bronze/orders", "silver/orders_rome", "silver/orders_paris", "ops/dead_letters")
    assert [DeltaTable(lake / table).to_pyarrow_table().num_rows for table in tables] == [5, 2, 1, 2]


def test_an_extra_that_is_missing_is_one_sentence(installed: Installed) -> None:
    """Without it a missing module is a traceback of the first batch."""
    text = (installed.folder / "orders.yaml").read_text()
    protobuf = re.sub(r"(?m)^decode: .*", "decode: {protobuf: {registry: 'http://127.0.0.1:9'}}", text)
    (installed.folder / "protobuf.yaml").write_text(protobuf)

    checked = installed.router("check", "protobuf.yaml")

    assert checked.returncode == 1
    (said,) = (checked.stdout + checked.stderr).splitlines()
    assert "pip install 'spark-event-router[protobuf]'" in said


def test_the_pages_are_in_the_wheel(installed: Installed) -> None:
    """Without it messages and README send a user to files of a repository that is not there."""
    page = installed.router("help", "install")
    assert page.stdout == (CHECKOUT / "docs" / "how-to" / "install.md").read_text() + "\n"
    readme = installed.run(
        "-c", "from importlib.metadata import metadata as m; print(m('spark-event-router').get_payload())"
    )
    assert "`router help install`" in readme.stdout
    assert re.findall(r"\]\((?!https?://)[^)]*\)", readme.stdout) == []


def test_a_package_for_own_parts_is_written(installed: Installed) -> None:
    """Without it `router plugins new` works in a checkout only."""
    written = installed.router("plugins", "new", "shop-router")
    assert written.returncode == 0, written.stderr

    package = installed.folder / "shop-router"
    assert "shop_router_in_shops" in (package / "src" / "shop_router" / "rule.py").read_text()
    checked = installed.router("check", str(package / "orders.yaml"))
    assert "there is no decoder `shop_router_pairs`" in checked.stdout  # it is not installed yet
