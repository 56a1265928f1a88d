"""Describe how the API behaves: a script in JSON, put in place as a whole, in force from the next call on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RetryAfter = Literal["none", "seconds", "date", "absurd", "malformed"]
"""The forms of a Retry-After header: `absurd` is a year, `malformed` is none of the two forms of HTTP."""
LimitHeaders = Literal["", "draft", "three", "x", "x_epoch"]
"""Which headers say what is left: those of the IETF's draft, of its older drafts, X- with seconds or with a time."""
How = Literal["answer", "huge", "endless", "drip", "cut", "garbage", "hangup", "reset", "silent"]


class Frozen(BaseModel):
    """A part of a script: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limit(Frozen):
    """A rate limit: calls over it get 429.

    It is a bucket of `burst` tokens that `rate` tokens per second fill again; with `window` a count that starts again
    every so many seconds, at rate * window. `unit` says what takes a token. `wait` replaces the seconds in
    Retry-After, which are otherwise those until there is room.
    """

    name: str = "calls"
    rate: float = Field(gt=0)
    burst: float = Field(20, ge=1)
    window: float = Field(0, ge=0)
    unit: Literal["calls", "rows"] = "calls"
    retry_after: RetryAfter = "seconds"
    wait: float | None = None
    headers: LimitHeaders = ""


class Failure(Frozen):
    """A failure of a share of the calls, at most `times` of them: by a status, or in the way that `how` says.

    `huge` sends `size` bytes, `endless` as much as is read, `drip` a byte now and then, `cut` less than it
    announced; `garbage` is no HTTP, `hangup` closes, `reset` resets, `silent` never answers. `processed`: the request
    still takes effect, unless a later check refuses it, such as the check for keys that were used; its sender sees
    only the failure. `seconds` pass before. `path` limits the failure to paths that begin with it.
    """

    how: How = "answer"
    status: int = 500
    headers: dict[str, str] = {}
    body: str = '{"error": "a failure of the script"}'
    size: int = 64 << 20
    share: float = Field(1, ge=0, le=1)
    times: int | None = None
    processed: bool = False
    seconds: float = 0
    retry_after: RetryAfter = "none"
    wait: float = 1
    path: str = ""


class Poison(Frozen):
    """Rows whose field (a dotted path) has one of these values: a call that holds one is refused whole."""

    field: str
    values: tuple[Any, ...]
    status: int = 400


class Items(Frozen):
    """An answer for every row of a call, under `items`: rows that are not poison are processed.

    `id` is the field of a row (a dotted path) that its result repeats; `shuffled` results are in another order than
    the rows; a share of the rows is `busy` and gets 429.
    """

    status: int = 207
    id: str = ""
    shuffled: bool = False
    busy: float = Field(0, ge=0, le=1)


class Token(Frozen):
    """Bearer tokens: a call without one gets 401; POST to `path` gives one for the client's id and secret.

    A token is good for `seconds` and for `uses` requests (0: any number); `declared` replaces its `expires_in`, to
    state a time that is wrong.
    """

    path: str = "/token"
    client: str = "demo"
    secret: str = "demo"
    seconds: float = 3600
    uses: int = 0
    declared: float | None = None


class Script(Frozen):
    """How the API behaves. The checks are made in the order of these fields; by default all succeeds at once.

    `latency` is what a request takes that is processed, in seconds. `outage` takes the whole API away: `refused`
    closes its port and its connections, `dropped` lets packets go nowhere (on Linux). `rows` names the list of rows
    in a body that wraps them. `idempotency` is the header that carries a key; "" ignores keys.
    """

    outage: Literal["", "refused", "dropped"] = ""
    wants: dict[str, str] = {}
    token: Token | None = None
    largest: int | None = None
    limits: tuple[Limit, ...] = ()
    failures: tuple[Failure, ...] = ()
    idempotency: str = ""
    key_needed: bool = False
    poison: tuple[Poison, ...] = ()
    items: Items | None = None
    latency: float = 0
    answer: Literal["count", "echo"] = "count"
    headers: dict[str, str] = {}
    rows: str = "events"
    calls_per_connection: int | None = None
    idle_seconds: float | None = None
    show_headers: bool = False
    """Whether the record keeps headers; credentials are among them."""
    seed: int = 7
