"""Text functions and patterns with Spark's values.

Spark counts code points and compares bytes; so does Arrow. What Arrow has no function for is computed in Python, once
for every different value.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

from router.engine.expressions.tree import Node, Untranslatable, arrays, arrow_type, by_value, given, shown

if TYPE_CHECKING:
    from collections.abc import Callable

Nodes = tuple[Node, ...]
ALL = ("Concat", "ConcatWs")
"""What Spark evaluates with all of its operands, null or not."""
LARGEST = 2**31 - 1
NO_TEXT = pa.scalar(None, pa.string())


def _named(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("String")).lower()
    return f"the function {words}"


def _text(name: str, entry: Any, of: Nodes) -> Node:
    """Return a function of texts; a length is also one of bytes."""
    if name in ("Length", "OctetLength") and of[0].kind == "binary":
        return Node("OctetLength", "integer", of)
    least = 2 if name == "ConcatWs" else 1
    if len(of) < least or any(node.kind != "string" for node in of):
        raise Untranslatable(f"{_named(name)} of other types than texts")
    return Node(name, _KINDS.get(name, "string"), of)


_KINDS = {"Length": "integer", "OctetLength": "integer", "StringInstr": "integer", "StringLocate": "integer"}


def _constant(name: str, entry: Any, of: Nodes) -> Node:
    """Return a function of a text whose other operands are constants: these are its `with_`."""
    value, *rest = of
    if value.kind != "string":
        raise Untranslatable(f"{_named(name)} of {shown(value.kind)}")
    if not all(map(given, rest)):
        raise Untranslatable(f"{_named(name)} with other than constants")
    kind = "boolean" if name in ("StartsWith", "EndsWith", "Contains") else _KINDS.get(name, "string")
    return Node(name, kind, (value,), tuple(node.with_ for node in rest))


def _joined(node: Node, by: Any, *values: Any) -> pa.Array:
    """Join what is not null. Arrow leaves out a row where all are: it gets an empty text first."""
    first, *others, by = arrays(*values, by)
    empty = reduce(pc.and_, [pc.is_null(value) for value in (first, *others)])
    first = pc.if_else(empty, "", first)
    return pc.binary_join_element_wise(first, *others, by, null_handling="skip")


def _substring(name: str, entry: Any, of: Nodes) -> Node:
    value, *rest = of
    if value.kind == "binary" and all(map(given, rest)):
        node = Node(name, "binary", (value,), tuple(constant.with_ for constant in rest))
    else:
        node = _constant(name, entry, of)
    count = node.with_[-1]
    if name == "Left":
        return Node("Substring", node.kind, node.of, (1, count))
    if name == "Right":
        return Node("Substring", node.kind, node.of, (-count, LARGEST) if count > 0 else (1, 0))
    return node


def _sliced(node: Node, value: pa.Array) -> pa.Array:
    """Return a part of a text or of bytes. A place before its beginning counts: substring('abc', -5, 3) is 'a'."""
    place, count = node.with_
    start = place - 1 if place > 0 else place
    if count <= 0:
        kind = arrow_type(node.kind)
        return pc.if_else(pc.is_null(value), pa.scalar(None, kind), pa.scalar("", pa.string()).cast(kind))
    stop = start + count
    end = None if start < 0 <= stop or stop > LARGEST else stop
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


def _trimmed(node: Node, value: pa.Array) -> pa.Array:
    """Take characters off the ends: spaces only, if not told otherwise."""
    if node.with_ == ("",):
        return value
    return _TRIMS[node.op](value, characters=node.with_[0] if node.with_ else " ")


_TRIMS: dict[str, Callable[..., pa.Array]] = {
    "StringTrim": pc.utf8_trim,
    "StringTrimLeft": pc.utf8_ltrim,
    "StringTrimRight": pc.utf8_rtrim,
}


def _cased(node: Node, value: pa.Array) -> pa.Array:
    """Return texts in upper or lower case: most by Arrow, others by Python, which knows of ß and the final sigma."""
    plain, simple, full = _CASES[node.op]
    if pc.all(pc.string_is_ascii(value)).as_py() in (True, None):
        return plain(value)
    easy = pc.match_substring_regex(value, SIMPLE)
    other = by_value(pc.if_else(easy, NO_TEXT, value), full, pa.string())
    return pc.coalesce(simple(pc.if_else(easy, value, NO_TEXT)), other)


SIMPLE = (
    r"^[\x{0}-\x{de}\x{e0}-\x{12f}\x{131}-\x{148}\x{14a}-\x{17e}\x{400}-\x{52f}\x{3040}-\x{9fff}\x{ac00}-\x{d7a3}]*$"
)
"""Texts in which every letter has one letter of the other case, whatever stands beside it: Latin, Cyrillic, Chinese."""
UNICODE_14 = {0x2C2F: 0x2C5F, 0xA7C0: 0xA7C1, 0xA7D0: 0xA7D1, 0xA7D6: 0xA7D7, 0xA7D8: 0xA7D9}
UNICODE_14 |= {0x10570 + k: 0x10597 + k for k in range(38) if k not in (11, 27, 35)}
UNICODE_16 = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7DA: 0xA7DB, 0xA7DC: 0x19B}
UNICODE_16 |= {0x10D50 + k: 0x10D70 + k for k in range(22)}
UNICODE_17 = {0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5, **{0x16EA0 + k: 0x16EBB + k for k in range(25)}}
NEWER = UNICODE_14 | UNICODE_16 | (UNICODE_17 if [*map(int, pyspark.__version__.split(".")[:2])] >= [4, 2] else {})
"""Letters in upper and lower case that Spark's ICU has (Unicode 16; since Spark 4.2, Unicode 17) and a Python may lack:
3.10 has Unicode 13, 3.11 has 14, 3.12 and 3.13 have 15."""
NEWER_UPPER = {low: high for high, low in NEWER.items()}


def upper(text: str) -> str:
    """Return a text in upper case."""
    return text.upper().translate(NEWER_UPPER)


def lower(text: str) -> str:
    """Return a text in lower case. One difference is left: a sigma beside a character of Unicode 15 or 16."""
    return text.lower().translate(NEWER)


_CASES: dict[str, tuple[Callable[..., pa.Array], Callable[..., pa.Array], Callable[[str], str]]] = {
    "Upper": (pc.ascii_upper, pc.utf8_upper, upper),
    "Lower": (pc.ascii_lower, pc.utf8_lower, lower),
}


def _found_at(node: Node, value: pa.Array) -> pa.Array:
    """Return where a text has another one, counted from one; zero where it has not."""
    (wanted,) = node.with_
    if pc.all(pc.string_is_ascii(value)).as_py() in (True, None):
        return pc.cast(pc.add(pc.find_substring(value, wanted), 1), pa.int32())
    return by_value(value, lambda text: text.find(wanted) + 1, pa.int32())


def _locate(name: str, entry: Any, of: Nodes) -> Node:
    wanted, value, start = of
    if start.with_ != 1:
        raise Untranslatable("the function locate with a place to begin at")
    return _constant("StringInstr", entry, (value, wanted))


def _replaced(node: Node, value: pa.Array) -> pa.Array:
    wanted, other = node.with_
    return pc.replace_substring(value, wanted, other) if wanted else value


def _before(node: Node, value: pa.Array) -> pa.Array:
    """Return what stands before the n-th delimiter, or behind the n-th from the end."""
    delimiter, count = node.with_

    def part(text: str) -> str:
        at = -1 if count > 0 else len(text) - len(delimiter) + 1
        for _ in range(abs(count)):
            # delimiters may overlap
            at = (
                text.find(delimiter, at + 1) if count > 0 else text.rfind(delimiter, 0, max(at - 1 + len(delimiter), 0))
            )
            if at < 0:
                return text
        return text[:at] if count > 0 else text[at + len(delimiter) :]

    return by_value(value, part if delimiter and count else lambda text: "", pa.string())


def _split(name: str, entry: Any, of: Nodes) -> Node:
    node = _constant(name, entry, of)
    if node.with_[1] == 0 or not node.with_[0]:
        raise Untranslatable("the function split_part without a delimiter or a part")
    return node


def _part(node: Node, value: pa.Array) -> pa.Array:
    delimiter, number = node.with_

    def part(text: str) -> str:
        parts = text.split(delimiter)
        at = number - 1 if number > 0 else len(parts) + number
        return parts[at] if 0 <= at < len(parts) else ""

    return by_value(value, part, pa.string())


def _repeat(name: str, entry: Any, of: Nodes) -> Node:
    node = _constant(name, entry, of)
    if node.with_[0] > 1000:
        raise Untranslatable("the function repeat with more than 1000 times")
    return node


def _like(name: str, entry: Any, of: Nodes) -> Node:
    """Return a match with a pattern of LIKE. ILIKE compares what is in lower case on both sides."""
    value, pattern = of
    escape = entry.get("escapeChar") or "\\"
    if value.kind != "string" or not given(pattern):
        raise Untranslatable("LIKE with a pattern that is no constant")
    written = pattern.with_
    if name == "ILike":
        value, written = Node("Lower", "string", (value,)), lower(written)
    pieces = _pieces(written, escape)
    if any(ord(character) > 0xFFFF for character in written) and (escape in written or not _simple(pieces)):
        raise Untranslatable(f"LIKE with the pattern {written}")  # Spark cuts such characters in two: nothing matches
    return Node("Like", "boolean", (value,), pieces)


def _simple(pieces: tuple[str | int, ...]) -> bool:
    """Return whether a pattern is one text with any others around it."""
    return 1 not in pieces and sum(isinstance(piece, str) for piece in pieces) <= 1


def _pieces(pattern: str, escape: str) -> tuple[str | int, ...]:
    """Return what a pattern is made of: texts, and how many characters are between them: -1 is any number."""
    found: list[str | int] = [""]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise Untranslatable(f"LIKE with a pattern that Spark refuses: {pattern}")
            found[-1] = f"{found[-1]}{escaped}"
        elif character in "%_":
            found += [-1 if character == "%" else 1, ""]
        else:
            found[-1] = f"{found[-1]}{character}"
    return tuple(piece for piece in found if piece != "")


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
    parts = [".*" if piece == -1 else "." if piece == 1 else _quoted(piece) for piece in pieces]
    return pc.match_substring_regex(value, rf"(?s)\A{''.join(parts)}\z")


def _quoted(text: str) -> str:
    """Return a text as a regular expression of its own."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{{{ord(c):x}}}" for c in text)


