"""Rules over answers: what becomes of a call and of its rows, before the status has its say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from router_rest.answers.bulk_results import BulkResults
from router_rest.answers.classifier import Classifier, Policy, next_steps
from router_rest.delivery.batcher import Call
from router_rest.delivery.send_plan import http_options, policy_of
from router_rest.logins.credentials import SecretMask
from router_rest.presets import PRESETS
from router_sinks import Rest
from tests.rest.lines import Line, answer, deliver_one_call
from tests.rest.sink_options import URL, read_sink_options

RETRY = {"attempts": 3}
NOT_OK = answer(200, b'{"ok": false, "error": "channel_not_found"}')


def rule(then: str, when: str = "body.ok = false", **more: Any) -> dict[str, Any]:
    """Return one rule."""
    return {"when": when, "then": then, **more}


def settled(
    options: dict[str, Any], *answers: Any, rows: int = 1
) -> tuple[list[tuple[int, str, str | None, bool]], int]:
    """Deliver a call; return offset, status, reason and doubt of each settled row, and how many calls it took."""
    line = Line(list(answers))
    told = deliver_one_call(line, policy_of(read_sink_options(retry=RETRY, **options)), rows=rows)
    found = [(at, one.status, one.reason, at in one.call.doubtful) for one in told.settled for at in one.call.offsets]
    return sorted(found), len(line.begun)


@pytest.mark.parametrize(
    ("then", "status", "calls"),
    [
        ("deliver", "delivered", 1),
        ("dead", "dead", 1),
        ("park", "parked", 1),
        ("split", "dead", 1),
    ],
)
def test_a_rule_settles_a_row(then: str, status: str, calls: int) -> None:
    """Without it `ok: false` in a 200 counts as delivered."""
    options = {"answers": [rule(then, reason="{body.error}!")]}
    reason = None if status == "delivered" else "channel_not_found!"

    assert settled(options, NOT_OK) == ([(10, status, reason, then in ("park", "split"))], calls)


@pytest.mark.parametrize("then", ["retry", "pause"])
def test_a_rule_sends_a_row_again_and_says_that_it_may_have_arrived(then: str) -> None:
    """Without it a row that an API could not take for now is lost, or its duplicate is not marked."""
    taken = answer(200, b'{"ok": true}')

    assert settled({"answers": [rule(then)]}, NOT_OK, taken) == ([(10, "delivered", None, True)], 2)


def test_a_refusal_that_is_sent_again_is_not_in_doubt() -> None:
    """Without it rows are marked that an API has plainly not taken."""
    refused, taken = answer(400, b'{"ok": false}'), answer(200, b'{"ok": true}')

    assert settled({"answers": [rule("retry")]}, refused, taken) == ([(10, "delivered", None, False)], 2)


def test_a_rule_that_says_fail_stops_the_calls() -> None:
    """Without it a revoked token makes a dead letter of every row."""
    line = Line([NOT_OK])
    told = deliver_one_call(line, policy_of(read_sink_options(answers=[rule("fail", reason="{body.error}")])))

    assert (told.settled, [one.why for one in told.left]) == ([], ["channel_not_found"])


def test_all_rows_of_a_call_are_dead_or_it_is_split() -> None:
    """Without it one bad row takes its neighbours along, or a call that never goes is cut to pieces."""
    whole = {"rows_per_call": 4, "answers": [rule("dead")]}
    halved = {"rows_per_call": 4, "answers": [rule("split")]}

    assert (len(settled(whole, NOT_OK, rows=4)[0]), settled(whole, NOT_OK, rows=4)[1]) == (4, 1)
    assert settled(halved, NOT_OK, rows=4)[1] == 7


def test_rows_of_a_call_that_a_rule_divides_are_in_doubt() -> None:
    """Without it rows that an API has kept, before it refused a later one, are there twice and nobody knows."""
    halved = {"rows_per_call": 2, "answers": [rule("split", "status = 400")]}
    refused, taken = answer(400), answer(200)

    assert settled(halved, refused, taken, taken, rows=2)[0] == [
        (10, "delivered", None, True),
        (11, "delivered", None, True),
    ]
    assert settled(halved, refused)[0][0][3] is False


def test_the_first_rule_that_holds_decides_and_then_the_status() -> None:
    """Without it the order of rules says nothing, or one rule takes the place of the whole table."""
    rules = [rule("park", "status = 418"), rule("dead"), rule("deliver", "true AND status < 300")]
    policy = policy_of(read_sink_options(answers=rules))
    steps = [
        next_steps(policy, Call("t", 0, [1], [b"{}"]), one)[0][0]
        for one in (answer(418), NOT_OK, answer(204), answer(500, b"no JSON"), answer(400))
    ]

    assert steps == ["park", "dead", "deliver", "retry", "dead"]


@pytest.mark.parametrize("shown", ["{body.echo}", "{body}", "{headers.echo}"])
def test_a_reason_shows_no_secret(shown: str) -> None:
    """Without it an API that echoes the login writes it into dead letters."""
    policy, mask = (
        policy_of(read_sink_options(answers=[rule("dead", "status = 200", reason=shown)])),
        SecretMask(["hush-hush"]),
    )
    echo = answer(200, b'{"echo": "a hush-hush b"}', echo="a hush-hush b")

    made, _ = Classifier(policy).classify_answer(Call("t", 0, [1], [b"{}"]), echo, mask.hide)

    assert "***" in made.why
    assert "hush" not in made.why.lower()


@pytest.mark.parametrize(("statuses", "partly"), [((201, 429), True), ((429, 429), False), ((201, 201), False)])
def test_a_bulk_answer_that_refuses_some_rows_says_that_the_api_works(statuses: tuple[int, int], partly: bool) -> None:
    """Without it ten calls with a busy document each open the circuit, and nothing goes out any more."""
    policy = Policy(results=BulkResults(path="items", status="status"))
    body = json.dumps({"items": [{"status": one} for one in statuses]}).encode()

    _, saw = Classifier(policy).classify_answer(Call("t", 0, [1, 2], [b"{}", b"{}"]), answer(200, body))

    assert (saw["throttled"], saw["partly"]) == (429 in statuses, partly)


def test_headers_are_found_in_any_case() -> None:
    """Without it a rule fails on how a server writes the name of a header."""
    rules = [rule("deliver", "headers['X-Seen'] = 'yes'"), rule("park", "headers.`x-count` > 5")]
    policy = policy_of(read_sink_options(answers=rules))

    assert next_steps(policy, Call("t", 0, [1], [b"{}"]), answer(409, X_Seen="yes"))[0][0] == "deliver"
    assert next_steps(policy, Call("t", 0, [1], [b"{}"]), answer(409, x_count="7"))[0][0] == "park"


BULK = {
    "rows_per_call": 4,
    "results": {"path": "items", "status": "*.status", "reason": "*.error.reason"},
    "answers": [
        rule("deliver", "item.create.status = 409"),
        rule("park", "item.*.error.type = 'odd'", reason="odd: {item.*.error.reason}"),
        rule("retry", "item.*.error.type = 'blocked'"),
    ],
}


def items(*found: dict[str, Any]) -> Any:
    """Return the answer of a bulk API."""
    return answer(200, json.dumps({"items": [{"create": one} for one in found]}).encode())


def test_an_item_decides_on_its_row() -> None:
    """Without it a bulk API's own words for `already there` or `later` are dead letters."""
    first = items(
        {"status": 201},
        {"status": 409, "error": {"type": "conflict"}},
        {"status": 400, "error": {"type": "odd", "reason": "why"}},
        {"status": 403, "error": {"type": "blocked"}},
    )

    assert settled(BULK, first, items({"status": 201}), rows=4) == (
        [
            (10, "delivered", None, False),
            (11, "delivered", None, False),
            (12, "parked", "odd: why", False),
            (13, "delivered", None, False),
        ],
        2,
    )


