"""How tables are named: which names from data may be tables, what topics and queries add to a name, bronze's tables.

A table's name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and
underscores, begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name
of Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DEVICE = r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])"
_LAYER = rf"(?!{_DEVICE}\.)[A-Za-z0-9][A-Za-z0-9_]{{0,63}}"
_TABLE = rf"(?!{_DEVICE}\Z)[A-Za-z0-9][A-Za-z0-9_]{{0,127}}"
_NAME = re.compile(rf"\A{_LAYER}\.{_TABLE}\Z")
"""Each part is looked at for a device where it begins, so that a name is gone through once."""

SHOWN = 120
"""Characters of a refused name that a reason shows."""
TOPIC = "{topic}"
OTHER_TOPICS = "other_topics"
"""What stands in the name of a bronze table for the topics that no table can be named after."""


def folded(name: str | None) -> str | None:
    """Return the table name for a name from data, None where the rule refuses it."""
    return name.lower() if name is not None and usable(name) else None


def refused(name: str | None) -> str:
    """Return why a name was refused, as text for a dead letter."""
    return "the table name is null" if name is None else f"unusable table name: {name[:SHOWN]}"


def usable(name: str) -> bool:
    """Say whether the rule accepts a name."""
    return _NAME.match(name) is not None


def underscored(name: str) -> str:
    """Return a topic, or the name of a query or a route, as a part of a table's name: hyphens become underscores."""
    return name.replace("-", "_")


@dataclass(frozen=True)
class BronzeTables:
    """The tables of every record as received: one, or one per topic where `template` has `{topic}` in it.

    `taken` are the router's own other tables. What the template could name belongs to bronze, and to no sink.
    """

    template: str
    taken: frozenset[str] = frozenset()

    @property
    def per_topic(self) -> bool:
        """Say whether each topic has a table."""
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
        """Return the table that the naming rule makes of a topic; None where it refuses the name, or it is taken."""
        name = folded(self.template.replace(TOPIC, underscored(topic)))
        return None if name in self.taken else name

    def of(self, topic: str) -> str:
        """Return the table of a topic.

        A topic that no table can be named after shares one with others of its kind. A stream that subscribes to a
        pattern meets such topics while it runs: stopping would hold back all others, and a dead letter says that a
        record went nowhere, which these did not. Each row has its topic, so nothing is lost by sharing.
        """
        return self.named_after(topic) or self.others

    def __contains__(self, table: str | None) -> bool:
        before, _, after = self.template.partition(TOPIC)
        if table is None or not self.per_topic:
            return table == self.template
        long_enough = len(table) > len(before) + len(after)
        return long_enough and table.startswith(before) and table.endswith(after) and table not in self.taken


WHOLE_NUMBERS = frozenset({"partition", "offset", "timestamp_type", "schema_id", "schema_version"})
"""The raw columns, and those that decoders add, whose values are digits."""
_PIECE = re.compile(r"\{\s*([^{}]*?)\s*\}|([^{}]+)")
Piece = tuple[str, str]
"""A field in braces and a text, of a template of names: one of the two is empty."""


def pieces_of(template: str) -> list[Piece]:
    """Return the fields and texts of a template."""
    return [(found[1] or "", found[2] or "") for found in _PIECE.finditer(template)]


def template_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the table names that a template can make."""
    return re.compile(
        "".join("[a-z0-9_]+" if field else re.escape(text.lower()) for field, text in pieces_of(template))
    )


def templates_meet(one: str, other: str) -> bool:
    """Say whether two templates can make one name, by how they begin and end: gold.{a}_x and gold.{b}_y cannot."""
    if "{" not in one or "{" not in other:
        fixed, template = (one, other) if "{" not in one else (other, one)
        return template_pattern(template).fullmatch(fixed.lower()) is not None
    first, second = ((name.partition("{")[0], name.rpartition("}")[2]) for name in (one.lower(), other.lower()))
    begins = first[0].startswith(second[0]) or second[0].startswith(first[0])
    return begins and (first[1].endswith(second[1]) or second[1].endswith(first[1]))


def may_collide(template: str, values: Mapping[str, frozenset[str]]) -> bool:
    """Say whether rows that differ in a field may name one table: `a_b` and `c`, `a` and `b_c` in {x}_{y}.

    `values` are those that a field may have, where they are known. Read from its beginning, a name says what each field
    was as long as it says where that ends: digits before a text that begins with none, one of some values none of which
    begins another. The same from its end. What remains between the two may be one field, with whatever in it.
    """
    pieces = pieces_of(template)
    if len({field for field, _ in pieces if field}) < 2:
        return False
    backwards = [(field, text[::-1]) for field, text in reversed(pieces)]
    ends = {field: frozenset(value[::-1] for value in known) for field, known in values.items()}
    return _read(pieces, values) + _read(backwards, ends) + 1 < len(pieces)


def _read(pieces: Sequence[Piece], values: Mapping[str, frozenset[str]]) -> int:
    """Return how many pieces can be told from each other, from the first one on."""
    for index, (field, _) in enumerate(pieces):
        after = pieces[index + 1][1] if index + 1 < len(pieces) else "."  # no value that makes a table has one
        if field in WHOLE_NUMBERS:
            if not after or after[0].isdigit():
                return index
        elif field:
            known = [value.lower() + after for value in values.get(field, ())]
            if not known or any(one != other and other.startswith(one) for one in known for other in known):
                return index
    return len(pieces)
