"""Mask values of records, so that they can stand in a test file: `Mask`. Needs neither Spark nor the lake.

A masked value is another one of the same type, length and form: what parses as a date, a number, a UUID or an address
still does, so that decoders, rules and expectations see the same kind of record.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
import sys
import unicodedata
from contextlib import suppress
from dataclasses import dataclass

KeyPath = tuple[str, ...]
"""The keys from the top of a value to a part of it. A list adds none; a key of a map is `*`."""
JSON_STARTS = ("{", "[", '"')
FRAME_BYTES = 5
"""Bytes before the payload in the wire format of Confluent: the magic byte 0 and the schema id."""
MASKING_ATTEMPTS = 200
"""Draws until a masked text parses as the text did; of 200 numbers with ten digits 23 are in int32, the worst case."""
INTEGER_TEXT = re.compile(r"[+-]?\d{1,40}", re.ASCII)
INTEGER_LIMITS = (2**31 - 1, 2**63 - 1, 2**64 - 1)
FIELD_NAME = re.compile(r"[@$#]?[^\W\d]\w*(-[^\W\d]\w*)*")
LOWER_BEYOND_ASCII = "äöüéèñçø"
FIRST_IDEOGRAPH = 0x4E00
OCTET_BOUNDS = {1: (0, 9), 2: (10, 99), 3: (100, 255)}
"""Digits of a number in an IPv4 address -> the numbers that have as many."""
MOMENT_BOUNDS = {"month": (1, 12), "day": (1, 28), "hour": (0, 23), "minute": (0, 59), "second": (0, 59)}
MOMENT_TEXT = re.compile(
    r"((?P<year>(?!0000)\d{4})-(?!02-3|(04|06|09|11)-31)(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])"
    r"([Tt ](?=\d)|$))?((?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)(:(?P<second>[0-5]\d)([.,](?P<fraction>\d+))?)?"
    r"( ?[Zz]|[+-]\d\d(:?\d\d)?)?)?",
    re.ASCII,
)
NUMBER_TEXT = re.compile(
    r"(?=[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]|\Z))([+-]?[0.]*)([1-9](?:[\d.]*[1-9])?)?([0.]*(?:[eE][+-]?\d+)?)", re.ASCII
)
"""Sign and leading zeros; the digits from the first to the last that is not 0; zeros at the end and the exponent."""
UUID_TEXT = re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", re.ASCII | re.IGNORECASE)
TEXT_FORMS = {
    "word": re.compile(r"|true|false|null|none|[+-]?(nan|inf|infinity)", re.IGNORECASE),
    "moment": MOMENT_TEXT,
    "address": re.compile(r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(?=.)|$)){4}", re.ASCII),
    "hex": re.compile(r"[\da-f:-]{8,}", re.ASCII | re.IGNORECASE),
}
"""What a text parses as, unless it is a number -> its pattern; the first that matches counts."""


class UnmaskableError(ValueError):
    """A record that is neither JSON nor text: what its bytes mean is unknown, and so is what must be masked."""


@dataclass(frozen=True)
class Mask:
    """How values are masked: equal ones become equal, in every record, file and call.

    Keys that are no `names` of fields are data and are masked; if the names are not known, those that cannot be names.
    The values at the paths `kept` stay, and so does every text and number that is one of `words`: what a rule compares
    with.
    """

    names: frozenset[str] | None = None
    kept: frozenset[KeyPath] = frozenset()
    words: frozenset[str] = frozenset()

    def mask_value(self, value: object, path: KeyPath = ()) -> object:
        """Return a value of JSON, at a path of a record, with others in place of its texts and numbers.

        Raises UnmaskableError for a value of any other type.
        """
        if path in self.kept:
            return value
        match value:
            case None | bool():
                return value
            case dict():
                return self._mask_object(value, path)
            case list():
                return [self.mask_value(item, path) for item in value]
            case str():
                return self._mask_text(value, path)
            case int() | float():
                return self._mask_number(value)
        raise UnmaskableError(f"{type(value).__name__} is no type of JSON")

    def mask_record(self, value: bytes | None) -> bytes | None:
        """Return the value or key of a record, masked: JSON or text, also behind a frame of Confluent's wire format.

        Raises UnmaskableError for all other bytes, such as Avro and Protobuf.
        """
        if value is None:
            return None
        frame = value[:FRAME_BYTES] if value.startswith(b"\0") else b""
        text = value[len(frame) :].decode(errors="surrogateescape")
        # Control characters are lengths and numbers of a binary format, and would stay as they are. Behind a frame even
        # a line feed is one.
        is_binary = bool(frame) and text[:1] not in JSON_STARTS
        if is_binary or any(unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\t\r\n" for sign in text):
            raise UnmaskableError("it is neither JSON nor text")
        # A lone surrogate of JSON has no UTF-8: this writes it as JSON does.
        return frame + self._mask_text(text, ()).encode(errors="backslashreplace")

    def _mask_number(self, value: float) -> float:
        if repr(value) in self.words or not math.isfinite(value):
            return value
        masked = mask_plain_text(repr(value))
        if isinstance(value, int):
            return int(masked)
        # Near the largest float another first digit is infinite, which JSON does not have: it is cut to the largest.
        return max(-sys.float_info.max, min(sys.float_info.max, float(masked)))

    def _mask_object(self, value: dict[str, object], path: KeyPath) -> dict[str, object]:
        masked: dict[str, object] = {}
        for key, part in value.items():
            is_name = FIELD_NAME.fullmatch(key) if self.names is None else key in self.names
            if is_name:
                masked[key] = self.mask_value(part, (*path, key))
                continue
            masked_key = self._mask_text(key, path)
            while masked_key in masked or (masked_key != key and masked_key in value):
                # Two keys became one, which would lose a value.
                masked_key += "x"
            masked[masked_key] = self.mask_value(part, (*path, "*"))
        return masked

    def _mask_text(self, text: str, path: KeyPath) -> str:
        """Return a text masked: JSON, whole or in a text, by its parts."""
        if text in self.words:
            return text
        if text.lstrip()[:1] in JSON_STARTS:
            # What is no JSON, or too deep, is masked as text, names of fields also.
            with suppress(ValueError, RecursionError):
                masked = self.mask_value(json.loads(text), path)
                separators = (", ", ": ") if '": ' in text else (",", ":")
                return json.dumps(masked, separators=separators, ensure_ascii=text.isascii())
        return mask_plain_text(text)


def mask_plain_text(text: str) -> str:
    """Return another text of the same length that parses as this one does; letters, digits and their places stay."""
    form = find_text_form(text)
    match form:
        case ("word",):
            return text
        case ("moment",):
            return mask_moment(text)
        case ("address",):
            return re.sub(r"\d+", lambda octet: str(draw_number(octet[0] + text, *OCTET_BOUNDS[len(octet[0])])), text)
    letters = "abcdef" if form == ("hex",) else string.ascii_lowercase
    masked = text
    for attempt in range(MASKING_ATTEMPTS):
        masked = mask_characters(text, attempt, letters)
        number = NUMBER_TEXT.fullmatch(text)
        if number:
            begin, end = number.span(2)
            masked = f"{text[:begin]}{masked[begin:end]}{text[end:]}"
        if UUID_TEXT.fullmatch(text):
            # Its version and variant say how it is read.
            masked = f"{masked[:14]}{text[14]}{masked[15:19]}{text[19]}{masked[20:]}"
        if find_text_form(masked) == form:
            break
    return masked


def find_text_form(text: str) -> tuple[object, ...]:
    """Return the form of a text, one of TEXT_FORMS; of a number also the parts that must stay, and its range."""
    number = NUMBER_TEXT.fullmatch(text)
    if number:
        # Exact, unless it has a fraction; Python reads no whole number of thousands of digits.
        value = int(text) if INTEGER_TEXT.fullmatch(text) else float(text)
        is_beyond = [not -limit - 1 <= value <= limit for limit in INTEGER_LIMITS]
        return "number", number[1], number[3], *is_beyond
    return tuple(form for form, pattern in TEXT_FORMS.items() if pattern.fullmatch(text))[:1]


def mask_moment(text: str) -> str:
    """Return another date or time of this form, with its zone; a date is of one of the nine years before."""
    match = MOMENT_TEXT.fullmatch(text)
    assert match is not None
    year = int(match["year"] or 2)
    bounds = {**MOMENT_BOUNDS, "year": (max(1, year - 9), max(1, year - 1))}
    bounds["fraction"] = (0, 10 ** len(match["fraction"] or "") - 1)
    for name, (low, high) in bounds.items():
        begin, end = match.span(name)
        if begin >= 0:
            text = f"{text[:begin]}{draw_number(f'{name} {match[0]}', low, high):0{end - begin}}{text[end:]}"
    return text


def mask_characters(text: str, attempt: int = 0, letters: str = string.ascii_lowercase) -> str:
    """Return a text with other letters of the same case and other digits; all other characters stay."""
    masked = ""
    for character, drawn in zip(text, draw_bytes(text, len(text), attempt), strict=True):
        masked += _mask_character(character, drawn, letters)
    return masked


def _mask_character(character: str, drawn: int, letters: str) -> str:
    if character.isdecimal():
        return chr(ord(character) - unicodedata.decimal(character) + drawn % 10)
    if not character.isalpha():
        return character
    if not character.isupper() and not character.islower():
        return chr(FIRST_IDEOGRAPH + drawn)
    alphabet = letters if character.isascii() else LOWER_BEYOND_ASCII
    letter = alphabet[drawn % len(alphabet)]
    return letter.upper() if character.isupper() else letter


def draw_number(seed: str, low: int, high: int) -> int:
    """Return a number from low to high, the same for the same seed."""
    span = high - low + 1
    return low + int.from_bytes(draw_bytes(seed, span.bit_length() // 8 + 8), "big") % span


def draw_bytes(seed: str, count: int, attempt: int = 0) -> bytes:
    """Return so many bytes, the same for the same seed and attempt."""
    # Without a key: one that is not stored would make equal values differ between two calls, and one in the repository
    # hides nothing. Whoever guesses a value can so confirm the guess, but nobody can read it.
    return hashlib.shake_256(f"{attempt} {seed}".encode(errors="surrogatepass")).digest(count)
