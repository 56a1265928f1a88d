"""Scenarios of routes: rules, expectations, projections, table names, sinks."""

from __future__ import annotations

from tests.expectations.inputs import EVERY_TYPE, GARBAGE, NAMES, PLAIN, event, shuffled, texts
from tests.expectations.scenario import HEAD, Given, Scenario, Taken, given

ROUTES = """\
routes:
  - name: games
    match: {sql: "event.game IS NOT NULL"}
    expect:
      - {name: gamer, sql: "event.gamer IS NOT NULL"}
      - {name: sane, sql: "event.amount >= 0", otherwise: warn}
      - {name: low, sql: "event.amount < 9", otherwise: drop}
      - {name: shares, sql: "10 / event.amount > 0", otherwise: warn}
      - {name: possible, sql: "event.amount IS NULL OR event.amount > -500", otherwise: fail}
    sinks: [{tables: "silver.{event.game}"}]
  - name: wins
    match: {sql: "event.amount / (event.amount - 5) > 0"}
    select: ["event.*", offset, "10 / (event.amount - 7) AS share"]
    sinks:
      - delta: gold.wins
      - recording: {to: "${FOLDER}/recorded.jsonl", refuses: "amount % 2 = 1"}
      - delta: gold.wins_again
  - name: flags
    match: {field: {column: event.flag, equals: true}}
    select: [event.game, "event.amount AS amount", "partition AS part", "cast(key AS string) AS key", headers]
    sinks: [{delta: gold.flags}]
"""
LANDED = """\
routes:
  - name: games
    match: {all: [{sql: "event.game IS NOT NULL"}, {not: {field: {column: event.game, equals: hidden}}}]}
    expect:
      - {name: gamer, sql: "event.gamer IS NOT NULL"}
      - {name: priced, sql: "event.price < 60"}
      - {name: sane, sql: "event.amount >= 0", otherwise: warn}
      - {name: low, sql: "event.amount < 9", otherwise: drop}
      - {name: possible, sql: "event.amount IS NULL OR event.amount > -5", otherwise: fail}
    sinks:
      - tables: "silver.{event.game}"
      - tables: {table: "gold.{event.game}_{event.small}", columns: all, at_most: 12, collisions: accept}
  - name: wins
    match: {any: [{sql: "event.amount > 3"}, {field: {column: event.flag, exists: true}}]}
    select: ["event.*", offset, "concat(event.game, ' of ', topic) AS named", key]
    sinks:
      - delta: gold.wins
      - recording: {to: "${FOLDER}/recorded.jsonl", refuses: "amount % 2 = 1"}
      - delta: {table: gold.wins_again, columns: seen}
"""
RULES = {
    "all_of_it": "sql: 'true'",
    "lower": "sql: \"lower(event.game) = 'rummy'\"",
    "upper": "sql: \"upper(event.gamer) LIKE 'G1%'\"",
    "like": "sql: \"event.gamer LIKE '%1' OR event.gamer LIKE '_2_'\"",
    "rlike": "sql: \"event.gamer RLIKE '^g[1-3]$'\"",
    "in_list": "sql: \"event.game IN ('poker', 'uno', NULL)\"",
    "sums": 'sql: "event.amount + event.small > 5"',
    "product": 'sql: "event.amount * 3 - event.small < 0"',
    "division": 'sql: "10 / event.amount > 2"',
    "whole_division": 'sql: "event.amount DIV 2 = 1"',
    "remainder": 'sql: "event.amount % event.small = 0"',
    "overflow": 'sql: "event.small * cast(2000 AS smallint) > 0"',
    "map_value": "sql: \"event.scores['first'] > 20\"",
    "map_missing": "sql: \"element_at(event.scores, 'third') > 20\"",
    "array_item": "sql: \"event.tags[0] = 'a'\"",
    "array_beyond": "sql: \"event.tags[7] = 'a'\"",
    "array_element": "sql: \"element_at(event.tags, 3) = 'é'\"",
    "array_size": 'sql: "size(event.rounds) = 3"',
    "array_contains": "sql: \"array_contains(event.tags, 'a')\"",
    "deep": "sql: \"event.inner.deep.y = 'y7' OR event.inner.x > 50\"",
    "in_rounds": 'sql: "exists(event.rounds, r -> r.n > 30)"',
    "year": 'sql: "year(event.day) < 1940"',
    "weekday": 'sql: "dayofweek(event.at) = 1"',
    "dates": "sql: \"event.day BETWEEN DATE '1930-01-01' AND DATE '1950-01-01'\"",
    "moments": "sql: \"event.at > TIMESTAMP '2026-01-20 00:00:00'\"",
    "moment_text": "sql: \"event.at > '2026-01-20'\"",
    "truncated": "sql: \"date_trunc('month', event.at) = TIMESTAMP '2026-01-01 00:00:00'\"",
    "cast_text": 'sql: "cast(substring(event.gamer, 2) AS int) > 40"',
    "cast_raises": 'sql: "cast(event.gamer AS int) > 40"',
    "try_cast": 'sql: "try_cast(event.gamer AS int) IS NULL"',
    "decimals": 'sql: "event.cost > 100000.5"',
    "doubles": 'sql: "event.price > 10 AND event.price <= 33.0"',
    "floats": 'sql: "event.ratio = 0.25"',
    "nulls": 'sql: "event.amount IS NULL"',
    "null_safe": 'sql: "event.amount <=> NULL"',
    "not_null": 'sql: "NOT (event.amount > 3)"',
    "coalesced": 'sql: "coalesce(event.amount, event.small, 0) > 4"',
    "either_way": 'sql: "CASE WHEN event.flag THEN event.amount > 3 ELSE event.small > 0 END"',
    "if_flag": 'sql: "if(event.flag, true, 1 / event.amount > 0)"',
    "by_key": "sql: \"cast(key AS string) = 'key 5'\"",
    "by_offset": 'sql: "offset BETWEEN 3 AND 9 AND partition = 0"',
    "by_topic": "sql: \"topic = 'events'\"",
    "by_header": "sql: \"exists(headers, h -> h.key = 'trace')\"",
    "by_time": 'sql: "minute(timestamp) = 0 AND second(timestamp) < 10"',
    "by_value": 'sql: "length(value) > 450"',
    "json_path": "sql: \"get_json_object(cast(value AS string), '$.inner.x') = '4'\"",
    "binary_value": "sql: \"event.blob = X'00FF80'\"",
    "raised": "sql: \"raise_error('no') IS NULL\"",
    "bad_assert": 'sql: "assert_true(event.amount > 100) IS NULL"',
    "flag_itself": 'sql: "event.flag"',
    "not_flag": 'sql: "NOT event.flag"',
    "field_text": "field: {column: event.game, equals: poker}",
    "field_number": "field: {column: event.amount, equals: 5}",
    "field_number_as_text": "field: {column: event.amount, equals: '5'}",
    "field_double": "field: {column: event.price, equals: 5.5}",
    "field_flag": "field: {column: event.flag, equals: true}",
    "field_flag_as_text": "field: {column: event.flag, equals: 'true'}",
    "field_day": "field: {column: event.day, equals: '1915-02-03'}",
    "field_one_of": "field: {column: event.game, one_of: [uno, Rummy, 5]}",
    "field_regex": "field: {column: event.gamer, regex: '(?i)G[0-9]'}",
    "field_exists": "field: {column: event.inner.deep, exists: true}",
    "field_missing": "field: {column: event.amount, exists: false}",
    "field_raw": "field: {column: partition, one_of: [0, 2]}",
    "all_of": "all: [{sql: 'event.flag'}, {field: {column: event.game, equals: poker}}]",
    "any_of": "any: [{sql: 'event.amount / 0 > 1'}, {field: {column: event.game, equals: poker}}]",
    "not_of": "not: {sql: 'event.amount > 3'}",
    "not_raising": "not: {sql: '10 / event.amount > 3'}",
    "a_strangers": "odd: {}",
}
PROJECTIONS = {
    "division": ["event.game", "10 / event.amount AS share"],
    "casts": ["event.game", "cast(event.gamer AS int) AS n"],
    "item": ["event.tags[2] AS third", "event.rounds[1].n AS n"],
    "missing_key": ["event.scores['first'] AS first", "event.scores['no'] AS none"],
    "overflow": ["cast(event.amount * 100 AS tinyint) AS t"],
    "sums": ["event.amount + event.small AS s", "event.price * 2 AS d", "event.cost / 3 AS c", "event.ratio + 1 AS r"],
    "texts": ["lower(event.game) AS low", "concat(event.game, '-', event.amount) AS both", "length(event.gamer) AS n"],
    "dates": ["to_date(event.at) AS d", "date_add(event.day, 1) AS e", "unix_micros(event.at) AS u"],
    "bad_date": ["to_timestamp(event.gamer) AS t"],
    "nested": ["struct(event.game, event.amount AS n) AS s", "array(event.amount) AS a", "map('k', event.gamer) AS m"],
    "raw": ["key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers"],
    "stars": ["event.inner.*", "event.*"],
    "literals": ["1 AS one", "1.5 AS dec", "'x' AS x", "true AS yes", "cast(NULL AS int) AS no"],
    "conditional": ["CASE WHEN event.flag THEN 'yes' WHEN event.flag IS NULL THEN 'none' ELSE 'no' END AS f"],
    "rows": ["transform(event.rounds, r -> coalesce(r.n, 0)) AS ns", "event.rounds.n AS some"],
    "raises": ["event.game", "cast(raise_error(event.game) AS string) AS e"],
}  # fmt: skip


