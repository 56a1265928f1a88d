"""A configuration is loaded whole, or every mistake in it is reported at its place."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from router import ConfigError, Problem
from router.config.loader import load_config
from router.registry import load_registry
from tests.config.conftest import GOOD

TEN_MISTAKES = """\
name: Games
lak: ./lake
source:
  kafka: {servers: "${KAFKA}", topics: [a], start: lates}
decode: {txt: }
routes:
  - name: big
    match: {where: {sq: "1"}}
    sinks: [{post: {url: "http://x", calls: many, login: {password: [1]}}}]
dead_letters: ops.dead_letters
ledger: ops.dead_letters
"""


def test_ten_mistakes_are_all_reported_exactly(faults):
    lake = "add `lake`: folder or URI; the table layer.table lives at lake/layer/table"
    name = "must be a name: lower-case letters, digits, _ and -, at most 64, a letter first, not 'Games'"
    unset = "set it, or give a default: ${KAFKA:-...}"
    expected = [
        (1, 1, "", "`lake` is missing", lake),
        (1, 7, "name", name, ""),
        (2, 1, "lak", "unknown key", "did you mean `lake`? known keys: `router help configuration`"),
        (4, 20, "source.kafka.servers", "the variable KAFKA is not set", unset),
        (
            4,
            52,
            "source.kafka.start",
            "must be 'earliest' or 'latest' or a mapping, not 'lates'",
            "did you mean `latest`?",
        ),
        (5, 10, "decode.txt", "there is no decoder `txt`", "did you mean `text`? known decoders: text"),
        (8, 20, "routes.0.match.where", "`sql` is missing", "add `sql`: a condition over `event`"),
        (8, 21, "routes.0.match.where.sq", "unknown key", "did you mean `sql`? known keys: sql"),
        (9, 45, "routes.0.sinks.0.post.calls", "must be a whole number, not 'many'", ""),
        (9, 69, "routes.0.sinks.0.post.login.password", "must be text", ""),
        (11, 9, "ledger", "`ledger` and `dead_letters` are the same table", "give each a table of its own"),
    ]

    problems = faults(TEN_MISTAKES)

    assert [Problem("games.yaml", *fields) for fields in expected] == list(problems)


def test_error_prints_one_problem_a_line(loaded):
    with pytest.raises(ConfigError) as caught:
        loaded(TEN_MISTAKES)

    lines = str(caught.value).splitlines()
    assert len(caught.value.problems) == len(lines)
    assert lines[2].startswith("games.yaml:2:1: lak: unknown key; did you mean `lake`?")


def test_good_file_becomes_a_config(loaded, good):
    result = loaded(good)

    assert result.config.name == "games"
    assert result.config.routes[0].match.sql == "event.amount > 9000"
    assert result.config.routes[0].sinks[0].table() == "silver.big"
    assert result.path == Path("games.yaml")


def test_a_retention_that_is_too_short_has_to_be_said_twice(loaded, faults, good):
    """Without it a slip of the pen deletes files that readers and batches need."""
    short = "maintenance: [{tables: 'silver.*', retention: 1 h}]\n"

    assert "unsafe: true" in faults(short + good)[0].what
    assert loaded(short.replace("1 h", "1 h, unsafe: true") + good).config.maintenance[0].unsafe


@pytest.mark.parametrize(
    ("lake", "other"),
    [
        ("./lake", "./lake_debug"),
        ("s3://bucket/lake/", "s3://bucket/lake_debug"),
        ("s3://bucket", "s3://bucket/_debug"),
    ],
)
def test_debugging_has_places_of_its_own(loaded, good, lake, other):
    """Without it a try-out writes into the real tables, or takes batches from the real checkpoint."""
    config = loaded(f"debug: true\ncheckpoint: /var/games\n{good.replace('./lake', lake)}").config

    assert (config.lake, config.checkpoint_path()) == (other, "/var/games_debug")
    assert loaded(good).with_debug_places().config.checkpoint_path() == "./lake_debug/_router/games"


def test_rules_nest(loaded, good):
    nested = "both: [{never: {where: a}}, {never: {rule: {both: {rules: [{where: b}]}}}}]"

    match = loaded(good.replace("where: event.amount > 9000", nested)).config.routes[0].match

    assert match.rules[0].rule.sql == "a"
    assert match.rules[1].rule.rules[0].sql == "b"


def test_fault_deep_inside_nested_rules_has_its_place(faults, good):
    nested = "both: [{where: a}, {never: {both: [{wher: b}]}}]"

    (problem,) = faults(good.replace("where: event.amount > 9000", nested))

    assert problem.path == "routes.0.match.both.1.never.both.0.wher"
    assert (problem.line, problem.column) == (8, 13 + nested.index("wher: b"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [("8", "8"), ("1.50", "1.50"), ("false", "false"), ("0x10", "0x10"), ("no", "no"), ("2025-01-31", "2025-01-31")],
)
def test_text_is_taken_as_written(loaded, good, written, meant):
    """A user would lose `0x10` or `no` to YAML's types, or have to quote every number."""
    assert loaded(good + f"spark: {{a: {written}}}\n").config.spark == {"a": meant}