def _rlike(name: str, entry: Any, of: Nodes) -> Node:
    value, pattern = of
    if value.kind != "string" or not given(pattern):
        raise Untranslatable("RLIKE with a pattern that is no constant")
    found = Pattern(pattern.with_)
    return Node(name, "boolean", (value,), (found.translated(), found.ends))


END = r"(?:\x{d}\x{a}|[\x{a}\x{d}\x{85}\x{2028}\x{2029}])\z"
"""The end of a last line: `$` matches before it as well in Java."""


def _rlike_matches(node: Node, value: pa.Array) -> pa.Array:
    pattern, ends = node.with_
    found = pc.match_substring_regex(value, pattern)
    if ends and pc.any(lines := pc.match_substring_regex(value, END)).as_py():
        cut = pc.replace_substring_regex(pc.if_else(lines, value, NO_TEXT), END, "")
        found = pc.or_(found, pc.fill_null(pc.match_substring_regex(cut, pattern), False))
    return found


CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x{9}-\x{d}\x{20}"}
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Pattern:
    """A regular expression of Java, in what means the same in RE2. All that could differ is refused.

    Allowed: characters, `.`, classes without others inside, groups, alternatives, greedy and lazy quantifiers, `^`,
    and `$` at the end of an alternative.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.ends = False

    def translated(self) -> str:
        """Return the pattern for RE2. Raises Untranslatable."""
        found, _ = self._alternatives()
        if self.at < len(self.pattern):
            raise self._refused()
        try:
            pc.match_substring_regex(pa.array([""]), found)
        except pa.ArrowInvalid:
            raise self._refused() from None
        return found

    def _refused(self) -> Untranslatable:
        return Untranslatable(f"RLIKE with the pattern {self.pattern}")

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _taken(self, text: str) -> bool:
        if found := self.pattern.startswith(text, self.at):
            self.at += len(text)
        return found

    def _alternatives(self) -> tuple[str, bool]:
        """Return alternatives, and whether one matches the empty text."""
        found = [self._sequence()]
        while self._taken("|"):
            found.append(self._sequence())
        return "|".join(text for text, _ in found), any(empty for _, empty in found)

    def _sequence(self) -> tuple[str, bool]:
        texts, empty = [], True
        while self._next() not in ("", "|", ")"):
            if self._taken("$"):
                if self.depth or self._next() not in ("", "|"):
                    raise self._refused()
                self.ends = True
                texts.append(r"\z")
            elif self._taken("^"):
                texts.append(r"\A")
            else:
                text, optional = self._quantified()
                texts.append(text)
                empty = empty and optional
        return "".join(texts), empty

    def _quantified(self) -> tuple[str, bool]:
        atom, empty = self._atom()
        found = re.compile(r"(?:[*+?]|\{(\d{1,3})(?:,(\d{0,3}))?\})").match(self.pattern, self.at)
        if found is None:
            return atom, empty
        self.at = found.end()
        lazy = "?" if self._taken("?") else ""
        if empty or self._next() in ("*", "+", "?", "{"):
            raise self._refused()
        return f"{atom}{found[0]}{lazy}", found[0] in ("*", "?") or (found[1] is not None and int(found[1]) == 0)

    def _atom(self) -> tuple[str, bool]:
        if self._taken("("):
            if not self._taken("?:") and self._next() in ("?", "*"):
                raise self._refused()
            self.depth += 1
            inner, empty = self._alternatives()
            self.depth -= 1
            if not self._taken(")"):
                raise self._refused()
            return f"(?:{inner})", empty
        if self._taken("["):
            return self._class(), False
        if self._taken("."):
            return r"[^\x{a}\x{d}\x{85}\x{2028}\x{2029}]", False
        return self._character(), False

    def _character(self) -> str:
        if self._taken("\\"):
            kind = self._next()
            if kind.lower() in CLASSES and kind:
                self.at += 1
                return f"[{'^' if kind.isupper() else ''}{CLASSES[kind.lower()]}]"
            return _quoted(self._escaped())
        character = self._next()
        if character in "*+?{}[])":
            raise self._refused()
        self.at += 1
        return _quoted(character)

    def _escaped(self) -> str:
        character = self._next()
        self.at += 1
        if character in CONTROLS:
            return CONTROLS[character]
        if not character or character.isalnum() or ord(character) > 127:
            raise self._refused()
        return character

    def _class(self) -> str:
        negated = "^" if self._taken("^") else ""
        found = []
        while not self._taken("]"):
            if self._taken("\\"):
                if self._next() in CLASSES and self._next():
                    found.append(CLASSES[self._next()])
                    self.at += 1
                    continue
                first = self._escaped()
            else:
                first = self._plain()
            if self._next() == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                last = self._escaped() if self._taken("\\") else self._plain()
                if ord(last) < ord(first):
                    raise self._refused()
                found.append(f"\\x{{{ord(first):x}}}-\\x{{{ord(last):x}}}")
            else:
                found.append(f"\\x{{{ord(first):x}}}")
        if not found:
            raise self._refused()
        return f"[{negated}{''.join(found)}]"

    def _plain(self) -> str:
        """Return a character of a class that stands for itself."""
        character = self._next()
        if character in ("", "[", "&", "^"):
            raise self._refused()
        self.at += 1
        return character


MAKERS: dict[str, Callable[[str, Any, Nodes], Node]] = {
    **dict.fromkeys(("Upper", "Lower", "Length", "OctetLength", "Concat", "ConcatWs", "Reverse"), _text),
    **dict.fromkeys(
        ("StartsWith", "EndsWith", "Contains", "StringInstr", "StringReplace", "SubstringIndex", *_TRIMS), _constant
    ),
    **dict.fromkeys(("Substring", "Left", "Right"), _substring),
    "StringLocate": _locate,
    "SplitPart": _split,
    "StringRepeat": _repeat,
    **dict.fromkeys(("Like", "ILike"), _like),
    "RLike": _rlike,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Upper", "Lower"), _cased),
    "Length": lambda node, value: pc.utf8_length(value),
    "OctetLength": lambda node, value: pc.binary_length(value),
    "Concat": lambda node, *values: pc.binary_join_element_wise(*values, ""),
    "ConcatWs": _joined,
    "Reverse": lambda node, value: pc.utf8_reverse(value),
    "StartsWith": lambda node, value: pc.starts_with(value, node.with_[0]),
    "EndsWith": lambda node, value: pc.ends_with(value, node.with_[0]),
    "Contains": lambda node, value: pc.match_substring(value, node.with_[0]),
    "StringInstr": _found_at,
    "StringReplace": _replaced,
    "SubstringIndex": _before,
    **dict.fromkeys(_TRIMS, _trimmed),
    "Substring": _sliced,
    "SplitPart": _part,
    "StringRepeat": lambda node, value: pc.binary_repeat(value, max(node.with_[0], 0)),
    "Like": _like_matches,
    "RLike": _rlike_matches,
}
