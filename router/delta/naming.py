"""The naming rule: which names from data may become tables.

A name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and underscores,
begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name of
Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re

_DEVICE = r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])"
_LAYER = rf"(?!{_DEVICE}\.)[A-Za-z0-9][A-Za-z0-9_]{{0,63}}"
_TABLE = rf"(?!{_DEVICE}\Z)[A-Za-z0-9][A-Za-z0-9_]{{0,127}}"
_NAME = re.compile(rf"\A{_LAYER}\.{_TABLE}\Z")
"""Each part is looked at for a device where it begins, so that a name is gone through once."""

SHOWN = 120
"""Characters of a refused name that a reason shows."""


def folded(name: str | None) -> str | None:
    """Return the table name for a name from data, None where the rule refuses it."""
    return name.lower() if name is not None and usable(name) else None


def refused(name: str | None) -> str:
    """Return why a name was refused, as text for a dead letter."""
    return "the table name is null" if name is None else f"unusable table name: {name[:SHOWN]}"


def usable(name: str) -> bool:
    """Say whether the rule accepts a name."""
    return _NAME.match(name) is not None