IN_TASKS = (
    *["all_of_it", "in_list", "deep", "doubles", "nulls", "null_safe", "not_null", "coalesced", "either_way"],
    *["flag_itself", "not_flag", "by_offset", "by_topic", "field_text", "field_flag", "field_exists", "field_missing"],
    *["all_of", "not_of", "starts", "ends", "holds", "both", "named", "nan", "less"],
)
"""Rules that have a twin in Arrow."""
MORE_RULES = {
    "starts": "sql: \"event.gamer LIKE 'g1%'\"",
    "ends": "sql: \"endswith(event.gamer, '7')\"",
    "holds": "sql: \"event.gamer LIKE '%2%'\"",
    "both": "sql: 'event.flag AND event.amount > 3 OR event.price < 5'",
    "named": "sql: \"concat(event.game, '/', event.amount) = 'uno/5'\"",
    "nan": "sql: \"event.price = double('NaN') OR event.price > 60\"",
    "less": "sql: 'event.small <= event.amount'",
}


def _rules(rules: dict[str, str], ddl: str) -> str:
    routes = [
        f"  - name: {name}\n    match: {{{rule}}}\n    select: [offset]\n    sinks: [{{delta: silver.{name}}}]\n"
        for name, rule in rules.items()
    ]
    return f"{HEAD}decode: {{json: '{ddl}'}}\nroutes:\n{''.join(routes)}"


