"""A plugin file for the tests of configurations: one part of every shape an option can have."""

from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Decoder, Outcome, Rule, TableSink, hookimpl


class Text(Decoder):
    """Take the value as text."""

    charset: str = "utf-8"

    def decode(self, raw: DataFrame) -> DataFrame:
        return raw


class Where(Rule):
    """Match by a condition.

    A condition that is null does not match.
    """

    main_option = "sql"
    sql: str = Field(description="a condition over `event`")

    def matches(self) -> Column:
        return F.expr(self.sql)


class Equals(Rule):
    """Match by a value of any type."""

    field: str
    value: Any

    def known_values(self) -> dict[str, frozenset[str]]:
        return {self.field: frozenset(self.value.split())} if isinstance(self.value, str) else {}

    def matches(self) -> Column:
        return F.col(self.field) == self.value


class Both(Rule):
    """Match when all rules do."""

    main_option = "rules"
    rules: tuple[Rule, ...] = Field(min_length=1)

    def matches(self) -> Column:
        return F.lit(True)


class Never(Rule):
    """Match when another rule does not."""

    main_option = "rule"
    rule: Rule

    def matches(self) -> Column:
        return ~self.rule.matches()


class Fixed(TableSink):
    """Append to one table."""

    main_option = "table"
    fixed: str = Field(alias="table", description="the table, as layer.table")

    def table(self) -> str:
        return self.fixed

    def table_template(self) -> str | None:
        return self.fixed if "{" in self.fixed else None


class Login(BaseModel, extra="forbid"):
    user: str = "me"
    password: SecretStr


class Post(ApplyingSink):
    """Post events."""

    url: str = Field(description="where to post")
    login: Login | None = None
    calls: int = Field(default=1, ge=1, description="calls per second")
    mode: Literal["detached", "inline"] = "detached"
    retry: int | Literal["never"] = "never"

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url.startswith("ftp"):
            raise KeyError(url)
        if url.startswith("own:"):
            raise PydanticCustomError(url[4:], "an error of its own")  # type: ignore[arg-type]
        if not url.startswith("http"):
            raise ValueError(f"{url} is not a URL")
        return url

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        return Outcome(events.count())


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    return {"text": Text}


@hookimpl
def router_rules() -> dict[str, type[Rule]]:
    return {"where": Where, "equals": Equals, "both": Both, "never": Never}


@hookimpl
def router_sinks() -> dict[str, type[Any]]:
    return {"fixed": Fixed, "post": Post}
