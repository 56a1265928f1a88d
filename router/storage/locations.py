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

from router.storage.addresses import STORAGE_BY_SCHEME, is_local, normalize_address
from router.table_names import template_pattern
from router.templates import fill_template, template_fields

WHOLE_NAME = "table"
"""The field that stands for all of a table's name after its layer."""
BUCKET_NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""Names that a bucket or a container can have: https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html"""

CACHED_COMPARISONS = 10_000
_HOLE = "\ue000"
"""A character that no place has, for the value of a field: one of Unicode's private use, as paths refuse controls."""


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
    def _refuse_unusable_place(cls, place: str) -> str:
        normalize_address(fill_template(place, lambda _: "x"))
        scheme, separator, _ = place.partition("://")
        _, _, account = _bucket_of(place).partition("@")
        if separator and template_fields(scheme + account):
            raise ValueError("a field can stand in the bucket or in the path, not in the scheme or the account")
        return place

    def location_of(self, names: str, others: frozenset[str] = frozenset()) -> Location:
        """Return the location of the tables that a template names, with secrets in the clear."""
        options = {key: text.get_secret_value() for key, text in self.storage_options.items()}
        return Location(names, self.place, options, others)


def read_location_option(value: object) -> object:
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

    def place_of(self, table: str) -> str | None:
        """Return the place of a table; None if the template does not make its name.

        Raises ValueError if no bucket can have the name that is made of the table's.
        """
        match = template_pattern(self.names).fullmatch(table)
        if match is None or table in self.others:
            return None
        # A name with several fields does not tell which of its characters are whose: `explain_shared_places` refuses
        # them in a place.
        field_value = match[1] if match.re.groups == 1 else ""
        short_name = table.partition(".")[2]

        def value_of(field: str) -> str:
            return short_name if field == WHOLE_NAME else field_value

        bucket, slash, rest = self._split_place
        if template_fields(bucket):
            container, at, account = bucket.partition("@")
            name = fill_template(container, value_of).replace("_", "-")
            if not BUCKET_NAME.fullmatch(name):
                raise ValueError(f"no bucket can be called {name}, which `location` makes of {table}")
            bucket = name + at + account
        return normalize_address(self._scheme_prefix + bucket + slash + fill_template(rest, value_of))

    @property
    def _scheme_prefix(self) -> str:
        scheme, separator, _ = self.place.partition("://")
        return scheme + separator if separator else ""

    @property
    def _split_place(self) -> tuple[str, str, str]:
        """Return the bucket, a slash and the rest; a path has no bucket."""
        if not self._scheme_prefix:
            return "", "", self.place
        return self.place.removeprefix(self._scheme_prefix).partition("/")

    @property
    def bucket(self) -> str | None:
        """Return the one bucket of all the tables; None for a path, and if each table may have its own."""
        name, _, _ = _bucket_of(self.place_with_holes).partition("@")
        return None if _HOLE in name else name or None

    def explain_shared_places(self) -> str:
        """Return why two tables cannot have places of their own; an empty text if each has one."""
        if not self.names:
            return "the names of the sink's tables are not known before its rows, so none can have a place of its own"
        names_fields = template_fields(self.names)
        place_fields = {*template_fields(self.place)}
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

    def may_share_names(self, other: Location) -> bool:
        """Return whether a name may be made by both templates."""
        return _may_be_equal(_with_holes(self.names), _with_holes(other.names))

    @property
    def place_with_holes(self) -> str:
        """Return the place with a hole for each field, for `may_overlap`."""
        return normalize_address(_with_holes(self.place))

    def may_overlap(self, place: str) -> bool:
        """Return whether a table of this may lie in a place (which may have holes), or the place in the table's."""
        # The longer of the two lies within the other if it begins with its names.
        segments = zip(_split_into_segments(self.place_with_holes), _split_into_segments(place), strict=False)
        return all(_may_be_equal(segment, other) for segment, other in segments)


def may_make_name(names: str, table: str) -> bool:
    """Return whether a template may make a table's name; nothing is the template of names that only rows tell."""
    return not names or template_pattern(names).fullmatch(table) is not None


def _bucket_of(place: str) -> str:
    return place.partition("://")[2].partition("/")[0]


def _split_into_segments(place: str) -> list[str]:
    """Return a place as names, from the kind of storage on: what lies within another begins with its names."""
    if is_local(place):
        return ["file", *place.strip("/").split("/")]
    scheme, _, rest = place.partition("://")
    bucket, *folders = [part for part in rest.split("/") if part]
    return [STORAGE_BY_SCHEME[scheme], bucket.partition("@")[0], *folders]


def _with_holes(template: str) -> str:
    return fill_template(template, lambda _: _HOLE)


@lru_cache(CACHED_COMPARISONS)
def _may_be_equal(first: str, second: str) -> bool:
    """Return whether two texts may be the same, for any values in their holes."""
    if not first or not second:
        return not (first + second).strip(_HOLE)
    # A hole ends here, or it takes one more character of the other text.
    if first[0] == _HOLE:
        return _may_be_equal(first[1:], second) or _may_be_equal(first, second[1:])
    if second[0] == _HOLE:
        return _may_be_equal(first, second[1:]) or _may_be_equal(first[1:], second)
    return first[0] == second[0] and _may_be_equal(first[1:], second[1:])
