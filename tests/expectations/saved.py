"""What is saved: one file a scenario, a row a line; and the lines that two results differ in."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FOLDER = Path(__file__).with_name("saved")


@dataclass(frozen=True)
class Renames:
    """What has another name since the results were saved.

    `tables` and `columns` (old table -> old -> new; `*` for every table) are whole names. `texts` are parts of the
    names of tables, and of any text in a row: of reasons, and of names in them.
    """

    tables: dict[str, str]
    columns: dict[str, dict[str, str]]
    texts: dict[str, str]

    def table(self, name: str) -> str:
        found: str = self.tables.get(name) or self.value(name)
        return found

    def column(self, table: str, text: str) -> str:
        name, _, rest = text.partition(" ")
        new = self.columns.get(table, {}).get(name) or self.columns.get("*", {}).get(name) or name
        return f"{new} {rest}" if rest else new

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            for old, new in self.texts.items():
                value = value.replace(old, new)
        elif isinstance(value, list):
            return [self.value(one) for one in value]
        elif isinstance(value, dict):
            return {name: self.value(one) for name, one in value.items()}
        return value


NONE = Renames({}, {}, {})


def path(scenario: str) -> Path:
    return FOLDER / f"{scenario}.json"


def load(scenario: str) -> dict[str, Any]:
    """Return what was saved of a scenario."""
    found: dict[str, Any] = json.loads(path(scenario).read_text(encoding="utf-8"))
    return found


def text(found: dict[str, Any]) -> str:
    """Return results as JSON in which every row has a line."""
    return "".join(_written(found, 0)) + "\n"


def _written(value: Any, level: int) -> Iterator[str]:
    inner, outer = " " * (level + 1), " " * level
    if value and isinstance(value, (dict, list)) and level < 4:
        opens, closes = "{}" if isinstance(value, dict) else "[]"
        yield f"{opens}\n"
        for i, one in enumerate(value):
            yield f",\n{inner}" if i else inner
            if isinstance(value, dict):
                yield f"{json.dumps(one)}: "
                yield from _written(value[one], level + 1)
            else:
                yield json.dumps(one, ensure_ascii=False)
        yield f"\n{outer}{closes}"
    else:
        yield json.dumps(value, ensure_ascii=False)


def lines(found: dict[str, Any], renames: Renames = NONE) -> Counter[str]:
    """Return results as lines that say where they belong, to be compared in any order.

    A row is its columns that have a value, by name: a column that is new and null changes no row.
    """
    made: list[str] = [f"stop | {renames.value(why)}" for why in found["stops"]]
    made += [f"recorded | {_line(renames.value(row))}" for row in found["recorded"]]
    for old, table in found["tables"].items():
        name = renames.table(old)
        columns = [renames.column(old, column) for column in table["columns"]]
        names = [column.split()[0] for column in columns]
        made += [f"{name} | column {column}" for column in columns]
        made += [f"{name} | {what}: {_line(table[what])}" for what in table if what not in ("columns", "rows")]
        made += [f"{name} | {_line(_named(row, old, names, renames))}" for row in table["rows"]]
        if not isinstance(next(iter(table["rows"]), None), dict):
            made.append(f"{name} | in this order: {', '.join(names)}")
    return Counter(made)


def _named(row: Any, table: str, names: Sequence[str], renames: Renames) -> dict[str, Any]:
    """Return a row by the names of its columns, which one of the ledger has already."""
    pairs = (
        ((renames.column(table, name), value) for name, value in row.items())
        if isinstance(row, dict)
        else zip(names, row, strict=True)
    )
    return {name: renames.value(value) for name, value in pairs if value is not None}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def differences(before: Counter[str], after: Counter[str]) -> list[str]:
    """Return the lines that are only in one of two results, those of a table together."""
    gone = [(line.partition(" | ")[0], 0, f"- {line}") for line in (before - after).elements()]
    come = [(line.partition(" | ")[0], 1, f"+ {line}") for line in (after - before).elements()]
    return [line for _, _, line in sorted([*gone, *come])]


def shown(found: Sequence[str], most: int = 60) -> str:
    more = [f"... and {len(found) - most} more"] if len(found) > most else []
    return "\n".join([*(line if len(line) < 400 else f"{line[:400]} ..." for line in found[:most]), *more])
