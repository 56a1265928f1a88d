"""`check` finds what needs no Spark in SQL, DDL and names of fields, and never refuses what Spark would take."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from router import ConfigError
from router.cli.check import with_written_sql
from router.config.loader import load_config
from router.registry import load_registry

ROOT = Path(__file__).parents[2]
FAULTY = """\
name: games
lake: ./lake
source: {kafka: {servers: "x:9092", topics: [games]}}
decode: {json: "game string, amount double, gamer struct<id: string>"}
routes:
  - name: a
    match: {sql: "event.game IS NOT NULL AND"}
    select: ["event.*", "event.amuont AS x"]
    expect: [{name: e, sql: "(event.amount > 5"}]
    sinks:
      - upsert: {table: silver.a, keys: [gmae], newest_by: event.att, delete_when: "event.gone ="}
      - rest: {url: "http://x/{event.gam}"}
  - name: b
    match: {all: [{field: {column: event.gane, equals: x}}, {not: {sql: "event.game = event.b"}}]}
    # a remark, so that places are told by line
    sinks: [{tables: "silver.{event.gamme}"}]
views:
  - {name: v, from: silver.x, into: gold.v, sql: "SELECT count(* FROM source", expect: [{name: z, sql: "n >"}]}
colour: red
dead_letters: ops.dead_letters
"""
EXPECTED = [
    (7, "routes.0.match.sql", "ends with AND: something is missing after it"),
    (8, "routes.0.select.1", "events have no field `amuont`"),
    (9, "routes.0.expect.0.sql", "the ( at character 1 is not closed"),
    (11, "routes.0.sinks.0.upsert.keys.0", "the route has no column `gmae`"),
    (11, "routes.0.sinks.0.upsert.newest_by", "events have no field `att`"),
    (11, "routes.0.sinks.0.upsert.delete_when", "ends with =: something is missing after it"),
    (11, "routes.0.sinks.0.upsert.delete_when", "events have no field `gone`"),
    (12, "routes.0.sinks.1.rest.url", "events have no field `gam`"),
    (14, "routes.1.match.all.0.field.column", "events have no field `gane`"),
    (14, "routes.1.match.all.1.not.sql", "events have no field `b`"),
    (16, "routes.1.sinks.0.tables", "events have no field `gamme`"),
    (18, "views.0.sql", "the ( at character 13 is not closed"),
    (18, "views.0.expect.0.sql", "ends with >: something is missing after it"),
    (19, "colour", "unknown key"),
]


@pytest.fixture(scope="module")
def registry():
    return load_registry([])


@pytest.fixture
def problems(registry):
    def problems(text):
        with pytest.raises(ConfigError) as caught:
            load_config(Path("games.yaml"), registry, environ={}, text=text, sql=True)
        return [(problem.line, problem.path, problem.what) for problem in caught.value.problems]

    return problems


def test_one_look_finds_every_mistake(problems):
    found = problems(FAULTY)

    missing = [line for line in EXPECTED if line not in found]
    assert not missing, found


@pytest.mark.parametrize(
    ("ddl", "what"),
    [
        ("game string, amount dubble", "`amount dubble`: no type that Spark knows, or no comma before it"),
        ("game string, xs array<strng>", "`strng`: no type that Spark knows, or no comma before it"),
        ("a struct<b: int, c: map<string, intt>>, d int", "`intt`: no type that Spark knows, or no comma before it"),
        ("struct<a: txt>", "`a txt`: no type that Spark knows, or no comma before it"),
        ("a int b int", "`b int`: no type that Spark knows, or no comma before it"),
        ("game, amount double", "`game`: no type that Spark knows, or no comma before it"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused(problems, ddl, what):
    assert (4, "decode.json", what) in problems(GOOD.replace("game string", ddl))


GOOD = """\
name: games
lake: ./lake
source: {kafka: {servers: "x:9092", topics: [games]}}
decode: {json: "game string"}
routes:
  - {name: a, match: {sql: "event.game IS NOT NULL"}, sinks: [{delta: silver.a}]}
