"""What the options of the built-in parts refuse, and how the parts are found, without Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router import Placeholder, StartError, parse_template
from router.api.parts import Preparation
from router.cli.plugins import kind_text
from router.engine.checkpoint_store import LearntSchemas
from router.registry import load_registry, options_of
from router_decoders import Auto, Avro, Json, router_decoders
from router_encoders import router_encoders
from router_rules import All, Field, Not, Schema, Sql, router_rules
from router_sinks import Delta, Kafka, Tables, Upsert, router_sinks

if TYPE_CHECKING:
    from pathlib import Path

    from router import Part


PROFILES = {"table": "silver.p", "keys": ["a"]}


@pytest.mark.parametrize(
    ("part", "options", "word"),
    [
        (Json, {}, "exactly one of schema, schema_file, infer; none"),
        (Json, {"schema": "a int", "schema_file": "a.json"}, "schema and schema_file are given"),
        (Json, {"schema": ""}, "at least 1 character"),
        (Json, {"infer": {"file": "games.json"}}, "schema"),
        (Json, {"infer": {"file": ".ddl"}}, "ddl"),
        (Json, {"infer": {"file": "games.ddl", "rows": 0}}, "greater than or equal to 1"),
        (Json, {"schema": "a int", "case_insensitive": True}, "Extra inputs"),
        (Sql, {"where": "  "}, "at least 1 character"),
        (Field, {"column": "event.a"}, "none is given"),
        (Field, {"column": "event.a", "equals": "x", "regex": "x"}, "equals and regex are given"),
        (Field, {"column": "event.a", "equals": False, "exists": False}, "equals and exists are given"),
        (Field, {"column": "", "exists": True}, "at least 1 character"),
        (Field, {"column": "event.a", "one_of": []}, "at least 1 item"),
        (Field, {"column": "event.a", "exists": "yes"}, "valid boolean"),
        (Field, {"column": "event.a", "equals": float("nan")}, "finite number"),
        (Field, {"column": "event.a", "equals": 2**63}, "64 bits"),
        (Field, {"column": "event.a", "equals": ["a"]}, "valid string"),
        (Field, {"column": "event.a", "regex": "a(b"}, "regular expression: missing \\)"),
        (Field, {"column": "event.a", "regex": "a)b"}, "regular expression: unbalanced"),
        (Field, {"column": "event.a", "regex": "[ab"}, "regular expression: unterminated"),
        (Field, {"column": "event.a", "regex": "*a"}, "regular expression: nothing to repeat"),
        (All, {"rules": []}, "at least 1 item"),
        (Not, {}, "Field required"),
        (Schema, {}, "subject`, `name` or both"),
        (Delta, {"table": "big_wins"}, "layer.table"),
        (Delta, {"table": "Silver.wins"}, "small letters"),
        (Delta, {"table": "silver.a.b"}, "layer.table"),
        (Delta, {"table": "silver.wins\n"}, "layer.table"),
        (Delta, {"table": "../silver.wins"}, "layer.table"),
        (Delta, {"table": "silver.{event.game}"}, "use `tables`"),
        (Tables, {"table": "silver.wins"}, "use `delta`"),
        (Tables, {"table": "{event.game}"}, "layer comes first"),
        (Tables, {"table": "{event.layer}.{event.game}"}, "layer comes first"),
        (Tables, {"table": "silver{event.game}"}, "layer comes first"),
        (Tables, {"table": "Silver.{event.game}"}, "layer comes first"),
        (Tables, {"table": "silver.a.{event.game}"}, "not 'a.'"),
        (Tables, {"table": "silver.{event.game}/x"}, "not '/x'"),
        (Tables, {"table": "silver.{event.game"}, "character 8 has no partner"),
        (Tables, {"table": "silver.event.game}"}, "character 18 has no partner"),
        (Tables, {"table": "silver.{{event.game}}"}, "there is no field in braces"),
        (Tables, {"table": "silver.{ }"}, "hold no field"),
        (Tables, {"table": "silver.{event.game}", "at_most": 0}, "greater than or equal to 1"),
        (Upsert, {"table": "silver.p"}, "Field required"),
        (Upsert, {"table": "silver.p", "keys": []}, "at least 1 item"),
        (Upsert, {"table": "p", "keys": ["a"]}, "layer.table"),
        (Upsert, {"table": "{event.game}", "keys": ["a"]}, "layer comes first"),
        (Upsert, {"table": "silver.p", "keys": ["a"], "deletions_kept": "a week"}, "write a number and a unit"),
        (Upsert, {"table": "silver.p", "keys": ["a"], "soft_delete": "is gone"}, "match pattern"),
        (Upsert, {"table": "silver.p", "keys": ["a"], "history": "scd1"}, "scd2"),
        (Upsert, {"table": "silver.p", "keys": ["a"], "history": "scd2", "soft_delete": "b"}, "exclude each other"),
        (Upsert, {"table": "silver.p", "keys": ["a"], "history": "scd2", "columns": ["b"]}, "exclude each other"),
        (
            Upsert,
            {"table": "silver.p", "keys": ["a"], "columns": ["b"], "when_matched": "ignore"},
            "exclude each other",
        ),
        (Upsert, {"table": "silver.p", "keys": ["a"], "tombstones": True, "newest_by": "event.at"}, "ordered by"),
        (Upsert, {**PROFILES, "partition_by": ["a"], "cluster_by": ["a"]}, "exclude each other"),
        (Upsert, {**PROFILES, "engine": "arrow", "cluster_by": ["a"]}, "cannot write clustered tables"),
        (Upsert, {**PROFILES, "memory": "1 MB"}, "less than 256 MB"),
        (Upsert, {**PROFILES, "memory": "a lot"}, "write a number and a unit"),
        (Upsert, {**PROFILES, "properties": {"delta.appendOnly": "true"}}, "rows of a keyed table change"),
        (Upsert, {**PROFILES, "properties": {"delta.enableChangeDataFed": "true"}}, "did you mean delta.enableChange"),
        (Upsert, {**PROFILES, "properties": {"delta.enableDeletionVectors": "yes"}}, "write true or false"),
        (Upsert, {**PROFILES, "properties": {"delta.logRetentionDuration": "7 d"}}, "interval 7 days"),
        (Upsert, {**PROFILES, "properties": {"delta.constraints.low": "a < 5"}}, "ADD CONSTRAINT"),
        (Kafka, {"topic": "a"}, "Field required"),
        (Kafka, {"servers": "b:1", "topic": "{event.game}"}, "begins with fixed text"),
        (Kafka, {"servers": "b:1", "topic": "a b"}, "not 'a b'"),
        (Kafka, {"servers": "b:1", "topic": "__x"}, "Kafka's own"),
        (Kafka, {"servers": "b:1", "topic": "a", "headers": {"router.batch": "1"}}, "does not begin with router"),
        (Kafka, {"servers": "b:1", "topic": "a", "headers": {"x": " "}}, "there is no SQL"),
        (Kafka, {"servers": "b:1", "topic": "a", "options": {"acks": "1"}}, "the promise needs `all`"),
        (Kafka, {"servers": "b:1", "topic": "a", "options": {"bootstrap.servers": "c:1"}}, "write `servers`"),
        (Kafka, {"servers": "b:1", "topic": "a", "create_topics": {}}, "partitions"),
        (Kafka, {"servers": "b:1", "topic": "a", "timeout": 0}, "greater than 0"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_when_it_is_read(part: type[Part], options: dict[str, Any], word: str) -> None:
    """A wrong configuration never starts."""
    with pytest.raises(ValidationError, match=word):
        part.model_validate(options)


JAVA_ONLY = [r"\p{L}+", r"(?<name>a)\k<name>", r"\Q[a\E", "a++", "[a[b]]", "[a&&b]", r"\h", "(?i)poker"]


@pytest.mark.parametrize("pattern", JAVA_ONLY)
def test_a_pattern_that_only_java_understands_is_kept(pattern: str) -> None:
    """Python reads the configuration, Java runs the pattern."""
    assert Field(column="event.a", regex=pattern).regex == pattern


@pytest.mark.parametrize("value", ["5", 5, 5.0, True, "", 0, False], ids=repr)
def test_a_value_keeps_its_type(value: object) -> None:
    """The text 5 and the number 5 are compared in different ways."""
    rule = Field.model_validate({"column": "event.a", "equals": value})

    assert (rule.equals, type(rule.equals)) == (value, type(value))


@pytest.mark.parametrize(
    ("template", "pieces"),
    [
        ("silver.{event.game}", ["silver.", Placeholder("event.game")]),
        (
            "silver.{ event.game }_v{event.version}",
            ["silver.", Placeholder("event.game"), "_v", Placeholder("event.version")],
        ),
        ("a.b", ["a.b"]),
        ("{topic}", [Placeholder("topic")]),
        ("{a}{b}", [Placeholder("a"), Placeholder("b")]),
        ("", []),
        ("a{{b}}{c}", ["a{b}", Placeholder("c")]),
        ("{{{a}}}", ["{", Placeholder("a"), "}"]),
    ],
)
def test_a_template_is_texts_and_columns(template: str, pieces: list[object]) -> None:
    """The text outside of braces is literal, braces hold a column."""
    assert parse_template(template) == pieces


@given(st.text(alphabet="ab.{}_ "))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    """A template must never end in anything but tables or a message."""
    pairs = re.sub(r"(\{\{|\}\})|\{[^{}]*[^{}\s][^{}]*\}", lambda pair: "" if pair[1] else "\0", text)
    if "{" in pairs or "}" in pairs:
        with pytest.raises(ValueError, match="brace"):
            parse_template(text)
    else:
        assert sum(isinstance(piece, Placeholder) for piece in parse_template(text)) == pairs.count("\0")


def test_tables_gain_columns_when_they_are_seen() -> None:
    """With 200 games a table must not have the columns of the 199 others."""
    assert Tables(table="silver.{event.game}").columns == "seen"
    assert Delta(table="silver.wins").columns == "all"


def test_the_keys_of_an_upsert_are_columns_of_the_route() -> None:
    """`event.gamer_id` is how people name the field; the table has the column gamer_id."""
    keyed = Upsert(
        table="silver.p", keys=["event.gamer_id", "game"], columns=["event.level"], deletions_kept="12 h"
    ).keyed()

    assert (keyed.keys, keyed.columns) == (("gamer_id", "game"), ("level",))
    assert keyed.deletions_kept.total_seconds() == 12 * 3600


@pytest.mark.parametrize("given", ["offset", ["offset"]], ids=str)
def test_the_offset_is_kept_once(given: Any) -> None:
    """Every table has the offset of its rows' records anyway."""
    assert Upsert(table="silver.p", keys=["a"], newest_by=given).newest() == ()


