"""A configuration as a picture: source, decoder, routes, sinks and, with a lake, tables and counts.

`router graph` draws all of it, with `--table` what leads to one table and away from it.

The text is a tree for a terminal; Mermaid is drawn by GitHub, GitLab and many editors. Options are shown as far as they
are plain; secrets never are. Needs no Spark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from router.api.parts import Part
from router.api.sinks import LakeSink
from router.cli import config_argument, plugin_option
from router.cli.documents import json_option, show_json
from router.config.loader import load_config
from router.config.models import as_template, names_of, reads_tables_of
from router.counts import BY_NAME
from router.errors import TableError, to_printable
from router.registry import load_registry
from router.table_names import templates_meet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config, Route, Source, View

TABLES_SHOWN = 12
MERMAID_SHAPES = {
    "source": "([{}])",
    "decoder": "{{{{{}}}}}",
    "route": "[/{}/]",
    "sink": "[{}]",
    "table": "[({})]",
    "view": "[[{}]]",
}
"""How Mermaid draws what a node is."""
MERMAID_ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"})
"""What Mermaid would take for its own, in its own writing."""
SUBJECT_OPTIONS = ("template", "table", "name", "url", "topic")
"""The options that say best what a sink is about; its main option stands before them."""


@dataclass(frozen=True)
class GraphNode:
    """A thing that records pass through or end in. `counts` are those of the ledger, empty without a lake.

    `note` is drawn in place of the counts. `key` is how the status of a stream names a route (ROUTE), a view, or a sink
    (ROUTE/SINK).
    """

    kind: str
    text: str
    counts: Mapping[str, int] = field(default_factory=dict)
    below: tuple[GraphNode, ...] = ()
    note: str = ""
    key: str = ""

    @property
    def side_text(self) -> str:
        """Return the note or the counts, which are drawn next to the text."""
        return self.note or ", ".join(f"{count:,} {name}" for name, count in self.counts.items())

    def as_document(self) -> dict[str, Any]:
        """Return the node and those below it for JSON."""
        below = [node.as_document() for node in self.below]
        document = {"kind": self.kind, "text": self.text, "counts": dict(self.counts), "below": below}
        if self.key:
            document["key"] = self.key
        return document


@dataclass(frozen=True)
class GraphCounts:
    """What the ledger and the logs of tables say: sums by (route, sink), and each sink's tables with their rows.

    `shown` are the tables of one sink that are drawn; the others are counted. `views`: the tables of each view with
    their rows. `by_table`: what reads a table stands below it, and not below its sink.
    """

    sums: Mapping[tuple[str | None, str | None], Mapping[str, int]]
    tables: Mapping[str, tuple[tuple[str, int], ...]]
    shown: int = TABLES_SHOWN
    views: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    by_table: bool = False

    def counts_of(self, route: str | None, sink: str | None, names: tuple[str, ...]) -> dict[str, int]:
        """Return the counts of these names that are not zero; the first one always."""
        sums = self.sums.get((route, sink))
        if sums is None:
            return {}
        counts = {name: sums.get(name) or 0 for name in names}
        return {name: count for name, count in counts.items() if count or name == names[0]}


NO_COUNTS = GraphCounts({}, {})


def _print_graph(root: GraphNode, form: str) -> None:
    if form == "mermaid":
        click.echo("\n".join(mermaid_lines(root)))
    else:
        Console(highlight=False).print(terminal_tree(root))


format_option = click.option(
    "--format", "form", default="text", show_default=True, type=click.Choice(["text", "mermaid"])
)


@click.command()
@config_argument
@click.option("--lake", is_flag=True, help="With counts of the ledger, and the tables that each sink has written.")
@click.option("--table", metavar="TABLE", help="Only how records come into this table, and what reads it, by the lake.")
@format_option
@json_option
@plugin_option
def graph(file: Path, lake: bool, table: str | None, form: str, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Draw the configuration FILE: where records come from, their routes, and where they end. Needs no Spark."""
    config = load_config(file, load_registry(plugin_files)).config
    if table is not None:
        root = _lineage_of(config, table)
    else:
        root = graph_of(config, _read_counts(config) if lake else NO_COUNTS)
    if as_json:
        show_json({"name": config.name, "table": table, "graph": root.as_document()})
    else:
        _print_graph(root, form)


def _lineage_of(config: Config, table: str) -> GraphNode:
    """Return how records come into a table, and what reads it. Raises TableError if nothing has written it."""
    drawn_as = table
    bronze_tables = config.bronze_tables()
    # Bronze is drawn once, by its template, whatever topics it has tables of.
    if config.bronze and bronze_tables and table in bronze_tables:
        drawn_as = config.bronze.table
    counts = replace(_read_counts(config), shown=sys.maxsize, by_table=True)
    root = ways_through(graph_of(config, counts), drawn_as)
    if root is None:
        what = f"no sink of {config.name} has written it, and no view; `router graph FILE` shows what it has"
        raise TableError(table, what)
    return root


