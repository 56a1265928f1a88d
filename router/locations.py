"""Places of tables that lie outside of their lake's own layout: `location` of a sink, or of bronze.

A location is a place with fields of the table's name in braces: `s3://lake-{topic}/events`, a bucket for each topic.
What stands for a field is read from the table's name, after the naming rule (router.table_names), and not from data: it
has small letters, digits and underscores, and can be no path, no host and no other bucket's name. Buckets have no
underscores; those of a name become hyphens there.

Where a table lies follows from its name alone, so driver, executors and readers agree on it without asking each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from router.addresses import SCHEMES, is_local, normalized

WHOLE = "table"
"""The field that stands for all of a table's name after its layer."""
FIELD = re.compile(r"\{\s*([^{}]*?)\s*\}")
BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""Names that a bucket or a container can have: https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html"""

CACHED = 10_000


class TableLocation(BaseModel):
    """The place of a sink's tables, in place of the lake's layout. A table that is there stays where it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    place: str = Field(
        description="path or URI, with fields of the table's name: s3://lake-{topic}/events, /data/{table}"
    )
    storage_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="as those of the lake, where the credentials are others"
    )

    @field_validator("place")
    @classmethod
    def _usable(cls, place: str) -> str:
        if "{" in FIELD.sub("", place) or "}" in FIELD.sub("", place):
            raise ValueError("its braces do not pair; write a field of the table's name as {table}")
        normalized(FIELD.sub("x", place))
        scheme, found, _ = place.partition("://")
        if found and (FIELD.search(scheme) or FIELD.search(_bucket(place).partition("@")[2])):
            raise ValueError("a field can stand in the bucket or in the path, not in the scheme or the account")
        return place

    def at(self, names: str, others: frozenset[str] = frozenset()) -> Location:
        """Return the location of the tables that a template names, with secrets in the clear."""
        options = {key: text.get_secret_value() for key, text in self.storage_options.items()}
        return Location(names, self.place, options, others)


def location(value: object) -> object:
    """Take the place alone for the options of a location."""
    return {"place": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class Location:
    """The place of the tables that a template names, but for those in `others`.

    `options` may hold secrets and stay out of `repr`.
    """

    names: str
    place: str
    options: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    others: frozenset[str] = frozenset()

    def of(self, table: str) -> str | None:
        """Return where a table lies; None where the template does not make its name. Raises ValueError.

        The error says why no place can be made of the name: it has no bucket of its own.
        """
        found = _pattern(self.names).fullmatch(table)
        if found is None or table in self.others:
            return None
        value = found[1] if found.re.groups else ""
        bucket, slash, rest = self._parts
        if FIELD.search(bucket):
            container, at, account = bucket.partition("@")
            name = self._filled(container, table, value).replace("_", "-")
            if not BUCKET.fullmatch(name):
                raise ValueError(f"no bucket can be called {name}, which `location` makes of {table}")
            bucket = name + at + account
        return normalized(self._scheme + bucket + slash + self._filled(rest, table, value))

    @staticmethod
    def _filled(text: str, table: str, value: str) -> str:
        whole = table.partition(".")[2]
        return FIELD.sub(lambda found: whole if found[1] == WHOLE else value, text)

    @property
    def _scheme(self) -> str:
        return "".join(self.place.partition("://")[:2]) if "://" in self.place else ""

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Return the bucket and what comes after it; a path has no bucket."""
        return self.place[len(self._scheme) :].partition("/") if self._scheme else ("", "", self.place)

    @property
    def bucket(self) -> str | None:
        """Return the one bucket of all the tables; None for a path, and where each table may have its own."""
        name = _bucket(self.place).partition("@")[0]
        return name if name and not FIELD.search(name) else None

    def faults(self) -> str:
        """Return what keeps two tables from having places of their own; nothing where each has."""
        if not self.names:
            return "the names of the sink's tables are not known before its rows, so none can have a place of its own"
        fields = {*FIELD.findall(self.names)}
        given = {*FIELD.findall(self.place)}
        one = next(iter(fields)) if len(fields) == 1 and len(FIELD.findall(self.names)) == 1 else None
        if strange := sorted(given - {WHOLE} - {one}):
            return f"`location` has the field {strange[0]}, which no table's name tells; it can have " + (
                f"{{{one}}} and {{{WHOLE}}}" if one else f"{{{WHOLE}}}"
            )
        if fields and not given:
            return f"all tables of the sink would lie in one place; add {{{one or WHOLE}}} to `location`"
        return ""

    def meets(self, other: Location) -> bool:
        """Say whether a name may be made by both templates."""
        return _alike(_pieces(self.names), _pieces(other.names))

    def overlaps(self, place: str) -> bool:
        """Say whether a table of this may lie in a place (which may have fields), or the place in the table's."""
        mine, others = _segments(self.place), _segments(place)
        return all(_alike(_pieces(one), _pieces(other)) for one, other in zip(mine, others, strict=False))


def makes(names: str, table: str) -> bool:
    """Say whether a template may make a table's name; nothing is the template of names that only rows tell."""
    return not names or _pattern(names).fullmatch(table) is not None


@lru_cache(CACHED)
def _pattern(names: str) -> re.Pattern[str]:
    """Return what the names of a template look like: of one with one field, its value is the group."""
    texts = FIELD.split(names.lower())[::2]
    if len(texts) == 2:
        return re.compile(rf"{re.escape(texts[0])}([a-z0-9_]+){re.escape(texts[1])}")
    return re.compile("[a-z0-9_]+".join(map(re.escape, texts)))


def _bucket(place: str) -> str:
    return place.partition("://")[2].partition("/")[0]


def _segments(place: str) -> list[str]:
    """Return a place as names, from the kind of storage on: what lies within another begins with its names."""
    full = normalized(FIELD.sub("{}", place))
    if is_local(full):
        return ["file", *full.strip("/").split("/")]
    scheme, _, rest = full.partition("://")
    bucket, *folders = [part for part in rest.split("/") if part]
    return [SCHEMES[scheme], bucket.partition("@")[0], *folders]


def _pieces(text: str) -> tuple[str | None, ...]:
    """Return the characters of a text; None for a field."""
    parts = FIELD.split(text)
    return tuple(one for index, part in enumerate(parts) for one in ([None] if index % 2 else part))


@lru_cache(CACHED)
def _alike(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> bool:
    """Say whether two texts may be the same, whatever stands for their fields."""
    if not one or not other:
        return all(piece is None for piece in one + other)
    if one[0] is None:
        return _alike(one[1:], other) or _alike(one, other[1:])
    if other[0] is None:
        return _alike(one, other[1:]) or _alike(one[1:], other)
    return one[0] == other[0] and _alike(one[1:], other[1:])
