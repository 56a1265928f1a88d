"""Rules that say what becomes of a call, or of each of its rows, by the answer: before the statuses have their say.

A rule looks at `status`, at `headers` by names in any case, at `body`, which is null where it is no JSON, at the
`method` of the call, and in the answer of a bulk API at `item`, which is what is about one row. Made on the driver,
asked on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

import router
from router_encoders.templates import Placeholder, parse
from router_rest.delivery.response_status import Action
from router_rest.http_client.response import ResponseHeaders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from router import JsonExpression
    from router_rest.http_client.response import Response

    Hide = Callable[[bytes], bytes]

SEEN = ("status", "headers", "body", "item", "method")
Then = Literal["retry", "deliver", "dead", "park", "pause", "split", "fail"]
ACTIONS = {
    "retry": Action.AGAIN,
    "deliver": Action.DONE,
    "dead": Action.DEAD,
    "park": Action.SET_ASIDE,
    "pause": Action.AGAIN,
    "split": Action.SPLIT,
    "fail": Action.WRONG,
}


class AnswerDecision(NamedTuple):
    """What a rule says of a call or a row; `reason` is empty where it gives none."""

    then: str
    reason: str
    whole: bool
    """The rule looks at no item: it speaks of the whole call."""

    @property
    def action(self) -> Action:
        """Return the next step for the call or the row."""
        return ACTIONS[self.then]


@dataclass(frozen=True)
class AnswerRule:
    """A condition on an answer, what becomes of the rows where it holds, and a reason made of the answer."""

    when: JsonExpression
    then: Then
    reason: tuple[str | JsonExpression, ...] = ()

    @classmethod
    def of(cls, when: str, then: Then, reason: str | None) -> AnswerRule:
        """Return the rule of three texts. Raises ValueError, which says what of them is wrong."""
        return cls(router.JsonExpression.of(when, SEEN), then, reason_pieces(reason))

    @property
    def of_items(self) -> bool:
        """Return whether the rule looks at the item of a row."""
        return any(one.reads("item") for one in (self.when, *self.reason) if not isinstance(one, str))

    def decision(self, seen: Mapping[str, Any], hide: Hide) -> AnswerDecision:
        """Return what the rule says of an answer for which it holds; `hide` masks secrets.

        They are masked before a reason is made: afterwards one in capital letters could not be told.
        """
        shown = _masked(seen, hide) if any(not isinstance(one, str) for one in self.reason) else {}
        reason = "".join(one if isinstance(one, str) else _text(one.values([shown])[0]) for one in self.reason)
        return AnswerDecision(
            self.then, hide(reason.encode(errors="replace")).decode(errors="replace"), not self.of_items
        )


def reason_pieces(reason: str | None) -> tuple[str | JsonExpression, ...]:
    """Return the texts and the expressions in braces that a reason is made of. Raises ValueError."""
    pieces = parse(reason or "")
    return tuple(router.JsonExpression.of(one.path, SEEN) if isinstance(one, Placeholder) else one for one in pieces)


def _text(value: Any) -> str:
    """Return a value of JSON in a reason."""
    return "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _masked(seen: Mapping[str, Any], hide: Hide) -> dict[str, Any]:
    """Return what a rule looks at without secrets."""
    headers = ResponseHeaders.of((name, hide(text.encode()).decode()) for name, text in seen["headers"].items())
    values = {name: _decoded(hide(msgspec.json.encode(value))) for name, value in seen.items() if name != "headers"}
    return {**values, "headers": headers}


def decisions(
    rules: Sequence[AnswerRule], answer: Response, items: Sequence[Any], hide: Hide = bytes, method: str = ""
) -> list[AnswerDecision | None]:
    """Return, for each item, what the first rule that holds says; None where none does. `hide` masks secrets.

    `items` are the results of rows as they stand in the answer; one null where the answer is about the whole call.
    """
    same = {"status": answer.status, "headers": answer.headers, "body": _decoded(answer.body), "method": method}
    seen = [{**same, "item": item} for item in items]
    found: list[AnswerDecision | None] = [None] * len(items)
    left = list(range(len(items)))
    for rule in rules:
        asked = left if rule.of_items else left[:1]
        holds = rule.when.values([seen[at] for at in asked])
        chosen = [at for at, value in zip(asked, holds, strict=True) if value is True]
        if chosen and not rule.of_items:  # it holds for the call, and so for every row that is left
            whole = rule.decision(same, hide)
            return [one or whole for one in found]
        for at in chosen:
            found[at] = rule.decision(seen[at], hide)
        left = [at for at in left if found[at] is None]
        if not left:
            break
    return found


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
