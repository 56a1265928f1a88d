"""Calls whose method comes from their rows: one method in a call, and what an answer means for a DELETE."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router_rest.answers.classifier import Classifier, next_steps
from router_rest.delivery.batcher import Call, CallSize
from router_rest.delivery.call import RequestForm
from router_rest.delivery.send_plan import form_of, policy_of
from router_rest.http_client.response import Response, join_headers
from router_rest.templates import CALL_METHODS
from router_sinks import Rest
from tests.rest.tasks import Tasks, changed, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rest.scripted import Scripted, Talk

URL = "https://api.test/wins"


def by_method(methods: Sequence[str | None], lanes: Sequence[bytes] | None = None) -> pa.RecordBatch:
    """Return rows with a method each, as Spark gives them; None: an unknown one."""
    fault = [None if one else "its method is none of POST, PUT, PATCH, DELETE" for one in methods]
    target = [f"\n{one}" if one else None for one in methods]
    to = pa.StructArray.from_arrays([pa.array(target), pa.array(fault, pa.string())], ["target", "fault"])
    whole = rows(range(len(methods)), lanes=lanes)
    return whole.set_column(whole.schema.names.index("_to"), "_to", to)


@pytest.mark.parametrize("size", [1, 4])
def test_a_call_has_rows_of_one_method_and_goes_out_by_it(server_tasks: Tasks, server: Scripted, size: int) -> None:
    """Without it a row that was to be deleted is written, or one call does to some rows what others asked for."""
    methods = [CALL_METHODS[at % 3] for at in range(30)]
    job = server_tasks.job(cut=CallSize(rows=size))

    sent = server_tasks.run(changed(job, form=replace(job.plan.form, method="")), by_method([*methods, None]))

    assert (sent.counts["delivered"], [one["reason"] for one in sent.dead]) == (
        30,
        ["its method is none of POST, PUT, PATCH, DELETE"],
    )
    arrived = [(seen.line.split(" ")[0], json.loads(seen.body)) for seen in server.seen]
    pairs = [(method, row["offset"]) for method, body in arrived for row in (body if size > 1 else [body])]
    assert sorted(pairs) == sorted(zip(methods, range(30), strict=True))
    assert len(arrived) == (9 if size > 1 else 30)


def test_an_upsert_does_not_overtake_the_deletion_before_it(server_tasks: Tasks, server: Scripted) -> None:
    """Without it a row that was deleted and written again is gone, or the other way round."""
    methods = ["PUT", "PUT", "DELETE", "PUT"] * 10
    job = server_tasks.job(cut=CallSize(rows=8, orders=16, groups=100))
    batch = by_method(methods, lanes=[b"key %d" % (at // 4 % 5) for at in range(40)])

    server_tasks.run(changed(job, form=replace(job.plan.form, method="")), batch)

    order = [(row["offset"], seen.line.split(" ")[0]) for seen in server.seen for row in json.loads(seen.body)]
    assert sorted(order) == list(enumerate(methods))
    for key in range(5):
        of_key = [at for at, _ in order if at // 4 % 5 == key]
        assert of_key == sorted(of_key)


def gone_after_a_reset(talk: Talk) -> None:
    """Take the first request and say nothing; find nothing at the second."""
    while talk.request() is not None:
        if len(talk.server.seen) == 1:
            return talk.reset()
        talk.answer(b"no such thing", "404 Not Found")
    return None


@pytest.mark.parametrize(("method", "delivered"), [("DELETE", 1), ("PUT", 0)])
def test_what_an_earlier_attempt_has_deleted_is_delivered(
    server_tasks: Tasks, server: Scripted, method: str, delivered: int
) -> None:
    """Without it each deletion whose answer was lost is a dead letter, or stops the sink."""
    server.act = gone_after_a_reset
    job = server_tasks.job()

    sent = server_tasks.run(changed(job, form=replace(job.plan.form, method="")), by_method([method]))

    assert sent.counts["delivered"] == delivered
    assert [row["in_doubt"] for row in server_tasks.receipts()] == [True] * delivered


@pytest.mark.parametrize(
    ("method", "doubt", "status", "action"),
    [
        ("DELETE", True, 404, "DONE"),
        ("DELETE", True, 410, "DONE"),
        ("DELETE", False, 404, "WRONG"),
        ("DELETE", True, 403, "WRONG"),
        ("DELETE", True, 409, "AGAIN"),
        ("DELETE", True, 503, "AGAIN"),
        ("POST", True, 404, "WRONG"),
        ("PUT", True, 410, "WRONG"),
    ],
)
def test_an_answer_is_read_by_the_method_of_its_row(method: str, doubt: bool, status: int, action: str) -> None:
    call = Call("t", 0, [1], [b"{}"], doubtful=frozenset({1} if doubt else ()))
    answer: Any = SimpleNamespace(status=status, headers={}, body=b"", seconds=0.1, resent=False, whole=True)
    policy: Any = SimpleNamespace(again=None, results=None, rules=())

    attempt, saw = Classifier(policy).classify_answer(call, answer, method=method)

    assert attempt.action.name == action
    assert saw["ok"] is (action == "DONE")


def test_a_rule_may_look_at_the_method() -> None:
    """Without it whoever deletes what may be gone takes a PUT to a wrong address for delivered, too."""
    rule = {"when": "method = 'DELETE' AND status = 404", "then": "deliver"}
    policy = policy_of(Rest.model_validate({"url": URL, "answers": [rule]}))
    answer = Response(404, join_headers([]), b"", 0.0, whole=True)

    steps = {method: next_steps(policy, Call("t", 0, [1], [b"{}"]), answer, method)[0][0] for method in CALL_METHODS}

    assert steps == {"POST": "fail", "PUT": "fail", "PATCH": "fail", "DELETE": "deliver"}


def test_the_form_says_by_what_method_and_where_calls_go() -> None:
    """Without it a header's value is taken for a method."""
    options = {"url": URL, "method": {"sql": "event.op"}, "headers": {"X-Game": "{event.game}"}}
    form = form_of(Rest.model_validate(options))

    assert (form.method, form.url) == ("", URL)
    assert form.call_target("\nPUT\nuno") == ("PUT", URL, ["uno"])
    assert replace(form, url="").call_target("https://a.test/b\nDELETE\nuno") == ("DELETE", "https://a.test/b", ["uno"])
    assert RequestForm("POST", URL, {}, form.body).call_target("") == ("POST", URL, [])
    assert Counter(CALL_METHODS) == Counter(["POST", "PUT", "PATCH", "DELETE"])
