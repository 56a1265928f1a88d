"""A configuration as a picture: source, decoder, routes, sinks and, with a lake, tables and counts.

`router graph` draws all of it, `router lineage` what leads to one table and away from it.

The text is a tree for a terminal; Mermaid is drawn by GitHub, GitLab and many editors. Options are shown as far as they
are plain; secrets never are. Needs no Spark.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from router.cli import config_argument, plugin_option
from router.cli.listing import json_option, show_json
from router.config.loader import load
from router.config.models import as_template, names_of, reads
from router.errors import TableError, printable
from router.parts import Part
from router.registry import load_registry
from router.sinks import MergingSink, TableSink
from router.table_names import templates_meet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config, Route, View

TABLES_SHOWN = 12
SHAPES = {
    "source": "([{}])",
    "decoder": "{{{{{}}}}}",
    "route": "[/{}/]",
    "sink": "[{}]",
    "table": "[({})]",
    "view": "[[{}]]",
}
"""How Mermaid draws what a node is."""
ENTITIES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"})
"""What Mermaid would take for its own, in its own writing."""
ABOUT = ("template", "table", "name", "url", "topic")
"""The options that say best what a sink is about; its main option stands before them."""


@dataclass(frozen=True)
class GraphNode:
    """A thing that records pass through or end in. `counts` are those of the ledger, empty without a lake.

    `note` is drawn in place of the counts. `key` is how the status of a stream names a route (ROUTE), or a sink
    (ROUTE/SINK).
    """

    kind: str
    text: str
    counts: Mapping[str, int] = field(default_factory=dict)
    below: tuple[GraphNode, ...] = ()
    note: str = ""
    key: str = ""

    @property
    def beside(self) -> str:
        """Return what is drawn beside the text."""
        return self.note or ", ".join(f"{count:,} {name}" for name, count in self.counts.items())

    def document(self) -> dict[str, Any]:
        """Return the node and those below it for JSON."""
        below = [node.document() for node in self.below]
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

    def of(self, route: str | None, sink: str | None, names: tuple[str, ...]) -> dict[str, int]:
        """Return the counts of these names that are not zero; the first one always."""
        found = self.sums.get((route, sink))
        if found is None:
            return {}
        return {name: found.get(name) or 0 for name in names if found.get(name) or name == names[0]}


NOTHING = GraphCounts({}, {})


@click.command(short_help="Draw a configuration: source, decoder, routes, sinks, tables.")
@config_argument
@click.option("--lake", is_flag=True, help="With counts of the ledger, and the tables that each sink has written.")
@click.option("--format", "form", default="text", show_default=True, type=click.Choice(["text", "mermaid"]))
@plugin_option
def graph(file: Path, lake: bool, form: str, plugin_files: tuple[Path, ...]) -> None:
    """Draw the configuration FILE: where records come from, who takes them, and where they end. Needs no Spark."""
    config = load(file, load_registry(plugin_files)).config
    root = drawn(config, _counts(config) if lake else NOTHING)
    if form == "mermaid":
        click.echo("\n".join(mermaid(root)))
    else:
        Console(highlight=False).print(tree(root))


@click.command(short_help="Say what a table is made of, and who reads it.")
@config_argument
@click.argument("table", metavar="LAYER.TABLE")
@click.option("--format", "form", default="text", show_default=True, type=click.Choice(["text", "mermaid"]))
@json_option
@plugin_option
def lineage(file: Path, table: str, form: str, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Draw how records come into LAYER.TABLE, and what reads it, by the configuration FILE and its lake."""
    config = load(file, load_registry(plugin_files)).config
    bronze = config.bronze_tables()
    named = config.bronze.table if config.bronze and bronze and table in bronze else table
    found = through(drawn(config, replace(_counts(config), shown=sys.maxsize, by_table=True)), named)
    if found is None:
        raise TableError(
            table, f"no sink of {config.name} has written it, and no view; `router graph` shows what it has"
        )
    if as_json:
        show_json({"name": config.name, "table": table, "lineage": found.document()})
    elif form == "mermaid":
        click.echo("\n".join(mermaid(found)))
    else:
        Console(highlight=False).print(tree(found))


