"""Route the events of a stream to hundreds of tables and services in one Spark job."""

from router.api.columns import row, tried
from router.api.decoding import ArrowDecoding, keep_archives
from router.api.hookspecs import hookimpl
from router.api.parts import (
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
from router.api.sinks import (
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
from router.api.table_options import check_property
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
from router.reader import read
from router.record import RAW_SCHEMA, raw_arrow_schema
from router.spark_internals import to_arrow_columns, to_spark_columns

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
    "raw_arrow_schema",
    "read",
    "row",
    "to_arrow_columns",
    "to_spark_columns",
    "tried",
]
