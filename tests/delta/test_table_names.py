"""Names from data: what may become a table, and nothing accepted leaves the lake."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.delta.lake import Lake
from router.table_names import (
    NAME_CHARACTERS_SHOWN,
    BronzeTables,
    describe_refused_name,
    fold_name,
    is_usable_name,
    may_collide,
)
from router.templates import fill_template, template_fields
from tests.light import drawn

ACCEPTED = {
    "plain": "silver.poker",
    "capitals": "Silver.Poker",
    "digits": "9silver.2024_games",
    "device inside a word": "silver.console",
    "device with a number of two digits": "silver.com10",
    "device as the beginning": "silver.nul_games",
    "longest": f"{'l' * 64}.{'t' * 128}",
}
REFUSED = {
    "empty": "",
    "no layer": "poker",
    "empty layer": ".poker",
    "empty table": "silver.",
    "three parts": "silver.poker.x",
    "parent": "../../x",
    "parent as layer": "...x",
    "parent as table": "silver...",
    "path in the table": "silver./etc/passwd",
    "backslash": "silver.\\..\\x",
    "percent": "silver.%2e%2e%2fx",
    "absolute": "/silver.x",
    "home": "~.x",
    "hidden table": "silver._delta_log",
    "hidden layer": "_router.x",
    "device": "silver.con",
    "device with capitals": "silver.CoN",
    "device as layer": "aux.games",
    "device with a number": "silver.LPT1",
    "emoji": "silver.\U0001f600",
    "umlaut": "silver.pöker",
    "Kelvin sign, a k to whoever folds case by Unicode": "silver.po\u212aer",
    "dotless i": "silver.w\u0131st",
    "long s": "\u017filver.x",
    "full-width letters": "silver.\uff50\uff4f",
    "Arabic digits": "silver.\u0661\u0662",
    "combining accent": "silver.e\u0301",
    "line break at the end": "silver.poker\n",
    "line separator at the end": "silver.poker\u2028",
    "return at the end": "silver.poker\r",
    "line break before": "\nsilver.poker",
    "device after a line break": "silver.con\n",
    "NUL": "silver.po\0ker",
    "NUL at the end": "silver.poker\0",
    "blank": "silver.po ker",
    "blank at the end": "silver.poker ",
    "layer too long": f"{'l' * 65}.x",
    "table too long": f"silver.{'t' * 129}",
    "300 characters": f"silver.{'t' * 293}",
    "replacement character": "silver.\ufffd",
    "quote": "silver.`x`",
    "statement": "silver.x;drop table y",
    "wildcard": "silver.*",
    "word null": "null",
}

PIECES = st.sampled_from(
    [
        *["silver", "poker", "Poker", ".", "..", "/", "\\", "_", "con", "CON", "com1", "nul", "%2e", "9", " "],
        *["\n", "\r", "\0", "\u212a", "\u0131", "\U0001f600", "a" * 64, "b" * 128],
    ]
)
NAMES = st.one_of(
    st.lists(PIECES, max_size=5).map("".join),
    st.tuples(PIECES, st.sampled_from([".", "..", "/"]), PIECES).map("".join),
    st.text(max_size=20).map("silver.".__add__),
    st.text(max_size=300),
    st.from_regex(r"[A-Za-z0-9_]{1,70}\.[A-Za-z0-9_]{1,130}", fullmatch=True),
)


@pytest.mark.parametrize("name", ACCEPTED.values(), ids=ACCEPTED)
def test_a_good_name_is_usable(name: str) -> None:
    """Without it a game with an ordinary name would have no table."""
    assert is_usable_name(name)


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_a_bad_name_is_refused(name: str) -> None:
    """Without it one record could write beside the lake, hide, or break whoever opens the lake on another system."""
    assert not is_usable_name(name)


@settings(max_examples=drawn(500))
@given(NAMES)
def test_no_accepted_name_leaves_the_lake(name: str) -> None:
    """Without it a record names any file of the machine."""
    root = Path("/somewhere/lake")
    if is_usable_name(name):
        place = Path(Lake.at(str(root)).address(name.lower()))
        assert place.resolve().parent.parent == root
        assert place.name.isascii()


def test_names_that_differ_by_case_are_one_table() -> None:
    """Without it Poker and poker are two tables, and on some disks one folder with two logs."""
    assert {fold_name(name) for name in ("silver.Poker", "silver.poker", "SILVER.POKER")} == {"silver.poker"}
    assert fold_name("../../x") is None
    assert fold_name(None) is None


def test_each_topic_has_a_bronze_table() -> None:
    """Without it a topic with a name that no table may have stops the stream, or its records are nowhere."""
    bronze = BronzeTables("raw.from_{topic}_v1", frozenset({"raw.from_dead_v1"}))

    assert bronze.table_of("Game-Events") == "raw.from_game_events_v1"
    for odd in ("a.b", "x" * 249, "dead", "\u00fc"):
        assert bronze.table_of(odd) == bronze.others == "raw.from_other_topics_v1"
    assert {bronze.table_of(name) in bronze for name in ("a", "a.b")} == {True}
    assert not any(name in bronze for name in ("raw.from_dead_v1", "raw.from__v1", "raw.other", "silver.a", None))
    assert "bronze.all" in BronzeTables("bronze.all")
    assert "bronze.other" not in BronzeTables("bronze.all")


FIELDS = st.sampled_from(["{x}", "{y}", "{kind}", "{partition}", "_", "v", "1", "_1_"])
KINDS = frozenset({"win", "big_win", "w"})


@settings(max_examples=drawn(300))
@given(st.lists(FIELDS, max_size=6).map("".join))
def test_a_template_that_is_taken_tells_its_fields_apart(template: str) -> None:
    """Without it rows of two games land in one table, and nobody can tell them apart."""
    if may_collide(template, {"kind": KINDS}):
        return
    fields = list(dict.fromkeys(template_fields(template)))
    texts = ["", "a", "_", "1", "a_", "_win", "1_1", "a1"]
    values = {"kind": sorted(KINDS), "partition": ["0", "1", "11"]}
    seen: dict[str, tuple[str, ...]] = {}
    for chosen in product(*(values.get(field, texts) for field in fields)):
        given = dict(zip(fields, chosen, strict=True))
        name = fill_template(template, given.__getitem__)
        assert seen.setdefault(name, chosen) == chosen


def test_the_reason_shows_the_name_within_bounds() -> None:
    """Without it a dead letter does not say what was wrong with a name, or is as long as its sender likes."""
    assert "null" in describe_refused_name(None)
    assert describe_refused_name("x" * 300).count("x") == NAME_CHARACTERS_SHOWN
