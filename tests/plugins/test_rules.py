"""The built-in rules: what they say of values, null, other types and missing fields."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from router import Rule
from router.registry import load_registry
from router.testing import check_rule
from router_rules import All, Field, Not, Schema, Sql
from router_rules import Any as AnyOf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = """
    topic string, event struct<
        text: string, whole: int, big: bigint, real: double, short: float, money: decimal(10,2), yes: boolean,
        at: timestamp, day: date, raw: binary, tags: array<int>, player: struct<level: int>, notes: map<string,string>>
"""
FULL: dict[str, Any] = {
    "text": "5", "whole": 5, "big": 2**53 + 1, "real": 5.4, "short": 0.1, "money": Decimal("5.00"), "yes": True,
    "at": dt.datetime(2026, 11, 21, 10, tzinfo=dt.timezone.utc), "day": dt.date(2026, 11, 21), "raw": b"5\xff",
    "tags": [5], "player": {"level": 5}, "notes": {"a": "5"},
}  # fmt: skip


@pytest.fixture(scope="module")
def events(spark: SparkSession) -> DataFrame:
    """Four records by topic: one with every field, one with words, one with null fields, one without an event."""
    blank = dict.fromkeys(FULL)
    words = {**blank, "text": "Uno\n", "whole": -1, "real": float("nan"), "yes": False, "player": {"level": None}}
    rows: list[Any] = [("full", FULL), ("words", words), ("blank", blank), ("no event", None)]
    return spark.createDataFrame(rows, SCHEMA).cache()


def verdicts(events: DataFrame, rules: Sequence[Rule]) -> list[dict[str, bool | None]]:
    """Return what each rule says of each record, from one Spark job."""
    chosen = events.select("topic", *[rule.matches().alias(str(index)) for index, rule in enumerate(rules)])
    rows = chosen.collect()
    return [{row["topic"]: row[str(index)] for row in rows} for index in range(len(rules))]


def matched(events: DataFrame, rules: Sequence[Rule]) -> list[set[str]]:
    """Return the records that each rule matches."""
    return [{name for name, verdict in found.items() if verdict is True} for found in verdicts(events, rules)]


def equals(cases: list[tuple[str, Any]]) -> list[Rule]:
    """Return a rule for each pair of field and value."""
    return [Field(column=f"event.{column}", equals=value) for column, value in cases]


EQUAL: list[tuple[str, Any]] = [
    ("text", "5"), ("text", 5), ("text", 5.0),
    ("whole", 5), ("whole", "5"), ("whole", 5.0),
    ("big", 2**53 + 1), ("big", "9007199254740993"),
    ("real", 5.4), ("real", "5.4"), ("short", 0.1), ("short", "0.1"),
    ("money", 5), ("money", 5.0), ("money", "5.00"),
    ("yes", True), ("yes", "true"),
    ("at", "2026-11-21 10:00:00"), ("day", "2026-11-21"),
    ("player.level", 5), ("tags", "[5]"), ("player", "{5}"), ("notes", "{a -> 5}"),
]  # fmt: skip


def test_a_field_equals_a_value_of_another_type(events: DataFrame) -> None:
    """A game id that is a number in one producer and a text in another is the same game."""
    for case, found in zip(EQUAL, matched(events, equals(EQUAL)), strict=True):
        assert found == {"full"}, case


UNEQUAL: list[tuple[str, Any]] = [
    ("text", "5.0"), ("text", 6), ("text", True), ("text", " 5"),
    ("whole", "5.0"), ("whole", 5.4), ("whole", True), ("whole", "x"), ("whole", ""),
    ("big", 2**53), ("big", float(2**60)),
    ("real", 5), ("real", "NaN "), ("short", 0.10000000149011612),
    ("money", 5.004), ("money", "5"),
    ("yes", 1), ("yes", "True"), ("yes", "yes"),
    ("at", 2026), ("day", "2026"), ("raw", "5"), ("raw", 5),
    ("tags", 5), ("player", 5), ("notes", "a"),
]  # fmt: skip


def test_a_field_does_not_equal_what_only_looks_alike(events: DataFrame) -> None:
    """An event in the wrong table is found too late; a comparison that raises stops the stream."""
    for case, found in zip(UNEQUAL, matched(events, equals(UNEQUAL)), strict=True):
        assert found == set(), case


def test_a_null_field_is_unknown(events: DataFrame) -> None:
    """Null must not match, and must stay null for the rules around it."""
    tests = [{"equals": "5"}, {"one_of": ["5", 7]}, {"regex": ".*"}, {"equals": 5}, {"equals": True}]
    rules = [Field.model_validate({"column": "event.whole", **test}) for test in tests]

    for test, found in zip(tests, verdicts(events, rules), strict=True):
        assert found["blank"] is found["no event"] is None, test


def test_one_of_takes_values_of_any_type(events: DataFrame) -> None:
    """A list of games is the most common rule of all."""
    lists = [["4", "5"], [-1], [-1, "5"], [True, 5.5, "x"]]
    rules = [Field.model_validate({"column": "event.whole", "one_of": values}) for values in lists]

    assert matched(events, rules) == [{"full"}, {"words"}, {"full", "words"}, set()]


PATTERNS: list[tuple[str, str, set[str]]] = [
    ("text", r"\d", {"full"}),
    ("text", "Uno", set()),  # the text has a line break at its end
    ("text", r"(?i)uno\s", {"words"}),
    ("text", "U|5", {"full"}),
    ("text", r"\p{L}+\n", {"words"}),
    ("whole", "-.*", {"words"}),
    ("raw", "(?s)5.*", {"full"}),
    ("yes", "true|false", {"full", "words"}),
]


def test_a_pattern_matches_the_whole_text(events: DataFrame) -> None:
    """`uno` must not take the events of `uno_flip`."""
    rules = [Field(column=f"event.{column}", regex=pattern) for column, pattern, _ in PATTERNS]

    assert matched(events, rules) == [expected for *_, expected in PATTERNS]


EXISTS: list[tuple[str, bool, set[str]]] = [
    ("event.whole", True, {"full", "words"}),
    ("event.whole", False, {"blank"}),
    ("event.player.level", True, {"full"}),
    ("event.player.level", False, {"words", "blank"}),
    ("topic", True, {"full", "words", "blank", "no event"}),
    ("topic", False, set()),
]


def test_exists_tells_null_from_values(events: DataFrame) -> None:
    """The only test that null may pass, and not for a record that is no event."""
    rules = [Field(column=column, exists=exists) for column, exists, _ in EXISTS]

    assert matched(events, rules) == [expected for *_, expected in EXISTS]


CONDITIONS: dict[str, set[str]] = {
    "event.whole > 0": {"full"},
    "event.whole IS NULL": {"blank"},
    "topic LIKE '%o%'": {"words"},
    "try_cast(event.text AS int) = 5 OR event.player.level = 5": {"full"},
    "true": {"full", "words", "blank"},
}


def test_a_condition_in_sql(events: DataFrame) -> None:
    """Null is no match, and a record without an event never matches."""
    rules = [Sql(where=where) for where in CONDITIONS]

    assert matched(events, rules) == list(CONDITIONS.values())


def test_combined_rules_keep_what_is_unknown_apart(events: DataFrame) -> None:
    """`any` matches whatever one rule cannot tell; `all` does not match what one rule cannot tell."""
    unknown, yes, no = Sql(where="event.whole > 0"), Sql(where="true"), Sql(where="false")
    cases: list[tuple[Rule, bool | None]] = [
        (AnyOf(rules=(unknown, yes)), True),
        (AnyOf(rules=(unknown, no)), None),
        (All(rules=(unknown, yes)), None),
        (All(rules=(unknown, no)), False),
        (All(rules=(yes,)), True),
    ]

    found = verdicts(events, [rule for rule, _ in cases])

    assert [verdict["blank"] for verdict in found] == [expected for _, expected in cases]


NEGATED: list[tuple[Rule, set[str]]] = [
    (Sql(where="event.whole > 0"), {"words", "blank"}),
    (Field(column="event.whole", equals=5), {"words", "blank"}),
    (Field(column="event.whole", exists=False), {"full", "words"}),
    (Not(rule=Sql(where="event.whole > 0")), {"full"}),
    (All(rules=(Sql(where="true"), Sql(where="event.whole > 0"))), {"words", "blank"}),
    (Sql(where="null"), {"full", "words", "blank"}),
]


def test_not_matches_what_the_rule_does_not(events: DataFrame) -> None:
    """With a rule and its `not` every event has a route; a record without an event has none."""
    assert matched(events, [Not(rule=rule) for rule, _ in NEGATED]) == [expected for _, expected in NEGATED]


@pytest.mark.parametrize(
    "rule",
    [
        Field(column="event.text", equals=5),
        Field(column="event.notes", exists=False),
        Sql(where="event.whole IS NULL"),
        Not(rule=AnyOf(rules=(Sql(where="event.real > 1"), Field(column="event.text", regex="x+")))),
    ],
    ids=lambda rule: rule.part_name,
)
def test_the_rules_keep_the_contract(events: DataFrame, rule: Rule) -> None:
    """A rule that raises on a row stops the stream at night."""
    check_rule(events.sparkSession, rule, events)


def test_a_schema_is_matched_by_subject_and_name(events: DataFrame) -> None:
    """Each game's message has its own route, whatever its fields are."""
    named = events.withColumns(
        {"subject": F.when(F.col("topic") != "blank", F.lit("games-value")), "message": F.col("topic")}
    )

    rules = [Schema(subject="games-value"), Schema(name="full"), Schema(subject="games-value", name="blank")]

    assert matched(named, rules) == [{"full", "words", "no event"}, {"full"}, set()]
    assert verdicts(named, rules)[0]["blank"] is None


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (Schema(subject="a"), "subject"),
        (Schema(name="a"), "message"),
        (Field(column="event.gone", equals="a"), "gone"),
        (Field(column="event.gone", exists=False), "gone"),
        (Sql(where="event.gone = 1"), "gone"),
    ],
)
def test_a_column_that_is_not_there_is_told_before_any_record(events: DataFrame, rule: Rule, missing: str) -> None:
    """`router check --plan` finds the typing mistake, not the first batch."""
    with pytest.raises(AnalysisException, match=f"`{missing}`"):
        events.select(rule.matches())


def test_a_configuration_nests_rules() -> None:
    """Rules inside of rules are written like any other."""
    nested = {"all": [{"sql": "event.a > 1"}, {"not": {"any": [{"field": {"column": "event.b", "equals": 5}}]}}]}

    rule = load_registry().resolve(Rule, nested)

    inner = Not(rule=AnyOf(rules=(Field(column="event.b", equals=5),)))
    assert plain(rule) == plain(All(rules=(Sql(where="event.a > 1"), inner)))


def plain(value: Any) -> Any:
    """Return a part as data, to compare it without the name that a configuration gave it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, BaseModel):
        return type(value).__name__, {name: plain(item) for name, item in value}
    return value
