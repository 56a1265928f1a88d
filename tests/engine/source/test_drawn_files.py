"""Files of rows whose columns and values are drawn: each line is a row of the table or a dead letter; no run ends."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.audit.verify import verify_tables
from router.engine.stream import run
from router.registry import load_registry
from tests.engine.drawing import FIELD_NAMES, GARBAGE, KEY_NAMES, as_object, draw_type, hostile, plain
from tests.engine.source.test_file_rows import YAML
from tests.engine.source_files import put_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

IN_EVERY_RUN = 2
FILES_OF_SEEDS = 40
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, FILES_OF_SEEDS)),
]
LINES = 20
LONGEST_NAME = 300


def is_drawn(name: str) -> bool:
    """Return whether a file may have a column of this name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


NAMES = [name for name in (*FIELD_NAMES, *KEY_NAMES) if is_drawn(name)]


def json_lines(chance: random.Random, first: int) -> str:
    """Return lines of JSON, some of them hostile; `id` numbers those that are objects."""
    kinds = {name: draw_type(chance, 2) for name in chance.sample(NAMES, 6)}
    lines = []
    for number in range(first, first + LINES):
        fragments = [("id", str(number))]
        for name, kind in kinds.items():
            if chance.random() > 0.2:
                fragments.append((name, hostile(chance, kind) if chance.random() < 0.1 else plain(chance, kind)))
        lines.append(as_object(fragments).decode())
    if chance.random() < 0.5:
        # An array has a row for each element: one without any has none.
        bads = [bad for bad in GARBAGE if bad and bad.strip() not in (b"", b"[]") and len(bad) < 2000]
        bad = chance.choice([bad for bad in bads if b"\n" not in bad])
        lines.append(bad.decode("utf-8", "ignore") or "{")
    return "\n".join(lines) + "\n"


def csv_lines(chance: random.Random, first: int) -> str:
    """Return lines of CSV with a header; `id` numbers them."""
    kinds = {name: draw_type(chance, 0) for name in chance.sample(NAMES, 6)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", escapechar="\\", doublequote=False)
    writer.writerow(["id", *kinds])
    for number in range(first, first + LINES):
        made = [hostile(chance, kind) if chance.random() < 0.1 else plain(chance, kind) for kind in kinds.values()]
        writer.writerow([number, *(cell.strip('"').replace("\\", "") for cell in made)])
    return text.getvalue()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_line_is_a_row_or_a_dead_letter(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Without it a name or a value in one file stops the stream of all files."""
    chance = random.Random(seed)
    kind = chance.choice(["json", "csv"])
    registry = load_registry()
    lines = 0
    for batch in range(2):
        for file in range(chance.randint(1, 2)):
            text = (json_lines if kind == "json" else csv_lines)(chance, lines)
            put_file(tmp_path, f"{batch}-{file}.{kind}", text)
            lines += text.count("\n") - (kind == "csv")
        files = json.dumps({"path": str(tmp_path / "in"), "format": kind, "schema_hints": "id bigint"})
        loaded = load_config(
            tmp_path / "files.yaml", registry, environ={}, text=YAML.format(folder=tmp_path, files=files)
        )
        run(loaded, registry, spark)

    lake = Lake.at(str(tmp_path / "lake"))
    table, bronze = lake.open("silver.all"), lake.open("bronze.all")
    assert table is not None
    assert bronze is not None
    letters = lake.open("ops.dead")
    reasons = letters.to_pyarrow_table(columns=["reason"]).column(0).to_pylist() if letters else []
    ids = Counter(table.to_pyarrow_table(columns=["id"]).column(0).to_pylist())
    assert bronze.to_pyarrow_table(columns=["topic"]).num_rows == lines
    assert sum(ids.values()) + len(reasons) == lines, reasons
    ids.pop(None, 0)
    assert set(ids.values()) == {1}
    assert [problem for audit in verify_tables(loaded.config, contents=True) for problem in audit.problems] == []
