"""Draw Avro schemas as people let them evolve, and values for them.

A template is what stays the same between versions: which columns there are, and what each may be. A version is drawn
from it: some columns, under their names of the day, each with one of its types. So a test knows which column of one
version is which of another without asking the code it tests.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

import fastavro
from hypothesis import strategies as st

Draw = Any
Json = Any
Pairs = tuple[Json, st.SearchStrategy[tuple[Any, Any]]]
"""A type as JSON, and values of it: as they are written, and as they are to come back."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ints = st.integers(-(2**31), 2**31 - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": ints,
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": texts,
    "bytes": st.binary(max_size=8),
    "date": st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    "timestamp-millis": st.integers(-(2**40), 2**40).map(lambda millis: EPOCH + timedelta(milliseconds=millis)),
}
KINDS: dict[str, Json] = {
    "date": {"type": "int", "logicalType": "date"},
    "timestamp-millis": {"type": "long", "logicalType": "timestamp-millis"},
}
FAMILIES = [
    ["boolean"],
    ["int", "long"],
    ["int", "float", "double"],
    ["string", "bytes"],
    ["date"],
    ["timestamp-millis"],
]


@dataclass(frozen=True)
class Scalar:
    """A column whose versions have one of these types."""

    family: list[str]


@dataclass(frozen=True)
class Symbols:
    """An enum whose versions have some of these symbols."""

    name: str
    symbols: list[str]


@dataclass(frozen=True)
class Blob:
    """A fixed type."""

    name: str
    size: int


@dataclass(frozen=True)
class Items:
    """An array, or a map."""

    kind: str
    of: Template


@dataclass(frozen=True)
class Either:
    """A union whose versions have at least two of these."""

    branches: list[Template]


@dataclass(frozen=True)
class Struct:
    """A record with these columns; `columns` are known by their number."""

    name: str
    columns: dict[str, Template]


Template = Scalar | Symbols | Blob | Items | Either | Struct


