"""What an answer means: what becomes of a call and of each row, and when the API wants to be called again.

Rules of the configuration are asked first, then the status decides on a call, and the results of a bulk API on each
row. Headers say how long to pause, and how many calls are left. Runs on executors, where calls are sent, and on the
driver for `router test`. Sends nothing.

Retry-After: RFC 9110, 10.2.3. RateLimit: draft-ietf-httpapi-ratelimit-headers-11, and what APIs sent before there was
a draft. Headers are hints, and may hold anything: one that cannot be read is ignored.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from pydantic import Field, field_validator, model_validator

from router import Placeholder, parse_template
from router_http.options import SecretOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from router_rest.answers.expression import AnswerExpression
    from router_rest.delivery.batcher import Call
    from router_rest.http_client.response import Response

    Hide = Callable[[bytes], bytes]


class Action(Enum):
    """The next step for a call."""

    DONE = "it is delivered"
    AGAIN = "send it again later, with the same key"
    LOGIN = "get new credentials and send it again; if they are refused as well, wait"
    REFUSED = "one of its rows, or all, will never be taken"
    SPLIT = "it is too large: send it in two"
    WRONG = "no call can succeed until a setting is changed"
    LATER = "the API's answer cannot be read: leave it for the next round"
    PARK = "the API says nothing of the rows: park them, in doubt"
    DEAD = "a rule says that its rows will never be taken"
    SET_ASIDE = "a rule says to park its rows"


RETRY_STATUSES = frozenset({408, 423, 425, 429, *range(500, 600)} - {501})
"""The server did not get the whole call, has too much to do, or is out of order."""
REFUSED_STATUSES = frozenset({400, 406, 409, 416, 422, 424, 451})
URL_STATUSES = frozenset({403, 404, 410, 414})
"""Statuses about the URL: the row is wrong where its values make the URL, else the configuration is."""
GONE_STATUSES = frozenset({404, 410})
"""Statuses by which a DELETE that may have arrived before is done: nothing is there any more (RFC 9110, 9.2.2)."""
NOT_PROCESSED_STATUSES = frozenset({501, 503})
"""Failures of a server that has not processed the call; after every other 5xx it is unknown."""


SERVER_STATUSES = frozenset({401, 408, 425, 502, 503, 504})
"""Answers about the server, what stands before it, or the login, which say nothing of the call."""


def action_for(status: int, *, doubt: bool, url_of_data: bool = False, again: frozenset[int] | None = None) -> Action:
    """Return the next step after an answer of this status.

    `doubt`: the rows may have arrived before, so 409 says that this is so, or that the first attempt is still running;
    else it is a conflict, which another attempt does not solve. `again` are the statuses after which a call is sent
    again, in place of RETRY_STATUSES; one of these that is not among them says that the row is wrong.
    """
    if 200 <= status < 300:
        return Action.DONE
    if status in (RETRY_STATUSES if again is None else again) or (doubt and status == 409):
        return Action.AGAIN
    if status in REFUSED_STATUSES or status in RETRY_STATUSES or (url_of_data and status in URL_STATUSES):
        return Action.REFUSED
    return {401: Action.LOGIN, 413: Action.SPLIT}.get(status, Action.WRONG)


def is_throttling(status: int, paused: bool) -> bool:
    """Return whether an answer says that there were too many calls; `paused`: it says when to come again."""
    return status == 429 or (status == 503 and paused)


def is_doubtful(status: int) -> bool:
    """Return whether a failed call may have been processed in spite of its status."""
    return status >= 500 and status not in NOT_PROCESSED_STATUSES


MAX_RETRY_AFTER_SECONDS = 3600.0
"""Seconds of a pause at most, whatever an API says: it may have a limit of an hour."""
_MAX_HEADER_CHARS = 1024
"""Characters of a header that are looked at."""
_NUMBER_PATTERN = re.compile(r"\d{1,30}(\.\d{0,9})?")
_PARAMETER_PATTERN = re.compile(r'\s*;\s*([a-z*][a-z0-9_.*-]*)(?:=("[^"\\]*"|[^";,\s]+))?')
_MEMBER_PATTERN = re.compile(rf'\s*"(?P<name>[^"\\]*)"(?P<parameters>(?:{_PARAMETER_PATTERN.pattern})*)\s*')
_PAIR_PATTERN = re.compile(r"(limit|remaining|reset)\s*=\s*(\d{1,15})")
_MILLISECOND_HEADERS = ("retry-after-ms", "x-ms-retry-after-ms")
_OLDER_HEADERS = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
)
_MIN_EPOCH_SECONDS = 1e9
"""From here on a reset is no duration but a time since 1970, in seconds; a thousand times later, in milliseconds."""


@dataclass(frozen=True)
class Remaining:
    """The `calls` that an API still takes within the next `seconds`."""

    calls: float
    seconds: float


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds after which an API wants to be called again; None if it names none.

    Never less than it says, but MAX_RETRY_AFTER_SECONDS at most. `now` is in seconds since 1970. `headers` find names
    in any case, as those of `requests` do.
    """
    seconds = None
    header = headers.get("retry-after")
    if header is not None and len(header) <= _MAX_HEADER_CHARS:
        seconds = _seconds_until(header.strip(), headers, now)
    for name in _MILLISECOND_HEADERS:
        milliseconds = _parse_number(headers.get(name))
        if seconds is None and milliseconds is not None:
            seconds = milliseconds / 1000
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def calls_left(headers: Mapping[str, str], now: float) -> Remaining | None:
    """Return the calls that an API still takes and for how long, by its tightest policy; None if it does not say."""
    policies = [*_read_draft_policies(headers), *_read_older_policies(headers, now)]
    return min(policies, key=lambda remaining: remaining.calls / max(remaining.seconds, 1.0), default=None)


