"""The rules of the configuration: what becomes of the rows of a call if a condition on its answer holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from router import Placeholder, parse_template
from router_rest.answers.actions import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from router_rest.answers.expression import Operation
    from router_rest.http_client.response import Response

    Hide = Callable[[bytes], bytes]

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

    when: Operation
    then: Then
    reason: tuple[str | Operation, ...] = ()

    @classmethod
    def from_texts(cls, when: str, then: Then, reason: str | None) -> AnswerRule:
        """Return the rule of three texts. Raises ValueError, which says what of them is wrong. Runs on the driver."""
        # Importing the parser takes half a second: only sinks with rules wait for it, and no task does.
        from router_rest.answers.expression_reader import read_expression

        pieces: list[str | Operation] = []
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
        return any(not isinstance(piece, str) and piece.reads_name("item") for piece in expressions)

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
    decided: list[AnswerDecision | None] = [None] * len(items)
    if not rules:  # the body need not be read
        return decided
    values = {
        "status": answer.status,
        "headers": answer.headers,
        "body": decoded_json(answer.body),
        "method": method,
        "item": None,
    }
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
    return msgspec.json.encode(value, enc_hook=dict).decode()  # headers are no dict


def decoded_json(text: bytes) -> Any:
    """Return the value of a JSON text; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
