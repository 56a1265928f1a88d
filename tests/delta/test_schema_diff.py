"""Rows against a table: what is added, widened, cast, and what cannot be."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from router.delta.schema_diff import SchemaDiff, common_type, compare_schemas, delta_schema, delta_type, limited_to

UTC = pa.timestamp("us", "UTC")
INNER = pa.struct([("x", pa.int32())])
GROWN = pa.struct([("x", pa.int32()), ("z", pa.string())])
WIDER = pa.struct([("x", pa.int64())])


def field(kind: pa.DataType, name: str = "a") -> pa.Field:
    return pa.field(name, kind)


FITS = {
    "the same": (pa.int32(), pa.int32(), SchemaDiff()),
    "wider rows": (pa.int32(), pa.int64(), SchemaDiff(widened=(field(pa.int64()),))),
    "narrower rows": (pa.int64(), pa.int8(), SchemaDiff(cast={"a": pa.int64()})),
    "float to double": (pa.float32(), pa.float64(), SchemaDiff(widened=(field(pa.float64()),))),
    "double and float": (pa.float64(), pa.float32(), SchemaDiff(cast={"a": pa.float64()})),
    "int to double": (pa.int32(), pa.float64(), SchemaDiff(widened=(field(pa.float64()),))),
    "float and short": (
        pa.float32(),
        pa.int16(),
        SchemaDiff(widened=(field(pa.float64()),), cast={"a": pa.float64()}),
    ),
    "double and int": (pa.float64(), pa.int32(), SchemaDiff(cast={"a": pa.float64()})),
    "decimal grows": (
        pa.decimal128(10, 2),
        pa.decimal128(12, 4),
        SchemaDiff(widened=(field(pa.decimal128(12, 4)),)),
    ),
    "decimals that need both": (
        pa.decimal128(10, 2),
        pa.decimal128(6, 4),
        SchemaDiff(widened=(field(pa.decimal128(12, 4)),), cast={"a": pa.decimal128(12, 4)}),
    ),
    "new nested field": (INNER, GROWN, SchemaDiff(added=(field(GROWN),))),
    "nested field missing": (GROWN, INNER, SchemaDiff()),
    "wider nested field": (INNER, WIDER, SchemaDiff(widened=(field(WIDER),))),
    "narrower nested field": (WIDER, INNER, SchemaDiff(cast={"a": WIDER})),
    "new nested field in a list": (pa.list_(INNER), pa.list_(GROWN), SchemaDiff(added=(field(pa.list_(GROWN)),))),
    "wider values of a map": (
        pa.map_(pa.string(), pa.int32()),
        pa.map_(pa.string(), pa.int64()),
        SchemaDiff(widened=(field(pa.map_(pa.string(), pa.int64())),)),
    ),
    "large text": (pa.string(), pa.large_string(), SchemaDiff(cast={"a": pa.string()})),
    "nanoseconds elsewhere": (UTC, pa.timestamp("ns", "Europe/Berlin"), SchemaDiff(cast={"a": UTC})),
}
CONFLICTS = {
    "text and number": (pa.string(), pa.int64()),
    "number and text": (pa.int64(), pa.string()),
    "double and bigint": (pa.float64(), pa.int64()),
    "with a zone and without": (UTC, pa.timestamp("us")),
    "struct and text": (INNER, pa.string()),
    "struct and map": (INNER, pa.map_(pa.string(), pa.int32())),
    "list and its element": (pa.list_(pa.int32()), pa.int32()),
    "nested conflict": (INNER, pa.struct([("x", pa.string())])),
    "nested names that differ by case": (INNER, pa.struct([("X", pa.int32())])),
    "conflict in a list": (pa.list_(pa.int32()), pa.list_(pa.string())),
    "decimals that need 39 digits": (pa.decimal128(38, 0), pa.decimal128(5, 1)),
}


@pytest.mark.parametrize(("have", "come", "wanted"), FITS.values(), ids=FITS)
def test_rows_fit(have: pa.DataType, come: pa.DataType, wanted: SchemaDiff) -> None:
    """Without it a harmless change of the events sends them to dead letters, or fails the commit."""
    assert compare_schemas(pa.schema([field(have)]), pa.schema([field(come)])) == wanted


@pytest.mark.parametrize(("have", "come"), CONFLICTS.values(), ids=CONFLICTS)
def test_rows_conflict(have: pa.DataType, come: pa.DataType) -> None:
    """Without it values are written under a type that changes them, or the table cannot be read any more."""
    found = compare_schemas(pa.schema([field(have)]), pa.schema([field(come)]))

    assert list(found.conflicts) == ["a"]
    assert str(delta_type(have)) in found.conflicts["a"]
    assert str(delta_type(come)) in found.conflicts["a"]
    assert (found.added, found.widened, found.cast) == ((), (), {})


def test_a_new_column_is_added_nullable() -> None:
    """Without it the first value of a new field stops the stream."""
    have, come = pa.schema([field(pa.int32())]), pa.schema([pa.field("b", INNER, nullable=False), field(pa.int32())])

    assert compare_schemas(have, come) == SchemaDiff(added=(pa.field("b", INNER),))


def test_a_name_that_differs_by_case_conflicts() -> None:
    """Without it a table has Amount and amount, and Spark cannot read it."""
    found = compare_schemas(pa.schema([field(pa.int32(), "Amount")]), pa.schema([field(pa.int32(), "amount")]))

    assert list(found.conflicts) == ["amount"]
    assert "Amount" in found.conflicts["amount"]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (pa.timestamp("ns", "Asia/Tokyo"), UTC),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.struct([pa.field("x", pa.large_string(), nullable=False)]), pa.struct([("x", pa.string())])),
        (pa.map_(pa.large_string(), pa.timestamp("s", "UTC")), pa.map_(pa.string(), UTC)),
    ],
    ids=str,
)
def test_plain_types(kind: pa.DataType, wanted: pa.DataType) -> None:
    """Without it the same column has one type in Arrow and another in Delta, and every batch lands twice."""
    assert delta_type(kind) == wanted
    assert delta_schema(pa.schema([pa.field("a", kind, nullable=False)])) == pa.schema([pa.field("a", wanted)])


LEAVES = st.sampled_from(
    [
        *[pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()],
        *[pa.bool_(), pa.date32(), UTC, pa.decimal128(5, 2), pa.decimal128(10, 0), pa.decimal128(38, 20)],
    ]
)
NUMBERS = st.sampled_from([pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(7, 2), pa.decimal128(9, 5)])


def nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from(["x", "y", "X", "list", "element"]), min_size=1, max_size=3, unique_by=str.lower)
    return st.one_of(
        names.flatmap(lambda named: st.tuples(*[st.tuples(st.just(name), kinds) for name in named])).map(pa.struct),
        kinds.map(lambda kind: pa.list_(pa.field("element", kind))),
        kinds.map(lambda kind: pa.map_(pa.string(), kind)),
    )


KINDS = st.recursive(LEAVES | NUMBERS, nested, max_leaves=6)
FAMILIES = [
    [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    [pa.float32(), pa.float64()],
    [pa.decimal128(5, 2), pa.decimal128(10, 0), pa.decimal128(20, 10)],
]


@st.composite
def later(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    """Return the type that a next version of a schema may have: other widths, fields gone and fields new."""
    if pa.types.is_struct(kind):
        kept = [child for child in kind if draw(st.booleans())] or [kind.field(0)]
        fields = [pa.field(child.name, draw(later(child.type))) for child in kept]
        return pa.struct([*fields, *([pa.field("new", draw(LEAVES))] if draw(st.booleans()) else [])])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", draw(later(kind.value_type))))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, draw(later(kind.item_type)))
    return draw(st.sampled_from(next((family for family in FAMILIES if kind in family), [kind])))


VERSIONS = KINDS.flatmap(lambda kind: st.tuples(later(kind), later(kind)))
EXTREMES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-(2**7), 2**7 - 1],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float32(): [-3.4028234663852886e38, 2.0**-149],
    pa.float64(): [-1.7976931348623157e308, 5e-324],
    pa.string(): ["", "é"],
    pa.binary(): [b"", b"\xff"],
    pa.bool_(): [True, False],
    pa.date32(): [0, 1],
    UTC: [0, 1],
}


def extremes(kind: pa.DataType) -> list[Any]:
    """Return values of a type that a type too narrow would lose."""
    if pa.types.is_struct(kind):
        pairs = [extremes(child.type) for child in kind]
        return [{child.name: values[i] for child, values in zip(kind, pairs, strict=True)} for i in (0, 1)]
    if pa.types.is_map(kind):
        return [[("k", value) for value in extremes(kind.item_type)], []]
    if pa.types.is_list(kind):
        return [extremes(kind.value_type), []]
    if pa.types.is_decimal(kind):
        return [Decimal((sign, (9,) * kind.precision, -kind.scale)) for sign in (1, 0)]
    return EXTREMES[kind]


@given(VERSIONS)
def test_a_merged_type_holds_the_values_of_both(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    """Without it a widened column cuts values."""
    merged = common_type(*kinds)
    assume(merged is not None)

    for kind in kinds:
        values = pa.array([*extremes(kind), None], kind)
        assert values.cast(limited_to(merged, kind)).cast(kind).to_pylist() == values.to_pylist()


@given(VERSIONS)
def test_a_table_that_took_the_rows_takes_them_again_unchanged(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    """Without it every batch alters the table anew."""
    merged = common_type(*kinds)
    assume(merged is not None)
    table = pa.schema([field(merged)])

    for kind in kinds:
        again = compare_schemas(table, pa.schema([field(kind)]))
        assert (again.added, again.widened, again.conflicts) == ((), (), {})
        assert again.cast == ({} if limited_to(merged, kind) == kind else {"a": limited_to(merged, kind)})


@given(VERSIONS | st.tuples(KINDS, KINDS))
def test_the_order_in_which_types_appear_decides_no_conflict(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    """Without it the same events are rows after one batch and dead letters after another."""
    assert (common_type(*kinds) is None) == (common_type(*reversed(kinds)) is None)


@given(KINDS)
def test_a_type_fits_itself(kind: pa.DataType) -> None:
    """Without it an unchanged table is altered."""
    assert compare_schemas(pa.schema([field(kind)]), pa.schema([field(kind)])) == SchemaDiff()
