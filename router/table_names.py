"""Names of tables: the rule for names from data, the parts that topics and queries add, and bronze's tables.

A table's name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and
underscores, begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name
of Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from router.record import WHOLE_NUMBERS
from router.templates import fill_template, parse_template, template_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.templates import Piece

_DEVICE = r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])"
_LAYER = rf"(?!{_DEVICE}\.)[A-Za-z0-9][A-Za-z0-9_]{{0,63}}"
_TABLE = rf"(?!{_DEVICE}\Z)[A-Za-z0-9][A-Za-z0-9_]{{0,127}}"
_NAME = re.compile(rf"\A{_LAYER}\.{_TABLE}\Z")
"""Each part is checked for a device at its beginning, so that a name is read once."""

REFUSED_IN_COLUMNS = " ,;{}()\n\t=\0"
"""Characters that no column of a table may have: Delta refuses them, and Arrow hands names to delta-rs as texts of C,
which end at a NUL."""
NAME_CHARACTERS_SHOWN = 120
"""Characters of a refused name that a reason shows."""
TOPIC = "{topic}"
OTHER_TOPICS = "other_topics"
"""The part of a bronze table's name for the topics that no table can be named after."""


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of some patterns, such as `silver.*`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_name(pattern: str) -> bool:
    """Return whether a pattern is the name of one thing only."""
    return not set(pattern) & set("*?[")


def fold_name(name: str | None) -> str | None:
    """Return the table name for a name from data, None if the rule refuses it."""
    if name is None or not is_usable_name(name):
        return None
    return name.lower()


def describe_refused_name(name: str | None) -> str:
    """Return why a name was refused, as text for a dead letter."""
    if name is None:
        return "the table name is null"
    return f"unusable table name: {name[:NAME_CHARACTERS_SHOWN]}"


def is_usable_name(name: str) -> bool:
    """Return whether the rule accepts a name."""
    return _NAME.match(name) is not None


def to_underscores(name: str) -> str:
    """Return a topic, or the name of a query or a route, as a part of a table's name: hyphens become underscores."""
    return name.replace("-", "_")


@dataclass(frozen=True)
class BronzeTables:
    """The tables of every record as received: one, or one per topic if `template` has `{topic}` in it.

    `taken` are the router's own other tables. All names that the template can make belong to bronze, and to no sink.
    """

    template: str
    taken: frozenset[str] = frozenset()

    @property
    def per_topic(self) -> bool:
        """Return whether each topic has a table."""
        return TOPIC in self.template

    @property
    def layer(self) -> str:
        """Return the folder that all of them are in."""
        return self.template.partition(".")[0]

    @property
    def others(self) -> str:
        """Return the table of the topics that no table can be named after."""
        return self.template.replace(TOPIC, OTHER_TOPICS)

    def named_after(self, topic: str) -> str | None:
        """Return the table that the naming rule makes of a topic; None if it refuses the name, or it is taken."""
        name = fold_name(self.template.replace(TOPIC, to_underscores(topic)))
        return None if name in self.taken else name

    def table_of(self, topic: str) -> str:
        """Return the table of a topic.

        A topic that no table can be named after shares one with others of its kind. A stream that subscribes to a
        pattern meets such topics while it runs: stopping would hold back all others, and a dead letter is for a record
        that went nowhere, which these did not. Each row has its topic, so nothing is lost by sharing.
        """
        return self.named_after(topic) or self.others

    def __contains__(self, table: str | None) -> bool:
        if table is None or not self.per_topic:
            return table == self.template
        before, _, after = self.template.partition(TOPIC)
        # A topic has a character at least.
        if len(table) <= len(before) + len(after) or table in self.taken:
            return False
        return table.startswith(before) and table.endswith(after)


_DIGITS = WHOLE_NUMBERS | {"schema_id", "schema_version"}
"""The raw columns, and those that decoders add, whose values are digits."""


@lru_cache(10_000)
def template_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the table names that a template can make; each field is a group."""
    pattern = ""
    for piece in parse_template(template):
        pattern += re.escape(piece.lower()) if isinstance(piece, str) else "([a-z0-9_]+)"
    return re.compile(pattern)


def template_glob(template: str) -> str:
    """Return the pattern, as commands take it, of the table names that a template can make."""
    return fill_template(template.lower(), lambda _: "*")


def templates_meet(first: str, second: str) -> bool:
    """Return whether two templates can make one name, by how they begin and end: gold.{a}_x and gold.{b}_y cannot."""
    if "{" not in first:
        return template_pattern(second).fullmatch(first.lower()) is not None
    if "{" not in second:
        return template_pattern(first).fullmatch(second.lower()) is not None
    # Every name has the texts before the first field and after the last one.
    begin, _, _ = first.lower().partition("{")
    other_begin, _, _ = second.lower().partition("{")
    if not begin.startswith(other_begin) and not other_begin.startswith(begin):
        return False
    _, _, end = first.lower().rpartition("}")
    _, _, other_end = second.lower().rpartition("}")
    return end.endswith(other_end) or other_end.endswith(end)


def may_collide(template: str, values: Mapping[str, frozenset[str]]) -> bool:
    """Return whether rows that differ in a field may name one table: `a_b` and `c`, `a` and `b_c` in {x}_{y}.

    `values` are those that a field may have, if they are known. Read from its beginning, a name says what each field
    was as long as it says where that ends: digits before a text that begins with none, one of some values none of which
    begins another. The same from its end. What remains between the two may be one field, with whatever in it.
    """
    if len({*template_fields(template)}) < 2:
        return False
    pieces = parse_template(template)
    backwards = [piece[::-1] if isinstance(piece, str) else piece for piece in reversed(pieces)]
    reversed_values = {}
    for field, of_field in values.items():
        reversed_values[field] = frozenset(value[::-1] for value in of_field)
    return _count_readable(pieces, values) + _count_readable(backwards, reversed_values) + 1 < len(pieces)


def _count_readable(pieces: Sequence[Piece], values: Mapping[str, frozenset[str]]) -> int:
    """Return how many pieces can be told from each other, from the first one on."""
    # The end of a name is like a character that no value can have.
    for index, (piece, after) in enumerate(pairwise([*pieces, "."])):
        if isinstance(piece, str):
            continue
        following = after if isinstance(after, str) else ""
        if piece.path in _DIGITS:
            if not following or following[0].isdigit():
                return index
        elif not _end_is_known(values.get(piece.path, frozenset()), following):
            return index
    return len(pieces)


def _end_is_known(values: frozenset[str], after: str) -> bool:
    """Return whether a name shows which of some values a field has, by the text after it: none begins another one."""
    texts = {value.lower() + after for value in values}
    return bool(texts) and not any(other.startswith(text) for text, other in permutations(texts, 2))
