"""Mask values of records, so that they can stand in a test file: `Mask`. Needs neither Spark nor the lake.

A masked value is another one of the same type, length and form: what parses as a date, a number, a UUID or an address
still does, so that decoders, rules and expectations see the same kind of record.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from router.errors import StartError

JSON_STARTS = ("{", "[", '"')
FRAME_BYTES = 5
"""Bytes before the payload in the wire format of Confluent: the magic byte 0 and the schema id."""
MASKING_ATTEMPTS = 200
"""Draws until a masked text has the form of the text: of 200 numbers with ten digits some 20 are in int32."""
FIELD_NAME = re.compile(r"[@$#]?[^\W\d]\w*(-[^\W\d]\w*)*")
LETTERS = ("abcdef", "ghijklmnopqrstuvwxyz", "äöüéèñçø")
"""Letters that are drawn for each other, so that hexadecimal digits stay such; the last ones for all beyond ASCII."""
IDEOGRAPHS = "人口日月山川水火木金土石田力目耳手足心言"
"""What is drawn for letters that are neither small nor capital."""
LIMITS = (86_400_000 - 1, 2**31 - 1, 86_400_000_000 - 1, 2**63 - 1, 2**64 - 1, Decimal(sys.float_info.max))
"""Of times of a day, whole numbers and fractions: a masked number is within the same ones as the number."""
ANY_DIGIT = {1: (0, 9)}
TEXT_FORMS: dict[str, tuple[re.Pattern[str], re.Pattern[str], dict[int, tuple[int, int]]]] = {
    "word": (re.compile(r"|true|false|null|none|[+-]?(nan|inf|infinity)", re.IGNORECASE), re.compile("(?!)"), {}),
    "number": (
        # With an `s` it is how JSON of Protobuf has a duration.
        re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3}|s)?", re.ASCII),
        re.compile(r"[1-9]|[eE].+"),
        {1: (1, 9)},
    ),
    "moment": (
        re.compile(
            r"((?!0000)\d{4}-(?!02-3|(04|06|09|11)-31)(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([Tt ](?=\d)|$))?"
            r"(([01]\d|2[0-3])(:[0-5]\d){1,2}((?<=:\d\d:\d\d)[.,]\d+)?( ?[Zz]|[+-]\d\d(:?\d\d)?)?)?",
            re.ASCII,
        ),
        re.compile(r"\d{4}(?=-)|\d\d?"),
        {4: (1970, 2019), 2: (1, 12), **ANY_DIGIT},
    ),
    "address": (
        re.compile(r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(?=.)|$)){4}", re.ASCII),
        re.compile(r"\d+"),
        {3: (100, 255), 2: (10, 99), **ANY_DIGIT},
    ),
    "text": (re.compile(r".*", re.DOTALL), re.compile(r"\w"), ANY_DIGIT),
}
"""Form -> the pattern of its texts, that of the parts which are drawn, and digits of a part -> its least and largest
number. The first form that matches counts. What a number, a date or an address is made of is valid in any place."""


@dataclass(frozen=True)
class Mask:
    """How values are masked: equal ones become equal, in every record, file and call.

    Every text and number that is one of `words` stays: what a rule compares with. Names of fields stay, and keys that
    are data are masked: if the mask `knows_names`, names are among the words, else they are what can be one.
    """

    words: frozenset[str] = frozenset()
    knows_names: bool = False

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
            is_name = not self.knows_names and FIELD_NAME.fullmatch(key)
            masked_key = key if is_name else self._mask_text(key)
            while masked_key in masked:
                # Two short keys became one, which would lose a value.
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
    """Return another text of the same length and form; letters, digits and their places stay."""
    form = find_text_form(text)
    _, parts, bounds = TEXT_FORMS[str(form[0])]
    # Without a key: one that is not stored would make equal values differ between two calls, and one in the repository
    # hides nothing. Whoever guesses a value can so confirm the guess, but nobody can read it.
    seed = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    drawing = random.Random(seed)
    masked = text
    for _ in range(MASKING_ATTEMPTS):
        masked = parts.sub(lambda part: _draw_part(part[0], bounds, drawing), text)
        if find_text_form(masked) == form:
            break
    return masked


def find_text_form(text: str) -> tuple[object, ...]:
    """Return the form of a text, one of TEXT_FORMS; of a number also whether it is zero, and its limits."""
    form = next(form for form, (pattern, _, _) in TEXT_FORMS.items() if pattern.fullmatch(text))
    if form != "number":
        return (form,)
    number = Decimal(text.rstrip("s"))
    return form, float(number) == 0, *[-limit - 1 <= number <= limit for limit in LIMITS]


def _draw_part(part: str, bounds: dict[int, tuple[int, int]], drawing: random.Random) -> str:
    if part.isdecimal():
        return str(drawing.randint(*bounds[len(part)])).zfill(len(part))
    if not part.isalpha():  # also an exponent
        return part
    if part.islower() == part.isupper():
        return drawing.choice(IDEOGRAPHS)
    letter = drawing.choice(next((letters for letters in LETTERS if part.lower() in letters), LETTERS[-1]))
    return letter.upper() if part.isupper() else letter