def test_a_rule_about_the_call_decides_on_the_rows_that_are_left() -> None:
    """Without it rules about calls and about rows cannot stand in one list."""
    options = {**BULK, "answers": [*BULK["answers"], rule("dead", "body.items IS NOT NULL", reason="all")]}
    mixed = items({"status": 409}, {"status": 201})

    assert settled(options, mixed, rows=2)[0] == [(10, "delivered", None, False), (11, "dead", "all", False)]
    assert settled(options, items({"status": 201}, {"status": 201}), rows=2)[0] == [
        (10, "dead", "all", False),
        (11, "dead", "all", False),
    ]


@pytest.mark.parametrize("then", ["split", "fail"])
def test_rows_of_a_bulk_call_that_are_split_or_wrong_are_not_lost(then: str) -> None:
    """Without it rows of a bulk call are neither settled nor left."""
    options = {**BULK, "answers": [rule(then, "item.*.status = 400"), rule("retry", "item.*.status = 403")]}
    mixed = items({"status": 201}, {"status": 400}, {"status": 400}, {"status": 403})
    line = Line([mixed, items({"status": 201}), items({"status": 201}), items({"status": 201})])

    told = deliver_one_call(line, policy_of(read_sink_options(retry=RETRY, **options)), rows=4)  # counts the rows

    assert told.statuses[10] == "delivered"
    assert len(told.left) == (then == "fail")


