"""Give bearer tokens out for client credentials, and let in who shows a good one."""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from router_demo.api_server.messages import JSON, Reply, Request, error

if TYPE_CHECKING:
    from router_demo.api_server.record import Record
    from router_demo.api_server.script import Script, Token


class Tokens:
    """Hold the tokens that are good, until when, and for how many requests (negative: any number)."""

    def __init__(self, script: Script, record: Record, before: Tokens | None) -> None:
        assert script.token is not None  # or nobody asks for this check
        self._token: Token = script.token
        self._record = record
        self._good: dict[str, tuple[float, int]] = {}

    def __call__(self, request: Request) -> Reply | None:
        shown = request.header("authorization").removeprefix("Bearer ")
        until, left = self._good.get(shown, (0.0, 0))
        if request.at >= until or left == 0:
            return error(401, "no good token", [("WWW-Authenticate", 'Bearer error="invalid_token"')])
        self._good[shown] = (until, left - 1)
        return None

    def give(self, request: Request) -> Reply | None:
        """Return the answer to a request for a token; None when it is for something else."""
        token = self._token
        if request.path.decode("latin-1") != token.path:
            return None
        if (token.client, token.secret) not in (_basic(request), _form(request)):
            return error(401, "invalid_client")
        made = secrets.token_urlsafe(16)
        self._good[made] = (request.at + token.seconds, token.uses or -1)
        self._record.tokens += 1
        seconds = token.seconds if token.declared is None else token.declared
        return Reply(
            200, json.dumps({"access_token": made, "token_type": "Bearer", "expires_in": seconds}).encode(), [JSON]
        )


def _basic(request: Request) -> tuple[str, str] | None:
    kind, _, shown = request.header("authorization").partition(" ")
    try:
        client, _, secret = base64.b64decode(shown).decode().partition(":")
    except ValueError:
        return None
    return (client, secret) if kind == "Basic" else None


def _form(request: Request) -> tuple[str, str]:
    form = parse_qs(request.body.decode("latin-1"))
    return (form.get("client_id", [""])[0], form.get("client_secret", [""])[0])
