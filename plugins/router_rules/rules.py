"""Rules of a route: a SQL condition, the value of a field, the schema of an event, and combinations of other rules.

Every rule is a Spark column that is true for the events it matches; a row for which it is null does not match.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import (
    AfterValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic import Field as Option
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import Rule

if TYPE_CHECKING:
    from typing_extensions import Self


class Sql(Rule):
    """Match events for which a Spark SQL condition over `event` and the raw columns is true.

    Null is no match: `event.amount > 5` leaves out events without an amount. So is a row on which the condition
    raises (Spark's ANSI mode is on: a cast that fails, a division by zero); write `try_cast(event.amount AS int)`,
    `try_divide(a, b)` if such rows are to match something else.
    """

    main_option: ClassVar[str | None] = "where"
    texts: ClassVar[Mapping[str, str]] = {"where": "sql"}

    where: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Option(
        description="condition, such as event.amount > 9000 AND event.country IN ('de', 'at')"
    )

    def matches(self) -> Column:
        """Return the condition; a record without an event does not match."""
        return F.col("event").isNotNull() & F.expr(self.where)


def _storable(value: bool | int | float | str) -> bool | int | float | str:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number has at most 64 bits")
    return value


Float = Annotated[StrictFloat, Option(allow_inf_nan=False)]
Scalar = Annotated[StrictBool | StrictInt | Float | StrictStr, AfterValidator(_storable)]

TESTS = ("equals", "one_of", "regex", "exists")

WRONG_IN_JAVA_TOO = ("missing )", "unbalanced parenthesis", "unterminated character set", "nothing to repeat")
"""What Python says of patterns that Java refuses as well; other complaints are about Java's own syntax (`\\p{L}`)."""


class Field(Rule):
    """Match events by the value of one field, with exactly one test.

    A null or missing value matches only `exists: false`.

    | test | matches when |
    |---|---|
    | equals | the field has this value |
    | one_of | the field has one of these values |
    | regex | the whole text of the field matches this Java regular expression |
    | exists | the field is not null (`true`) or is null (`false`) |

    No value makes a row fail: a field is compared as its text. A text in the configuration equals that text (`"5"`
    equals the number 5 and the text 5, not 5.0); a number equals any text that is this number (5 equals 5, 5.0 and
    "5.0"); true and false equal a boolean and the texts true and false. Times are compared in the form of Spark,
    `2026-11-21 10:00:00`, in the session's time zone. A field that the events' type does not have is reported by
    `router check --plan`.
    """

    texts: ClassVar[Mapping[str, str]] = {"column": "field"}

    column: str = Option(min_length=1, description="field or raw column: event.game, event.player.level, topic")
    equals: Scalar | None = Option(default=None, description="text, number, true or false")
    one_of: tuple[Scalar, ...] | None = Option(default=None, min_length=1, description="texts, numbers, true or false")
    regex: str | None = Option(
        default=None, description="Java regular expression for the whole text; (?i) at its start ignores case"
    )
    exists: StrictBool | None = Option(default=None, description="whether the field must have a value")

    @field_validator("regex")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is None or r"\Q" in pattern:  # Java quotes what follows, which Python does not know
            return pattern
        fault = _fault(pattern)
        if fault.startswith(WRONG_IN_JAVA_TOO):
            raise ValueError(f"not a regular expression: {fault}")
        return pattern

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        tests = [test for test in TESTS if getattr(self, test) is not None]
        if not tests:
            raise ValueError(f"give exactly one of {', '.join(TESTS)}; none is given")
        if len(tests) > 1:
            raise ValueError(f"give exactly one of {', '.join(TESTS)}; {' and '.join(tests)} are given")
        return self

    @property
    def _values(self) -> tuple[Scalar, ...]:
        """Return the values of `equals` or `one_of`."""
        if self.equals is not None:
            return (self.equals,)
        return self.one_of or ()

    def known_values(self) -> Mapping[str, frozenset[str]]:
        """Return the texts that the rule lists; a number equals more than one text."""
        texts = [value for value in self._values if isinstance(value, str)]
        if not texts or len(texts) < len(self._values):
            return {}
        return {self.column: frozenset(texts)}

    def matches(self) -> Column:
        """Return the test; null if the field is null, except for `exists`."""
        value = F.col(self.column)
        if self.exists:
            return value.isNotNull()
        if self.exists is not None:
            return F.col("event").isNotNull() & value.isNull()
        text = value.try_cast("string")
        if self.regex is not None:
            return text.rlike(rf"\A(?:{self.regex})\z")
        return one_of(text, self._values)


class Schema(Rule):
    """Match events by the schema they were written with: its subject in the registry, its record name, or both.

    Reads the columns `subject` and `message`, which the decoders that work with a schema registry add next to `event`.
    With a decoder that does not add them `router check --plan` reports the missing column.
    """

    subject: str | None = Option(default=None, min_length=1, description="subject in the registry, such as games-value")
    name: str | None = Option(
        default=None, min_length=1, description="full name of the message or record, such as acme.games.Bet"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.subject is None and self.name is None:
            raise ValueError("give `subject`, `name` or both")
        return self

    def matches(self) -> Column:
        """Return whether every given name is the event's."""
        tests = []
        if self.subject is not None:
            tests.append(F.col("subject") == self.subject)
        if self.name is not None:
            tests.append(F.col("message") == self.name)
        return reduce(operator.and_, tests)


class All(Rule):
    """Match events that every one of the rules matches."""

    main_option: ClassVar[str | None] = "rules"

    rules: tuple[Rule, ...] = Option(min_length=1, description="rules, such as [{sql: ...}, {field: ...}]")

    def known_values(self) -> Mapping[str, frozenset[str]]:
        """Return the texts that any of the rules lists."""
        known: dict[str, frozenset[str]] = {}
        for rule in self.rules:
            known.update(rule.known_values())
        return known

    def matches(self) -> Column:
        """Return the conjunction."""
        return reduce(operator.and_, [rule.matches() for rule in self.rules])


class Any(Rule):
    """Match events that at least one of the rules matches, even if others are null."""

    main_option: ClassVar[str | None] = "rules"

    rules: tuple[Rule, ...] = Option(min_length=1, description="rules, such as [{sql: ...}, {field: ...}]")

    def matches(self) -> Column:
        """Return the disjunction."""
        return reduce(operator.or_, [rule.matches() for rule in self.rules])


class Not(Rule):
    """Match events that the rule does not match.

    A rule that is null (the field is missing) does not match, so `not` matches: `not: {sql: "event.level >
    5"}` takes the events of level 5 and below and those without a level. `not: {not: ...}` is therefore the rule
    itself. A record without an event matches neither.
    """

    main_option: ClassVar[str | None] = "rule"

    rule: Rule = Option(description="a rule, such as {field: {column: event.game, equals: uno}}")

    def matches(self) -> Column:
        """Return the negation, in which unknown counts as no."""
        return F.col("event").isNotNull() & ~F.coalesce(self.rule.matches(), F.lit(False))


def one_of(text: Column, values: tuple[Scalar, ...]) -> Column:
    """Return whether a text is one of some values."""
    tests = [equal(text, value) for value in values if not isinstance(value, str)]
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        tests.insert(0, text.isin(texts))
    return reduce(operator.or_, tests)


def equal(text: Column, wanted: bool | int | float) -> Column:
    """Return whether a text is this number or truth value."""
    if isinstance(wanted, bool):
        return F.lower(text) == str(wanted).lower()
    number = text.try_cast("double") == F.lit(float(wanted))
    if isinstance(wanted, float):
        return number
    # Doubles alone cannot tell 2^53 from 2^53 + 1, decimals of scale 0 cannot tell 5.4 from 5.
    return number & (text.try_cast("decimal(38,0)") == F.lit(wanted))


def _fault(pattern: str) -> str:
    """Return the fault that Python finds in a pattern; an empty text if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a nested set is a union in Java
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return str(error)
    return ""
