"""Presets against servers that answer as their vendors do: what becomes of rows, and what arrives."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import standardwebhooks

from router_rest.answers.actions import Action
from router_rest.answers.classifier import Classifier
from router_rest.delivery.batcher import Call
from router_rest.delivery.send_plan import cut_of, form_of, policy_of
from router_rest.http_client.response import Response, join_headers
from router_rest.presets import PRESETS
from router_sinks import Rest
from tests.rest.tasks import HTTP, Tasks, changed, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rest.scripted import Scripted, Seen, Talk
    from tests.rest.tasks import Sent

WHSEC = f"whsec_{base64.b64encode(b'a key of 24 bytes or more').decode()}"
Answer = tuple[str, bytes, tuple[str, ...]]
"""Status line, body and headers."""


def said(body: Any, status: str = "200 OK", *headers: str) -> Answer:
    return status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers


def run(
    server_tasks: Tasks, server: Scripted, values: list[Any], answers: Callable[[Seen], Answer], **options: Any
) -> Sent:
    """Send values by the options of a sink, one call at a time, to a server that answers so."""

    def act(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            status, body, headers = answers(seen)
            talk.answer(body, status, *headers)

    server.act = act
    sink = Rest.model_validate({"url": server.url, "poison_share": 1, **options})
    policy = replace(policy_of(sink), first=0.01, longest=0.02)
    job = server_tasks.job(auth=sink.auth, cut=cut_of(sink), http=replace(HTTP, in_flight=1))
    made = changed(job, form=form_of(sink), policy=policy)
    batch = rows(range(len(values)))
    encoded = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in values]
    return server_tasks.run(made, batch.set_column(batch.schema.names.index("_row"), "_row", pa.array(encoded)))


def reasons(sent: Sent) -> dict[int, str]:
    return {one["offset"]: one["reason"] for one in sent.dead}


def test_slack(server_tasks: Tasks, server: Scripted) -> None:
    """A message to a channel that is not there is a dead letter; what Slack cannot take now comes again."""
    times: dict[str, int] = {}

    def slack(seen: Seen) -> Answer:
        message = json.loads(seen.body)
        count = times[message["text"]] = times.get(message["text"], 0) + 1
        if seen.headers["authorization"] != "Bearer xoxb":
            return said({"ok": False, "error": "invalid_auth"})
        if message["text"] == "busy" and count == 1:
            return said({"ok": False, "error": "ratelimited"}, "429 Too Many Requests", "Retry-After: 0")
        if message["text"] == "error" and count == 1:
            return said({"ok": False, "error": "internal_error"})
        if message["channel"] == "nowhere":
            return said({"ok": False, "error": "channel_not_found"})
        return said({"ok": True, "ts": "1503435956.000247"})

    channels = ["general", "general", "nowhere", "general"]
    texts = ["busy", "error", "lost", "hello"]
    values = [{"channel": channel, "text": text} for channel, text in zip(channels, texts, strict=True)]
    sent = run(server_tasks, server, values, slack, preset="slack", auth={"bearer": "xoxb"})

    assert (sent.counts["delivered"], reasons(sent)) == (3, {2: "channel_not_found"})
    assert times == {"busy": 2, "error": 2, "lost": 1, "hello": 1}
    refused = run(server_tasks, server, values, slack, preset="slack", auth={"bearer": "other"})
    assert refused.counts["known"] == 3
    assert refused.texts["wrong"] == "invalid_auth"


def test_elasticsearch(server_tasks: Tasks, server: Scripted) -> None:
    """Each document is there once, whatever was refused beside it; what no mapping takes is a dead letter."""
    held: dict[str, Any] = {"there": {"n": 0}}
    turned_away: set[str] = set()

    def item(name: str, document: Any) -> dict[str, Any]:
        if name in held:
            return {"status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "exists"}}
        if not isinstance(document["n"], int):
            return {"status": 400, "error": {"type": "document_parsing_exception", "reason": f"no number in {name}"}}
        if name == "late" and name not in turned_away:
            turned_away.add(name)
            return {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "queue capacity"}}
        held[name] = document
        return {"status": 201, "result": "created"}

    def bulk(seen: Seen) -> Answer:
        assert seen.headers["content-type"] == "application/x-ndjson"
        lines = seen.body.decode().split("\n")
        assert lines.pop() == "", "the last line ends with a line break"
        pairs = [
            (json.loads(action)["create"]["_id"], json.loads(row))
            for action, row in zip(lines[::2], lines[1::2], strict=True)
        ]
        items = [{"create": {"_id": name, **item(name, row)}} for name, row in pairs]
        return said({"took": 1, "errors": any("error" in one["create"] for one in items), "items": items})

    documents = [("a", 1), ("there", 2), ("b", "x"), ("late", 3), ("c", 4)]
    values = [b'{"create":{"_id":"%s"}}\n{"n":%s}' % (name.encode(), json.dumps(n).encode()) for name, n in documents]
    action = {"action": {"create": {"_id": "{event.id}"}}}
    sent = run(server_tasks, server, values, bulk, preset="elasticsearch_bulk", body=action)

    assert (sent.counts["delivered"], list(reasons(sent))) == (4, [2])
    assert "no number in b" in reasons(sent)[2]
    assert held == {"there": {"n": 0}, "a": {"n": 1}, "late": {"n": 3}, "c": {"n": 4}}
    assert len(server.seen) == 2, "one bulk, and one for the document that was turned away"


def test_graphql(server_tasks: Tasks, server: Scripted) -> None:
    """A 200 with errors is no delivery; one that says that there were too many calls is asked again."""
    times: dict[str, int] = {}

    def graphql(seen: Seen) -> Answer:
        asked = json.loads(seen.body)
        name = asked["variables"]["name"]
        times[name] = times.get(name, 0) + 1
        throttled: list[Any] = [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}, {"message": "Throttled"}]
        if name == "slow" and times[name] <= 2:
            return said({"errors": [throttled[times[name] - 1]]})
        if name == "broken" and times[name] == 1:
            return said({"data": None, "errors": [{"message": "x", "extensions": {"code": "INTERNAL_SERVER_ERROR"}}]})
        if name == "bad":
            return said({"data": None, "errors": [{"message": "no such name", "path": ["add"]}]})
        return said({"data": {"add": {"id": name}}})

    values = [{"query": "mutation", "variables": {"name": name}} for name in ("a", "slow", "broken", "bad")]
    sent = run(server_tasks, server, values, graphql, preset="graphql")

    assert (sent.counts["delivered"], reasons(sent)) == (3, {3: "no such name"})
    assert times == {"a": 1, "slow": 3, "broken": 2, "bad": 1}


def test_splunk(server_tasks: Tasks, server: Scripted) -> None:
    """An event that Splunk does not take is a dead letter; those before it, which it keeps, come again and in doubt."""
    held: list[str] = []
    busy = [True]

    def hec(seen: Seen) -> Answer:
        assert seen.headers["authorization"] == "Splunk token"
        if busy and busy.pop():
            return said({"text": "Server is busy", "code": 9}, "503 Service Unavailable")
        assert seen.headers["content-type"] == "application/json"
        events = [json.loads(line) for line in seen.body.decode().splitlines()]
        for at, one in enumerate(events):
            if "event" not in one:
                wrong = {"text": "Event field is required", "code": 12, "invalid-event-number": at}
                held.extend(one["event"] for one in events[:at])
                return said(wrong, "400 Bad Request")
        held.extend(one["event"] for one in events)
        return said({"text": "Success", "code": 0})

    values = [{"event": "a"}, {"event": "b"}, {"evnt": "c"}, {"event": "d"}]
    login = {"api_key": {"header": "Authorization", "value": "Splunk token"}}
    sent = run(server_tasks, server, values, hec, preset="splunk_hec", auth=login)

    assert (sent.counts["delivered"], list(reasons(sent))) == (3, [2])
    assert "Event field is required" in reasons(sent)[2]
    assert sorted(held) == ["a", "a", "b", "b", "d"]
    twice = {value["event"] for value in values[:2]}
    assert twice <= {values[row["offset"]].get("event") for row in server_tasks.receipts() if row["in_doubt"]}
    other = {"api_key": {"header": "Authorization", "value": "Splunk other"}}
    for code in (4, 21):
        refusal = said({"text": "Invalid token", "code": code}, "403 Forbidden" if code == 4 else "400 Bad Request")
        more = [*values, {"event": "e"}]
        told = run(server_tasks, server, more, lambda _, no=refusal: no, preset="splunk_hec", auth=other)
        assert told.texts["wrong"] == "Invalid token"


def test_standard_webhooks(server_tasks: Tasks, server: Scripted) -> None:
    """A receiver verifies each attempt, knows one that comes again, and is left alone when it says 410."""
    got: dict[str, Any] = {}
    failing = [True]

    def receiver(seen: Seen) -> Answer:
        event = standardwebhooks.Webhook(WHSEC).verify(seen.body, dict(seen.headers))
        if failing and failing.pop():
            got[seen.headers["webhook-id"]] = event
            return said(b"", "500 Oops")
        got[seen.headers["webhook-id"]] = event
        return said(b"", "410 Gone" if event["type"] == "unwanted" else "204 No Content")

    values = [{"type": "contact.created", "data": {"n": at}} for at in range(3)]
    login = {"hmac": {"preset": "standard_webhooks", "key": WHSEC}}
    sent = run(server_tasks, server, values, receiver, preset="standard_webhooks", auth=login)

    assert sent.counts["delivered"] == 3
    assert sorted(event["data"]["n"] for event in got.values()) == [0, 1, 2]
    assert len(server.seen) == 4
    gone = run(server_tasks, server, [*values, {"type": "unwanted"}], receiver, preset="standard_webhooks", auth=login)
    assert gone.texts["wrong"] == "410: the receiver wants no more webhooks"


SLACK_API = "https://docs.slack.dev/reference/methods/chat.postMessage, errors of all methods"
SLACK_LIMITS = "https://docs.slack.dev/apis/web-api/rate-limits"
SLACK_HOOKS = "https://api.slack.com/changelog/2016-05-17-changes-to-errors-for-incoming-webhooks"
SLACK_SDK = "https://docs.slack.dev/tools/python-slack-sdk/webhook"
ELASTIC = "https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk"
ELASTIC_BUSY = "https://www.elastic.co/docs/troubleshoot/elasticsearch/rejected-requests"
APOLLO = "https://www.apollographql.com/docs/apollo-server/data/errors"
GRAPHQL_SPEC = "https://spec.graphql.org/October2021/#sec-Response-Format"
SHOPIFY = "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits; answers that its users have published"
SPLUNK = "the tables of Splunk's library cloudfwd (codes to 14) and of the app SplunkAdmins (to 22)"
WEBHOOKS = "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"


def of_slack(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


def of_elastic(status: int, kind: str = "") -> dict[str, Any]:
    error = {"error": {"type": kind, "reason": kind}} if kind else {"result": "created"}
    return {"errors": bool(kind), "items": [{"create": {"_id": "a", "status": status, **error}}]}


def of_graphql(code: str) -> dict[str, Any]:
    return {"data": None, "errors": [{"message": code.lower(), "extensions": {"code": code}}]}


def of_splunk(code: int) -> dict[str, Any]:
    return {"text": f"code {code}", "code": code}


DOCUMENTED: list[tuple[str, Action, int, Any, str]] = [
    ("slack", Action.DONE, 200, {"ok": True, "ts": "1503435956.000247"}, SLACK_API),
    ("slack", Action.DONE, 200, b"ok", SLACK_SDK),
    *(("slack", Action.DEAD, 200, of_slack(error), SLACK_API) for error in ("channel_not_found", "no_text")),
    *(("slack", Action.AGAIN, 200, of_slack(error), SLACK_API) for error in ("fatal_error", "service_unavailable")),
    *(("slack", Action.WRONG, 200, of_slack(error), SLACK_API) for error in ("invalid_auth", "missing_scope")),
    ("slack", Action.AGAIN, 200, of_slack("ratelimited"), SLACK_API),
    ("slack", Action.AGAIN, 429, of_slack("ratelimited"), SLACK_LIMITS),
    ("slack", Action.REFUSED, 400, b"invalid_payload", SLACK_HOOKS),
    ("slack", Action.REFUSED, 400, b"user_not_found", SLACK_HOOKS),
    ("slack", Action.WRONG, 403, b"action_prohibited", SLACK_HOOKS),
    ("slack", Action.WRONG, 404, b"channel_not_found", SLACK_HOOKS),
    ("slack", Action.WRONG, 410, b"channel_is_archived", SLACK_HOOKS),
    ("slack", Action.AGAIN, 500, b"rollup_error", SLACK_HOOKS),
    ("elasticsearch_bulk", Action.DONE, 200, of_elastic(201), ELASTIC),
    ("elasticsearch_bulk", Action.DONE, 200, of_elastic(409, "version_conflict_engine_exception"), ELASTIC),
    ("elasticsearch_bulk", Action.DEAD, 200, of_elastic(400, "document_parsing_exception"), ELASTIC),
    ("elasticsearch_bulk", Action.AGAIN, 200, of_elastic(503, "unavailable_shards_exception"), ELASTIC),
    ("elasticsearch_bulk", Action.AGAIN, 200, of_elastic(429, "es_rejected_execution_exception"), ELASTIC_BUSY),
    ("elasticsearch_bulk", Action.AGAIN, 429, {"error": {"type": "circuit_breaking_exception"}}, ELASTIC_BUSY),
    ("graphql", Action.DONE, 200, {"data": {"add": {"id": 1}}}, GRAPHQL_SPEC),
    ("graphql", Action.DEAD, 200, {"data": None, "errors": [{"message": "no"}]}, GRAPHQL_SPEC),
    ("graphql", Action.DEAD, 200, of_graphql("BAD_USER_INPUT"), APOLLO),
    ("graphql", Action.REFUSED, 400, of_graphql("BAD_REQUEST"), APOLLO),
    ("graphql", Action.AGAIN, 200, of_graphql("INTERNAL_SERVER_ERROR"), APOLLO),
    ("graphql", Action.AGAIN, 500, of_graphql("INTERNAL_SERVER_ERROR"), APOLLO),
    *(
        ("graphql", Action.WRONG, 400, of_graphql(code), APOLLO)
        for code in ("GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "OPERATION_RESOLUTION_FAILURE")
    ),
    ("graphql", Action.AGAIN, 200, of_graphql("THROTTLED"), SHOPIFY),
    ("splunk_hec", Action.DONE, 200, of_splunk(0), SPLUNK),
    *(("splunk_hec", Action.WRONG, 403, of_splunk(code), SPLUNK) for code in (1, 4)),
    *(("splunk_hec", Action.WRONG, 401, of_splunk(code), SPLUNK) for code in (2, 3)),
    *(("splunk_hec", Action.SPLIT, 400, of_splunk(code), SPLUNK) for code in (5, 6, 7, 12, 13, 15)),
    ("splunk_hec", Action.AGAIN, 500, of_splunk(8), SPLUNK),
    ("splunk_hec", Action.AGAIN, 503, of_splunk(9), SPLUNK),
    *(("splunk_hec", Action.WRONG, 400, of_splunk(code), SPLUNK) for code in (10, 11, 14, 16, 21, 22)),
    ("splunk_hec", Action.AGAIN, 503, of_splunk(18), SPLUNK),
    *(("standard_webhooks", Action.DONE, status, b"", WEBHOOKS) for status in (200, 202, 204)),
    ("standard_webhooks", Action.WRONG, 410, b"", WEBHOOKS),
    *(("standard_webhooks", Action.AGAIN, status, b"", WEBHOOKS) for status in (400, 404, 429, 500, 502, 504)),
]
"""The preset, what becomes of the call or of its only row, and an answer of the vendor with where it was read."""


@pytest.mark.parametrize(
    ("preset", "action", "status", "body"),
    [pytest.param(*case[:4], id=f"{case[0]} {case[2]} {at}") for at, case in enumerate(DOCUMENTED)],
)
def test_a_documented_answer_means_what_its_vendor_says(preset: str, action: Action, status: int, body: Any) -> None:
    """Without it rows are sent again for ever, thrown away, or taken for delivered, and nobody knows."""
    policy = policy_of(Rest.model_validate({"url": "https://api.test", "preset": preset}))
    call = Call("events", 0, [1], [b"{}"])
    text = body if isinstance(body, bytes) else json.dumps(body).encode()

    attempt, _ = Classifier(policy).classify_answer(call, Response(status, join_headers([]), text, 0.1, True))

    if attempt.results is None:
        assert attempt.action is action
    else:
        assert attempt.results[0].action is action


def test_each_preset_is_held_against_documented_answers() -> None:
    """Without it a new preset is what somebody remembers of an API."""
    assert {case[0] for case in DOCUMENTED} == set(PRESETS)
    assert all(case[4] for case in DOCUMENTED)
