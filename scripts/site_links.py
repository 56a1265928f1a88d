"""Give the site of the documentation the files of the repository that its pages link to, and a menu of decisions.

A page links to files outside of docs/ by their relative path, so that the link works on a code host. The site has no
such files: each is copied below `repository/`, and the link changed to it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COPIES = "repository"
LINK = re.compile(r"\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add all decisions to the navigation."""
    decisions = [str(path.relative_to(DOCS)) for path in sorted((DOCS / "decisions").glob("*.md"))]
    config.nav = [*(config.nav or []), {"Decisions": decisions}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to, with the images of those that are pages."""
    linked = {file for page in DOCS.rglob("*.md") for file in files_outside(page.parent, page.read_text())}
    for page in [file for file in linked if file.suffix == ".md"]:
        linked |= files_outside(page.parent, page.read_text())
    for file in sorted(linked):
        path = str(Path(COPIES) / file.relative_to(ROOT))
        copy = File.generated(config, path, abs_src_path=str(file))
        copy.inclusion = copy.inclusion.NOT_IN_NAV
        files.append(copy)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Change the links of a page that lead out of docs/ to the copies."""
    source = DOCS / page.file.src_uri
    if page.file.src_uri.startswith(f"{COPIES}/"):
        return markdown

    def changed(link: re.Match[str]) -> str:
        target = resolved(source.parent, link[1])
        if target is None or target.is_relative_to(DOCS):
            return link[0]
        copy = DOCS / COPIES / target.relative_to(ROOT)
        return f"]({os.path.relpath(copy, source.parent)}{link[2]})"

    return LINK.sub(changed, markdown)


def files_outside(folder: Path, markdown: str) -> set[Path]:
    """Return the files of the repository, outside of docs/, that a page in a folder links to."""
    targets = {resolved(folder, link[1]) for link in LINK.finditer(markdown)}
    return {target for target in targets if target and target.is_file() and not target.is_relative_to(DOCS)}


def resolved(folder: Path, target: str) -> Path | None:
    """Return the file that a link leads to; None for an address."""
    return None if "://" in target else Path(os.path.normpath(folder / target))