def through(node: GraphNode, table: str) -> GraphNode | None:
    """Return a node with the ways through it to a table, and all below the table; None where there are none."""
    if node.kind == "table" and node.text == table:
        return node
    below = tuple(found for one in node.below if (found := through(one, table)))
    return replace(node, below=below) if below else None


def drawn(config: Config, counts: GraphCounts) -> GraphNode:
    """Return the configuration as nodes, from its source on."""
    whole = counts.of(None, None, ("decoded", "failed", "bare", "unmatched"))
    decoder = GraphNode("decoder", f"decode {described(config.decode)}", whole, tuple(_after(config, counts)))
    own = []
    if config.bronze:
        read, readers = counts.of(None, None, ("read",)), _readers(config, config.bronze.table, counts)
        own = [GraphNode("table", config.bronze.table, read, readers)]
    return GraphNode("source", _source(config), counts.of(None, None, ("read", "lost")), (*own, decoder))


def _after(config: Config, counts: GraphCounts) -> Iterator[GraphNode]:
    for route in config.routes:
        yield _route(config, route, counts)
    readers = _readers(config, config.dead_letters, counts)
    yield GraphNode("table", config.dead_letters, below=readers, note="what went nowhere else")
    drawn_elsewhere = [*config.written_names(), config.dead_letters, *(view.into for view in config.views)]
    for view in config.views:
        if not any(_reads(view, name, "") for name in drawn_elsewhere) and not (view.source.route or view.source.view):
            yield _view(config, view, counts)


def _route(config: Config, route: Route, counts: GraphCounts) -> GraphNode:
    checks = [f"expect {one.name}: {one.sql} (otherwise {one.otherwise})" for one in route.expect]
    text = "\n".join([f"{route.name}: {described(route.match)}", *checks])
    sinks = tuple(_sink(config, (route.identity, name), sink, counts) for name, sink in route.named_sinks.items())
    matched = [counts.sums[key].get("matched") or 0 for key in counts.sums if key[0] == route.identity]
    return GraphNode("route", text, {"matched": max(matched)} if matched else {}, sinks, key=route.identity)


def _sink(config: Config, place: tuple[str, str], sink: Part, counts: GraphCounts) -> GraphNode:
    (route, name), tables = place, counts.tables.get("/".join(place), ())
    shown_route, shown_name = config.shown_names(route, name)
    shown = _tables(config, tables, counts, shown_route)
    written = names_of(sink) if isinstance(sink, (TableSink, MergingSink)) else ""
    if written and not (counts.by_table and tables):
        shown += _readers(config, written, counts, shown_route)
    names = ("landed", "applied", "refused", "dropped", "quarantined", "dead", "parked", "backlog")
    text = f"{shown_name} {described(sink)}"
    return GraphNode("sink", text, counts.of(route, name, names), tuple(shown), key=f"{route}/{name}")


def _tables(
    config: Config, tables: tuple[tuple[str, int], ...], counts: GraphCounts, route: str = ""
) -> list[GraphNode]:
    """Return nodes for tables, as many as are shown."""
    found = []
    for table, rows in tables[: counts.shown]:
        readers = _readers(config, table, counts, route) if counts.by_table else ()
        found.append(GraphNode("table", table, {"rows": rows}, readers))
    if len(tables) > counts.shown:
        found.append(GraphNode("table", f"and {len(tables) - counts.shown:,} more tables"))
    return found


def _readers(config: Config, names: str, counts: GraphCounts, route: str = "") -> tuple[GraphNode, ...]:
    """Return nodes for the views that read a table, or the tables that a template names."""
    return tuple(_view(config, view, counts) for view in config.views if _reads(view, names, route))


def _reads(view: View, names: str, route: str) -> bool:
    if view.source.route:
        return view.source.route == route
    if any(templates_meet(names, table) for table in view.joined):
        return True
    left_out = "{" not in names and any(fnmatchcase(names, glob) for glob in view.source.without)
    return not left_out and any(templates_meet(names, as_template(glob)) for glob in view.source.tables)


