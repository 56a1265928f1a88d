"""What belongs together, and what excludes each other, is checked at its place."""

from __future__ import annotations

from datetime import timedelta

import pytest

from router.config.models import parse_interval, parse_zoned_moment


@pytest.mark.parametrize(
    ("old", "new", "path", "what"),
    [
        (
            "  kafka: {servers: ",
            "  files: {path: x}\n  kafka: {servers: ",
            "source.kafka",
            "`files` is the source already",
        ),
        ('kafka: {servers: "127.0.0.1:9092", topics: [game-events]}', "{}", "source", "names no kind"),
        ('{servers: "127.0.0.1:9092", topics: [game-events]}', "", "source.kafka", "has no options"),
        (", topics: [game-events]", "", "source.kafka", "names no topics"),
        ("topics: [game-events]", "topics: []", "source.kafka", "names no topics"),
        ("topics:", "pattern: game.*, topics:", "source.kafka.pattern", "is set together with `topics`"),
        ("topics:", "start_time: today, topics:", "source.kafka.start_time", "is not a time with a zone"),
        ("decode:", "trigger: {}\ndecode:", "trigger", "chooses nothing"),
        ("decode:", "trigger: {once: false}\ndecode:", "trigger", "chooses nothing"),
        ("decode:", "trigger: {once: true, every: 5 s}\ndecode:", "trigger.every", "`once` is the trigger already"),
        ("decode:", "trigger: {every: 5 parsec}\ndecode:", "trigger.every", "is not an interval"),
        ("decode:", "bronze: ops.ledger\ndecode:", "bronze", "`ledger` and `bronze` are the same table"),
        ("ops.dead_letters", "ops.ledger", "dead_letters", "`ledger` and `dead_letters` are the same table"),
        ("silver.big", "ops.dead_letters", "routes.0.sinks.0", "the sink writes to the table of `dead_letters`"),
        ("silver.big", "ops.ledger", "routes.0.sinks.0", "the sink writes to the table of `ledger`"),
        ("decode:", "bronze: silver.{topic}\ndecode:", "routes.0.sinks.0", "the sink writes to the table of `bronze`"),
        ("decode:", "bronze: a.{topic}_{topic}\ndecode:", "bronze", "must be layer.table: lower-case letters"),
        ("decode:", 'bronze: "{topic}.x"\ndecode:', "bronze", "must be layer.table: lower-case letters"),
        ("game-events]", "a.b]}\nbronze: b.{topic}\n#", "source.kafka.topics.0", "bronze has a table for each topic"),
        ("[{fixed: silver.big}]", "[]", "routes.0.sinks", "must be a list of at least 1, not a list of 0"),
        ("ops.dead_letters", "../x", "dead_letters", "must be layer.table: lower-case letters"),
        ("ops.dead_letters", "_x.y", "dead_letters", "must be layer.table: lower-case letters"),
    ],
)
def test_fault(faults, good, old, new, path, what):
    (problem,) = faults(good.replace(old, new))

    assert path == problem.path
    assert problem.what.startswith(what)


@pytest.mark.parametrize("every", ["10 s", "5 min", "500 ms", "1.5h", "2 minutes"])
def test_trigger(loaded, good, every):
    assert loaded(good + f"trigger: {{every: {every}, once: false}}\n").config.trigger.every == every


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("subscribe", "write source.kafka.topics"),
        ("subscribePattern", "write source.kafka.pattern"),
        ("assign", "write source.kafka.topics"),
        ("startingOffsets", "write source.kafka.start"),
        ("STARTINGOFFSETS", "write source.kafka.start"),
        ("kafka.bootstrap.servers", "write source.kafka.servers"),
        ("includeHeaders", "headers are always read"),
        ("maxOffsetsPerTrigger", "write source.kafka.rows_per_batch"),
        ("security.protocol", "written `kafka.security.protocol`"),
        ("failOnDataLos", "did you mean `failOnDataLoss`?"),
    ],
)
def test_kafka_option_is_refused(faults, good, option, hint):
    (problem,) = faults(good.replace("topics:", f"options: {{{option}: a}}, topics:"))

    assert problem.path == f"source.kafka.options.{option}"
    assert hint in problem.hint


@pytest.mark.parametrize("value", ["false", '"False"', '"${LOSS:-false}"'])
def test_spark_may_not_pass_over_lost_records(faults, good, value):
    """Without it records that Kafka has deleted are missing and nobody is told."""
    (problem,) = faults(good.replace("topics:", f"options: {{failOnDataLoss: {value}}}, topics:"))

    assert problem.path == "source.kafka.options.failOnDataLoss"
    assert "--accept lost-records" in problem.hint


@pytest.mark.parametrize("option", ["kafka.group.id", "kafka.security.protocol", "failOnDataLoss", "minPartitions"])
def test_kafka_option_is_passed(loaded, good, option):
    config = loaded(good.replace("topics:", f"options: {{{option}: 1}}, topics:")).config

    assert config.source.kafka.options[option].get_secret_value() == "1"


