"""The expressions of answer rules: read without Spark, over values whose types come with them, with Spark's meaning."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.answers.expression_reader import read_expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = ("status", "body")
BODY = {
    "ok": False,
    "error": "x",
    "n": 5,
    "half": 1.5,
    "five": "5",
    "list": [1, 2],
    "empty": [],
    "mixed": [1, "a"],
    "errors": [{"message": "slow", "extensions": {"code": "T"}}, {"message": "b"}],
    "only": {"create": {"status": 409}},
    "nothing": None,
}
SCHEMA = (
    "ok boolean, error string, n bigint, half double, five string, list array<bigint>, empty array<bigint>, "
    "errors array<struct<message: string, extensions: struct<code: string>>>, nothing string"
)
SAME_AS_SPARK = (
    "status = 200 AND body.ok = false",
    "body.error",
    "body.error IN ('x', 'y')",
    "body.error NOT IN ('x', 'y')",
    "body.errors IS NOT NULL",
    "size(body.errors) > 1",
    "size(body.empty) = 0",
    "body.errors[0].message = 'slow'",
    "array_contains(body.errors.extensions.code, 'T')",
    "array_contains(body.list, 2)",
    "body.n = '5'",
    "body.five = 5",
    "body.half > 1",
    "-1 < body.n",
    "status BETWEEN 200 AND 299 AND body.n != 4",
    "NOT body.ok OR body.nothing = 'a'",
    "body.nothing IS NULL",
    "body.ok IS NOT TRUE",
    "body.ok IS FALSE",
    "'it\\'s' = \"it's\"",
    "(status = 200) <> (body.n = 6)",
    "body.nothing = 'a' AND status = 500",
    "body.nothing = 'a' OR status = 200",
    "NOT body.nothing = 'a'",
    "status IN (200, NULL)",
    "status NOT IN (201, NULL)",
    "status BETWEEN 300 AND NULL",
    "body.ok = 'no'",
    "array_contains(body.list, 3)",
    "body.half >= 1.5",
    "body.list[1] = 2 AND body.errors[1].message = 'b'",
)
ERRORS_IN_SPARK = ("body.error = 5", "body.ok = 'maybe'", "body.n > 'x'")


def value(text: str, body: Any = BODY, status: int = 200) -> Any:
    """Evaluate an expression for one answer."""
    return read_expression(text, NAMES).value({"status": status, "body": body})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("body.ok = false", True),
        ("body.only.*.status", 409),
        ("body.only.`*`.status = 409", True),
        ("size(body.mixed)", 2),
        ("body.list[1]", 2),
        ("body['error']", "x"),
        ("body.list[7] IS NULL", True),
        ("body.absent.deeper IS NULL", True),
        ("body.only IS NOT NULL", True),
        ("body.n < 99999999999999999999", True),
        # what does not go together is null, and so no match
        ("body.error = 5", None),
        ("body.errors = 1", None),
        ("body.only = 'a'", None),
        ("body.error AND true", None),
        ("body.absent = 5", None),
        ("body.mixed = 1", None),
        ("status = 200 OR body.error = 5", True),
        ("body.error = 5 OR status = 200", None),
        ("body.n = -5", False),
        ("NOT body.absent = 5", None),
        ("body.absent = 5 AND status = 500", False),
        ("body.absent = 5 OR status = 200", True),
        ("status IN (200, NULL)", True),
        ("status IN (201, NULL)", None),
        ("status NOT IN (201, NULL)", None),
        ("status BETWEEN 300 AND body.absent", False),
        ("array_contains(body.list, 3)", False),
        ("body.five > 4.5", True),
    ],
)
def test_a_value_has_the_type_of_its_json(text: str, found: Any) -> None:
    """Without it a rule holds for an answer that it does not speak of."""
    assert value(text) == found


def test_no_body_is_no_match() -> None:
    """Without it an answer that is no JSON stops the task."""
    assert value("body.ok = false", None) is None
    assert value("body IS NULL", None) is True
    assert value("body.ok = false", "text") is None


def test_each_answer_is_read_by_its_own_types_also_in_a_task() -> None:
    """Without it a task cannot evaluate a rule, or one answer decides how another is read."""
    bodies = [{"code": 5}, {"code": "5"}, {"code": True}, {"code": None}, {"code": [5]}, {"code": 5.0}, None]
    expression = pickle.loads(pickle.dumps(read_expression("body.code = 5", NAMES)))
    values = [expression.value({"status": 200, "body": body}) for body in bodies]

    assert values == [True, True, None, None, None, True, None]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "character 1"),
        ("status =", "character 8, '=': a value is missing"),
        ("foo = 1", "there are status, body"),
        ("`foo` = 1", "there are status, body"),
        ("status = 200 status", "nothing more"),
        ("(status = 200", "\\) is expected"),
        ("status = 'a", "without its end"),
        ("lower(body.a) = 'a'", "know no lower: there are AND, OR, NOT"),
        ("lowr(body.a) = 'a'", "know no lowr: there are"),
        ("size()", "number of operands"),
        ("hash(body.a)", "know no hash"),
        ("exists(body.errors, e -> e.a = 1)", "character"),
        ("body.a LIKE 'x%'", "know no Like"),
        ("body.a RLIKE 'a'", "know no regexp_like"),
        ("body.a + 1 = 2", "know no Add"),
        ("body.a || 'x' = 'ax'", "know no"),
        ("CASE WHEN body.a THEN 1 END = 1", "know no case"),
        ("-body.a = 1", "know no Neg"),
        ("cast(body.a AS int) = 1", "know no"),
        ("body.a <=> NULL", "know no"),
        ("body.a[-1]", "a number from 0"),
        ("body.a #", "character 8, '#': this cannot stand here"),
        ("body AND 1", "AND of a number"),
        ("NOT 'a'", "NOT of a text"),
        ("body OR size(body.a)", "OR of a number"),
        ("body.a IS 5", "NULL, TRUE or FALSE is expected"),
        ("status; status", "not one expression"),
        ("SELECT 1", "know no Select"),
        ("status IN (SELECT 1)", "query is not known"),
        ("status = 200 IN (1)", "in brackets"),
        ("size(body.a, body.b)", "expression is not known"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_when_it_is_read(text: str, word: str) -> None:
    """Without it a rule is found to be none when the first answer has come."""
    with pytest.raises(ValueError, match=word):
        read_expression(text, NAMES)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=6,
)


@given(JSON)
def test_whatever_an_answer_holds_it_is_asked_without_an_error(body: Any) -> None:
    """Without it an odd answer ends the task, again and again."""
    for text in ("body.a = 5", "body.a.b > 'x'", "size(body.a) > 0 OR body.b", "body.a IN (1, body.b)", "body = 'a'"):
        assert value(text, body) in (True, False, None)


@pytest.fixture
def answers(spark: SparkSession) -> DataFrame:
    """Return BODY, but for what has no type in Spark, as a row of typed columns."""
    text = json.dumps({name: BODY[name] for name in BODY if name not in ("mixed", "only")})
    frame = spark.createDataFrame([(200, text)], "status int, text string")
    return frame.selectExpr("status", f"from_json(text, '{SCHEMA}') AS body")


@pytest.mark.slow
def test_values_are_those_of_spark(answers: DataFrame) -> None:
    """Without it a rule means another thing than the same words in a route."""
    of_spark = answers.selectExpr(*(f"{text} AS _{at}" for at, text in enumerate(SAME_AS_SPARK))).collect()[0]

    assert {text: value(text) for text in SAME_AS_SPARK} == dict(zip(SAME_AS_SPARK, of_spark, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("text", ERRORS_IN_SPARK)
def test_an_error_of_spark_is_no_match(answers: DataFrame, text: str) -> None:
    """Without it a rule holds although the same words stop a route."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        answers.selectExpr(text).collect()
    assert value(text) is None
