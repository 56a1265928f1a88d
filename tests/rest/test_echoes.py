"""An API that shows what it was sent, whole or escaped or encoded: no secret is kept with its answers."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from requests.auth import AuthBase

from router.delta.commit import StagedParts
from router_rest.answers.bulk_results import BulkResults
from router_rest.delivery.batcher import CallSize
from router_rest.logins.auth import Auth
from router_rest.logins.credentials import SecretMask, forms_of
from tests.rest.tasks import Tasks, changed, rows

if TYPE_CHECKING:
    from requests import PreparedRequest

    from router.delta.lake import Lake
    from tests.rest.scripted import Scripted, Talk

SECRET = 'hush/"hush"+ä&hush'.encode().decode("latin-1")
PLAIN = "hush-hush-hush/42"


class Derived(AuthBase):
    """A login whose header holds what no option says."""

    def __init__(self, key: str) -> None:
        self._header = f"Session {key[::-1]}"

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["X-Session"] = self._header
        return request


AUTHS: dict[str, Any] = {
    "bearer": {"bearer": PLAIN},
    "basic": {"basic": {"user": "router", "password": PLAIN}},
    "api key in a header": {"api_key": {"header": "X-Api-Key", "value": PLAIN}},
    "api key in the query": {"api_key": {"query": "key", "value": PLAIN}},
    "plugin": {"plugin": "tests.rest.test_echoes:Derived", "options": {"key": PLAIN}},
}


def _echoed(talk: Talk) -> dict[str, Any]:
    seen = talk.server.seen[-1]
    plain = [seen.line, *(f"{name}: {value}" for name, value in seen.headers.items())]
    encoded = [base64.b64encode(b"." * place + one.encode()).decode() for one in plain for place in range(3)]
    return {"plain": plain, "quoted": [quote(one, safe="") for one in plain], "encoded": encoded}


def _echo(status: str, results: bool) -> Any:
    def act(talk: Talk) -> None:
        while talk.request() is not None:
            echo = _echoed(talk)
            said = {"items": [{"status": 400, "why": echo}] * 2} if results else echo
            talk.answer(json.dumps(said).encode(), status)

    return act


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Oops", "404 Not Found", "200 with results"])
@pytest.mark.parametrize("auth", AUTHS)
def test_no_secret_is_kept_of_an_answer(
    server_tasks: Tasks, server: Scripted, lake: Lake, auth: str, status: str
) -> None:
    """Without it whoever may read receipts, dead letters or the log may call the API."""
    results = BulkResults(path="items", status="status", reason="why") if "results" in status else None
    server.act = _echo("200 OK" if results else status, results is not None)
    landed = StagedParts(lake, "silver.answers", "games:run/wins/rest", 0)
    job = server_tasks.job(auth=Auth.model_validate(AUTHS[auth]), cut=CallSize(rows=2), responses=landed)

    sent = server_tasks.run(changed(job, policy=replace(job.plan.policy, attempts=2, results=results)), rows(range(2)))

    parts = [row for kept in (server_tasks.parts, landed) for _, part in kept.read() for row in part.to_pylist()]
    told = "\n".join([repr(sent), repr(parts), *(str(one) for row in parts for one in row.values())])
    assert server.seen
    assert "***" in told
    files = [one.read_bytes() for one in Path(lake.root).rglob("*") if one.is_file()]
    assert files
    forms = {form for secret in (PLAIN, PLAIN[::-1]) for form in forms_of(secret)}
    assert [form for form in forms if form in told.encode() or any(form in one for one in files)] == []


@pytest.mark.parametrize("secret", [PLAIN, SECRET, "p%20w!", "a" * 50, "1234"])
def test_every_form_of_a_secret_is_masked(secret: str) -> None:
    mask = SecretMask([secret])
    shown = [json.dumps({"a": secret}), quote(secret), quote(secret, safe="").lower(), secret.encode().hex()]
    shown += [base64.b64encode(f"{'x' * before}{secret}yz".encode()).decode() for before in range(4)]
    for text in shown:
        hidden = mask.hide(f"before {text} after".encode())
        assert b"***" in hidden, text
        assert secret.encode() not in hidden
    assert mask.hide(b"nothing of it") == b"nothing of it"