def test_names_are_given_once(faults, good):
    expect = "    expect: [{name: a, sql: x}, {name: a, sql: y}]\n"
    route = good[good.index("  - name: big") : good.index("dead_letters")] + expect

    first, second = faults(good.replace("dead_letters:", route + "dead_letters:"))

    assert (first.path, first.what) == ("routes.1.name", "the route at line 7 has the same name")
    assert (second.path, second.what) == ("routes.1.expect.1.name", "the expectation at line 13 has the same name")


SHARED = "expectations: [{name: sane, sql: event.amount > 0, otherwise: drop}]\nroutes:"


def test_routes_name_expectations_that_they_share(loaded, good):
    found = loaded(
        good.replace("routes:", SHARED).replace("    sinks:", "    expect: [sane, {name: b, sql: x}]\n    sinks:")
    )
    (route,) = found.config.routes

    assert [(one.name, one.otherwise) for one in route.expect] == [("sane", "drop"), ("b", "dead_letter")]


@pytest.mark.parametrize(
    ("shared", "expect", "path", "what"),
    [
        (SHARED, "[insane]", "routes.0.expect.0", "no expectation of `expectations` is called insane"),
        (SHARED, "[sane, sane]", "routes.0.expect.1", "the expectation at line 10 has the same name"),
        (SHARED.replace("drop", "sigh"), "[sane]", "expectations.0.otherwise", "must be"),
        (SHARED.replace("}]", "}, {name: sane, sql: x}]"), "[sane]", "expectations.1.name", "the expectation at line"),
    ],
)
def test_faults_of_shared_expectations_are_told_once(faults, good, shared, expect, path, what):
    text = good.replace("routes:", shared).replace("    sinks:", f"    expect: {expect}\n    sinks:")
    (problem,) = faults(text)

    assert problem.path == path
    assert problem.what.startswith(what)


def test_routes_may_be_left_out_for_bronze_only(loaded, faults, good):
    without = good[: good.index("routes:")] + good[good.index("dead_letters:") :]

    (problem,) = faults(without)

    assert problem.what == "nothing would be written: no routes and no bronze"
    assert loaded(without + "bronze: bronze.events\n").config.routes == ()


def test_topics_of_which_bronze_cannot_have_a_table_each_are_refused(loaded, faults, good):
    text = good + "bronze: bronze.{topic}\n"
    several = text.replace("[game-events]", '[game-events, ops, "${OTHER}", b]')

    assert loaded(text).config.bronze_tables().table_of("game-events") == "bronze.game_events"
    assert loaded(several, OTHER="uno").config.source.kafka.topics == ("game-events", "ops", "uno", "b")
    for other in ("game_events", "Game-Events", "a.b", "aux"):
        (problem,) = faults(several, OTHER=other)
        assert problem.path == "source.kafka.topics.2"
        assert other not in problem.what + problem.hint  # it comes from a variable
    dead = several.replace("ops.dead_letters", "bronze.b").replace("${OTHER}", "c")
    assert [problem.path for problem in faults(dead)] == ["source.kafka.topics.3"]


@pytest.mark.parametrize(
    ("template", "rule", "refused"),
    [
        ("s.{event.x}_{event.y}", "where: a", True),
        ("s.{event.x}{event.y}", "where: a", True),
        ("s.{event.x}", "where: a", False),
        ("s.{event.x}_{partition}", "where: a", False),
        ("s.{partition}{event.x}", "where: a", True),
        ("s.{event.x}_{event.y}", "equals: {field: event.y, value: win loss}", False),
        ("s.{event.x}_{event.y}", "equals: {field: event.y, value: win big_win}", True),
        ("s.{event.x}_{topic}", "where: a", False),
    ],
)
def test_names_that_rows_could_share_are_refused(loaded, faults, good, template, rule, refused):
    text = good.replace("where: event.amount > 9000", rule).replace("{fixed: silver.big}", f'{{fixed: "{template}"}}')

    if not refused:
        assert loaded(text)
        return
    (problem,) = faults(text)
    assert (problem.path, problem.line) == ("routes.0.sinks.0.fixed", 9)
    assert "could name one table" in problem.what
    assert "`select`" in problem.hint


def test_what_folds_to_one_table_is_refused(loaded, faults, good):
    """A hyphen of the query's name, of a route's or of a topic's is an underscore in names of tables."""
    route = good[good.index("  - name: big") : good.index("dead_letters")]
    both = good.replace(
        "dead_letters:", route.replace("big", "big-er") + route.replace("big", "big_er", 1) + "dead_letters:"
    )
    (problem,) = faults(both)
    assert (problem.path, problem.line) == ("routes.2.name", 13)
    assert "makes the same tables" in problem.what

    named = good.replace("name: games", "name: ga-mes").replace("{fixed: silver.big}", '{fixed: "silver.{topic}"}')
    assert loaded(named).config.name == "ga-mes"
    (problem,) = faults(named.replace("[game-events]", "[game-events, game.events, game_events]"))
    assert problem.path == "source.kafka.topics.2"