def _projections() -> str:
    routes = []
    for name, columns in PROJECTIONS.items():
        written = ", ".join(f'"{column}"' for column in columns)
        routes.append(
            f"  - name: {name}\n    match: {{sql: 'event.small < 6'}}\n    select: [{written}]\n"
            f"    sinks: [{{delta: silver.{name}}}]\n"
        )
    return f"{HEAD}decode: {{json: '{EVERY_TYPE}'}}\nroutes:\n{''.join(routes)}"


def _named(decode: str) -> str:
    return f"""{HEAD}decode: {{json: '{decode}'}}
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    sinks:
      - tables: {{table: "silver.{{event.game}}", at_most: 9}}
      - tables: {{table: "gold.{{event.game}}_of_{{event.gamer}}", columns: all, collisions: accept}}
      - delta: silver.every_game
"""


def _games(*names: str) -> Taken:
    return Taken(given([{"game": name, "gamer": "g"} for name in names]))


def _with(text: str, batch: Taken) -> Taken:
    return Taken(batch.records, text, batch.schemas, batch.approve)


RAW = f"""{HEAD}decode: {{json: "game string, amount int"}}
landing: {{spread: by_table, file_bytes: 2048}}
routes:
  - name: topics
    match: {{field: {{column: topic, one_of: [bets, "Logins", "a.b"]}}}}
    select: ["event.*", partition, "offset AS at"]
    sinks: [{{tables: "silver.{{topic}}_{{partition}}"}}]
  - name: keys
    match: {{sql: "key IS NOT NULL"}}
    select: ["cast(key AS string) AS key", "struct(topic, partition, offset) AS place", "headers[0].value AS trace"]
    sinks: [{{tables: "gold.{{key}}"}}, {{delta: gold.keys}}]
"""
OF_TOPICS = tuple(
    Given(f'{{"game": "{game}", "amount": {i}}}'.encode(), key, topic, i % 2, ((("trace", b"\0"),) if i % 3 else None))
    for i, (game, key, topic) in enumerate(
        (game, key, topic)
        for game in ("uno", "poker")
        for key in (b"a", b"B", b"\xff", b"", None, b"a/b")
        for topic in ("bets", "Logins", "a.b", "other")
    )
)
EVENTS = [event(i) for i in range(60)]
CAPPED = f"""{HEAD}decode: {{json: "game string, gamer string"}}
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    sinks: [{{tables: {{table: "silver.{{event.game}}", at_most: 3}}}}, {{delta: silver.every_game}}]
"""
SHARED = f"""{HEAD}decode: {{json: "id int, kind string, n int"}}
routes:
  - name: numbers
    match: {{sql: "event.kind = 'number' OR event.kind = 'both'"}}
    select: [event.id, "event.n AS n", "event.n * 2 AS twice", "struct(event.n AS a) AS s"]
    sinks: [{{delta: silver.shared}}]
  - name: texts
    match: {{sql: "event.kind = 'text' OR event.kind = 'both'"}}
    select: [event.id, "cast(event.n AS string) AS n", "event.kind AS kind", "struct(event.kind AS b) AS s"]
    sinks: [{{delta: silver.shared}}]
"""
MIXED = [
    *[{"id": 1, "kind": "number", "n": 1}, {"id": 2, "kind": "text", "n": 2}, {"id": 3, "kind": "text"}],
    *[{"id": 4, "kind": "both", "n": 4}, {"id": 5, "kind": "both"}, {"id": 6, "kind": "none"}],
]
FAILS = f"""{HEAD}decode: {{json: "game string, amount int"}}
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    expect: [{{name: sane, sql: "event.amount > 0", otherwise: fail}}, {{name: low, sql: "event.amount < 9"}}]
    sinks: [{{tables: "silver.{{event.game}}"}}]
  - name: all
    match: {{sql: "event.game IS NOT NULL"}}
    expect: [{{name: shares, sql: "10 / event.amount > 1", otherwise: fail}}]
    sinks: [{{delta: gold.all}}]
"""
AMOUNTS = [{"game": "uno", "amount": amount} for amount in (1, 5, 9)]
SCENARIOS = (
    Scenario(
        "routes_of_every_type",
        "Three routes with expectations of every kind and a sink that refuses, over events of every type and garbage",
        (
            Taken(
                given(shuffled([*EVENTS, *GARBAGE]), partitions=3, headers=True),
                f"{HEAD}decode: {{json: '{EVERY_TYPE}'}}\n{ROUTES}",
            ),
            Taken(given(texts(40))),
            Taken(()),
            Taken(given([b"only", None, b"garbage"], partitions=2)),
        ),
    ),
    Scenario(
        "routes_in_tasks",
        "Routes whose expressions all have a twin in Arrow, so that one stage decodes, matches and lands",
        (
            Taken(
                given(shuffled([*EVENTS, *GARBAGE]), partitions=3, headers=True),
                f"{HEAD}decode: {{json: '{PLAIN}'}}\n{LANDED}",
            ),
            Taken(given(texts(40))),
            Taken(given([b"only", None, b"garbage"], partitions=2)),
        ),
    ),
    Scenario(
        "rules",
        "One route per kind of rule: which records each of them takes, and what becomes of those on which one raises",
        (Taken(given([*EVENTS[:40], {}, b"garbage", None], partitions=3, headers=True), _rules(RULES, EVERY_TYPE)),),
    ),
    Scenario(
        "rules_in_tasks",
        "One route per kind of rule that tasks evaluate themselves",
        (
            Taken(
                given([*EVENTS[:40], {}, b"garbage", None], partitions=3),
                _rules({name: {**RULES, **MORE_RULES}[name] for name in IN_TASKS}, PLAIN),
            ),
        ),
    ),
    Scenario(
        "projections",
        "One route per kind of projection, of which some raise on some rows",
        (Taken(given([*EVENTS[:30], {"game": "alone", "small": 1}], partitions=2, headers=True), _projections()),),
    ),
    Scenario(
        "names",
        "Table names that nobody should send",
        (
            Taken(given([{"game": name, "gamer": "g"} for name in NAMES]), _named("game string, gamer string")),
            Taken(given([*({"game": "uno", "gamer": name} for name in NAMES[:16]), {"game": "uno"}, {}])),
        ),
    ),
    Scenario(
        "capped",
        "More table names than a sink may have, before and after a restart",
        (
            _with(CAPPED, _games("c", "d", "c")),
            _games("e", "c", "b", "a", "e", "a"),
            _games("b", "a", "f"),
            _with(CAPPED, _games("e", "c")),
        ),
    ),
    Scenario(
        "raw_columns",
        "Rules, projections and table names over topics, keys and headers; rows shuffled so that a table's meet",
        (Taken(OF_TOPICS, RAW), Taken(OF_TOPICS[:9])),
    ),
    Scenario(
        "shared",
        "Two routes into one table: one has numbers where the other has texts, and each a column of its own",
        (Taken(given(MIXED), SHARED), Taken(given(MIXED))),
    ),
    Scenario(
        "fails",
        "Expectations that stop the stream, by what they say and by what raises; then the batch is better",
        (
            Taken(given(AMOUNTS), FAILS),
            Taken(given([*AMOUNTS, {"game": "uno", "amount": 0}, {"game": "uno"}])),
            Taken(given([*AMOUNTS, {"amount": 3}])),
        ),
    ),
    Scenario(
        "unmatched_dropped",
        "What no route takes is dropped; no bronze",
        (
            Taken(
                given([{"game": "uno"}, {"game": None}, {}, b"garbage", {"game": "poker"}, None]),
                HEAD.replace("bronze: bronze.all\n", "unmatched: drop\n")
                + "decode: {json: 'game string'}\nroutes:\n  - name: games\n    match: {sql: \"event.game = 'uno'\"}\n"
                "    sinks: [{delta: silver.games}]\n",
            ),
        ),
    ),
    Scenario(
        "no_routes",
        "Nothing but bronze: every event is unmatched",
        (Taken(given([{"game": "uno"}, b"garbage", None, {}]), HEAD + "decode: {json: 'game string'}\n"),),
    ),
)
