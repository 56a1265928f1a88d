"""`router preview --against` finds what two runs of the two configurations make different of the same records."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import router.cli
from router.delta.lake import Lake
from router.engine.reprocess.comparison import _unsteady
from router.engine.spark import session
from router_rules.rules import Sql
from tests.engine.reprocess.test_preview import FLOCK
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, name string, game string, extra string"}}
routes:
  - name: all
    match: {{sql: "{match}"}}
    select: ["event.n AS n", "{name} AS name", "offset AS at"{more}]
    expect: [{{name: small, sql: "event.n < {most}", otherwise: {otherwise}}}]
    sinks:
      - {{tables: {{table: "silver.{{event.game}}"{by}}}}}
      - {{upsert: {{table: silver.newest, keys: [n]}}}}
      - {{flock: "{folder}"}}
trigger: {{once: true}}
dead_letters: ops.dead
"""
USUAL = {
    "match": "event.n IS NOT NULL",
    "name": "event.name",
    "more": "",
    "most": "30",
    "otherwise": "dead_letter",
    "by": "",
}


class Pair:
    """Two configurations on one lake, and the same records for both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "flock.py").write_text(FLOCK)
        (folder / "in").mkdir()
        games = ("uno", "chess", "no name!")
        lines = [json.dumps({"n": n, "name": f"p{n % 3}", "game": games[n % 7 % 3], "extra": "x"}) for n in range(40)]
        lines[5:5] = ["garbage", '{"name": "p1"}']
        (folder / "in" / "a.json").write_text("".join(f"{line}\n" for line in lines))

    def write(self, file: str, **words: str) -> Path:
        path = self.folder / file
        path.write_text(YAML.format(folder=self.folder, **{**USUAL, **words}))
        return path

    def compare(self, *arguments: str, **words: str) -> Result:
        old, new = self.write("old.yaml"), self.write("new.yaml", **words)
        plugin = ("--plugin", str(self.folder / "flock.py"))
        command = ["preview", str(new), "--against", str(old), *plugin, *arguments]
        return CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    def document(self, *, code: int, **words: str) -> dict[str, Any]:
        result = self.compare("--json", "--samples", "100", **words)
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout))

    def rows(self, spark: SparkSession, **words: str) -> tuple[dict[tuple[str, int], dict[str, Any]], set[int]]:
        """Return the rows of a run into a lake of its own, by table and offset, and the offsets of its dead letters."""
        from router.config.loader import load_config
        from router.engine.stream import run
        from router.registry import load_registry

        registry = load_registry([self.folder / "flock.py"])
        run(load_config(self.write("run.yaml", **words), registry, environ={}), registry, spark)
        lake = Lake.at(f"{self.folder}/lake")
        found = {}
        for table in ("silver.uno", "silver.chess", "outbox.games__all__upsert", "outbox.games__all__flock"):
            for row in read_rows(lake, table):
                key = table.replace("outbox.games__all__upsert", "silver.newest").replace("outbox.games__", "")
                own = {name: value for name, value in row.items() if name[0] != "_" and value is not None}
                found[key.replace("__", "/"), row["at"]] = own
        letters = lake.open("ops.dead")
        dead = set(letters.to_pyarrow_table().column("offset").to_pylist()) if letters else set()
        shutil.rmtree(self.folder / "lake")
        (self.folder / "flown").unlink(missing_ok=True)
        return found, dead


@pytest.fixture
def pair(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    return Pair(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"match": "event.n > 12"}, id="rule"),
        pytest.param({"name": "upper(event.name)"}, id="value"),
        pytest.param({"name": "CASE WHEN event.n > 9 THEN event.name END"}, id="value that is gone"),
        pytest.param({"more": ', "event.extra"'}, id="column"),
        pytest.param({"most": "10"}, id="expectation"),
        pytest.param({"most": "10", "otherwise": "drop", "name": "concat(event.name, '!')"}, id="several"),
    ],
)
def test_what_differs_is_what_two_runs_make_different(pair: Pair, spark: SparkSession, words: dict[str, str]) -> None:
    """Without it a pull request shows no difference, and the stream makes one."""
    before, dead_before = pair.rows(spark)
    now, dead_now = pair.rows(spark, **words)

    found = pair.document(code=1, **words)

    assert not (pair.folder / "lake").exists()
    tables = {table["table"]: table for table in found["tables"]}
    counted = {}
    for name in {name for name, _ in [*before, *now]}:
        keys_before, keys_now = ({key for key in rows if key[0] == name} for rows in (before, now))
        both = keys_before & keys_now
        columns: Counter[str] = Counter()
        changed = [key for key in both if before[key] != now[key]]
        for key in changed:
            columns.update({column for column, _ in before[key].items() ^ now[key].items()})
        only = (len(keys_before - keys_now), len(keys_now - keys_before))
        if changed or any(only):
            counted[name] = (len(keys_before), len(keys_now), *only, len(changed), dict(columns))
    names = ("before", "now", "only_before", "only_now", "changed", "columns")
    assert {name: tuple(table[part] for part in names) for name, table in tables.items()} == counted
    for name, table in tables.items():
        for sample in table["samples"]:
            offset = int(sample["record"].rpartition("/")[2])
            assert sample.get("before") == before.get((name, offset))
            assert sample.get("now") == now.get((name, offset))
    landed_before, landed_now = ({at for _, at in rows} for rows in (before, now))
    changed_fates = (landed_before ^ landed_now) | (dead_before ^ dead_now)
    assert sum(fate["records"] for fate in found["fates"]) == len(changed_fates)


def test_equal_configurations_have_no_difference(pair: Pair) -> None:
    found = pair.document(code=0)

    assert found["equal"]
    assert (found["read"], found["tables"], found["calls"], found["fates"]) == (42, [], {}, [])
    assert "nothing differs" in pair.compare().output


def test_what_is_another_value_each_time_is_named_and_left_out(pair: Pair) -> None:
    """Without it every comparison of such a configuration differs in every row."""
    pair.write("old.yaml")
    text = {"more": ', "current_timestamp() AS seen", "uuid() AS id"'}
    old = YAML.format(folder=pair.folder, **{**USUAL, **text})
    result = pair.compare(**text)
    assert result.exit_code == 1  # the columns are new
    (pair.folder / "new.yaml").write_text(old.replace("name: games", "name: games  # as before"))
    (pair.folder / "old.yaml").write_text(old)
    plugin = ("--plugin", str(pair.folder / "flock.py"))
    command = ["preview", str(pair.folder / "new.yaml"), "--against", str(pair.folder / "old.yaml"), *plugin]
    same = CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    assert same.exit_code == 0, same.output
    assert "all/seen" in same.output
    assert "current_timestamp has another value each time" in same.output


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({"match": "rand() < 0.5"}, {"match": "rand() < 0.5"}, id="a rule of chance"),
        pytest.param({"more": ', "rand() AS r"'}, {"more": ', "rand() AS r"'}, id="calls with a column of chance"),
        pytest.param({}, {"by": ", partition_by: [n]"}, id="a table that is divided"),
    ],
)
def test_what_is_no_difference_is_none(pair: Pair, old: dict[str, str], new: dict[str, str]) -> None:
    """Without it two runs of one file differ."""
    pair.write("old.yaml", **old)
    pair.write("new.yaml", **new)
    plugin = ("--plugin", str(pair.folder / "flock.py"))
    command = ["preview", str(pair.folder / "new.yaml"), "--against", str(pair.folder / "old.yaml"), *plugin, "--json"]
    result = CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("sql", "column", "function"),
    [
        ("rand() AS r", "r", "rand"),
        ("date_diff(current_date(), event.day) AS age", "age", "current_date"),
        ("CASE WHEN now() > event.t THEN 1 END AS late", "late", "now"),
        ("current_user AS who", "who", "current_user"),
        ("event.user AS who", "who", ""),
        ("upper(event.now) AS who", "who", ""),
        ("event.game", "game", ""),
        ("event.*", "*", ""),
        ("concat('now()', event.a) AS b", "b", ""),
        ("unix_timestamp() AS at", "at", "unix_timestamp"),
        ("unix_timestamp(event.t) AS at", "at", ""),
        ("SELECT ((", "", ""),
        ("event.name AS user", "user", ""),
        ("now() seen", "seen", "now"),
        ("now() AS `when seen`  -- by us", "when seen", "now"),
        ("user.name AS who", "who", ""),
        ("upper(session_user) AS who", "who", "session_user"),
        ("event.a /* not now() */ AS b", "b", ""),
    ],
)
def test_functions_with_another_value_each_time_are_found(sql: str, column: str, function: str) -> None:
    route = SimpleNamespace(identity="all", expect=(), match=Sql(where="true"), select=[sql])

    found = _unsteady(SimpleNamespace(routes=[route]))  # type: ignore[arg-type]

    assert found == ({f"all/{column}": function} if function else {})