def _seconds_until(retry_after: str, headers: Mapping[str, str], now: float) -> float | None:
    seconds = _parse_number(retry_after)
    if seconds is not None:
        return seconds
    date = _parse_http_date(retry_after)
    if date is None:
        return None
    # By the clock of the API if it says the time: ours may differ.
    time_of_api = _parse_http_date(headers.get("date", ""))
    return date - (now if time_of_api is None else time_of_api)


def _parse_number(text: str | None) -> float | None:
    if text is None or _NUMBER_PATTERN.fullmatch(text.strip()) is None:
        return None
    return float(text)


def _parse_http_date(text: str) -> float | None:
    """Return the time of an HTTP-date in any of its three forms."""
    if len(text) > 64:
        return None
    try:
        date: datetime = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        return date.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _read_draft_policies(headers: Mapping[str, str]) -> Iterator[Remaining]:
    """Yield the calls left by `RateLimit: "name";r=50;t=30`, for every policy that counts calls."""
    header = headers.get("ratelimit", "")[:_MAX_HEADER_CHARS]
    if not header:
        return
    pairs = dict(_PAIR_PATTERN.findall(header))
    if "remaining" in pairs and "reset" in pairs:  # the form of draft 7
        yield Remaining(float(pairs["remaining"]), min(float(pairs["reset"]), MAX_RETRY_AFTER_SECONDS))
        return
    policies = dict(_parse_members(headers.get("ratelimit-policy", "")[:_MAX_HEADER_CHARS]))
    for name, parameters in _parse_members(header):
        policy = policies.get(name, {})
        calls = _parse_number(parameters.get("r"))
        seconds = _parse_number(parameters.get("t", policy.get("w")))
        if calls is None or seconds is None or policy.get("qu", '"requests"') != '"requests"':
            continue
        yield Remaining(calls, min(seconds, MAX_RETRY_AFTER_SECONDS))


