"""Texts with fields in braces, and the names of tables that a configuration gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column

PIECE = re.compile(r"\{(?P<path>[^{}]*)\}|(?P<text>[^{}]+)")
PIECE_OR_BRACE = re.compile(r"\{\{|\}\}|" + PIECE.pattern)


@dataclass(frozen=True)
class Placeholder:
    """The place in a template where the value of a column goes."""

    path: str


def parse(template: str) -> list[str | Placeholder]:
    """Split a template into texts and placeholders; raise ValueError if braces do not pair."""
    return _split(template, PIECE)


def parse_with_escapes(template: str) -> list[str | Placeholder]:
    """Split a template in which `{{` and `}}` stand for braces; raise ValueError if others do not pair."""
    return _split(template, PIECE_OR_BRACE)


def _split(template: str, pattern: re.Pattern[str]) -> list[str | Placeholder]:
    pieces: list[str | Placeholder] = []
    position = 0
    while position < len(template):
        piece = pattern.match(template, position)
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


def text_column(pieces: Iterable[str | Placeholder | Column]) -> Column:
    """Return the text that each row's values make of a template; null if one of them is null."""
    texts = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(F.lit(piece))
        elif isinstance(piece, Placeholder):
            texts.append(F.col(piece.path).cast("string"))
        else:
            texts.append(piece.cast("string"))
    return F.concat(*texts)


def table_column(template: str) -> Column:
    """Return the table that each row's values make of a template; hyphens of a topic become underscores in it."""
    topic = F.replace(F.col("topic"), F.lit("-"), F.lit("_"))
    pieces: list[str | Placeholder | Column] = []
    for piece in parse(template):
        if piece == Placeholder("topic"):
            pieces.append(topic)
        else:
            pieces.append(piece)
    return text_column(pieces)


NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\.[a-z0-9][a-z0-9_]{0,127}")
LAYER = re.compile(r"[a-z][a-z0-9_]{0,63}\.")
LITERAL = re.compile(r"[a-z0-9_]*")


def check_name(name: str) -> str:
    """Return the name of a fixed table; raise ValueError when it is none."""
    if "{" in name or "}" in name:
        raise ValueError("this sink has one fixed table; for a table per value use `tables`")
    if not NAME.fullmatch(name):
        raise ValueError(
            "a table is layer.table in small letters, digits and underscores, such as silver.big_wins, "
            "with at most 64 characters before the dot and 128 after it"
        )
    return name


def check_template(template: str) -> str:
    """Return a template that can name tables; raise ValueError saying what to change in one that cannot."""
    pieces = parse(template)
    if not any(isinstance(piece, Placeholder) for piece in pieces):
        raise ValueError("there is no field in braces; for one fixed table use `delta`, or write silver.{event.game}")
    texts = [piece for piece in pieces if isinstance(piece, str)]
    layer = None
    if isinstance(pieces[0], str):
        layer = LAYER.match(pieces[0])
    if layer is None:
        raise ValueError("the layer comes first and is fixed, such as `silver.` in silver.{event.game}")
    behind_layer = texts[0][layer.end() :]
    for text in [behind_layer, *texts[1:]]:
        if not LITERAL.fullmatch(text):
            raise ValueError(f"outside of braces only small letters, digits and underscores can stand, not {text!r}")
    return template