def test_an_unreadable_bulk_answer_is_asked_before_its_rows_are_parked() -> None:
    """Without it an error in place of the items parks rows that would be taken later."""
    options = {**BULK, "answers": [*BULK["answers"], rule("retry", "body.error IS NOT NULL")]}

    assert settled(options, answer(200, b'{"error": "x"}'), items({"status": 201}))[0] == [
        (10, "delivered", None, True)
    ]
    assert settled(BULK, answer(200, b'{"error": "x"}'))[0][0][1] == "parked"


@pytest.mark.parametrize(
    ("options", "place", "word"),
    [
        ({"answers": [rule("dead"), rule("dead", "bdy.ok = false")]}, ("answers", 1, "when"), "there are status"),
        ({"answers": [rule("dead", "exists(body.a, x -> x)")]}, ("answers", 0, "when"), "character"),
        ({"answers": [rule("dead", reason="{body.")]}, ("answers", 0, "reason"), "no partner"),
        ({"answers": [rule("dead", reason="{nobody}")]}, ("answers", 0, "reason"), "there are status"),
        ({"answers": [rule("drop")]}, ("answers", 0, "then"), "retry"),
        ({"answers": [rule("dead", "item.a = 1")]}, (), "there is no `results`"),
        ({"preset": "slak"}, ("preset",), "slack"),
        ({"preset": "slack", "answers": [rule("dead", "x")]}, ("answers", 0, "when"), "there are status"),
    ],
)
def test_what_is_no_rule_is_refused_at_its_place(options: dict[str, Any], place: tuple[Any, ...], word: str) -> None:
    """Without it a typing error in a rule shows when the first answer comes."""
    with pytest.raises(ValidationError) as found:
        read_sink_options(**options)

    (problem,) = found.value.errors()
    assert problem["loc"] == place
    assert word in problem["msg"]


def test_a_sink_without_rules_reads_and_decodes_no_more_than_before() -> None:
    """Without it all pay for what few use."""
    sink = read_sink_options()

    assert policy_of(sink).rules == ()
    assert http_options(sink, Path(), 1).most == 1 << 16
    assert http_options(read_sink_options(answers=[rule("dead")]), Path(), 1).most == 1 << 20


