"""The pinned versions fit what pyproject.toml asks for, and are those that the documentation names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from router.engine.spark.connectors import PAIRS

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[\w.+!]+)(?P<marker> ;[^\\]+)? \\\n(?P<hashes>(    --hash=\S+( \\)?\n)+)"
)


def read_pins() -> dict[str, set[str]]:
    """Return the versions of each package; several where Pythons differ."""
    text = (ROOT / "constraints.txt").read_text()
    pins: dict[str, set[str]] = {}
    for entry in re.split(r"(?m)^(?=[\w])", text)[1:]:
        match = PIN.fullmatch(entry)
        assert match, f"constraints.txt: no version with hashes: {entry[:80]}"
        pins.setdefault(canonicalize_name(match["name"]), set()).add(match["version"])
    return pins


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [requirement for requirement in map(Requirement, lines) if requirement.name != project["name"]]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_requirement_has_a_pin_that_fits(requirement: Requirement) -> None:
    """Without it a fresh machine gets whatever is newest that day: `make pins` writes constraints.txt again."""
    versions = read_pins().get(canonicalize_name(requirement.name), set())
    assert versions
    assert all(requirement.specifier.contains(version) for version in versions)


def test_the_pins_name_no_index() -> None:
    """Without it packages come from a server that others cannot reach."""
    assert "://" not in (ROOT / "constraints.txt").read_text()


def test_the_pinned_spark_and_delta_are_the_newest_tested_pair() -> None:
    """Without it the documentation names a pair that CI does not run."""
    pins = read_pins()
    spark, delta = list(PAIRS.items())[-1]
    assert pins["pyspark"] == {spark}
    assert pins["delta-spark"] == {delta}


def test_pip_installs_tested_pairs() -> None:
    """Without it `pip install` in an empty environment takes a Spark that is refused, or a Delta without its jars."""
    required = {line.name: line.specifier for line in requirements()}
    for release in PAIRS:
        assert required["pyspark"].contains(release)
    # All releases of Delta for these Sparks, and some that may come.
    for release in ("4.0.1", "4.0.2", "4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.3.2", "4.4.0", "4.4.1", "4.5.0"):
        assert required["delta-spark"].contains(release) is (release in PAIRS.values()), release
    for release in ("4.2.1", "4.3.0", "5.0.0"):
        assert not required["pyspark"].contains(release), release
