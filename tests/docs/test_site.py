"""The site of the documentation: it is built strictly, and a reader's browser fetches nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//[^"]+"|<link[^>]*\shref="(?:https?:)?//[^"]+"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site into a folder; a dead link, or a page that is in no menu, fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    """Without it a page is in the repository only."""
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    assert [page for page in pages if not (site / page).is_file()] == []
    assert (site / "search" / "search_index.json").is_file()


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    """Without it a reader behind a firewall waits, and somebody else learns what is read."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        assert FETCHED.findall(text) == [], page
        assert 'class="mermaid"' not in text, f"{page}: Material fetches Mermaid for it"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]+", styles) == []


def test_a_link_out_of_the_documentation_leads_to_a_copy(site: Path) -> None:
    """Without it a configuration that a page names is not there for a reader of the site."""
    page = (site / "how-to" / "rest-apis.html").read_text()
    assert 'href="../repository/routes/big_wins.yaml"' in page
    assert (site / "repository" / "routes" / "big_wins.yaml").read_text() == (
        ROOT / "routes" / "big_wins.yaml"
    ).read_text()
