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
    "body.five + 1",
    "body.half > 1",
    "body.n / 2",
    "body.n DIV 2",
    "body.n % 2 = 1",
    "body.n * 2 - 1",
    "-body.n",
    "abs(-body.n) = 5",
    "status BETWEEN 200 AND 299 AND body.n != 4",
    "NOT body.ok OR body.nothing = 'a'",
    "body.nothing IS NULL",
    "body.nothing <=> NULL",
    "body.ok IS NOT TRUE",
    "body.ok IS FALSE",
    "CASE WHEN status = 200 THEN 'a' ELSE 'b' END",
    "CASE status WHEN 429 THEN 'a' WHEN 200 THEN 'c' END",
    "if(body.ok, 1, 2)",
    "coalesce(body.nothing, body.error, 'z')",
    "nvl(body.nothing, 'z')",
    "lower(concat(body.error, 'Y', body.n))",
    "body.error || '-' || body.five",
    "upper(body.error) LIKE '%X%'",
    "body.error RLIKE '^x$'",
    "body.error NOT LIKE 'y_'",
    "contains(body.error, 'x')",
    "substring(body.error, 1, 1)",
    "length(trim(' a ')) = 1",
    "cast(body.five AS int) = 5",
    "try_cast(body.error AS bigint) IS NULL",
    "round(body.half) = 2",
    "greatest(body.n, 7)",
    "'it\\'s' = \"it's\"",
    "(status = 200) <> (body.n = 6)",
    "body.nothing = 'a' AND status = 500",
    "body.nothing = 'a' OR status = 200",
    "NOT body.nothing = 'a'",
    "status IN (200, NULL)",
    "status NOT IN (201, NULL)",
    "status BETWEEN 300 AND NULL",
    "coalesce(NULL, NULL)",
    "-7 DIV 2",
    "-7 % 2",
    "body.n / 4",
    "body.half * 2",
    "round(-2.5D)",
    "round(body.half * 100, -1)",
    "ceil(body.half)",
    "floor(-body.half)",
    "greatest(NULL, body.n, 7)",
    "least(body.half, body.n)",
    "1e7D || ''",
    "0.00001D || ''",
    "body.half || true",
    "substring('abc', -5, 3)",
    "substring('abc', 0, 2)",
    "left('abc', -1)",
    "right('abc', 2)",
    "instr('abc', 'c')",
    "replace('abc', '', 'x')",
    "ltrim('  a ') || rtrim('  a ')",
    "split_part('a-b', '-', -1)",
    "split_part('a-b', '-', 3)",
    "concat_ws('-', 'a', body.nothing, 5)",
    "'a\\nb' RLIKE 'a.b'",
    "'ab\\n' RLIKE 'b$'",
    "regexp_like('a7', '^[a-z]\\\\d$')",
    "'a%' LIKE 'a\\%'",
    "'ABC' ILIKE '_b%'",
    "cast(' 5 ' AS int)",
    "cast('yes' AS boolean)",
    "cast(-1.7D AS bigint)",
    "cast(body.ok AS int)",
    "try_cast('5.5' AS int)",
    "array_contains(body.list, 3)",
    "body.five > 4.5D",
    "body.list[1] = 2 AND body.errors[1].message = 'b'",
)
ERRORS_IN_SPARK = (
    "1 / 0",
    "body.half / 0",
    "body.n % 0",
    "body.n DIV 0",
    "9223372036854775807 + 1",
    "cast('5.5' AS int)",
    "cast('x' AS double)",
    "cast(3000000000 AS int)",
    "cast('maybe' AS boolean)",
    "body.error = 5",
    "split_part('a', 'b', 0)",
)


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
        ("lower(body.only) = 'a'", None),
        ("body.error AND true", None),
        ("body.absent = 5", None),
        ("1 / 0 > 5", None),
        ("status = 200 OR 1 / 0 > 5", True),
        ("body.mixed = 1", None),
        ("ceil(cast('NaN' AS double)) = 0", None),
        ("cast('Infinity' AS double) % 2 > 0", None),
        ("body.n % 0 = 0", None),
        ("9223372036854775807 + 1 > 0", None),
        ("NOT body.absent = 5", None),
        ("body.absent = 5 AND status = 500", False),
        ("body.absent = 5 OR status = 200", True),
        ("status IN (200, NULL)", True),
        ("status IN (201, NULL)", None),
        ("status NOT IN (201, NULL)", None),
        ("status BETWEEN 300 AND body.absent", False),
        ("array_contains(body.list, 3)", False),
        ("cast('5.5' AS int) = 5", None),
        ("try_cast('5.5' AS int) IS NULL", True),
        ("body.five > 4.5", True),
        ("1e7 || ''", "1.0E7"),
        ("0.00001 || ''", "1.0E-5"),
        ("body.error || 1 + 2", None),
        ("-7 DIV 2", -3),
        ("-7 % 2", -1),
        ("round(-2.5)", -3.0),
        ("substring('abc', -5, 3)", "a"),
        ("split_part('a-b', '-', -1)", "b"),
        ("concat_ws('-', 'a', body.absent, 5)", "a-5"),
        ("'a\nb' RLIKE 'a.b'", False),
        ("'ab\n' RLIKE 'b$'", True),
        ("'a\x0b' RLIKE 'a\\\\s'", True),
        ("'a\x0b' RLIKE 'a[\\\\s]'", True),
        ("'a\x0b' RLIKE 'a\\\\S'", False),
        ("'a%' LIKE 'a\\%'", True),
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
        ("lowr(body.a) = 'a'", "did you mean lower"),
        ("lower()", "number of operands"),
        ("hash(body.a)", "no such function"),
        ("exists(body.errors, e -> e.a = 1)", "character"),
        ("body.a RLIKE '(?=a)'", "RLIKE with the pattern"),
        ("body.a LIKE body.b", "no constant"),
        ("cast(body.a AS uuid)", "a type is expected"),
        ("body.a[-1]", "a number from 0"),
        ("body.a #", "character 8, '#': this cannot stand here"),
        ("body AND 1", "AND of"),
        ("status; status", "not one expression"),
        ("SELECT 1", "Select cannot be evaluated"),
        ("status IN (SELECT 1)", "query is not known"),
        ("body.a LIKE 'x' ESCAPE '/'", "Escape cannot be evaluated"),
        ("trim(LEADING 'x' FROM body.a)", "expression is not known"),
        ("status = 200 IN (1)", "in brackets"),
        ("body.a RLIKE '(a)\\\\1'", "RLIKE with the pattern"),
        ("body.a RLIKE 'a++'", "RLIKE with the pattern"),
        ("body.a RLIKE '[a&&b]'", "RLIKE with the pattern"),
        ("lower(body.a, body.b)", "number of operands"),
        ("if(body.a, 1)", "number of operands"),
        ("current_timestamp() > 5", "no such function"),
        ("sum(status) > 5", "no such function as sum"),
        ("cast(body.a AS date)", "a type is expected"),
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
    for text in ("body.a = 5", "body.a.b LIKE 'x%'", "size(body.a) > 0 OR body.b", "body.a + 1 > body.b", "body = 'a'"):
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
