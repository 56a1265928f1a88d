"""Split a template into texts and the fields between them. Needs no Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

PIECE = re.compile(r"\{([^{}]*)\}|([^{}]+)")


@dataclass(frozen=True)
class Placeholder:
    """Be the place in a template where the value of a column goes."""

    path: str


def parse(template: str) -> list[str | Placeholder]:
    """Split a template into texts and placeholders; raise ValueError where braces do not pair."""
    pieces: list[str | Placeholder] = []
    position = 0
    while position < len(template):
        found = PIECE.match(template, position)
        if found is None:
            raise ValueError(f"the brace at character {position + 1} has no partner")
        path, text = found.groups()
        if path is not None and not path.strip():
            raise ValueError(f"the braces at character {position + 1} hold no field")
        pieces.append(text if path is None else Placeholder(path.strip()))
        position = found.end()
    return pieces