dead_letters: ops.dead_letters
"""


DDLS = (
    "`a b` string NOT NULL COMMENT 'x, <y', b decimal(10, 2), c: timestamp_ntz",
    "a map<string,array<struct<x:int,y:decimal(3,1)>>>, b interval day to second, e varchar(3)",
    "struct<a: int, b: string>",
    "A BIGINT, b timestamp without time zone, c string collate UNICODE, d variant, e void, array int",
    "a int, -- (a remark\nb int",
    "select string, NOT bigint,\n  order struct<select: int, not:date>, null double",
)
CONDITIONS = (
    "transform(array(1), event -> event.x)[0] = 1",
    "event.GAME = 'a) AND' -- (",
    "event.`game` LIKE '%\\\\'%'",
    "a.event.x > 1 AND exists(SELECT event.y FROM z event)",
    "event.game = r'a\\\\' AND `event.amuont` > 1",
    "upper(event.game)::string RLIKE '(a' /* AND ( */",
    "event._rescued IS NOT NULL",
)


@pytest.mark.parametrize("ddl", DDLS)
def test_a_schema_that_spark_takes_is_not_refused(registry, ddl):
    text = GOOD.replace('"game string"', json.dumps(ddl)).replace("event.game IS NOT NULL", "true")

    assert load_config(Path("games.yaml"), registry, environ={}, text=text, sql=True)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_that_spark_takes_is_not_refused(registry, condition):
    text = GOOD.replace('"event.game IS NOT NULL"', json.dumps(condition))

    assert load_config(Path("games.yaml"), registry, environ={}, text=text, sql=True)


def test_where_only_spark_can_tell_a_note_says_so(registry):
    loaded = load_config(
        Path("games.yaml"), registry, environ={}, text=GOOD.replace("event.game IS NOT NULL", "a b c ~"), sql=True
    )

    (note,) = loaded.notes
    assert (note.path, note.what, note.hint) == ("routes.0.match.sql", "this may be no SQL", "Spark decides: --plan")


@pytest.mark.parametrize("file", sorted(ROOT.glob("routes/*.yaml")), ids=lambda file: file.name)
def test_shipped_configurations_stay_good_without_a_note(registry, file, monkeypatch):
    if file.name.endswith(".test.yaml"):
        pytest.skip("a route test")
    loaded = load_config(file, registry, sql=True)

    assert not loaded.notes


@pytest.mark.parametrize("source", ["silver.x", "[silver.x]", "{tables: silver.x}", "{tables: [silver.x]}"])
def test_one_table_of_a_view_may_be_a_text_in_both_forms(registry, source):
    view = f'views: [{{name: v, from: {source}, into: gold.v, sql: "SELECT 1 AS a FROM source"}}]\n'
    loaded = load_config(Path("games.yaml"), registry, environ={}, text=GOOD + view, sql=True)

    assert loaded.config.views[0].source.tables == ("silver.x",)


def test_one_exception_may_be_a_text(registry):
    view = 'views: [{name: v, from: {tables: "silver.*", except: silver.b}, into: gold.v, sql: "SELECT 1 FROM t"}]\n'
    loaded = load_config(Path("games.yaml"), registry, environ={}, text=GOOD + view, sql=True)

    assert loaded.config.views[0].source.without == ("silver.b",)


def _problems(registry, text, sql):
    try:
        loaded = load_config(
            ROOT / "docs" / "x.yaml", registry, environ=defaultdict(lambda: "http://x"), text=text, sql=sql
        )
    except ConfigError as error:
        # Their schemas stand beside somebody else's configuration.
        return {problem for problem in error.problems if "it is looked for in the configuration's" not in problem.what}
    return set(loaded.notes)


def test_examples_of_the_docs_get_no_problem_and_no_note_more(registry):
    examples = []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        examples += re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(examples) > 20
    for example in examples:
        assert _problems(registry, example, sql=True) <= _problems(registry, example, sql=False), example


def test_what_spark_did_not_come_to_is_told_in_the_same_round(registry, tmp_path):
    """Without it a mistake of one route hides those of others until it is mended."""
    file = tmp_path / "games.yaml"
    file.write_text(FAULTY.replace("colour: red\n", ""))
    by_spark = load_config(Path("games.yaml"), registry, environ={}, text=GOOD).problem_at
    told = [by_spark(("routes", 0, "match"), "Spark refuses it"), by_spark(("routes",), "the plan as a whole")]

    found = [(problem.path, problem.what) for problem in with_written_sql(file, registry, tuple(told))]

    assert ("routes.0.match", "Spark refuses it") in found
    assert not any(path.startswith("routes.0.match.") for path, _ in found), "it is told twice"
    others = [(path, what) for _, path, what in EXPECTED[1:-1]]
    assert set(others) <= set(found)


@pytest.mark.parametrize(
    ("where", "inline", "path"),
    [
        ("topics: [games]", "options: {kafka.sasl.jaas.config: 'abc', kafka.security.protocol: SSL}", "jaas.config"),
        ("dead_letters: ops", "on_failure: {webhook: 'https://hooks.example/abc'}\n", "on_failure.webhook"),
        (
            "dead_letters: ops",
            "storage_options: {AWS_SECRET_ACCESS_KEY: 'abc', AWS_REGION: x}\n",
            "AWS_SECRET_ACCESS_KEY",
        ),
    ],
)
def test_a_secret_in_the_file_is_a_note_that_does_not_show_it(registry, where, inline, path):
    """Without it a password is in the history of a repository for ever."""

    def notes(text):
        added = f"{where}, {text}" if "[" in where else f"{text}{where}"
        loaded = load_config(
            Path("games.yaml"), registry, environ={"X": "abc"}, text=GOOD.replace(where, added), sql=True
        )
        return loaded.notes

    (note,) = notes(inline)
    assert note.path.endswith(path)
    assert (note.what, note.code) == ("a secret stands in the file", "secret")
    assert "abc" not in str(note)
    assert notes(inline.replace("abc", "${X}")) == ()


def test_a_table_of_a_name_and_of_a_template_is_a_note(registry):
    """Without it rows of two kinds share a table, and nobody has meant it."""

    def notes(table):
        more = """
  - {name: all, match: {sql: "true"}, sinks: [{tables: "shared.{topic}"}]}
  - {name: one, match: {sql: "true"}, sinks: [{delta: %s}]}
