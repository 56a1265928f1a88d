"""Options of everything that makes tables: partitions, clustering, properties, comments, rights in a catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from router.storage.locations import TableLocation, read_location_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

_FLAG_FORM = re.compile(r"true|false")
_NUMBER_FORM = re.compile(r"-?[0-9]{1,18}")
_TIME_FORM = re.compile(r"interval [0-9]{1,6} (second|minute|hour|day|week)s?")
PROPERTIES_OF_DELTA_RS = {
    "delta.autoOptimize.autoCompact": _FLAG_FORM,
    "delta.autoOptimize.optimizeWrite": _FLAG_FORM,
    "delta.checkpoint.writeStatsAsJson": _FLAG_FORM,
    "delta.checkpoint.writeStatsAsStruct": _FLAG_FORM,
    "delta.checkpointInterval": _NUMBER_FORM,
    "delta.dataSkippingNumIndexedCols": _NUMBER_FORM,
    "delta.dataSkippingStatsColumns": re.compile(r".+"),
    "delta.deletedFileRetentionDuration": _TIME_FORM,
    "delta.enableChangeDataFeed": _FLAG_FORM,
    "delta.enableExpiredLogCleanup": _FLAG_FORM,
    "delta.logRetentionDuration": _TIME_FORM,
    "delta.randomizeFilePrefixes": _FLAG_FORM,
}
"""The properties that delta-rs writes and respects, with their values. Of some others it writes the name only."""
_PROPERTIES_OF_DELTA = {
    **PROPERTIES_OF_DELTA_RS,
    "delta.appendOnly": _FLAG_FORM,
    "delta.columnMapping.mode": re.compile(r"none|name"),
    "delta.enableDeletionVectors": _FLAG_FORM,
    "delta.enableInCommitTimestamps": _FLAG_FORM,
    "delta.enableRowTracking": _FLAG_FORM,
    "delta.enableTypeWidening": _FLAG_FORM,
}
"""The properties that Delta knows, with their values: https://docs.delta.io/latest/table-properties.html"""
REFUSED_PROPERTIES = {
    "delta.checkpointPolicy": "both engines write classic checkpoints only; remove it",
    "delta.setTransactionRetentionDuration": "transaction ids keep a batch from being written twice; remove it",
}
"""Properties that no table of the router must have, and why."""
RESERVED_PROPERTIES = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}
)


def check_property(name: str, value: str, refused: Mapping[str, str]) -> str:
    """Return the value of a property that a table can have; raise ValueError with what to write instead.

    `refused` are further properties that it must not have, and why. Those without `delta.` in front are free text.
    """
    if name in RESERVED_PROPERTIES:
        raise ValueError(f"{name}: Spark keeps properties of this name for itself; take another name, or `comment`")
    if not name.startswith("delta."):
        return value
    all_refused = {**REFUSED_PROPERTIES, **refused}
    if name in all_refused and value not in ("false", "classic"):
        raise ValueError(f"{name}: {all_refused[name]}")
    if name.startswith("delta.constraints."):
        raise ValueError(f"{name}: a CHECK is added to an existing table: ALTER TABLE ... ADD CONSTRAINT")
    if name not in _PROPERTIES_OF_DELTA and name not in all_refused:
        hint = ""
        for similar in get_close_matches(name, _PROPERTIES_OF_DELTA, n=1):
            hint = f"; did you mean {similar}?"
        raise ValueError(f"{name}: Delta knows no such property{hint}")
    if name in _PROPERTIES_OF_DELTA and not _PROPERTIES_OF_DELTA[name].fullmatch(value):
        raise ValueError(f"{name}: {value!r} is not a value of it; {_describe_form(_PROPERTIES_OF_DELTA[name])}")
    return value


def _describe_form(kind: re.Pattern[str]) -> str:
    forms = {
        _FLAG_FORM: "write true or false",
        _NUMBER_FORM: "write a number",
        _TIME_FORM: "write a time: interval 7 days",
    }
    return forms.get(kind, f"write {kind.pattern.replace('|', ' or ')}")


class NewTable(BaseModel):
    """How a new table is made; a table that is there stays as it is."""

    model_config = ConfigDict(frozen=True)

    refused_properties: ClassVar[Mapping[str, str]] = {}
    """Further properties that its tables must not have, and why."""

    partition_by: tuple[str, ...] = Field(default=(), description="columns that a new table is partitioned by")
    cluster_by: tuple[str, ...] = Field(
        default=(),
        max_length=4,
        description="columns that a new table is clustered by, whenever it is maintained; Delta on Spark writes it",
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="table properties of a new table: {delta.enableChangeDataFeed: true}"
    )
    comment: str | None = Field(default=None, description="what a new table is about, for its readers")
    comments: dict[str, str] = Field(default_factory=dict, description="what new columns are about: {level: ...}")

    @field_validator("partition_by", "cluster_by")
    @classmethod
    def _as_column_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.removeprefix("event.") for name in names)

    @field_validator("comments")
    @classmethod
    def _as_column_comments(cls, comments: dict[str, str]) -> dict[str, str]:
        return {name.removeprefix("event."): text for name, text in comments.items()}

    @field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: dict[str, str]) -> dict[str, str]:
        return {name: check_property(name, value, cls.refused_properties) for name, value in properties.items()}

    @model_validator(mode="after")
    def _divided_once(self) -> Self:
        if self.partition_by and self.cluster_by:
            raise ValueError("`partition_by` and `cluster_by` exclude each other: Delta divides a table in one way")
        return self

    @property
    def is_plain(self) -> bool:
        """Return whether a table is made as without any of these options."""
        return not (self.partition_by or self.cluster_by or self.properties or self.comment)

    def named_columns(self) -> dict[str, Iterable[str]]:
        """Return the columns that options name, by option."""
        return {"partition_by": self.partition_by, "cluster_by": self.cluster_by, "comments": self.comments}

    def new_table(self) -> NewTable:
        """Return these options alone, which go to tasks."""
        return NewTable.model_construct(**{name: getattr(self, name) for name in NewTable.model_fields})

    def for_replacement(self, partition_by: tuple[str, ...]) -> NewTable:
        """Return the options of a table that is merged from nothing, to replace one with these partitions.

        The one it replaces has the properties, the clustering and the comment already.
        """
        return NewTable(partition_by=partition_by, comments=self.comments)


PLAIN_TABLE = NewTable()
"""The options of a table that nobody wishes otherwise."""

LocationOption = Annotated[
    TableLocation, BeforeValidator(read_location_option, json_schema_input_type=str | TableLocation)
]
Privilege = Annotated[str, StringConstraints(to_upper=True, pattern=r"^[A-Za-z]+( [A-Za-z]+){0,3}$")]


class CatalogOptions(BaseModel):
    """What a catalog is to know of tables: `router tables --grants` prints it as SQL."""

    owner: str | None = Field(default=None, min_length=1, description="owner in a catalog: `tables --grants`")
    tags: dict[str, str] = Field(default_factory=dict, description="tags in a catalog: `tables --grants`; {pii: low}")
    grants: dict[str, tuple[Privilege, ...]] = Field(
        default_factory=dict, description="rights in a catalog: `tables --grants`; {analysts: [SELECT]}"
    )


class TableOptions(NewTable, CatalogOptions):
    """How the tables of a sink, or of bronze, are made, and where they lie."""

    location: LocationOption | None = Field(
        default=None,
        description="a place outside of the lake's layout, with fields of the table's name: s3://lake-{topic}/events",
    )
    reset: Literal["allowed", "never"] = Field(
        default="allowed", description="never: `router rebuild` takes the tables by their whole names only"
    )
