"""The texts that rows make of a template, and the names of tables that a configuration gives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router import Placeholder, parse_template, template_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column


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
    for piece in parse_template(template):
        if piece == Placeholder("topic"):
            pieces.append(topic)
        else:
            pieces.append(piece)
    return text_column(pieces)


TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\.[a-z0-9][a-z0-9_]{0,127}")
LAYER_PREFIX = re.compile(r"[a-z][a-z0-9_]{0,63}\.")
LITERAL_PART = re.compile(r"[a-z0-9_]*")


def check_name(name: str) -> str:
    """Return the name of a fixed table; raise ValueError when it is none."""
    if "{" in name or "}" in name:
        raise ValueError("this sink has one fixed table; for a table per value use `tables`")
    if not TABLE_NAME.fullmatch(name):
        raise ValueError(
            "a table is layer.table in small letters, digits and underscores, such as gold.big_wins, "
            "with at most 64 characters before the dot and 128 after it"
        )
    return name


def check_template(template: str) -> str:
    """Return a template that can name tables; raise ValueError saying what to change in one that cannot."""
    pieces = parse_template(template)
    if not template_fields(template):
        raise ValueError("there is no field in braces; for one fixed table use `delta`, or write silver.{event.game}")
    texts = [piece for piece in pieces if isinstance(piece, str)]
    layer = None
    if isinstance(pieces[0], str):
        layer = LAYER_PREFIX.match(pieces[0])
    if layer is None:
        raise ValueError("the layer comes first and is fixed, such as `silver.` in silver.{event.game}")
    behind_layer = texts[0][layer.end() :]
    for text in [behind_layer, *texts[1:]]:
        if not LITERAL_PART.fullmatch(text):
            raise ValueError(f"outside of braces only small letters, digits and underscores can stand, not {text!r}")
    return template
