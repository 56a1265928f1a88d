"""Places of tables that lie outside of their lake's own layout: `location` of a sink, or of bronze.

A location is a place with fields of the table's name in braces: `s3://lake-{topic}/events`, a bucket for each topic.
The value of a field is read from the table's name, after the naming rule (router.table_names), and not from data: it
has small letters, digits and underscores, and can be no path, no host and no other bucket's name. Buckets have no
underscores; those of a name become hyphens there.

The place of a table follows from its name alone, so driver, executors and readers agree on it without any exchange.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from router.storage.addresses import SCHEMES, is_local, normalized
from router.table_names import FIELD, pieces_of, template_pattern

WHOLE_NAME = "table"
"""The field that stands for all of a table's name after its layer."""
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
        default_factory=dict, description="as those of the lake, if the credentials differ"
    )

    @field_validator("place")
    @classmethod
    def _usable(cls, place: str) -> str:
        if "{" in FIELD.sub("", place) or "}" in FIELD.sub("", place):
            raise ValueError("its braces do not pair; write a field of the table's name as {table}")
        normalized(FIELD.sub("x", place))
        scheme, separator, _ = place.partition("://")
        _, _, account = _bucket(place).partition("@")
        if separator and (FIELD.search(scheme) or FIELD.search(account)):
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
    """The place of the tables that a template names, except for those in `others`.

    `options` may hold secrets and stay out of `repr`.
    """

    names: str
    place: str
    options: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    others: frozenset[str] = frozenset()

    def of(self, table: str) -> str | None:
        """Return the place of a table; None if the template does not make its name.

        Raises ValueError if no bucket can have the name that is made of the table's.
        """
        match = template_pattern(self.names).fullmatch(table)
        if match is None or table in self.others:
            return None
        # A name with several fields does not tell which of its characters are whose: `faults` refuses them in a place.
        value = match[1] if match.re.groups == 1 else ""
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
        return FIELD.sub(lambda match: whole if match[1] == WHOLE_NAME else value, text)

    @property
    def _scheme(self) -> str:
        scheme, separator, _ = self.place.partition("://")
        return scheme + separator if separator else ""

    @property
    def _parts(self) -> tuple[str, str, str]:
        """Return the bucket, a slash and the rest; a path has no bucket."""
        if not self._scheme:
            return "", "", self.place
        return self.place.removeprefix(self._scheme).partition("/")

    @property
    def bucket(self) -> str | None:
        """Return the one bucket of all the tables; None for a path, and if each table may have its own."""
        name, _, _ = _bucket(self.place).partition("@")
        if not name or FIELD.search(name):
            return None
        return name

    def faults(self) -> str:
        """Return why two tables cannot have places of their own; an empty text if each has one."""
        if not self.names:
            return "the names of the sink's tables are not known before its rows, so none can have a place of its own"
        names_fields = FIELD.findall(self.names)
        place_fields = set(FIELD.findall(self.place))
        # The value of a field can be read from a name that has no other one.
        readable = [WHOLE_NAME]
        if len(names_fields) == 1:
            readable.insert(0, names_fields[0])
        unknown = sorted(place_fields.difference(readable))
        if unknown:
            possible = " and ".join(f"{{{field}}}" for field in readable)
            return f"`location` has the field {unknown[0]}, which no table's name tells; it can have {possible}"
        if names_fields and not place_fields:
            return f"all tables of the sink would lie in one place; add {{{readable[0]}}} to `location`"
        return ""

    def meets(self, other: Location) -> bool:
        """Return whether a name may be made by both templates."""
        return _alike(_pieces(self.names), _pieces(other.names))

    def overlaps(self, place: str) -> bool:
        """Return whether a table of this may lie in a place (which may have fields), or the place in the table's."""
        # The longer of the two lies within the other if it begins with its names.
        segments = zip(_segments(self.place), _segments(place), strict=False)
        return all(_alike(_pieces(segment), _pieces(other)) for segment, other in segments)


def makes(names: str, table: str) -> bool:
    """Return whether a template may make a table's name; nothing is the template of names that only rows tell."""
    return not names or template_pattern(names).fullmatch(table) is not None


def _bucket(place: str) -> str:
    return place.partition("://")[2].partition("/")[0]


def _segments(place: str) -> list[str]:
    """Return a place as names, from the kind of storage on: what lies within another begins with its names."""
    full = normalized(FIELD.sub("{field}", place))
    if is_local(full):
        return ["file", *full.strip("/").split("/")]
    scheme, _, rest = full.partition("://")
    bucket, *folders = [part for part in rest.split("/") if part]
    return [SCHEMES[scheme], bucket.partition("@")[0], *folders]


def _pieces(text: str) -> tuple[str | None, ...]:
    """Return the characters of a text; None for a field."""
    pieces: list[str | None] = []
    for field_name, characters in pieces_of(text):
        pieces += [None] if field_name else characters
    return tuple(pieces)


@lru_cache(CACHED)
def _alike(first: tuple[str | None, ...], second: tuple[str | None, ...]) -> bool:
    """Return whether two texts may be the same, for any values of their fields."""
    if not first or not second:
        return all(piece is None for piece in first + second)
    # A field ends here, or it takes one more piece of the other text.
    if first[0] is None:
        return _alike(first[1:], second) or _alike(first, second[1:])
    if second[0] is None:
        return _alike(first, second[1:]) or _alike(first[1:], second)
    return first[0] == second[0] and _alike(first[1:], second[1:])
