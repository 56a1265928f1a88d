"""Transaction ids: each means one thing, whatever routes, sinks and tables are called."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.delta import transaction_id
from router.delta.transaction_id import (
    FORMATS,
    IdKind,
    TransactionId,
    batch_id,
    deletions_id,
    merge_refusals_id,
    moved_rows_id,
    parse_transaction_id,
    table_id,
    widening_transaction,
)
from tests.source_trees import tree_of

MODULE = "transaction_id"
RUN = "5f2c1c1e-64a4-4b0a-9a3c-5d6ff2b8c0de"
EVERY: dict[str, tuple[IdKind, dict[str, str]]] = {
    "games:run-1/all/tables/silver.uno": ("rows", {"route": "all", "sink": "tables", "table": "silver.uno"}),
    "games:run-1/repair-shop/delta/silver.cars": (
        "rows",
        {"route": "repair-shop", "sink": "delta", "table": "silver.cars"},
    ),
    "games:run-1/release/held/silver.uno": ("rows", {"route": "release", "sink": "held", "table": "silver.uno"}),
    "games:run-1/all/upsert/silver.ids/deletions": (
        "deletions",
        {"route": "all", "sink": "upsert", "table": "silver.ids"},
    ),
    "games:run-1/all/upsert/outbox.games__all__upsert/dead_letters": (
        "merge_refusals",
        {"route": "all", "sink": "upsert", "table": "outbox.games__all__upsert"},
    ),
    "games:run-1/all/tables/silver.uno/quarantine": (
        "moved_rows",
        {"route": "all", "sink": "tables", "table": "silver.uno"},
    ),
    "games:run-1/release/tables/quarantine/quarantine.games__release__tables": (
        "quarantine",
        {"route": "release", "sink": "tables", "table": "quarantine.games__release__tables"},
    ),
    "games:run-1/release/tables/quarantine/silver.uno": (
        "release",
        {"route": "tables", "sink": "quarantine", "table": "silver.uno"},
    ),
    "games:run-1/bronze/rest": ("sink", {"route": "bronze", "sink": "rest"}),
    "games:run-1/dead_letters/rest/dead_letters": ("sink_refusals", {"route": "dead_letters", "sink": "rest"}),
    "games:run-1/bronze/bronze.events": ("bronze", {"table": "bronze.events"}),
    "games:run-1/dead_letters/ops.dead": ("dead_letters", {"table": "ops.dead"}),
    "games:replay-20260101T000000Z-0a1b2c3d/dead_letters/replayed/12": ("replayed", {"part": "12"}),
    "games:run-1/unblock/unblock/tables/silver.uno": (
        "unblock",
        {"route": "unblock", "sink": "tables", "table": "silver.uno"},
    ),
    "games:run-1/held/all/tables/silver.uno": ("held", {"route": "all", "sink": "tables", "table": "silver.uno"}),
    "games:run-1/discard/all/tables/silver.uno": ("discard", {"route": "all", "sink": "tables", "table": "silver.uno"}),
    "games:run-1/refuse/held/all/tables/silver.uno": (
        "refuse",
        {"reason": "held", "route": "all", "sink": "tables", "table": "silver.uno"},
    ),
    "games:run-1/ledger": ("ledger", {}),
    "games:run-1/ledger/repair/all/tables/silver.uno": (
        "ledger_move",
        {"reason": "repair", "route": "all", "sink": "tables", "table": "silver.uno"},
    ),
    "games:run-1/repair/silver.uno": ("repair", {"table": "silver.uno"}),
    "games:run-1/repair": ("spark_repair", {}),
    "games:run-1/wider": ("widening", {}),
    "games/views/sessions/gold.sessions": (
        "view",
        {"name": "games", "view": "sessions", "table": "gold.sessions"},
    ),
    "router/keyed": ("keyed", {}),
}


@pytest.mark.parametrize("text", EVERY)
def test_an_id_says_whose_commit_it_is(text: str) -> None:
    """Without it a route with the name of a step loses the rows that the router takes for those of the step."""
    kind, about = EVERY[text]
    query = {} if kind in ("view", "keyed") else {"query": text.partition("/")[0]}

    assert parse_transaction_id(text) == TransactionId(kind, **query, **about)
    assert str(parse_transaction_id(text)) == text


def test_every_kind_has_an_example_and_a_format() -> None:
    """Without it a new kind is one that no test has read."""
    assert {kind for kind, _ in EVERY.values()} == set(FORMATS) == set(get_args(IdKind))


WORDS = sorted({word for template in FORMATS.values() for word in template.split("/") if "{" not in word})
HOSTILE = st.sampled_from([
    *WORDS, "released", "release", "unblock", "held", "discard", "repair", "repair-shop", "held-back", "deletions",
    "a", "a-b", "a--", "quarantine-", "ledger-2",
])  # fmt: skip
ROUTES = HOSTILE | st.from_regex(r"\A[a-z][a-z0-9_-]{0,9}\Z")
SINKS = ROUTES.map(lambda name: name.replace("-", "_"))
PARTS = SINKS | st.from_regex(r"\A[a-z0-9][a-z0-9_]{0,9}\Z")
TABLES = st.builds("{}.{}".format, SINKS, PARTS)
RUNS = st.sampled_from([RUN, "run-1", "ledger", "repair", "replay-20260101T000000Z-0a1b2c3d"])
QUERIES = st.builds("{}:{}".format, ROUTES, RUNS)
VALUES = {
    "query": QUERIES,
    "name": ROUTES,
    "route": ROUTES,
    "sink": SINKS,
    "view": SINKS,
    "table": TABLES,
    "reason": st.sampled_from(["release", "unblock", "held", "discard", "repair"]),
    "part": st.integers(0, 10**12).map(str),
}


@st.composite
def ids(draw: Any) -> TransactionId:
    kind = draw(st.sampled_from(sorted(FORMATS)))
    about = {name: draw(values) for name, values in VALUES.items() if f"{{{name}}}" in FORMATS[kind]}
    if kind == "quarantine":
        query, route = (name.partition(":")[0].replace("-", "_") for name in (about["query"], about["route"]))
        about["table"] = f"quarantine.{query}__{route}__{about['sink']}"
    return TransactionId(kind, **about)


@given(ids())
def test_what_is_written_is_read_again(written: TransactionId) -> None:
    """Without it two commits of different meaning share an id, and one is taken for the other."""
    assert parse_transaction_id(str(written)) == written


@given(st.lists(HOSTILE | TABLES | QUERIES | st.text("a:/.-_0 \n", max_size=3), max_size=7).map("/".join))
def test_what_is_read_is_written_again(text: str) -> None:
    """Without it an id of others is taken for one of the router's."""
    found = parse_transaction_id(text)

    assert found is None or str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "games", "games:run-1", "games:run-1/", "games:run-1/all/tables/uno", "games:run-1/all/tables/silver.uno/",
        "games/all/tables/silver.uno", "games:run-1/all/tables/silver.uno\n", "games:run-1/ALL/tables/silver.uno",
        "games:run-1/all/tables/silver.uno/other", "games:run-1/wider/silver.uno", "router/other",
        "games:run-1/refuse/anything/all/tables/silver.uno", "games:run-1/dead_letters/replayed/01",
        "repair/_staged.games.repairs.silver.uno",
    ],
)  # fmt: skip
def test_ids_of_others_say_nothing(text: str) -> None:
    """Without it rows that somebody else wrote count as the router's."""
    assert parse_transaction_id(text) is None