def _parse_members(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list of strings with parameters (RFC 9651); nothing of a malformed list."""
    members = []
    position = 0
    while position < len(header):
        member = _MEMBER_PATTERN.match(header, position)
        if member is None or header[member.end() : member.end() + 1] not in {"", ","}:
            return
        members.append((member["name"], dict(_PARAMETER_PATTERN.findall(member["parameters"]))))
        position = member.end() + 1
    yield from members


def _read_older_policies(headers: Mapping[str, str], now: float) -> Iterator[Remaining]:
    for remaining, reset in _OLDER_HEADERS:
        calls = _parse_number(headers.get(remaining))
        seconds = _parse_number(headers.get(reset))
        if calls is None or seconds is None:
            continue
        if seconds >= _MIN_EPOCH_SECONDS * 1000:
            seconds = max(seconds / 1000 - now, 0.0)
        elif seconds >= _MIN_EPOCH_SECONDS:
            seconds = max(seconds - now, 0.0)
        yield Remaining(calls, min(seconds, MAX_RETRY_AFTER_SECONDS))


RULE_NAMES = ("status", "headers", "body", "item", "method")
Then = Literal["retry", "deliver", "dead", "park", "pause", "split", "fail"]
ACTION_OF_RULE = {
    "retry": Action.AGAIN,
    "deliver": Action.DONE,
    "dead": Action.DEAD,
    "park": Action.SET_ASIDE,
    "pause": Action.AGAIN,
    "split": Action.SPLIT,
    "fail": Action.WRONG,
}


class AnswerDecision(NamedTuple):
    """What a rule says of a call or a row; `reason` is empty if it gives none."""

    then: str
    reason: str
    whole: bool
    """The rule looks at no item: it speaks of the whole call."""

    @property
    def action(self) -> Action:
        """Return the next step for the call or the row."""
        return ACTION_OF_RULE[self.then]


@dataclass(frozen=True)
class AnswerRule:
    """A condition on an answer, what becomes of the rows if it holds, and a reason made of the answer.

    A rule looks at `status`, at `headers` by names in any case, at `body`, which is null if it is no JSON, at the
    `method` of the call, and in the answer of a bulk API at `item`, which is what is about one row.
    """

    when: AnswerExpression
    then: Then
    reason: tuple[str | AnswerExpression, ...] = ()

    @classmethod
    def from_texts(cls, when: str, then: Then, reason: str | None) -> AnswerRule:
        """Return the rule of three texts. Raises ValueError, which says what of them is wrong. Runs on the driver."""
        # Importing the parser takes half a second: only sinks with rules wait for it, and no task does.
        from router_rest.answers.expression_reader import read_expression

        pieces: list[str | AnswerExpression] = []
        for piece in parse_template(reason or ""):
            if isinstance(piece, Placeholder):
                pieces.append(read_expression(piece.path, RULE_NAMES))
            else:
                pieces.append(piece)
        return cls(read_expression(when, RULE_NAMES), then, tuple(pieces))

    @property
    def of_items(self) -> bool:
        """Return whether the rule looks at the item of a row."""
        expressions = [self.when, *self.reason]
        return any(not isinstance(piece, str) and piece.operation.reads_name("item") for piece in expressions)

    def make_decision(self, answer_values: Mapping[str, Any], hide: Hide) -> AnswerDecision:
        """Return the decision of the rule on an answer for which it holds; `hide` masks secrets."""
        text = ""
        for piece in self.reason:
            if isinstance(piece, str):
                text += piece
                continue
            value = piece.value(answer_values)
            text += "" if value is None else json_text(value)
        shown = hide(text.encode(errors="replace")).decode(errors="replace")
        return AnswerDecision(self.then, shown, not self.of_items)


def apply_rules(
    rules: Sequence[AnswerRule], answer: Response, items: Sequence[Any], hide: Hide = bytes, method: str = ""
) -> list[AnswerDecision | None]:
    """Return, for each item, the decision of the first rule that holds; None if none does. `hide` masks secrets.

    `items` are the results of rows as they stand in the answer; one null if the answer is about the whole call.
    """
    values = {
        "status": answer.status,
        "headers": answer.headers,
        "body": decoded_json(answer.body),
        "method": method,
        "item": None,
    }
    decided: list[AnswerDecision | None] = [None] * len(items)
    for rule in rules:
        if None not in decided:
            break
        if not rule.of_items:
            if rule.when.value(values) is True:  # it holds for the call, and so for every row that is undecided
                whole = rule.make_decision(values, hide)
                return [decision or whole for decision in decided]
            continue
        for position, item in enumerate(items):
            values_of_row = {**values, "item": item}
            if decided[position] is None and rule.when.value(values_of_row) is True:
                decided[position] = rule.make_decision(values_of_row, hide)
    return decided


def json_text(value: Any) -> str:
    """Return a value of JSON as a text: a text as it is, all others as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def decoded_json(text: bytes) -> Any:
    """Return the value of a JSON text; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


NO_STATUS = "`results` finds no status"
"""How the reason begins of a row whose answer does not say what became of it."""
_SUCCESS_WORDS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})
_MISSING = object()


class Unreadable(ValueError):  # noqa: N818 - it says what the answer is
    """An answer in which the results of its rows are not where the configuration says."""


UNKNOWN_STATUS = 0
"""The status of a row of which the answer does not say what became of it."""


@dataclass(frozen=True)
class Result:
    """The result of one row: a status like that of HTTP, or UNKNOWN_STATUS, and the text of the reason.

    `item` is what the answer has about the row, `decision` what a rule says of it.
    """

    status: int
    text: bytes
    item: Any = None
    decision: AnswerDecision | None = None


class BulkResults(SecretOptions):
    """Where the answer of a bulk API has the result of each row.

    Without `id` there is one item for each row, in their order; else rows are named by the value that they have at
    `row_id`, or by their position if they have no such field. Paths are names with dots between them; `*` is the only
    field of an object, whatever its name. A row is unknown if no item is about it, or its `status` leads nowhere.
    """

    path: str = Field(default="", description="where the items are in the answer: items; empty: the answer is the list")
    status: str = Field(min_length=1, description="where an item says what became of its row: index.status")
    ok: tuple[str | int | bool, ...] = Field(
        default=(), description="what it says of a row that was taken; default: 200 to 299, true, words such as `ok`"
    )
    id: str | None = Field(
        default=None, min_length=1, description="where an item names its row; default: items are in the order of rows"
    )
    absent_ok: bool = Field(
        default=False, description="rows that no item is about, or one without `status`, were taken; default: parked"
    )
    row_id: str | None = Field(default=None, min_length=1, description="where a row has that name; default: as `id`")
    reason: str | None = Field(default=None, min_length=1, description="where an item says why: error.message")

    @field_validator("path", "status", "id", "row_id", "reason")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path and not all(path.split(".")):
            raise ValueError("a path is names with dots between them: index.status")
        return path

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        if self.row_id is not None and self.id is None:
            raise ValueError("row_id says where rows have what items have in `id`, and no `id` is given")
        return self

    def by_row(self, body: bytes, rows: Sequence[bytes]) -> list[Result]:
        """Return a result for each row; raise Unreadable if the answer has none."""
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(f"the answer is not JSON: {error}") from None
        elements = _value_at(answer, self.path)
        if not isinstance(elements, list):
            raise Unreadable(f"there is no list at {self.path or 'the top'} of the answer")
        if self.id is None:
            if len(elements) != len(rows):
                raise Unreadable(f"the answer has {len(elements)} results for {len(rows)} rows")
            return [self._read_result(element) for element in elements]
        # Items may come in any order, and leave rows out: what became of those is not known, unless that means success.
        by_name = {_name_of(_value_at(element, self.id)): self._read_result(element) for element in elements}
        missing = Result(UNKNOWN_STATUS, b"of the row, for no item is about it")
        if self.absent_ok:
            missing = Result(200, b"")
        return [by_name.get(name, missing) for name in self._row_names(rows, by_name)]

    def _read_result(self, element: Any) -> Result:
        value = _value_at(element, self.status)
        if value is _MISSING or value is None:
            if self.absent_ok:
                return Result(200, b"", element)
            return Result(UNKNOWN_STATUS, f"at `{self.status}` of its item".encode(), element)
        status = _parse_status(value, self.ok)
        if status < 300:
            return Result(status, b"", element)
        reason = None if self.reason is None else _value_at(element, self.reason)
        if isinstance(reason, str):
            return Result(status, reason.encode(), element)
        return Result(status, msgspec.json.encode(element), element)

    def _row_names(self, rows: Sequence[bytes], by_name: Mapping[str, Result]) -> list[str]:
        """Return the name of each row; raise Unreadable if an element is about none of them."""
        path = self.row_id or self.id or ""
        values = [_value_at(_decoded_row(row), path) for row in rows]
        names = [_name_of(value) for value in values]
        if all(value is _MISSING for value in values):
            names = [str(position) for position in range(len(rows))]
        strange = by_name.keys() - set(names)
        if strange:
            raise Unreadable(f"the answer has results for {len(strange)} rows that were not sent: check `id`")
        return names


def _decoded_row(row: bytes) -> Any:
    """Return the value of a row; an action may stand on a line before it."""
    value = decoded_json(row)
    return decoded_json(row.rpartition(b"\n")[2]) if value is None else value


def _value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path, or _MISSING. `*` is the only field of an object, whatever its name."""
    for name in path.split(".") if path else ():
        if not isinstance(value, dict) or (name == "*" and len(value) != 1):
            return _MISSING
        value = next(iter(value.values())) if name == "*" else value.get(name, _MISSING)
    return value


def _name_of(value: Any) -> str:
    return json_text(None if value is _MISSING else value)


def _parse_status(value: Any, ok: Sequence[str | int | bool]) -> int:
    """Return a status like that of HTTP for the value of an element; true is not 1 here."""
    if ok:
        if any(type(value) is type(accepted) and value == accepted for accepted in ok):
            return 200
        return value if type(value) is int and 300 <= value <= 599 else 400
    if value is True:
        return 200
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) == 3:
            return int(value)
        return 200 if value.lower() in _SUCCESS_WORDS else 400
    return value if isinstance(value, int) and 100 <= value <= 599 else 400


