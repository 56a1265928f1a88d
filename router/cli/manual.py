"""`router help`: the pages of the documentation, which the wheel contains."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from router.cli import shipped_folder
from router.cli.listing import Listing, ListingField, show_listing
from router.registry import suggest_names

_RELATIVE_LINK = re.compile(r"!?\[([^\]]+)\]\((?!\w+:)([^)\s#]*)(?:#[^)\s]*)?\)")
"""A link that is no address: to another page, a file of the repository, or a place on the same page."""


@click.command("help")
@click.argument("topic", required=False)
def show_topic(topic: str | None) -> None:
    """Show the page TOPIC of the documentation, as Markdown in a pipe; without TOPIC, list all pages."""
    pages = pages_by_topic()
    if topic is None:
        rows = [{"topic": name, "title": _title_of(path), "folder": path.parent.name} for name, path in pages.items()]
        show_listing(Listing("pages", "", PAGE_FIELDS, rows))
        return
    if topic not in pages:
        near = suggest_names(topic, pages, "all pages", "`router help`")
        raise click.BadParameter(f"there is no page `{topic}`; {near}", param_hint="TOPIC")
    text = pages[topic].read_text()
    console = Console()
    if console.is_terminal:
        console.print(Markdown(name_topics(text, pages[topic])))
    else:
        click.echo(text)


PAGE_FIELDS = (ListingField("topic"), ListingField("title", "sentence"), ListingField("folder"))


def pages_by_topic() -> dict[str, Path]:
    """Return the pages by the names of their files; two that have one name have their folder in front."""
    pages = sorted(shipped_folder("docs").rglob("*.md"))
    pages.sort(key=lambda page: page.parent.name, reverse=True)  # the tutorial first, decisions last
    namesakes = Counter(page.stem for page in pages)
    topics = {}
    for page in pages:
        topic = page.stem if namesakes[page.stem] == 1 else f"{page.parent.name}/{page.stem}"
        topics[topic] = page
    return topics


def name_topics(text: str, page: Path) -> str:
    """Return a page with the topic of the other page in place of each link to it, and without other relative links."""
    topics = {path: topic for topic, path in pages_by_topic().items()}

    def without_link(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / link[2]))
        return f"{link[1]} ({topics[target]})" if target in topics else link[1]

    return _RELATIVE_LINK.sub(without_link, text)


def _title_of(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")
