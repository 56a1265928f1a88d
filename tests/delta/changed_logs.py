"""Logs of tables as other writers leave them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def forget_bounds(place: Path, column: str, *, of: str = "") -> None:
    """Take the bounds of a column from the log, of files whose path has a text: some writers write none."""
    for log in sorted((place / "_delta_log").glob("*.json")):
        lines = []
        for line in log.read_text().splitlines():
            action: dict[str, Any] = json.loads(line)
            if "add" in action and of in action["add"]["path"]:
                found = json.loads(action["add"]["stats"])
                found["minValues"].pop(column, None)
                found["maxValues"].pop(column, None)
                action["add"]["stats"] = json.dumps(found)
            lines.append(json.dumps(action))
        log.write_text("\n".join(lines))
