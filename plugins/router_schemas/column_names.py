"""Choose the columns for field names that a Delta table cannot have side by side, or not at all.

- Delta and Spark compare names without case: of `id` and `ID` only the first keeps its name.
- Delta without column mapping refuses the characters " ,;{}()", tab, line feed and "=", and an empty name
  (delta.io, "Delta column mapping"); each such character becomes an underscore.
- A name that is taken gets two underscores and the first six digits of the SHA-256 of the field's own name.

So a column depends on the names of its own record only, and a field that is added later moves none that there was.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

REFUSED = re.compile(r"[ ,;{}()\t\n\r=]|[\x00-\x1f]")


def column_names(fields: Iterable[str]) -> dict[str, str]:
    """Return the column of every field of one struct, for the fields in the order in which they came to be."""
    names = list(fields)
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        column = REFUSED.sub("_", name) or "_"
        digest, digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest(), 6
        chosen = column
        while chosen.lower() in taken:
            chosen, digits = f"{column}__{digest[:digits]}", digits + 1
        columns[name] = chosen
        taken.add(chosen.lower())
    return columns