def test_fingerprint_ignores_layout_comments_and_secrets(loaded, good):
    text = good + "storage_options: {key: '${KEY}'}\n"
    other = "# a comment\n" + good.replace("{text: }", "\n  text:") + "storage_options:\n  key: ${KEY}\n"

    assert loaded(text, KEY="one").fingerprint == loaded(other, KEY="two").fingerprint
    assert loaded(good).fingerprint != loaded(text, KEY="one").fingerprint


def test_repr_shows_no_secret(loaded, good):
    text = good.replace("topics:", "options: {kafka.password: hunter2}, topics:") + "storage_options: {key: '${KEY}'}\n"

    result = loaded(text, KEY="hush-hush")

    assert "hunter2" not in repr(result) + str(result) + str(result.config)
    assert "hush-hush" not in repr(result) + str(result) + str(result.config)
    assert result.config.storage_options["key"].get_secret_value() == "hush-hush"


@pytest.mark.parametrize(
    "line",
    ["lake: [${S}]", "commit: ${S}", "name: ${S}", "ledger: ${S}", "landing: {spread: ${S}}", "trigger: {every: ${S}}"],
)
@pytest.mark.parametrize("secret", ["hunter2!", "0123456", "[", "x y: z"])
def test_no_message_shows_a_variable(loaded, good, line, secret):
    key = line.partition(":")[0]
    kept = "".join(kept for kept in good.splitlines(keepends=True) if not kept.startswith(key))
    with pytest.raises(ConfigError) as caught:
        loaded(kept + line.replace("${S}", "'${S}'") + "\n", S=secret)

    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert secret == "[" or secret not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_validators_of_plugins_cannot_print_a_variable(faults, good):
    post = good.replace("fixed: silver.big", "post: {url: '${URL}'}")

    (problem,) = faults(post, URL="sekret-host")

    assert problem.what == "is not accepted (value_error)"
    assert problem.path == "routes.0.sinks.0.post.url"


def test_validators_of_plugins_speak_about_plain_values(faults, good):
    (problem,) = faults(good.replace("fixed: silver.big", "post: {url: host}"))

    assert problem.what == "host is not a URL"


@pytest.mark.parametrize(("url", "shown"), [("ftp://x", "KeyError"), ("${URL}", "is not accepted (part_failed)")])
def test_validators_that_crash_are_problems(faults, good, url, shown):
    (problem,) = faults(good.replace("fixed: silver.big", f"post: {{url: '{url}'}}"), URL="ftp://sekret")

    assert shown in problem.what
    assert "sekret" not in str(problem)


@pytest.mark.parametrize("kind", ["value_error", "greater_than", "too_short", "router_fault", "mine"])
def test_validators_may_use_any_type_of_error(faults, good, kind):
    (problem,) = faults(good.replace("fixed: silver.big", f"post: {{url: 'own:{kind}'}}"))

    assert problem.what == "an error of its own"


def test_unset_variable_hides_what_follows_from_it(faults, good):
    text = good.replace("fixed: silver.big", "post: {url: '${URL}', calls: '${CALLS}', mode: '${MODE}'}")

    assert [problem.path.rpartition(".")[2] for problem in faults(text)] == ["url", "calls", "mode"]


@pytest.mark.parametrize(
    ("retry", "what"),
    [
        ("often", "must be a whole number or 'never', not 'often'"),
        ("[1]", "must be a whole number or 'never', not a list of 1"),
        ("{a: 1}", "must be a whole number or 'never', not a mapping"),
    ],
)
def test_union_is_one_problem(faults, good, retry, what):
    (problem,) = faults(good.replace("fixed: silver.big", f"post: {{url: 'http://x', retry: {retry}}}"))

    assert what == problem.what


