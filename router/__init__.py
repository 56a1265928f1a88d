"""Route the events of a stream to hundreds of tables and services in one Spark job."""

from router.applying import ApplyingSink, Batch, Opening, Outcome, Parts, Resent
from router.decoding import ArrowDecoding, keep_archives
from router.encoding import Encoded, Encoder, Encoding, row
from router.engine.label.safe_columns import tried
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
from router.merging import KeyedTable, MergingSink
from router.parts import (
    RAW_SCHEMA,
    ArrowDecoder,
    BatchReport,
    Decoder,
    Memory,
    Part,
    Preparation,
    Rule,
    Sink,
    TableSink,
)
from router.reader import read

__all__ = [
    "RAW_SCHEMA",
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
    "Sink",
    "SinkError",
    "StartError",
    "TableError",
    "TableSink",
    "hookimpl",
    "keep_archives",
    "read",
    "row",
    "tried",
]