@pytest.mark.parametrize(
    ("target", "table"),
    [
        ("all/tables", "silver.uno"), ("repair/held", "silver.uno"), ("/bronze", "bronze.events"),
        ("/dead_letters", "ops.dead"), ("all/tables/quarantine", "quarantine.games__all__tables"),
    ],
)  # fmt: skip
def test_rows_of_a_batch_have_the_key_of_their_target(target: str, table: str) -> None:
    """Without it a table is held against another target's rows in the manifests."""
    written = batch_id("games:run-1", target, table)
    found = parse_transaction_id(str(written))

    assert found == written
    assert found.target == target
    assert (found.query_name, found.run) == ("games", "run-1")


def test_ids_that_follow_from_others_are_read_like_all() -> None:
    """Without it a commit that follows from another one is one of somebody else."""
    sink = TransactionId("sink", "games:run-1", "all", "upsert")
    rows = table_id(str(sink), "silver.ids")
    kinds = {
        "rows": rows,
        "deletions": deletions_id(rows),
        "merge_refusals": merge_refusals_id(rows),
        "moved_rows": moved_rows_id(rows),
    }

    for kind, text in kinds.items():
        assert parse_transaction_id(text) == TransactionId(kind, "games:run-1", "all", "upsert", "silver.ids")  # type: ignore[arg-type]
    assert parse_transaction_id(widening_transaction(rows).app_id) == TransactionId("widening", "games:run-1")
    assert transaction_id.GUARD == "router/keyed"


def test_an_id_is_made_of_what_its_kind_has() -> None:
    """Without it a table's id lacks the table, and all tables of the sink share it."""
    with pytest.raises(ValueError, match=r"query.*route"):
        TransactionId("rows", "games:run-1", "all")


ROOT = Path(__file__).parents[2]
OTHERS = sorted(
    path for path in (*(ROOT / "router").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")) if path.stem != MODULE
)
KEYS_OF_SINKS = {"plugins/router_rest/delivery/receipts.py", "router/api/sinks.py", "router/engine/status/board.py"}
"""Modules that name a sink to an API by QUERY/ROUTE/SINK, without a run: no table has that."""
TARGETS = {"quarantine"}
"""Words of ids that keys of targets have, too: ROUTE/SINK/quarantine."""


def template(text: ast.JoinedStr) -> str:
    """Return an f-string with `{}` for each of its values."""
    return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in text.values)  # type: ignore[misc]


def builds_an_id(node: ast.AST, place: str) -> bool:
    """Say whether code writes an id by hand, or reads one by how it begins or what is in it."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return name == "Transaction" and not place.startswith("router/delta/")
    if isinstance(node, ast.JoinedStr):
        made, first = template(node), ast.unparse(node.values[0])
        if not made.startswith("{}"):
            return False
        if made == "{}/{}/{}" and place in KEYS_OF_SINKS:
            return False
        of_a_query = bool(re.search(r"\b(query|app_id|app|run)\}", first)) and made.startswith("{}/")
        words = {*WORDS} - TARGETS
        return of_a_query or made.startswith("{}:{}/") or bool(words.intersection(made.split("/")))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(re.fullmatch(r"/?(release|unblock|held|discard|refuse|repair)/|router/keyed", node.value))
    return False


def test_no_other_module_builds_or_takes_apart_an_id() -> None:
    """Without it a module writes an id that `parse_transaction_id` does not know; the rows under it are nobody's."""
    found = []
    for path in OTHERS:
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(tree_of(path)):
            if builds_an_id(node, place):
                found.append(f"{place}:{node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]

    assert found == []