_FAILED_ACTIONS = frozenset({Action.AGAIN, Action.LOGIN, Action.WRONG, Action.LATER})
"""Answers that say that the API is not well, or that it is not called as it wants."""
UNDONE_ACTIONS = frozenset({Action.AGAIN, Action.SPLIT, Action.SET_ASIDE, Action.WRONG})
"""Decisions of rules after which rows may be sent again: after a 2xx these may have arrived."""
_LOOK_PAUSE_SECONDS = 0.05
"""Seconds between two readings of the headers about the limit."""


@dataclass(frozen=True)
class Policy:
    """When a call is sent again, and how its answer tells rows apart; it is pickled to tasks.

    `attempts` and `elapsed` (seconds) bound the attempts of a call within one task, waits for the retry budget
    included. `first` and `longest` bound the seconds between two attempts, unless the API asks for more. `again`:
    statuses after which a call is sent again, in place of the usual ones. `rules` have their say before all statuses.
    """

    attempts: int = 5
    elapsed: float = 60.0
    first: float = 0.2
    longest: float = 10.0
    again: frozenset[int] | None = None
    results: BulkResults | None = None
    rules: tuple[AnswerRule, ...] = ()


@dataclass
class Attempt:
    """The result of one attempt. `pause`: seconds after which the API wants to be called again; `came`: it went
    out, and did not time out.

    `throttled`: the API says that there were too many calls.
    """

    action: Action
    why: str
    status: int | None = None
    seconds: float | None = None
    body: bytes = b""
    pause: float | None = None
    results: list[Result] | None = None
    came: bool = True
    throttled: bool = False


