"""Combine rules."""

from __future__ import annotations

import operator
from functools import reduce
from typing import ClassVar

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import Rule


class All(Rule):
    """Match events that every one of the rules matches."""

    main_option: ClassVar[str | None] = "rules"

    rules: tuple[Rule, ...] = Field(min_length=1, description="rules, such as [{sql: ...}, {field: ...}]")

    def matches(self) -> Column:
        """Return the conjunction."""
        return reduce(operator.and_, [rule.matches() for rule in self.rules])


class Any(Rule):
    """Match events that at least one of the rules matches, whatever the others cannot tell."""

    main_option: ClassVar[str | None] = "rules"

    rules: tuple[Rule, ...] = Field(min_length=1, description="rules, such as [{sql: ...}, {field: ...}]")

    def matches(self) -> Column:
        """Return the disjunction."""
        return reduce(operator.or_, [rule.matches() for rule in self.rules])


class Not(Rule):
    """Match events that the rule does not match.

    A rule that cannot tell (null: the field is missing) does not match, so `not` matches: `not: {sql: "event.level >
    5"}` takes the events of level 5 and below and those without a level. `not: {not: ...}` is therefore the rule
    itself. A record without an event matches neither.
    """

    main_option: ClassVar[str | None] = "rule"

    rule: Rule = Field(description="a rule, such as {field: {column: event.game, equals: uno}}")

    def matches(self) -> Column:
        """Return the negation, in which unknown counts as no."""
        return F.col("event").isNotNull() & ~F.coalesce(self.rule.matches(), F.lit(False))