def _read_counts(config: Config) -> GraphCounts:
    from router.engine.ledger import read_totals
    from router.engine.preflight.explain import tables_by_sink
    from router.engine.views.note import tables_by_view

    views = tables_by_view(config) if config.views else {}
    return GraphCounts(read_totals(config), tables_by_sink(config), views=views)


def ways_through(node: GraphNode, table: str) -> GraphNode | None:
    """Return a node with the ways through it to a table, and all below the table; None if there are none."""
    if node.kind == "table" and node.text == table:
        return node
    below = []
    for child in node.below:
        way = ways_through(child, table)
        if way:
            below.append(way)
    return replace(node, below=tuple(below)) if below else None


def graph_of(config: Config, counts: GraphCounts) -> GraphNode:
    """Return the configuration as nodes, from its source on."""
    return _Drawing(config, counts).source_node()


@dataclass(frozen=True)
class _Drawing:
    """A configuration that is drawn with counts, from its source to its tables and views."""

    config: Config
    counts: GraphCounts

    def source_node(self) -> GraphNode:
        below = []
        bronze = self.config.bronze
        if bronze:
            counts = self.counts.counts_of(None, None, ("read",))
            below.append(GraphNode("table", bronze.table, counts, self._reader_nodes(bronze.table)))
        counts = self.counts.counts_of(None, None, (*BY_NAME["read"].parts, "unmatched"))
        text = f"decode {describe_part(self.config.decode)}"
        below.append(GraphNode("decoder", text, counts, tuple(self._after_decoder())))
        counts = self.counts.counts_of(None, None, ("read", "lost"))
        return GraphNode("source", _source_text(self.config.source), counts, tuple(below))

    def _after_decoder(self) -> Iterator[GraphNode]:
        """Yield the routes, the dead letters, and the views that read nothing of what is drawn elsewhere."""
        config = self.config
        for route in config.routes:
            yield self._route_node(route)
        note = "what went nowhere else"
        yield GraphNode("table", config.dead_letters, below=self._reader_nodes(config.dead_letters), note=note)
        drawn_elsewhere = [*config.written_names(), config.dead_letters, *(view.into for view in config.views)]
        for view in config.views:
            if view.source.route or view.source.view:
                continue
            if not any(_reads_table(view, name) for name in drawn_elsewhere):
                yield self._view_node(view)

    def _route_node(self, route: Route) -> GraphNode:
        lines = [f"{route.name}: {describe_part(route.match)}"]
        for expectation in route.expect:
            lines.append(f"expect {expectation.name}: {expectation.sql} (otherwise {expectation.otherwise})")
        sinks = tuple(self._sink_node(route.identity, name, sink) for name, sink in route.named_sinks.items())
        # Each sink of a route has what matched: it is the route's own number.
        matched = [sums.get("matched") or 0 for (name, _), sums in self.counts.sums.items() if name == route.identity]
        counts = {"matched": max(matched)} if matched else {}
        return GraphNode("route", "\n".join(lines), counts, sinks, key=route.identity)

    def _sink_node(self, route: str, name: str, sink: Part) -> GraphNode:
        key = f"{route}/{name}"
        shown_route, shown_name = self.config.shown_names(route, name)
        tables = self.counts.tables.get(key, ())
        below = self._table_nodes(tables, shown_route)
        # Views that read the tables of a sink stand below each table if these are drawn for it, else below the sink.
        if isinstance(sink, LakeSink) and not (self.counts.by_table and tables):
            written = names_of(sink)
            if written:
                below += self._reader_nodes(written, shown_route)
        # What becomes of the route's events, and of the rows of an outbox.
        counts = self.counts.counts_of(route, name, (*BY_NAME["matched"].parts, *BY_NAME["landed"].parts))
        return GraphNode("sink", f"{shown_name} {describe_part(sink)}", counts, tuple(below), key=key)

    def _table_nodes(self, tables: tuple[tuple[str, int], ...], route: str = "") -> list[GraphNode]:
        """Return nodes for tables, as many as are shown."""
        nodes = []
        for table, rows in tables[: self.counts.shown]:
            readers = self._reader_nodes(table, route) if self.counts.by_table else ()
            nodes.append(GraphNode("table", table, {"rows": rows}, readers))
        others = len(tables) - self.counts.shown
        if others > 0:
            nodes.append(GraphNode("table", f"and {others:,} more tables"))
        return nodes

    def _reader_nodes(self, names: str, route: str = "") -> tuple[GraphNode, ...]:
        """Return nodes for the views that read a table, or the tables that a template names."""
        nodes = []
        for view in self.config.views:
            # A view of a route reads all that its sinks write, and nothing else.
            by_route = view.source.route is not None and view.source.route == route
            if by_route or (view.source.route is None and _reads_table(view, names)):
                nodes.append(self._view_node(view))
        return tuple(nodes)

    def _view_node(self, view: View) -> GraphNode:
        tables = self.counts.views.get(view.name, ())
        below = self._table_nodes(tables)
        for other in self.config.views:
            if reads_tables_of(other, view):
                below.append(self._view_node(other))
        text = f"view {view.name} into {view.into}"
        if not tables:
            return GraphNode("view", text, below=tuple(below), key=view.name)
        rows = sum(rows for _, rows in tables)
        note = f"{rows:,} rows in {len(tables):,} tables"
        return GraphNode("view", text, {"rows": rows, "tables": len(tables)}, tuple(below), note, key=view.name)