def test_a_fixed_table_is_known_without_spark() -> None:
    """The configuration is checked against the router's own tables before Spark starts."""
    assert Delta(table="silver.wins").table() == "silver.wins"


def test_every_part_is_offered_with_a_main_option_that_exists() -> None:
    """A bare value would otherwise fail with a riddle."""
    parts = {**router_decoders(), **router_rules(), **router_sinks(), **router_encoders()}

    decoders = {"auto", "avro", "by_topic", "json", "json_schema", "keyed", "none", "protobuf", "rows"}
    rules = {"all", "any", "field", "not", "schema", "sql"}
    encoders = {"to_avro", "to_json", "to_protobuf"}
    sinks = {"boto3", "delta", "kafka", "rest", "spark", "sql", "tables", "upsert"}
    assert set(parts) == decoders | rules | encoders | sinks
    for part in parts.values():
        names = {field.alias or name for name, field in part.model_fields.items()}
        assert part.main_option is None or part.main_option in names


def test_the_manual_shows_types_in_words() -> None:
    """Without it an option of `router plugins upsert` is three lines of how pydantic checks it."""
    shown = {
        kind_text(field.annotation)
        for family in load_registry([]).entries.values()
        for entry in family.values()
        for field in options_of(entry.part).values()
    }

    assert "dict[str, tuple[str, ...]]" in shown
    assert not [text for text in shown if re.search(r"Annotated|Constraints|=|\w\.\w", text)]


@pytest.mark.parametrize("decoder", [Avro, Auto])
def test_a_registry_that_is_down_is_named_as_the_cause(decoder: Any, tmp_path: Path) -> None:
    """Without it `check --lake` says to name `subjects` that are named."""
    preparation = Preparation(
        folder=tmp_path, refresh=False, sample=lambda rows: None, memory=LearntSchemas(), reads_topic=lambda topic: None
    )
    prepared = decoder(registry="http://127.0.0.1:1", subjects=("games-value",)).prepare(preparation)

    with pytest.raises(StartError, match=r"http://127\.0\.0\.1:1/subjects/games-value/versions: no answer"):
        prepared.refresh(frozenset())
