"""Route the events of a stream to hundreds of tables and services in one Spark job."""

from typing import TYPE_CHECKING

from router.columns import row, tried
from router.decoding import ArrowDecoding, keep_archives
from router.errors import (
    BatchError,
    ConfigError,
    PluginError,
    Problem,
    RouterError,
    SinkError,
    StartError,
    TableError,
)
from router.hookspecs import hookimpl
from router.parts import (
    RAW_SCHEMA,
    ArrowDecoder,
    BatchReport,
    Decoder,
    Encoded,
    Encoder,
    Encoding,
    Memory,
    Part,
    Preparation,
    Rule,
    Server,
    ViewQuery,
)
from router.reader import read
from router.sinks import (
    ApiState,
    ApplyingSink,
    Batch,
    GivenAnswer,
    KeyedTable,
    MergingSink,
    Opening,
    Outcome,
    Parts,
    Resent,
    Sink,
    TableSink,
)
from router.spark_internals import to_arrow_columns, to_spark_columns
from router.table_options import check_property

if TYPE_CHECKING:
    from router.engine.expressions.json_expressions import JsonExpression

__all__ = [
    "RAW_SCHEMA",
    "ApiState",
    "ApplyingSink",
    "ArrowDecoder",
    "ArrowDecoding",
    "Batch",
    "BatchError",
    "BatchReport",
    "ConfigError",
    "Decoder",
    "Encoded",
    "Encoder",
    "Encoding",
    "GivenAnswer",
    "JsonExpression",
    "KeyedTable",
    "Memory",
    "MergingSink",
    "Opening",
    "Outcome",
    "Part",
    "Parts",
    "PluginError",
    "Preparation",
    "Problem",
    "Resent",
    "RouterError",
    "Rule",
    "Server",
    "Sink",
    "SinkError",
    "StartError",
    "TableError",
    "TableSink",
    "ViewQuery",
    "check_property",
    "hookimpl",
    "keep_archives",
    "read",
    "row",
    "to_arrow_columns",
    "to_spark_columns",
    "tried",
]


def __getattr__(name: str) -> object:
    """Return what is imported when it is asked for: it needs pyarrow, and checking a file should not wait for that."""
    if name == "JsonExpression":
        from router.engine.expressions.json_expressions import JsonExpression  # noqa: PLC0415

        return JsonExpression
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