def steps(preset: str, status: int, body: Any, rows: int = 1, **options: Any) -> list[tuple[str, str | None]]:
    """Return what a preset makes of an answer."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    call = Call("t", 0, list(range(rows)), [b"{}"] * rows)
    return next_steps(policy_of(read_sink_options(preset=preset, **options)), call, answer(status, text))


def graphql(code: str | None = None) -> dict[str, Any]:
    """Return an answer with an error of this code."""
    return {"data": None, "errors": [{"message": "why", "extensions": {"code": code}}]}


@pytest.mark.parametrize(
    ("preset", "status", "body", "step"),
    [
        ("slack", 200, {"ok": True}, "deliver"),
        ("slack", 200, {"ok": False, "error": "channel_not_found"}, "dead"),
        ("slack", 200, {"ok": False, "error": "ratelimited"}, "pause"),
        ("slack", 200, {"ok": False, "error": "internal_error"}, "retry"),
        ("slack", 200, {"ok": False, "error": "invalid_auth"}, "fail"),
        ("slack", 200, b"ok", "deliver"),
        ("slack", 429, {"ok": False, "error": "ratelimited"}, "pause"),
        ("graphql", 200, {"data": {"a": 1}}, "deliver"),
        ("graphql", 200, {"data": {"a": 1}, "errors": []}, "deliver"),
        ("graphql", 200, {"errors": [{"message": "why"}]}, "dead"),
        ("graphql", 200, graphql("THROTTLED"), "pause"),
        ("graphql", 200, graphql("INTERNAL_SERVER_ERROR"), "retry"),
        ("graphql", 200, graphql("UNAUTHENTICATED"), "fail"),
        ("graphql", 200, graphql("BAD_USER_INPUT"), "dead"),
        ("graphql", 400, graphql("GRAPHQL_VALIDATION_FAILED"), "fail"),
        ("graphql", 500, graphql(), "retry"),
        ("splunk_hec", 200, {"text": "Success", "code": 0}, "deliver"),
        ("splunk_hec", 503, {"text": "Server is busy", "code": 9}, "pause"),
        ("splunk_hec", 403, {"text": "Invalid token", "code": 4}, "fail"),
        ("splunk_hec", 400, {"text": "No data", "code": 5, "invalid-event-number": 0}, "dead"),
        ("splunk_hec", 400, {"text": "Data channel is missing", "code": 10}, "fail"),
        ("standard_webhooks", 204, b"", "deliver"),
        ("standard_webhooks", 404, b"", "retry"),
        ("standard_webhooks", 410, b"", "fail"),
        ("standard_webhooks", 429, b"", "pause"),
        ("standard_webhooks", 502, b"", "pause"),
        ("standard_webhooks", 302, b"", "fail"),
    ],
)
def test_a_preset_knows_what_its_api_says(preset: str, status: int, body: Any, step: str) -> None:
    """Without it everybody writes the same rules after the same pages."""
    assert steps(preset, status, body)[0][0] == step


def test_the_preset_of_elasticsearch_reads_items() -> None:
    """Without it a document that is there already is a dead letter, and a full queue a reason to go on."""
    found = {
        "errors": True,
        "items": [
            {"index": {"status": 201}},
            {"create": {"status": 409, "error": {"type": "version_conflict_engine_exception"}}},
            {"index": {"status": 409, "error": {"type": "version_conflict_engine_exception"}}},
            {"index": {"status": 400, "error": {"type": "document_parsing_exception", "reason": "why"}}},
            {"index": {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "full"}}},
            {"index": {"status": 403, "error": {"type": "cluster_block_exception", "reason": "read-only"}}},
        ],
    }

    assert [step for step, _ in steps("elasticsearch_bulk", 200, found, rows=6)] == [
        "deliver",
        "deliver",
        "dead",
        "dead",
        "pause",
        "retry",
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_what_could_have_been_written(preset: str) -> None:
    """Without it a preset is code that nobody can look at, or overrides what somebody has written."""
    written = {**PRESETS[preset], "url": URL}
    whole, by_name = Rest.model_validate(written), read_sink_options(preset=preset)

    assert by_name.model_dump(exclude={"preset"}) == whole.model_dump(exclude={"preset"})


def test_what_is_written_takes_the_place_of_a_preset_singly() -> None:
    """Without it one other limit means writing all of a preset."""
    sink = read_sink_options(
        preset="slack", calls_per_second=7, answers=[rule("park", "body.error = 'channel_not_found'")]
    )

    assert sink.calls_per_second == 7
    assert steps(
        "slack", 200, {"ok": False, "error": "channel_not_found"}, answers=sink.model_dump()["answers"][:1]
    ) == [("park", 'the API answers 200: {"ok": false, "error": "channel_not_found"}')]
    assert steps("slack", 200, {"ok": False, "error": "is_archived"}) == [("dead", "is_archived")]
    assert read_sink_options(preset="standard_webhooks", timeouts={"read": "1 s"}).timeouts.total == 30