"""
        text = GOOD.replace("routes:", f"routes:{more.rstrip()}" % table, 1)
        return load_config(Path("games.yaml"), registry, environ={}, text=text, sql=True).notes

    (note,) = notes("shared.uno")
    assert note.path.startswith("routes.1.sinks.0")
    assert note.what == "shared.uno may also get the rows that route all writes by shared.{topic}"
    assert notes("other.uno") == ()


AVRO = {
    "type": "record",
    "name": "Bet",
    "fields": [
        {"name": "game", "type": "string"},
        {"name": "gamer", "type": {"type": "record", "name": "Gamer", "fields": [{"name": "id", "type": "string"}]}},
        {
            "name": "bets",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "B", "fields": [{"name": "cents", "type": "long"}]},
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
TEXT = {"type": "string"}
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "game": TEXT,
        "gamer": {"type": "object", "properties": {"id": TEXT}},
        "bets": {"type": "array", "items": {"type": "object", "properties": {"cents": {"type": "integer"}}}},
        "tags": {"type": "object", "additionalProperties": TEXT},
    },
}
PROTO = """\
syntax = "proto3";
message Gamer { string id = 1; }
message B { int64 cents = 1; }
message Bet { string game = 1; Gamer gamer = 2; repeated B bets = 3; map<string, string> tags = 4; }
"""
DDL = "game string, gamer struct<id: string>, bets array<struct<cents: bigint>>, tags map<string, string>"
FILES = {
    "bet.avsc": json.dumps(AVRO),
    "bet.schema.json": json.dumps(JSON_SCHEMA),
    "bet.proto": PROTO,
    "bet.ddl": DDL.replace(",", "\n,"),
}
DECODERS = [
    f"json: '{DDL}'",
    "json: {infer: {file: bet.schema.json}}",
    "json: {schema_file: bet.schema.json}",
    "json: {schema_file: bet.ddl}",
    "avro: {schema_file: bet.avsc, wire_format: none}",
    "protobuf: {proto_file: bet.proto, message: Bet, wire_format: none}",
]


@pytest.mark.parametrize("decoder", DECODERS)
def test_fields_of_files_and_inside_of_structs_are_known(registry, tmp_path, decoder):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    good = GOOD.replace('json: "game string"', decoder)
    assert decoder in good
    good = good.replace("event.game", "event.gamer.id > '' AND size(event.bets.cents) > 1 AND event.tags.any")
    load_config(tmp_path / "games.yaml", registry, environ={}, text=good, sql=True)

    faulty = good.replace("event.gamer.id", "event.gamer.name").replace("bets.cents", "bets.euros")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "games.yaml", registry, environ={}, text=faulty, sql=True)
    assert {(problem.path, problem.what) for problem in caught.value.problems} == {
        ("routes.0.match.sql", "`gamer` has no field `name`"),
        ("routes.0.match.sql", "`bets` has no field `euros`"),
    }


@pytest.mark.parametrize("decoder", DECODERS[2:])
def test_a_schema_that_is_not_there_is_told_without_spark(registry, tmp_path, decoder):
    text = GOOD.replace('json: "game string"', decoder)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "games.yaml", registry, environ={}, text=text, sql=True)
    (problem,) = caught.value.problems
    assert problem.path == "decode"
    assert "bet." in problem.what


def test_a_name_with_a_dot_is_one_field(registry):
    text = GOOD.replace('"game string"', '"`app.version` string, game string"')
    good = (
        "match: {all: [{field: {column: event.`app.version`, equals: x}}, {sql: 'event.`app.version` > event.game'}]}"
    )
    loaded = load_config(
        Path("games.yaml"),
        registry,
        environ={},
        text=text.replace('match: {sql: "event.game IS NOT NULL"}', good),
        sql=True,
    )

    assert not loaded.notes


@pytest.mark.parametrize("table", ["silver.a", "silver.{event.game}"])
def test_a_table_with_one_row_per_key_is_not_appended_to(problems, table):
    """Without it all rows of the upsert wait for ever for a key that the others do not have."""
    sinks = f'sinks: [{{upsert: {{table: "{table}", keys: [game]}}}}, {{tables: "{table}"}}]'
    if "{event" not in table:
        sinks = sinks.replace("tables:", "delta:")
    what = f"{table} cannot have one row per key and be appended to: so does the sink at line 6"
    assert (6, "routes.0.sinks.1", what) in problems(GOOD.replace("sinks: [{delta: silver.a}]", sinks))


def test_two_schemas_have_no_mistake_of_fields(problems):
    """Without it one mistake is followed by one for each field."""
    found = problems(GOOD.replace('json: "game string"', 'json: {schema: "id string", schema_file: bet.ddl}'))
    assert [(line, path) for line, path, _ in found] == [(4, "decode.json")]


def test_a_name_that_is_known_twice_is_listed_once(problems):
    routes = "".join(f"  - {{name: {name}, match: {{sql: 'true'}}, sinks: [{{delta: silver.b}}]}}\n" for name in "bb")
    view = 'views: [{name: v, from: {route: bc}, into: gold.v, sql: "SELECT 1 AS a FROM source"}]\n'
    with pytest.raises(ConfigError) as caught:
        load_config(
            Path("games.yaml"), load_registry([]), environ={}, text=GOOD.replace("dead_", f"{routes}dead_", 1) + view
        )
    hints = [problem.hint for problem in caught.value.problems if "no such route" in problem.what]
    assert hints == ["did you mean `b`? the routes: a, b"]


GOOD_QUERIES = (
    "SELECT game, count(*) AS n FROM source GROUP BY game HAVING n > 1 ORDER BY n",
    "SELECT table, max(s.game) AS g, date_trunc('day', current_timestamp()) AS d FROM source s GROUP BY table",
    "SELECT p.name FROM source JOIN players p ON p.game = source.game",
    "WITH x AS (SELECT 1 AS y FROM source) SELECT y FROM x",
    "SELECT y FROM (SELECT game AS y FROM source)",
    "SELECT y FROM source LATERAL VIEW explode(split(game, '')) t AS y",
    "SELECT transform(split(game, ''), x -> concat(x, 'a')) AS letters, _offset FROM source",
)


@pytest.mark.parametrize("source", ["{route: a}", "silver.a", "[silver.a]", "{tables: silver.a}"])
def test_a_column_that_a_view_has_not_is_a_note(registry, source):
    """Without it --plan, which takes half a minute, is the first to tell. A table may have it from former days."""
    views = [
        f'  - {{name: v, from: {source}, into: gold.v, sql: "SELECT gmae, sum(source.amount) AS n FROM source"}}\n'
    ]
    for number, query in enumerate(GOOD_QUERIES):
        views.append(f'  - {{name: g{number}, from: {source}, into: gold.g{number}, sql: "{query}"}}\n')
    loaded = load_config(Path("games.yaml"), registry, environ={}, text=f"{GOOD}views:\n{''.join(views)}", sql=True)

    hints = {note.what: note.hint for note in loaded.notes}
    assert {*hints} == {"`source` may have no column `gmae`", "`source` may have no column `amount`"}
    assert {note.path for note in loaded.notes} == {"views.0.sql"}
    assert hints["`source` may have no column `gmae`"] == (
        "did you mean `game`? its columns: game; Spark decides: --plan"
    )
