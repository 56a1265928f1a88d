"""`router help TOPIC` shows the pages, and whatever an installed router or its README refers to is one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from router.cli import commands
from router.registry import load_registry
from tests.source_trees import tree_of

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path for name in ("router", "router_bench", "plugins", "demo") for path in (ROOT / name).rglob("*.py"))
REFERRED = re.compile(r"router help ([\w/-]+)")
OF_CHECKOUT = re.compile(r"(?<![\w/.])docs/[\w-]+")
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def printed(*words: str) -> str:
    done = CliRunner().invoke(commands, ["help", *words])
    assert done.exit_code == 0, done.output
    return done.output


def texts(path: Path) -> list[str]:
    """Return the texts of a module but its docstrings, which are for readers of the code."""
    tree = tree_of(path)
    found = []
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            is_docstring = isinstance(node, ast.Expr)
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and not is_docstring:
                found.append(child.value)
    return found


def manuals() -> list[str]:
    """Return what `router plugins NAME` shows of each part."""
    entries = [entry for family in load_registry().entries.values() for entry in family.values()]
    return [entry.part.__doc__ or "" for entry in entries]


def test_all_pages_are_listed_and_shown() -> None:
    """Without it a page is in the repository only."""
    lines = printed().splitlines()
    topics = {line.split()[0] for line in lines[2:] if line.strip()}
    assert len(topics) == len(PAGES)
    for topic in topics:
        page = printed(topic)
        assert page.startswith("# "), topic
    assert {"install", "first-route", "explanation/rate-limits", "evidence/rate-limits"} <= topics


def test_a_page_in_a_terminal_names_the_topics_of_its_links() -> None:
    """Without it a link of a page leads nowhere in a terminal."""
    from router.cli.manual import name_topics

    text = "[a `b`](install.md#jars), [c](../tutorial/first-route.md) [d](#here) ![e](x.png) [f](../../routes/g.yaml) [g](https://h/i.md)"
    shown = name_topics(text, ROOT / "docs" / "how-to" / "size.md")
    assert shown == "a `b` (install), c (first-route) d e f [g](https://h/i.md)"


@pytest.mark.parametrize("topic", ["instal", "rate-limits", "../README", "docs/install", ""])
def test_an_unknown_topic_is_one_line_with_the_nearest(topic: str) -> None:
    """Without it a misspelt topic is a traceback."""
    done = CliRunner().invoke(commands, ["help", topic])
    assert done.exit_code == 2
    assert "there is no page" in done.output
    assert "`router help`" in done.output or "did you mean" in done.output


def test_whatever_the_product_refers_to_is_a_page() -> None:
    """Without it a message sends somebody who has only the wheel to a file that is not there."""
    unshipped = {"metrics_page.py"}  # writes a page of the checkout
    said = {path: texts(path) for path in SHIPPED if path.name not in unshipped}
    elsewhere = {str(path): text for path, found in said.items() for text in found if OF_CHECKOUT.search(text)}
    assert elsewhere == {}
    assert [text for text in manuals() if OF_CHECKOUT.search(text)] == []

    topics = {topic for found in said.values() for text in found for topic in REFERRED.findall(text)}
    topics |= {topic for text in manuals() for topic in REFERRED.findall(text)}
    assert len(topics) > 4
    for topic in topics - {"TOPIC"}:
        printed(topic)


def test_the_readme_of_the_wheel_has_no_link_into_the_repository() -> None:
    """Without it half of the links that an index of packages shows are dead."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.10 has none
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text()
    for change in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert re.findall(r"\]\((?!https?://)[^)]*\)", text) == []
    topics = set(REFERRED.findall(text))
    assert len(topics) > 20
    for topic in topics:
        printed(topic)
