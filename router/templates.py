"""Texts with fields in braces: names of tables and topics, locations, URLs, headers, bodies and reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = re.compile(r"\{\{|\}\}|\{(?P<path>[^{}]*)\}|(?P<text>[^{}]+)")


@dataclass(frozen=True)
class Placeholder:
    """The place in a template where a value goes: of a column, or of a field of a table's name."""

    path: str


Piece = str | Placeholder


def parse_template(template: str) -> list[Piece]:
    """Split a template into texts and placeholders; `{{` and `}}` are braces. Raises ValueError if others do not pair.

    Neighbouring texts are one. The message gives the position of the brace and none of the text, which may be secret.
    """
    pieces: list[Piece] = []
    position = 0
    while position < len(template):
        piece = _PIECE.match(template, position)
        if piece is None:
            raise ValueError(f"the brace at character {position + 1} has no partner")
        path = piece["path"]
        if path is not None and not path.strip():
            raise ValueError(f"the braces at character {position + 1} hold no field")
        position = piece.end()
        if path is not None:
            pieces.append(Placeholder(path.strip()))
            continue
        text = piece["text"] or piece[0][0]
        # Texts that follow each other, because a brace stood between them, are one.
        if pieces and isinstance(pieces[-1], str):
            pieces[-1] += text
        else:
            pieces.append(text)
    return pieces


def fill_template(template: str, value: Callable[[str], str]) -> str:
    """Return a template with a value in place of each field. Raises ValueError as `parse_template`."""
    filled = ""
    for piece in parse_template(template):
        filled += piece if isinstance(piece, str) else value(piece.path)
    return filled


def literal_template(text: str) -> str:
    """Return the template that makes one text, whatever braces that has."""
    return text.replace("{", "{{").replace("}", "}}")


def template_fields(template: str) -> list[str]:
    """Return the fields of a template, in order. Raises ValueError as `parse_template`."""
    return [piece.path for piece in parse_template(template) if isinstance(piece, Placeholder)]