def _view(config: Config, view: View, counts: GraphCounts) -> GraphNode:
    tables = counts.views.get(view.name, ())
    below = _tables(config, tables, counts)
    below += [_view(config, other, counts) for other in config.views if reads(other, view)]
    text = f"view {view.name} into {view.into}"
    if not tables:
        return GraphNode("view", text, below=tuple(below))
    totals = {"rows": sum(rows for _, rows in tables), "tables": len(tables)}
    note = f"{totals['rows']:,} rows in {totals['tables']:,} tables"
    return GraphNode("view", text, totals, tuple(below), note)


def _source(config: Config) -> str:
    source = config.source
    if source.kafka is not None:
        return f"kafka: {', '.join(source.kafka.topics) or source.kafka.pattern} at {source.kafka.servers}"
    if source.files is not None:
        return f"files: {source.files.path}"
    if source.delta is not None:
        return f"delta: {source.delta.table}{' and its changes' if source.delta.changes else ''}"
    return f"format: {source.format.name if source.format else ''}"


def described(part: Part) -> str:
    """Return what a part does in a few words: what it is about, and its other options as far as they are plain."""
    given = {name: getattr(part, name) for name in type(part).model_fields if name in part.model_fields_set}
    plain = {name: text for name, value in given.items() if (text := _plain(value))}
    about = next((name for name in (part.main_option, *ABOUT) if name in plain), None)
    main = plain.pop(about) if about else ""
    options = ", ".join(name if text == "True" else f"{name} {text}" for name, text in plain.items())
    bare = part.kind in ("rule", "sink") and about is not None and isinstance(given[about], str)
    name = "" if bare else part.part_name
    return " ".join(filter(None, (name, main, f"({options})" if options else "")))


def _plain(value: Any) -> str:
    """Return a value as text; nothing where it is no plain one. An address goes without its user and query."""
    if isinstance(value, Part):
        return described(value)
    if isinstance(value, tuple | list):
        return ", ".join(map(_plain, value))
    if isinstance(value, str) and (found := urlsplit(value)).scheme in ("http", "https"):
        return f"{found.scheme}://{found.netloc.rpartition('@')[2]}{found.path}"
    return str(value) if isinstance(value, str | int | float | Path) else ""


def _counts(config: Config) -> GraphCounts:
    sums = import_module("router.engine.ledger").totals(config)
    tables = import_module("router.engine.preflight.explain").tables_by_sink(config)
    views = import_module("router.engine.views.note").tables_by_view(config) if config.views else {}
    return GraphCounts(sums, tables, views=views)


def tree(root: GraphNode) -> Tree:
    """Return a node and what is below it for a terminal."""
    found = Tree(_line(root))
    _grow(found, root)
    return found


def _grow(onto: Tree, node: GraphNode) -> None:
    for one in node.below:
        _grow(onto.add(_line(one)), one)


def _line(node: GraphNode) -> Text:
    first, *others = map(printable, node.text.split("\n"))
    found = Text(first, style="bold" if node.kind in ("source", "route") else "")
    if node.beside:
        found.append(f"  {printable(node.beside)}", style="cyan")
    for line in others:
        found.append(f"\n{line}", style="dim")
    return found


def mermaid(root: GraphNode) -> Iterator[str]:
    """Yield the lines of a Mermaid flow chart; a table that two sinks write is drawn once."""
    yield "flowchart LR"
    yield from _drawn_below(root, _name_of(root, {}, numbers := count()), {}, numbers)


def _drawn_below(node: GraphNode, name: str, tables: dict[str, str], numbers: Iterator[int]) -> Iterator[str]:
    yield f"  {name}{SHAPES[node.kind].format(_quoted(node))}"
    for one in node.below:
        known = one.kind == "table" and one.text in tables
        below = _name_of(one, tables, numbers)
        if not known:
            yield from _drawn_below(one, below, tables, numbers)
        yield f"  {name} --> {below}"


def _name_of(node: GraphNode, tables: dict[str, str], numbers: Iterator[int]) -> str:
    if node.kind != "table":
        return f"n{next(numbers)}"
    if node.text not in tables:
        tables[node.text] = f"n{next(numbers)}"
    return tables[node.text]


def _quoted(node: GraphNode) -> str:
    """Return the text of a node as Mermaid takes it, whatever is in it."""
    lines = [*map(printable, node.text.split("\n")), *([printable(node.beside)] if node.beside else [])]
    return f'"{"<br/>".join(line.translate(ENTITIES) for line in lines)}"'
