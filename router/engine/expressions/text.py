"""Text functions and patterns with Spark's values.

Spark counts code points and compares bytes; so does Arrow. Functions that Arrow lacks are computed in Python, once for
every different value.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

from router.engine.expressions.tree import (
    Node,
    Untranslatable,
    arrow_type_of,
    as_arrays,
    by_value,
    is_constant,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.engine.expressions.tree import PlanEntry, Value

_Nodes = tuple[Node, ...]
ALL = ("Concat", "ConcatWs")
"""Functions that Spark evaluates with all of their operands, null or not."""
_LARGEST = 2**31 - 1
_NULL_TEXT = pa.scalar(None, pa.string())


def _describe_function(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("String")).lower()
    return f"the function {words}"


def _make_text_function(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    """Return a function of texts; a length is also one of bytes."""
    if name in ("Length", "OctetLength") and of[0].kind == "binary":
        return Node("OctetLength", "integer", of)
    least = 2 if name == "ConcatWs" else 1
    if len(of) < least or any(node.kind != "string" for node in of):
        raise Untranslatable(f"{_describe_function(name)} of other types than texts")
    return Node(name, _KINDS.get(name, "string"), of)


_KINDS = {
    **dict.fromkeys(("Length", "OctetLength", "StringInstr"), "integer"),
    **dict.fromkeys(("StartsWith", "EndsWith", "Contains"), "boolean"),
}
"""The types of functions that give no text."""


def _make_with_constants(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    """Return a function of a text whose other operands are constants: these are its `with_`."""
    value, *rest = of
    if value.kind != "string":
        raise Untranslatable(f"{_describe_function(name)} of {type_name(value.kind)}")
    if not all(map(is_constant, rest)):
        raise Untranslatable(f"{_describe_function(name)} with other than constants")
    return Node(name, _KINDS.get(name, "string"), (value,), tuple(node.with_ for node in rest))


def _join_texts(node: Node, by: Value, *values: Value) -> pa.Array:
    """Join the texts that are not null."""
    first, *others, by = as_arrays(*values, by)
    # Arrow leaves out a row that has nulls only: its first text becomes empty.
    all_null = reduce(pc.and_, [pc.is_null(value) for value in (first, *others)])
    first = pc.if_else(all_null, "", first)
    return pc.binary_join_element_wise(first, *others, by, null_handling="skip")


def _make_substring(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    value, *rest = of
    if value.kind == "binary" and all(map(is_constant, rest)):
        return Node(name, "binary", (value,), tuple(constant.with_ for constant in rest))
    return _make_with_constants(name, entry, of)


def _slice_substring(node: Node, value: pa.Array) -> pa.Array:
    """Return a part of a text or of bytes. A place before its beginning counts: substring('abc', -5, 3) is 'a'."""
    place, count = node.with_
    start = place - 1 if place > 0 else place
    if count <= 0:
        kind = arrow_type_of(node.kind)
        return pc.if_else(pc.is_null(value), pa.scalar(None, kind), pa.scalar("", pa.string()).cast(kind))
    end = start + count
    if start < 0 <= end or end > _LARGEST:
        end = None
    if node.kind == "string":
        return pc.utf8_slice_codeunits(value, start, end)
    if start >= 0 and end is not None:
        return pc.binary_slice(value, start, end)
    # Arrow reserves a negative size for a slice without an end, and raises.
    return by_value(value, lambda content: _end_of_bytes(content, start, end), pa.binary())


def _end_of_bytes(content: bytes, start: int, end: int | None) -> bytes:
    """Return bytes from a place on, or from one before the end; a place before the beginning counts."""
    first = start if start >= 0 else len(content) + start
    last = len(content) if end is None else max(len(content) + end, 0)
    return content[max(first, 0) : last]


def _trim_ends(node: Node, value: pa.Array) -> pa.Array:
    """Take characters off the ends: spaces, unless the expression names others."""
    if node.with_ == ("",):
        return value
    return _TRIMS[node.op](value, characters=node.with_[0] if node.with_ else " ")


_TRIMS: dict[str, Callable[..., pa.Array]] = {
    "StringTrim": pc.utf8_trim,
    "StringTrimLeft": pc.utf8_ltrim,
    "StringTrimRight": pc.utf8_rtrim,
}


def _change_case(node: Node, value: pa.Array) -> pa.Array:
    """Return texts in upper or lower case: most by Arrow, others by Python, which knows of ß and the final sigma."""
    of_ascii, of_simple, of_any = _CASES[node.op]
    if pc.all(pc.string_is_ascii(value)).as_py() in (True, None):
        return of_ascii(value)
    is_simple = pc.match_substring_regex(value, SIMPLE)
    others = by_value(pc.if_else(is_simple, _NULL_TEXT, value), of_any, pa.string())
    return pc.coalesce(of_simple(pc.if_else(is_simple, value, _NULL_TEXT)), others)


SIMPLE = (
    r"^[\x{0}-\x{de}\x{e0}-\x{12f}\x{131}-\x{148}\x{14a}-\x{17e}\x{400}-\x{52f}\x{3040}-\x{9fff}\x{ac00}-\x{d7a3}]*$"
)
"""Texts in which every letter has one letter of the other case, next to any other: Latin, Cyrillic, Chinese."""
UNICODE_14 = {0x2C2F: 0x2C5F, 0xA7C0: 0xA7C1, 0xA7D0: 0xA7D1, 0xA7D6: 0xA7D7, 0xA7D8: 0xA7D9}
UNICODE_14 |= {0x10570 + k: 0x10597 + k for k in range(38) if k not in (11, 27, 35)}
UNICODE_16 = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7DA: 0xA7DB, 0xA7DC: 0x19B}
UNICODE_16 |= {0x10D50 + k: 0x10D70 + k for k in range(22)}
UNICODE_17 = {0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, **{0x16EA0 + k: 0x16EBB + k for k in range(25)}}
SPARK = tuple(map(int, pyspark.__version__.split(".")[:2]))
NEWER = UNICODE_14 | UNICODE_16 | (UNICODE_17 if SPARK >= (4, 2) else {})
"""Letters in upper and lower case that Spark's ICU has (Unicode 16; since Spark 4.2, Unicode 17) and a Python may lack:
3.10 has Unicode 13, 3.11 has 14, 3.12 and 3.13 have 15."""
NEWER_UPPER = {low: high for high, low in NEWER.items()}


def to_upper_case(text: str) -> str:
    """Return a text in upper case."""
    return text.upper().translate(NEWER_UPPER)


def to_lower_case(text: str) -> str:
    """Return a text in lower case. One difference is left: a sigma next to a character of Unicode 15 or 16."""
    return text.lower().translate(NEWER)


_CASES: dict[str, tuple[Callable[..., pa.Array], Callable[..., pa.Array], Callable[[str], str]]] = {
    "Upper": (pc.ascii_upper, pc.utf8_upper, to_upper_case),
    "Lower": (pc.ascii_lower, pc.utf8_lower, to_lower_case),
}


def _find_position(node: Node, value: pa.Array) -> pa.Array:
    """Return the place of a text in another one, counted from one; zero if it has none."""
    (wanted,) = node.with_
    if pc.all(pc.string_is_ascii(value)).as_py() in (True, None):
        return pc.cast(pc.add(pc.find_substring(value, wanted), 1), pa.int32())
    return by_value(value, lambda text: text.find(wanted) + 1, pa.int32())


def _replace_text(node: Node, value: pa.Array) -> pa.Array:
    wanted, other = node.with_
    return pc.replace_substring(value, wanted, other) if wanted else value


def _make_like(name: str, entry: PlanEntry, of: _Nodes) -> Node:
    """Return a match with a pattern of LIKE."""
    value, pattern = of
    escape = entry.get("escapeChar") or "\\"
    if value.kind != "string" or not is_constant(pattern):
        raise Untranslatable("LIKE with a pattern that is no constant")
    sql = pattern.with_
    pieces = _split_pattern(sql, escape)
    # Spark cuts characters of more than 16 bits in two: nothing matches.
    if max(sql, default="") > "\uffff" and (escape in sql or not _is_simple_pattern(pieces)):
        raise Untranslatable(f"LIKE with the pattern {sql}")
    return Node("Like", "boolean", (value,), pieces)


def _is_simple_pattern(pieces: tuple[str | int, ...]) -> bool:
    """Return whether a pattern is one text with any others around it."""
    return 1 not in pieces and sum(isinstance(piece, str) for piece in pieces) <= 1


def _split_pattern(pattern: str, escape: str) -> tuple[str | int, ...]:
    """Return the texts of a pattern, and between them 1 for any character and -1 for any number of characters."""
    pieces: list[str | int] = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise Untranslatable(f"LIKE with a pattern that Spark refuses: {pattern}")
            pieces[-1] = f"{pieces[-1]}{escaped}"
        elif character == "%":
            pieces += [-1, ""]
        elif character == "_":
            pieces += [1, ""]
        else:
            pieces[-1] = f"{pieces[-1]}{character}"
    return tuple(piece for piece in pieces if piece != "")


def _like_matches(node: Node, value: pa.Array) -> pa.Array:
    pieces = node.with_
    match pieces:
        case () | (str(),):
            return pc.equal(value, pieces[0] if pieces else "")
        case (-1,):
            return pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), True)
        case (str() as text, -1):
            return pc.starts_with(value, text)
        case (-1, str() as text):
            return pc.ends_with(value, text)
        case (-1, str() as text, -1):
            return pc.match_substring(value, text)
    wildcards = {-1: ".*", 1: "."}
    regex = "".join(_quote_regex(piece) if isinstance(piece, str) else wildcards[piece] for piece in pieces)
    return pc.match_substring_regex(value, rf"(?s)\A{regex}\z")


def _quote_regex(text: str) -> str:
    """Return a text as a regular expression of its own."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}" for c in text)


MAKERS: dict[str, Callable[[str, PlanEntry, _Nodes], Node]] = {
    **dict.fromkeys(("Upper", "Lower", "Length", "OctetLength", "Concat", "ConcatWs"), _make_text_function),
    **dict.fromkeys(
        ("StartsWith", "EndsWith", "Contains", "StringInstr", "StringReplace", *_TRIMS), _make_with_constants
    ),
    "Substring": _make_substring,
    "Like": _make_like,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Upper", "Lower"), _change_case),
    "Length": lambda node, value: pc.utf8_length(value),
    "OctetLength": lambda node, value: pc.binary_length(value),
    "Concat": lambda node, *values: pc.binary_join_element_wise(*values, ""),
    "ConcatWs": _join_texts,
    "StartsWith": lambda node, value: pc.starts_with(value, node.with_[0]),
    "EndsWith": lambda node, value: pc.ends_with(value, node.with_[0]),
    "Contains": lambda node, value: pc.match_substring(value, node.with_[0]),
    "StringInstr": _find_position,
    "StringReplace": _replace_text,
    **dict.fromkeys(_TRIMS, _trim_ends),
    "Substring": _slice_substring,
    "Like": _like_matches,
}
