"""The naming rule: which names from data may become tables.

A name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and underscores,
begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name of
Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

_DEVICE = r"(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])"


def _pattern(end: str) -> str:
    """Return the rule as an expression of Java and Python, which write the very end of a text in different ways.

    Each part is looked at for a device where it begins: one look from the start of the name over its dot took longer
    than all other labels of a row.
    """
    layer = rf"(?!{_DEVICE}\.)[A-Za-z0-9][A-Za-z0-9_]{{0,63}}"
    table = rf"(?!{_DEVICE}{end})[A-Za-z0-9][A-Za-z0-9_]{{0,127}}"
    return rf"\A{layer}\.{table}{end}"


SHOWN = 120
"""Characters of a refused name that a reason shows."""


def fold(name: Column) -> Column:
    """Return the table name for a name from data, null where the rule refuses it."""
    return F.when(name.rlike(_pattern(r"\z")), F.lower(name))


def refusal(name: Column) -> Column:
    """Return why a name was refused, as text for a dead letter."""
    text = F.make_valid_utf8(name)  # a string of Spark may hold any bytes, a dead letter must be readable
    shown = F.concat(F.lit("unusable table name: "), F.substring(text, 1, SHOWN))
    return F.when(name.isNull(), F.lit("the table name is null")).otherwise(shown)


def folded(name: str | None) -> str | None:
    """Return what `fold` does, for one name outside of a frame."""
    return name.lower() if name is not None and usable(name) else None


def refused(name: str | None) -> str:
    """Return what `refusal` does, for one name outside of a frame."""
    return "the table name is null" if name is None else f"unusable table name: {name[:SHOWN]}"


def usable(name: str) -> bool:
    """Say whether the rule accepts a name: the same rule, for names outside of a frame."""
    return re.match(_pattern(r"\Z"), name) is not None