def test_fault_inside_one_member_of_a_union_speaks_for_it(faults, good):
    (problem,) = faults(good.replace("topics:", "start: {game-events: {0: x}}, topics:"))

    assert problem.path == "source.kafka.start.game-events.0"
    assert problem.what == "must be a whole number, not 'x'"


def test_problem_of_a_later_check_has_its_place(loaded, good):
    problem = loaded(good).problem_at(("routes", 0, "match", "where", "sql"), "no such column")

    assert Problem("games.yaml", 8, 20, "routes.0.match.where", "no such column") == problem


@pytest.mark.parametrize(
    ("content", "what"),
    [(None, "cannot be read: No such file or directory"), (b"name: \xff", "is not UTF-8 text (byte 7)")],
)
def test_unreadable_file_is_a_problem(registry, tmp_path, content, what):
    path = tmp_path / "games.yaml"
    if content:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_config(path, registry)

    assert what == caught.value.problems[0].what


def test_file_is_read_with_its_environment(registry, tmp_path, good, monkeypatch):
    path = tmp_path / "games.yaml"
    path.write_text("\ufeff" + good.replace("./lake", "${THE_LAKE}"), encoding="utf-8")
    monkeypatch.setenv("THE_LAKE", "/data")

    assert load_config(path, registry).config.lake == "/data"


@pytest.mark.parametrize("options", ["{table: silver.big}", "silver.big"])
def test_option_may_be_a_field_of_another_name(loaded, good, options):
    assert loaded(good.replace("silver.big", options)).config.routes[0].sinks[0].table() == "silver.big"


def test_fault_of_an_option_has_the_name_that_is_written(faults, good):
    (missing,) = faults(good.replace("silver.big", ""))
    _, unknown = faults(good.replace("silver.big", "{tabel: silver.big}"))

    assert (missing.what, missing.hint) == ("`table` is missing", "add `table`: the table, as layer.table")
    assert unknown.hint.startswith("did you mean `table`?")


def test_a_long_list_of_keys_is_named_by_its_place():
    """Without it the key that was meant drowns in forty others."""
    text = GOOD.replace("{fixed: silver.big}", "{rest: {url: 'http://localhost', call_per_second: 5, colour: red}}")
    with pytest.raises(ConfigError) as caught:
        load_config(Path("games.yaml"), load_registry(), environ={}, text=text.replace("{text: }", "{json: n int}"))

    of_rest = [problem for problem in caught.value.problems if problem.path.startswith("routes.0.sinks")]
    near, far = [problem.hint for problem in of_rest if problem.what == "unknown key"]
    assert near.startswith("did you mean `calls_per_second` or `rows_per_second`? known keys: `router plugins rest`")
    assert far == "known keys: `router plugins rest`"


def test_several_sources_are_shown_the_way_to_write_them(faults, good):
    """Without it whoever has topics of several formats finds no way to read them in one configuration."""
    (unknown,) = faults(f"{good}sources: []\n")
    assert (unknown.path, unknown.what) == ("sources", "unknown key")
    assert "decode: {by_topic: " in unknown.hint


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        ("${T}", "a,b", ("a", "b")),
        ('"${T}"', " a , b,", ("a", "b")),
        ("${T}", "a", ("a",)),
        ("${T}", '["a,b", c, "1"]', ("a,b", "c", "1")),
        ("${T}", "1,2", ("1", "2")),
        ("${MISSING:-x,y}", "", ("x", "y")),
        ("${T},more", "a,b", ("a", "b", "more")),
    ],
)
def test_a_variable_may_be_a_list(loaded, good, written, value, expected):
    """A container's environment has texts only."""
    text = good.replace(
        '{servers: "127.0.0.1:9092", topics: [game-events]}', f"\n    servers: x:1\n    topics: {written}"
    )

    assert loaded(text, T=value).config.source.kafka.topics == expected


def test_what_is_no_list_is_reported_without_being_shown(faults, good):
    text = good.replace("[game-events]", '"${T}"')

    assert [problem.what for problem in faults(text, T="")] == ["names no topics"]
    (problem,) = faults(text, T='["geheim"')
    assert (problem.path, problem.what) == ("source.kafka.topics", "must be a list")
    assert "must be a list" in faults(good.replace("[game-events]", "a"))[0].what  # only a variable is split
