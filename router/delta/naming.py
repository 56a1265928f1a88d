"""The naming rule: which names from data may become tables.

A name is `layer.table` after folding ASCII capitals to lower case. Each part has letters, digits and underscores,
begins with a letter or digit, is at most 64 (layer) and 128 (table) characters long, and is no device name of
Windows. So a name can never leave the lake, hide (`_`, `.`) or differ from another by case only.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F

PATTERN = r"[A-Za-z0-9][A-Za-z0-9_]{0,63}\.[A-Za-z0-9][A-Za-z0-9_]{0,127}"
DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)))
SHOWN = 120
"""Characters of a refused name that a reason shows."""


def fold(name: Column) -> Column:
    """Return the table name for a name from data, null where the rule refuses it."""
    # \A and \z: in Java a bare $ would let a name end with a line break. The devices are looked up and not part of the
    # expression: with them it took more time than any other label of a row.
    folded = F.lower(name)
    devices = [F.substring_index(folded, ".", place).isin(*DEVICES) for place in (1, -1)]
    return F.when(name.rlike(rf"\A{PATTERN}\z"), F.when(~devices[0] & ~devices[1], folded))


def refusal(name: Column) -> Column:
    """Return why a name was refused, as text for a dead letter."""
    text = F.make_valid_utf8(name)  # a string of Spark may hold any bytes, a dead letter must be readable
    shown = F.concat(F.lit("unusable table name: "), F.substring(text, 1, SHOWN))
    return F.when(name.isNull(), F.lit("the table name is null")).otherwise(shown)


def usable(name: str) -> bool:
    """Say whether the rule accepts a name: the same rule, for names outside of a frame."""
    parts = name.lower().split(".")
    return re.fullmatch(PATTERN, name) is not None and not set(parts) & set(DEVICES)