def test_checks_speak_beside_other_mistakes(faults, good):
    problems = faults(good.replace("silver.big", "ops.ledger").replace("name: games", "nam: games"))

    assert {"routes.0.sinks.0", "nam", ""} == {problem.path for problem in problems}


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("silver.{event.game", "the brace at character 8 has no partner"),
        ("silver.{}", "the braces at character 8 hold no field"),
        ("silver.{ }_a", "the braces at character 8 hold no field"),
    ],
)
def test_a_template_of_any_sink_pairs_its_braces(faults, good, table, what):
    """Without it a sink of a plugin writes tables that no command, view or location of the router recognises."""
    (problem,) = faults(good.replace("silver.big", f'"{table}"'))

    assert problem.path.startswith("routes.0.sinks.0")
    assert what in problem.what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 ms", timedelta(milliseconds=500)),
        ("10 s", timedelta(seconds=10)),
        ("10s", timedelta(seconds=10)),
        ("0.5 min", timedelta(seconds=30)),
        ("2 hours", timedelta(hours=2)),
    ],
)
def test_interval(text, expected):
    assert expected == parse_interval(text)


@pytest.mark.parametrize("text", ["", "10", "s", "-1 s", "0 s", "0.0 ms", "1 week", "1 s 2 ms", "1e3 s", "\u0661 s"])
def test_not_an_interval(text):
    with pytest.raises(ValueError, match="is not an interval"):
        parse_interval(text)


@pytest.mark.parametrize("text", ["2025-01-31T12:00:00Z", "2025-01-31T12:00:00+02:00", "2025-01-31 12:00:00.5z"])
def test_moment(text):
    assert parse_zoned_moment(text).tzinfo is not None


@pytest.mark.parametrize("text", ["", "today", "2025-01-31T12:00:00", "2025-13-01T00:00:00Z"])
def test_not_a_moment(text):
    with pytest.raises(ValueError, match="is not a time with a zone"):
        parse_zoned_moment(text)


BIG = "[{fixed: silver.big}]"


@pytest.mark.parametrize(
    ("sinks", "more", "what"),
    [
        ('{table: "silver.{event.game}", location: "/data/{event.game}"}', "", None),
        ('{table: "silver.{event.game}", location: {place: "s3://l-{event.game}"}}', "", None),
        ('{table: "silver.{event.game}", location: /data}', "", "all tables of the sink would lie in one place"),
        ("{table: silver.big, location: ./lake/big}", "", "a table could lie within `lake`"),
        ("{table: silver.big, location: .}", "", "a table could lie within `lake`"),
        ("{table: silver.big, location: /c/x}", "checkpoint: /c\n", "a table could lie within `checkpoint`"),
        ("{table: silver.big, location: s4://b/x}", "", "s4://b/x: s4:// is not a storage"),
        ("{table: silver.big, location: 's3://b/{x'}", "", "the brace at character 8 has no partner"),
        ("{table: silver.big, location: 'abfss://c@{table}.y.z/x'}", "", "a field can stand in the bucket"),
        (
            '{table: "silver.{event.game}", location: "s3://l-{event.game}"}',
            'bronze: {table: "bronze.{topic}", location: "s3://l-{topic}"}\n',
            "a table could lie where one does by the location at line 10, or within it",
        ),
        (
            '{table: "silver.{event.game}", location: "/a/{table}"}}, {fixed: {table: silver.big, location: /b}',
            "",
            "a table could have this location, and that at line",
        ),
        ('{table: "silver.{event.game}", location: "/a/{table}"}}, {fixed: {table: silver.big}', "", None),
        (
            '{table: "silver.{event.game}", location: "s3://l/a/{table}"}}, '
            "{fixed: {table: gold.big, location: {place: s3://l/b, storage_options: {aws_region: eu-west-1}}}",
            "",
            "the bucket l has other options at line",
        ),
        (
            "{table: silver.big, location: {place: s3://l/b, storage_options: {aws_region: a}}}}, "
            "{fixed: {table: silver.big, location: {place: s3://l/b, storage_options: {aws_region: b}}}",
            "",
            "the bucket l has other options at line",
        ),
        (
            '{table: "silver.{event.game}", location: "s3://l/a/{table}"}}, {fixed: {table: gold.big, location: s3://l/b}',
            "",
            None,
        ),
    ],
)  # fmt: skip
def test_locations(loaded, faults, good, sinks, more, what):
    text = good.replace(BIG, f"[{{fixed: {sinks}}}]").replace("dead_letters:", f"{more}dead_letters:")
    if what is None:
        assert loaded(text).config.table_locations()
        assert loaded(text).with_debug_places().config.table_locations() == ()
        return
    (problem,) = faults(text)

    assert problem.what.startswith(what)
    assert problem.path.split(".")[-1] in ("location", "place")


def test_a_scheme_is_said_though_the_address_comes_from_a_variable(faults, good):
    """Without it nobody learns from the message which storages there are."""
    text = good.replace("lake: ", "lake: ${LAKE}\n# ", 1)

    (problem,) = faults(text, LAKE="dbfs:/secret-folder")

    assert "DBFS" in problem.what
    assert "s3://" in problem.what
    assert "secret-folder" not in problem.what