@dataclass
class Names:
    """Count names, so that none comes twice."""

    count: int = 0

    def next(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"


@st.composite
def templates(draw: Draw, names: Names, depth: int = 2) -> Template:
    """Draw what a column may be."""
    kinds = ["scalar"] * 4 + ["enum", "fixed"] + (["array", "map", "union", "struct"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "scalar":
        return Scalar(draw(st.sampled_from(FAMILIES)))
    if kind == "enum":
        return Symbols(names.next("E"), ["A", "B", "C", "D"])
    if kind == "fixed":
        return Blob(names.next("X"), draw(st.integers(0, 5)))
    if kind == "union":  # such that Python's values tell which branch is meant, and fastavro's reader as well
        others = [Scalar(["boolean"]), Items("array", Scalar(["int", "long"]))]
        return Either([Scalar(["string"]), Scalar(["long"]), *others, draw(structs(names, depth - 1))])
    if kind == "struct":
        return draw(structs(names, depth - 1))
    return Items(kind, draw(templates(names, depth - 1)))


@st.composite
def structs(draw: Draw, names: Names, depth: int = 2) -> Struct:
    """Draw a record."""
    count = draw(st.integers(1, 4))
    return Struct(names.next("R"), {str(n): draw(templates(names, depth)) for n in range(count)})


@dataclass
class History:
    """Remember what columns and types were called last, and by which other names before."""

    names: dict[str, list[str]] = field(default_factory=dict)

    def last(self, key: str) -> str | None:
        return self.names[key][-1] if key in self.names else None

    def called(self, key: str, name: str) -> list[str]:
        """Note a name and return the aliases that tell it is the same thing as before."""
        known = self.names.setdefault(key, [])
        former = [other for other in known if other != name]
        if not known or known[-1] != name:
            self.names[key] = [*former, name]
        return former


@dataclass(frozen=True)
class Version:
    """One version: its schema as JSON, and values that it can write, as they are to come back by column number."""

    schema: Json
    writes: list[Any]
    expected: list[Any]


@st.composite
def lineages(draw: Draw) -> tuple[Struct, History, list[Version]]:
    """Draw versions of one record that can be merged, oldest first."""
    template = draw(structs(Names()))
    history = History()
    return template, history, [draw(versions(template, history)) for _ in range(draw(st.integers(1, 4)))]


@st.composite
def versions(draw: Draw, template: Struct, history: History) -> Version:
    """Draw the next version of a record, and two values of it."""
    chosen = _Choosing(draw, history)
    schema, values = chosen.type(template)
    drawn = [draw(values) for _ in range(2)]
    return Version(schema, [written for written, _ in drawn], [expected for _, expected in drawn])


class _Choosing:
    """Choose one version's types; each comes with a strategy of pairs: what is written, what is to come back."""

    def __init__(self, draw: Draw, history: History) -> None:
        self.draw = draw
        self.history = history

    def type(self, template: Template, branch: bool = False) -> Pairs:
        """Return a type for this version; `branch`: it stands in a union beside others."""
        if isinstance(template, Scalar):
            kind = self.draw(st.sampled_from(template.family))
            return KINDS.get(kind, kind), VALUES[kind].map(lambda value: (value, value))
        if isinstance(template, Struct):
            return self.record(template, branch)
        if isinstance(template, Either):
            count = self.draw(st.integers(2, len(template.branches)))
            order = self.draw(st.permutations(template.branches))[:count]
            found = [self.type(one, branch=True) for one in order]
            return [schema for schema, _ in found], st.one_of([values for _, values in found])
        return self.several(template) if isinstance(template, Items) else self.named(template)

    def named(self, template: Symbols | Blob) -> Pairs:
        """Return an enum or a fixed."""
        if isinstance(template, Symbols):
            symbols = self.draw(st.lists(st.sampled_from(template.symbols), min_size=1, unique=True))
            values = st.sampled_from(symbols).map(lambda value: (value, value))
            return {"type": "enum", **self.name(template.name), "symbols": symbols}, values
        blobs = st.binary(min_size=template.size, max_size=template.size).map(lambda value: (value, value))
        return {"type": "fixed", **self.name(template.name), "size": template.size}, blobs

    def several(self, template: Items) -> Pairs:
        """Return an array or a map."""
        items, inside = self.nullable(template.of)
        if template.kind == "array":
            lists = st.lists(inside, max_size=3)
            return {"type": "array", "items": items}, lists.map(
                lambda all_: ([w for w, _ in all_], [e for _, e in all_])
            )
        maps = st.dictionaries(texts, inside, max_size=3)
        pairs = maps.map(lambda all_: ({k: w for k, (w, _) in all_.items()}, {k: e for k, (_, e) in all_.items()}))
        return {"type": "map", "values": items}, pairs

    def nullable(self, template: Template) -> Pairs:
        """Let null be a value too, at times."""
        schema, values = self.type(template)
        where = self.draw(st.sampled_from(["", "", "first", "last"]))
        if not where:
            return schema, values
        branches = schema if isinstance(schema, list) else [schema]
        union = ["null", *branches] if where == "first" else [*branches, "null"]
        return union, st.just((None, None)) | values

    def record(self, template: Struct, branch: bool) -> Pairs:
        """Take some of the columns in some order, some under new names."""
        named = self.name(template.name)
        numbers = self.draw(st.lists(st.sampled_from([*template.columns]), unique=True, min_size=0 if branch else 1))
        fields, strategies = [], {}
        for number in numbers:
            key = f"{template.name}.{number}"
            name = self.history.last(key) or f"f{number}"
            if self.draw(st.integers(0, 5)) == 0:
                name = f"{name}n"
            aliases = self.history.called(key, name)
            schema, values = self.nullable(template.columns[number])
            fields.append({"name": name, "type": schema, **({"aliases": aliases} if aliases else {})})
            strategies[number] = name, values
        full = f"{named['namespace']}.{named['name']}" if named.get("namespace") else named["name"]

        def both(row: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
            written: Any = {strategies[number][0]: pair[0] for number, pair in row.items()}
            return ((full, written) if branch else written), {number: pair[1] for number, pair in row.items()}

        return {"type": "record", **named, "fields": fields}, st.fixed_dictionaries(
            {number: values for number, (_, values) in strategies.items()}
        ).map(both)

    def name(self, name: str) -> dict[str, Json]:
        """Name a type: in some namespace, at times under a new name with aliases."""
        space = self.draw(st.sampled_from(["a", "a", "b.c"]))
        now = (self.history.last(name) or f"a.{name}").rpartition(".")[2]
        if self.draw(st.integers(0, 5)) == 0:
            now = f"{now}n"
        aliases = self.history.called(name, f"{space}.{now}")
        return {"name": now, "namespace": space, **({"aliases": aliases} if aliases else {})}


def by_number(template: Template, history: History, value: Any) -> Any:
    """Return a value that was read, with the numbers of columns in place of their last names."""
    if isinstance(template, Struct) and isinstance(value, dict):
        names = {history.last(f"{template.name}.{n}"): n for n in template.columns}
        numbered = {names[name]: item for name, item in value.items()}
        return {n: by_number(template.columns[n], history, item) for n, item in numbered.items()}
    if isinstance(template, Items) and isinstance(value, list):
        return [by_number(template.of, history, item) for item in value]
    if isinstance(template, Items) and isinstance(value, dict):
        return {key: by_number(template.of, history, item) for key, item in value.items()}
    if isinstance(template, Either) and isinstance(value, dict):
        return by_number(template.branches[-1], history, value)
    return value


def same(expected: Any, found: Any) -> bool:
    """Say whether what was read is what was written: what a writer does not have is null, a text may be bytes."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() <= found.keys() and all(same(expected.get(key), found[key]) for key in found)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(same, expected, found))
    if isinstance(expected, str) and isinstance(found, bytes):
        return expected.encode() == found
    return bool(expected == found) and isinstance(expected, bool) == isinstance(found, bool)


@st.composite
def schemas(draw: Draw, names: Names, depth: int = 2) -> tuple[Json, st.SearchStrategy[Any]]:
    """Draw any schema with few names, so that two of them often have names in common, and values for it."""
    kinds = (
        ["plain"] * 3 + ["enum", "fixed"] + (["array", "map", "null"] * bool(depth)) + ["record", "union"] * bool(depth)
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "record":
        return draw(records(names, depth - 1))
    if kind in ("array", "map", "null"):
        inside, values = draw(schemas(names, depth - 1))
        if kind == "null":
            branches = inside if isinstance(inside, list) else [inside]
            return ["null", *(branch for branch in branches if branch != "null")], st.none() | values
        strategy = st.lists(values, max_size=2) if kind == "array" else st.dictionaries(texts, values, max_size=2)
        return {"type": kind, "items" if kind == "array" else "values": inside}, strategy
    return draw(leaves(names, kind))


@st.composite
def leaves(draw: Draw, names: Names, kind: str) -> tuple[Json, st.SearchStrategy[Any]]:
    """Draw a schema without others inside."""
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
        return {"type": "enum", "name": names.next("T"), "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        size = draw(st.integers(0, 2))
        return {"type": "fixed", "name": names.next("T"), "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "union":
        plain = draw(st.lists(st.sampled_from(["string", "boolean", "long"]), min_size=1, max_size=3, unique=True))
        return plain, st.one_of([VALUES[one] for one in plain])
    one = draw(st.sampled_from([*VALUES]))
    return KINDS.get(one, one), VALUES[one]


@st.composite
def records(draw: Draw, names: Names, depth: int = 2) -> tuple[Json, st.SearchStrategy[Any]]:
    """Draw a record of any fields, and values for it."""
    name = names.next("T")
    chosen = draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True))
    fields = {one: draw(schemas(names, depth)) for one in chosen}
    listed = [{"name": one, "type": schema} for one, (schema, _) in fields.items()]
    values = st.fixed_dictionaries({one: values for one, (_, values) in fields.items()})
    return {"type": "record", "name": name, "fields": listed}, values


def written(schema: Json, value: Any) -> bytes:
    """Return the bytes of a value, by fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def read(data: bytes, writer: Json, reader: str) -> Any:
    """Return the value that fastavro resolves from one schema to the other.

    The reader's names are written out: fastavro does not find one in a union when the writer has its definition there.
    """
    names: dict[str, Any] = {}
    whole: Any = fastavro.parse_schema(json.loads(reader), names, expand=True)
    whole |= {"__fastavro_parsed": True, "__named_schemas": names}
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(writer), whole)
