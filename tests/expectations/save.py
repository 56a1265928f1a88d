"""Save what the code as it is makes of scenarios: `.venv/bin/python -m tests.expectations.save SCENARIO ...`.

From the root of the repository, with JAVA_HOME as in .venv/java-home. This is for new scenarios: what is saved already
is what later code is held against, and a change that is meant is listed in `test_expectations.py` instead. `--all`
saves all; `--compare`, with names or alone, only plays the other ways.

Each scenario is played in every way of `adapter.WAYS`; the results of the first way are saved, as
`saved/SCENARIO.json`, whose `ways` lists those with the same results. What other ways make of it is told in
`saved/DIFFERENCES.md`.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from router.config.models import Config
from router.engine.spark.session import build_session, stop_session
from tests.expectations import saved
from tests.expectations.catalogue import SCENARIOS
from tests.expectations.playing import MAIN, OTHERS, played
from tests.light import LIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

NOTE = saved.FOLDER / "DIFFERENCES.md"
OPENING = f"""\
# What the ways through the engine make differently

`{MAIN}` is saved. Lines with `-` are what it has and the other way lacks, lines with `+` the other way round; each line
begins with its table. Not compared is `delta.checkpointInterval`, which is 20 in tables of `arrow` and `stages`, and
absent in those of `spark`. A scenario whose `ways` lack one, and that is not named here, was not compared with it.
"""
MOST = 40
"""Lines of a difference that are told."""


def main(arguments: Sequence[str]) -> None:
    """Play the main way of all first: what it makes is what counts, and it is there soon."""
    flags, names = [a for a in arguments if a.startswith("-")], [a for a in arguments if not a.startswith("-")]
    if not arguments or set(flags) - {"--all", "--compare"} or set(names) - set(SCENARIOS):
        raise SystemExit(f"{__doc__}\nScenarios: {', '.join(SCENARIOS)}")
    session = build_session(Config.model_construct(name="expectations", spark=LIGHT), master="local[2,4]")
    saved.FOLDER.mkdir(exist_ok=True)
    try:
        for do in (_compare,) if "--compare" in flags else (_save, _compare):
            for name in names or SCENARIOS:
                _timed(do, name, session)
    finally:
        stop_session(session)


def _timed(do: Callable[[str, SparkSession], str], name: str, spark: SparkSession) -> None:
    begun = time.monotonic()
    try:
        said = do(name, spark)
    except Exception:  # the others are saved all the same
        said = traceback.format_exc()
    sys.stderr.write(f"{name}, {time.monotonic() - begun:.1f} s: {said}\n")


def _save(name: str, spark: SparkSession) -> str:
    found = played(SCENARIOS[name], MAIN, spark)
    _write(name, found, [MAIN])
    return f"saved, {sum(len(table['rows']) for table in found['tables'].values())} rows"


def _compare(name: str, spark: SparkSession) -> str:
    found = saved.load(name)
    differing: dict[str, list[str]] = {}
    for way in OTHERS:
        other = played(SCENARIOS[name], way, spark)
        if told := saved.differences(saved.lines(found), saved.lines(other)):
            differing[way] = told
    ways = [MAIN, *(way for way in OTHERS if way not in differing)]
    _write(name, found, ways)
    _note(name, differing)
    return f"the same in {', '.join(ways)}"


def _write(name: str, found: dict[str, Any], ways: list[str]) -> None:
    content = {**found, "ways": ways}
    order = ("about", "ways", "stops", "tables", "recorded")
    saved.path(name).write_text(saved.text({key: content[key] for key in order}), encoding="utf-8")


def _note(name: str, differing: dict[str, list[str]]) -> None:
    """Replace what the note says of a scenario."""
    text = NOTE.read_text(encoding="utf-8") if NOTE.exists() else OPENING
    parts = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    parts = {title: part for title, part in parts.items() if title.split(",")[0] != name}
    for way, told in differing.items():
        title = f"{name}, {way}"
        parts[title] = f"{title}\n\n```diff\n{saved.shown(told, MOST)}\n```\n\n"
    body = "".join(f"## {parts[title]}" for title in sorted(parts))
    NOTE.write_text(f"{OPENING}\n{body}".rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