def _reads_table(view: View, names: str) -> bool:
    """Say whether a view reads a table, or a table that a template names, by its name."""
    if any(templates_meet(names, table) for table in view.joined_tables):
        return True
    is_template = "{" in names
    if not is_template and any(fnmatchcase(names, pattern) for pattern in view.source.without):
        return False
    return any(templates_meet(names, as_template(pattern)) for pattern in view.source.tables)


def _source_text(source: Source) -> str:
    if source.kafka is not None:
        topics = ", ".join(source.kafka.topics) or source.kafka.pattern
        return f"kafka: {topics} at {source.kafka.servers}"
    if source.files is not None:
        return f"files: {source.files.path}"
    if source.delta is not None:
        changes = " and its changes" if source.delta.changes else ""
        return f"delta: {source.delta.table}{changes}"
    return f"format: {source.format.name if source.format else ''}"


def describe_part(part: Part) -> str:
    """Return the description of a part in a few words: its subject, and its other options as far as they are plain."""
    values = {name: getattr(part, name) for name in type(part).model_fields if name in part.model_fields_set}
    texts = {}
    for name, value in values.items():
        text = _plain_text(value)
        if text:
            texts[name] = text
    subject = next((name for name in (part.main_option, *SUBJECT_OPTIONS) if name in texts), None)

    words = [part.part_name]
    if subject:
        # A rule or sink whose subject is a text is known by it: `silver.{event.game}`, `event.game IS NOT NULL`.
        if part.kind in ("rule", "sink") and isinstance(values[subject], str):
            words.clear()
        words.append(texts.pop(subject))
    if texts:
        options = []
        for name, text in texts.items():
            options.append(name if text == "True" else f"{name} {text}")
        words.append(f"({', '.join(options)})")
    return " ".join(words)


def _plain_text(value: Any) -> str:
    """Return a value as text; nothing if it is no plain one. An address goes without its user and query."""
    if isinstance(value, Part):
        return describe_part(value)
    if isinstance(value, tuple | list):
        return ", ".join(_plain_text(item) for item in value)
    if isinstance(value, str):
        url = urlsplit(value)
        if url.scheme in ("http", "https"):
            # A user before the host may have a password.
            return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
    if isinstance(value, str | int | float | Path):
        return str(value)
    return ""


def terminal_tree(root: GraphNode) -> Tree:
    """Return a node and what is below it for a terminal."""
    root_of_tree = Tree(_node_line(root))
    _add_branches(root_of_tree, root)
    return root_of_tree


def _add_branches(branch: Tree, node: GraphNode) -> None:
    for child in node.below:
        _add_branches(branch.add(_node_line(child)), child)


def _node_line(node: GraphNode) -> Text:
    first, *others = [to_printable(line) for line in node.text.split("\n")]
    text = Text(first, style="bold" if node.kind in ("source", "route") else "")
    if node.side_text:
        text.append(f"  {to_printable(node.side_text)}", style="cyan")
    for line in others:
        text.append(f"\n{line}", style="dim")
    return text


def mermaid_lines(root: GraphNode) -> Iterator[str]:
    """Yield the lines of a Mermaid flow chart; a table that two sinks write is drawn once."""
    yield "flowchart LR"
    chart = _Chart()
    yield from chart.node_lines(root, chart.new_name(root))


class _Chart:
    """The nodes of a Mermaid chart that have a name already."""

    def __init__(self) -> None:
        self._numbers = count()
        self._tables: dict[str, str] = {}

    def new_name(self, node: GraphNode) -> str:
        name = f"n{next(self._numbers)}"
        if node.kind == "table":
            self._tables[node.text] = name
        return name

    def node_lines(self, node: GraphNode, name: str) -> Iterator[str]:
        """Yield the lines of a node and all below it."""
        yield f"  {name}{MERMAID_SHAPES[node.kind].format(_quote_for_mermaid(node))}"
        for child in node.below:
            child_name = None
            if child.kind == "table":
                child_name = self._tables.get(child.text)
            if child_name is None:
                child_name = self.new_name(child)
                yield from self.node_lines(child, child_name)
            yield f"  {name} --> {child_name}"


def _quote_for_mermaid(node: GraphNode) -> str:
    """Return the text of a node as Mermaid takes it, whatever is in it."""
    lines = node.text.split("\n")
    if node.side_text:
        lines.append(node.side_text)
    return f'"{"<br/>".join(to_printable(line).translate(MERMAID_ENTITIES) for line in lines)}"'
