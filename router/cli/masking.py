"""Mask values of records, so that they can stand in a test file: `Mask`. Needs neither Spark nor the lake.

A masked value is another one of the same type, length and form: what parses as a date, a number, a UUID or an address
still does, so that decoders, rules and expectations see the same kind of record.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import string
import sys
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from router.errors import StartError

JSON_STARTS = ("{", "[", '"')
FRAME_BYTES = 5
"""Bytes before the payload in the wire format of Confluent: the magic byte 0 and the schema id."""
MASKING_ATTEMPTS = 200
"""Draws until a masked text parses as the text did; of 200 numbers with ten digits 23 are in int32, the worst case."""
INTEGER_TEXT = re.compile(r"[+-]?\d{1,40}", re.ASCII)
LIMITS = (2**31 - 1, 2**63 - 1, 2**64 - 1, sys.float_info.max)
FIELD_NAME = re.compile(r"[@$#]?[^\W\d]\w*(-[^\W\d]\w*)*")
LOWER_BEYOND_ASCII = "äöüéèñçø"
IDEOGRAPHS = range(0x4E00, 0x4F00)
YEARS = 9
"""A masked year is at most so many years before the year."""
BOUNDS = {
    "month": (1, 12),
    "day": (1, 28),
    "hour": (0, 23),
    "minute": (0, 59),
    "octet": (100, 255),
    "tens": (10, 99),
    "edge": (1, 9),
}
"""Part of a text -> its least and its largest number."""
FORMS = {
    "word": (re.compile(r"|true|false|null|none|[+-]?(nan|inf|infinity)", re.IGNORECASE), re.compile(r"(?!)")),
    "number": (
        # Sign and leading zeros stay, and zeros at the end with the exponent.
        re.compile(
            r"(?=[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]|\Z))[+-]?[0.]*(?P<drawn>([1-9]([\d.]*[1-9])?)?)[0.]*([eE][+-]?\d+)?",
            re.ASCII,
        ),
        re.compile(r"(?P<edge>^\d|\d$)|\d"),
    ),
    "moment": (
        # The zone stays.
        re.compile(
            r"(?P<drawn>((?!0000)\d{4}-(?!02-3|(04|06|09|11)-31)(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([Tt ](?=\d)|$))?"
            r"(([01]\d|2[0-3])(:[0-5]\d){1,2}((?<=:\d\d:\d\d)[.,]\d+)?)?)((?<=\d)( ?[Zz]|[+-]\d\d(:?\d\d)?))?",
            re.ASCII,
        ),
        re.compile(
            r"(?P<year>\d{4})(?=-)|(?<=-\d\d-)(?P<day>\d\d)|(?<=-)(?P<month>\d\d)|(?<=:)(?P<minute>\d\d)"
            r"|(?<![.,\d])(?P<hour>\d\d)|\d"
        ),
    ),
    "address": (
        re.compile(r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(?=.)|$)){4}", re.ASCII),
        re.compile(r"(?P<octet>\d{3})|(?P<tens>\d\d)|\d"),
    ),
    "uuid": (
        # Its version and variant say how it is read.
        re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", re.ASCII | re.IGNORECASE),
        re.compile(r"(?<!^.{14})(?<!^.{19})(?P<hex>\w)"),
    ),
    "hex": (re.compile(r"[\da-f:-]{8,}", re.ASCII | re.IGNORECASE), re.compile(r"(?P<hex>\w)")),
    "text": (re.compile(r".*", re.DOTALL), re.compile(r"\w")),
}
"""What a text parses as -> its pattern, of which the group `drawn` or all is masked, and that of the parts that are
drawn one by one. The first form that matches counts."""


@dataclass(frozen=True)
class Mask:
    """How values are masked: equal ones become equal, in every record, file and call.

    Keys that are no `names` of fields are data and are masked; if the names are not known, those that cannot be names.
    Every text and number that is one of `words` stays: what a rule compares with.
    """

    names: frozenset[str] | None = None
    words: frozenset[str] = frozenset()

    def mask_value(self, value: Any) -> Any:
        """Return a value of JSON with others in place of its texts and numbers."""
        match value:
            case None | bool():
                return value
            case dict():
                return self._mask_object(value)
            case list():
                return [self.mask_value(item) for item in value]
            case str():
                return self._mask_text(value)
        return type(value)(self._mask_text(repr(value)))

    def mask_record(self, value: bytes | None) -> bytes | None:
        """Return the value or key of a record, masked: JSON or text, also behind a frame of Confluent's wire format.

        Raises StartError for all other bytes, such as Avro and Protobuf: what they mean is unknown.
        """
        if value is None:
            return None
        frame = value[:FRAME_BYTES] if value.startswith(b"\0") else b""
        text = value[len(frame) :].decode(errors="surrogateescape")
        # Control characters are lengths and numbers of a binary format, and would stay as they are. Behind a frame even
        # a line feed is one.
        is_binary = bool(frame) and text[:1] not in JSON_STARTS
        if is_binary or any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\t\r\n" for sign in text):
            raise StartError(
                "the record cannot be masked: it is neither JSON nor text; --with-values writes it as it is"
            )
        # A lone surrogate of JSON has no UTF-8: this writes it as JSON does.
        return frame + self._mask_text(text).encode(errors="backslashreplace")

    def _mask_object(self, value: dict[str, Any]) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for key, part in value.items():
            is_name = FIELD_NAME.fullmatch(key) if self.names is None else key in self.names
            masked_key = key if is_name else self._mask_text(key)
            # Two keys became one, which would lose a value.
            while masked_key in masked or (masked_key != key and masked_key in value):
                masked_key += "x"
            masked[masked_key] = self.mask_value(part)
        return masked

    def _mask_text(self, text: str) -> str:
        """Return a text masked: JSON, whole or in a text, by its parts."""
        if text in self.words:
            return text
        if text.lstrip()[:1] in JSON_STARTS:
            # What is no JSON, or too deep, is masked as text, names of fields also.
            with suppress(ValueError, RecursionError):
                masked = self.mask_value(json.loads(text))
                separators = (", ", ": ") if '": ' in text else (",", ":")
                return json.dumps(masked, separators=separators, ensure_ascii=text.isascii())
        return mask_plain_text(text)


def mask_plain_text(text: str) -> str:
    """Return another text of the same length that parses as this one does; letters, digits and their places stay."""
    form = find_form(text)
    pattern, parts = FORMS[str(form[0])]
    match = pattern.fullmatch(text)
    assert match is not None
    begin, end = match.span("drawn" if "drawn" in pattern.groupindex else 0)
    # Without a key: one that is not stored would make equal values differ between two calls, and one in the repository
    # hides nothing. Whoever guesses a value can so confirm the guess, but nobody can read it.
    drawing = random.Random(hashlib.sha256(text.encode(errors="surrogatepass")).digest())
    masked = text
    for _ in range(MASKING_ATTEMPTS):
        masked = text[:begin] + parts.sub(lambda part: _draw_part(part, drawing), text[begin:end]) + text[end:]
        if find_form(masked) == form:
            break
    return masked


def find_form(text: str) -> tuple[object, ...]:
    """Return the first of FORMS that a text has; of a number also whether it is within each of LIMITS."""
    form = next(form for form, (pattern, _) in FORMS.items() if pattern.fullmatch(text))
    if form != "number":
        return (form,)
    # Exact, unless it has a fraction; Python reads no whole number of thousands of digits.
    value = int(text) if INTEGER_TEXT.fullmatch(text) else float(text)
    return form, *[-limit - 1 <= value <= limit for limit in LIMITS]


def _draw_part(part: re.Match[str], drawing: random.Random) -> str:
    text = part[0]
    if part.lastgroup in BOUNDS:
        return str(drawing.randint(*BOUNDS[part.lastgroup])).zfill(len(text))
    if part.lastgroup == "year":
        return str(max(1, int(text) - drawing.randint(1, YEARS))).zfill(len(text))
    if text.isdecimal():
        return chr(ord(text) - unicodedata.decimal(text) + drawing.randrange(10))
    if not text.isalpha():
        return text
    if not text.isupper() and not text.islower():
        return chr(drawing.choice(IDEOGRAPHS))
    letters = "abcdef" if part.lastgroup == "hex" else string.ascii_lowercase
    letter = drawing.choice(letters if text.isascii() else LOWER_BEYOND_ASCII)
    return letter.upper() if text.isupper() else letter
