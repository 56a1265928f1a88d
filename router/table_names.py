"""How tables are named: which names from data may be tables, what topics and queries add to a name, bronze's tables.

A table's name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and
underscores, begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name
of Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
