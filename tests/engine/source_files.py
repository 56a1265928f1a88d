"""Files for a source that reads the folder `in`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def put_file(folder: Path, name: str, text: str) -> None:
    """Put a file into the folder `in`, whole: a stream that looks meanwhile sees none of it."""
    (folder / "in").mkdir(exist_ok=True)
    unfinished = folder / "in" / f".{name}"
    unfinished.write_text(text)
    unfinished.rename(folder / "in" / name)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as JSON, one a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)