@dataclass
class Classifier:
    """The meaning of answers for the calls of one task."""

    policy: Policy
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    def classify_answer(
        self, call: Call, answer: Response, hide: Hide = bytes, method: str = ""
    ) -> tuple[Attempt, dict[str, Any]]:
        """Return the attempt that an answer to a `method` makes of a call, and its arguments of `LeaseClient.release`.

        `hide` masks secrets: an API may show all that it was sent.
        """
        status = answer.status
        # A DELETE that may have arrived before, and finds nothing, has taken effect.
        gone = method == "DELETE" and bool(call.doubtful) and status in GONE_STATUSES
        action = Action.DONE
        if not gone:
            url_of_data = bool(call.url.partition("\n")[0])
            action = action_for(status, doubt=bool(call.doubtful), url_of_data=url_of_data, again=self.policy.again)
        attempt = Attempt(action, "", status, answer.seconds, hide(answer.body))
        if is_doubtful(status) or answer.resent:
            call.doubtful = frozenset(call.offsets)
        if action is Action.DONE:
            if not gone and self.policy.results is not None:
                self._read_results(self.policy.results, call, attempt, answer.body, hide)
        else:
            attempt.why = f"the API answers {status}{answer_excerpt(attempt.body)}"
            if action is Action.AGAIN:
                attempt.pause = retry_after(answer.headers, self.clock())
            attempt.throttled = is_throttling(status, attempt.pause is not None)
        if self.policy.rules:
            self._ask_rules(call, attempt, answer, hide, method)
        if attempt.throttled or attempt.action is Action.AGAIN:
            attempt.pause = retry_after(answer.headers, self.clock())
        some_taken = any(_is_taken(result) for result in attempt.results or ())
        return attempt, {
            "status": status,
            "ok": attempt.action not in _FAILED_ACTIONS and not attempt.throttled,
            "throttled": attempt.throttled,
            "partly": attempt.throttled and some_taken,
            "pause": attempt.pause,
            "remaining": self._calls_left(answer.headers),
            "seconds": answer.seconds,
        }

    def _read_results(self, bulk: BulkResults, call: Call, attempt: Attempt, body: bytes, hide: Hide) -> None:
        """Read the result of each row from an answer."""
        try:
            results = bulk.by_row(body, call.rows)
        except Unreadable as error:
            attempt.action = Action.PARK
            attempt.why = f"{NO_STATUS}: {error}"
            return
        for position, result in enumerate(results):
            if result.status >= 300:
                results[position] = replace(result, text=hide(result.text))
        attempt.results = results
        attempt.throttled = any(_is_busy(result) for result in results)

    def _ask_rules(self, call: Call, attempt: Attempt, answer: Response, hide: Hide, method: str) -> None:
        """Let rules decide on a call, or on those of its rows that an answer has items for."""
        items: list[Any] = [None]
        if attempt.results is not None:
            items = [result.item for result in attempt.results]
        decided = apply_rules(self.policy.rules, answer, items, hide, method)
        # A decision about the call as a whole needs no results of rows any more.
        first = decided[0]
        if first is not None and first.whole and all(decision == first for decision in decided):
            self._decide_call(call, attempt, first)
        elif attempt.results is not None:
            for position, decision in enumerate(decided):
                if decision is not None:
                    attempt.results[position] = replace(attempt.results[position], decision=decision)
            attempt.throttled = any(_is_busy(result) for result in attempt.results)

    def _decide_call(self, call: Call, attempt: Attempt, decision: AnswerDecision) -> None:
        """Do with the whole call as a rule says."""
        attempt.action = decision.action
        attempt.results = None
        attempt.throttled = decision.then == "pause"
        attempt.why = decision.reason or f"the API answers {attempt.status}{answer_excerpt(attempt.body)}"
        # An API may keep the rows before the one that it refuses, and after a 2xx it may have kept any.
        divided = decision.action is Action.SPLIT and len(call) > 1
        undone = decision.action in UNDONE_ACTIONS and 200 <= (attempt.status or 0) < 300
        if divided or undone:
            call.doubtful = frozenset(call.offsets)

    def _calls_left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return the calls left and their seconds by the headers; not for every answer: they change slowly."""
        now = self.clock()
        if now - self._looked < _LOOK_PAUSE_SECONDS:
            return None
        self._looked = now
        remaining = calls_left(headers, now)
        if remaining is None:
            return None
        return remaining.calls, remaining.seconds


def _is_busy(result: Result) -> bool:
    """Return whether the result of a row says that there were too many calls."""
    if result.decision is None:
        return result.status == 429
    return result.decision.then == "pause"


def _is_taken(result: Result) -> bool:
    """Return whether a row was taken."""
    if result.decision is None:
        return 200 <= result.status < 300
    return result.decision.action is Action.DONE


def answer_excerpt(body: bytes) -> str:
    """Return the beginning of an answer, for a reason."""
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""


def row_action(policy: Policy, call: Call, position: int, result: Result) -> Action:
    """Return the next step for one row of a call that was taken; note that it may still have arrived."""
    offset = call.offsets[position]
    decision = result.decision
    if decision is not None:
        if decision.action in UNDONE_ACTIONS and result.status < 300:
            call.doubtful |= {offset}
        return decision.action
    if result.status == UNKNOWN_STATUS:
        return Action.PARK
    action = action_for(result.status, doubt=offset in call.doubtful, again=policy.again)
    return action if action in {Action.DONE, Action.AGAIN} else Action.DEAD


def row_reason(result: Result) -> str:
    """Return the reason why a row was not taken: that of a rule, else that of the answer."""
    if result.decision is not None and result.decision.reason:
        return result.decision.reason
    return f"the API answers {result.status}{answer_excerpt(result.text)}"


def next_steps(policy: Policy, call: Call, answer: Response, method: str = "") -> list[tuple[str, str | None]]:
    """Return, for each row of a call, the next step in the words of rules, and the reason. Sends nothing."""
    attempt, _ = Classifier(policy).classify_answer(call, answer, method=method)
    if attempt.action is not Action.DONE:
        return [(_rule_word(attempt.action, attempt.throttled, len(call)), attempt.why)] * len(call)
    if attempt.results is None:
        return [(_RULE_WORDS[Action.DONE], None)] * len(call)
    steps: list[tuple[str, str | None]] = []
    for position, result in enumerate(attempt.results):
        action = row_action(policy, call, position, result)
        reason: str | None = row_reason(result)
        if action is Action.PARK:
            reason = f"{NO_STATUS} {result.text.decode()}"
        elif action is Action.DONE:
            reason = None
        steps.append((_rule_word(action, _is_busy(result), 1), reason))
    return steps


_RULE_WORDS = {
    Action.DONE: "deliver",
    Action.DEAD: "dead",
    Action.WRONG: "fail",
    Action.LOGIN: "login",
    Action.PARK: "park",
    Action.SET_ASIDE: "park",
}


def _rule_word(action: Action, busy: bool, rows: int) -> str:
    """Return a step as rules name it."""
    if action in {Action.REFUSED, Action.SPLIT}:
        return "split" if rows > 1 else "dead"
    return _RULE_WORDS.get(action, "pause" if busy else "retry")
