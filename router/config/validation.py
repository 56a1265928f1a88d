"""Check what no single field can tell: what belongs together, and what excludes each other.

The checks read the tree, not the models, so that they speak even where another fault keeps the models from being made.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from router.addresses import SCHEMES, is_local, normalized
from router.config.models import Bronze, Config, Let, Source, View, names_of, reads, shared, with_named
from router.config.yaml_tree import Items, Keys, Node, Scalar, plain_data
from router.locations import Location
from router.parts import Part, Rule
from router.registry import suggestion
from router.sinks import MergingSink, Sink, TableSink
from router.table_names import BronzeTables, folded, may_collide, pieces_of, templates_meet, underscored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.registry import Location as Loc
    from router.registry import Registry


P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Finding:
    """What a check found, and where."""

    loc: Loc
    what: str
    hint: str
    at_key: bool = False


def cross_checks(root: Node, registry: Registry) -> Iterator[Finding]:
    """Run every check on a tree with its variables replaced."""
    yield from _source_kind(root)
    yield from _topics(root)
    yield from _kafka_options(root)
    yield from _files(root)
    yield from _trigger_kind(root)
    yield from _routes(root)
    yield from _unique_names(root, ("routes",), "route")
    yield from _unique_identities(root)
    for index, _ in enumerate(_items(root, ("routes",))):
        yield from _unique_names(root, ("routes", index, "expect"), "expectation")
        yield from _unique_names(root, ("routes", index, "lookup"), "lookup")
    yield from _shared_lookups(root)
    yield from _unique_names(root, ("expectations",), "expectation")
    yield from _own_tables(root)
    yield from _bronze_per_topic(root)
    yield from _fixed_tables(root, registry)
    yield from _shared_tables(root, registry)
    yield from _locations(root, registry)
    yield from _unique_names(root, ("let",), "query")
    yield from _unique_names(root, ("views",), "view")
    yield from _views(root, registry)


def _source_kind(root: Node) -> Iterator[Finding]:
    source, kinds = _at(root, ("source",)), list(Source.model_fields)
    if not isinstance(source, Keys):
        return
    given = [key for key in source.entries if key in kinds]
    if not source.entries:
        yield Finding(("source",), "names no kind", f"write one of: {', '.join(kinds)}")
    for kind in (kind for kind in given if not _is_given(source, kind)):
        yield Finding(("source", kind), "has no options", f"write {{{kind}: {{...}}}}", True)
    for kind in given[1:]:
        yield Finding(("source", kind), f"`{given[0]}` is the source already", f"keep one of: {', '.join(given)}", True)


def _topics(root: Node) -> Iterator[Finding]:
    loc = ("source", "kafka")
    kafka = _at(root, loc)
    if not isinstance(kafka, Keys):
        return
    given = [key for key in ("topics", "pattern") if _is_given(kafka, key)]
    if not given:
        yield Finding(loc, "names no topics", "add `topics: [...]` or `pattern`")
    if len(given) > 1:
        yield Finding((*loc, "pattern"), "stands beside `topics`", "keep one of the two", True)


_TO_KEY = {
    "kafka.bootstrap.servers": "write source.kafka.servers",
    "subscribe": "write source.kafka.topics",
    "subscribepattern": "write source.kafka.pattern",
    "assign": "write source.kafka.topics; all their partitions are read",
    "startingoffsets": "write source.kafka.start",
    "startingtimestamp": "write source.kafka.start_time",
    "startingoffsetsbytimestamp": "write source.kafka.start_time",
    "maxoffsetspertrigger": "write source.kafka.rows_per_batch",
    "includeheaders": "take it away; headers are always read",
    "kafka.auto.offset.reset": "write source.kafka.start; offsets live in the checkpoint",
    "kafka.enable.auto.commit": "take it away; offsets live in the checkpoint",
    "kafka.key.deserializer": "take it away; records are read as bytes, see `decode`",
    "kafka.value.deserializer": "take it away; records are read as bytes, see `decode`",
    "kafka.interceptor.classes": "take it away; Spark refuses it",
    "endingoffsets": "take it away; a stream has no end, see `trigger: {once: true}`",
    "endingtimestamp": "take it away; a stream has no end, see `trigger: {once: true}`",
    "endingoffsetsbytimestamp": "take it away; a stream has no end, see `trigger: {once: true}`",
}
"""Options that would work against the router, in lower case since Spark does not tell cases apart."""

# https://spark.apache.org/docs/4.0.0/streaming/structured-streaming-kafka-integration.html
_OF_SPARK = (
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsetsByTimestampStrategy",
)


def _kafka_options(root: Node) -> Iterator[Finding]:
    loc = ("source", "kafka", "options")
    options = _at(root, loc)
    for key in options.entries if isinstance(options, Keys) else ():
        if key.lower() in _TO_KEY:
            yield Finding((*loc, key), "this option belongs to the router", _TO_KEY[key.lower()], True)
        elif key.lower() == "failondataloss" and _is_false(_at(root, (*loc, key))):
            what = "Spark would pass over records that Kafka has deleted, without a word"
            hint = "take it away; a run stops where records are gone, and `--accept lost-records` goes on after them"
            yield Finding((*loc, key), what, hint, True)
        elif not key.lower().startswith("kafka.") and key.lower() not in map(str.lower, _OF_SPARK):
            hint = f"one of the Kafka client is written `kafka.{key}`; {suggestion(key, _OF_SPARK, 'those of Spark')}"
            yield Finding((*loc, key), "Spark would ignore this option", hint, True)


def _files(root: Node) -> Iterator[Finding]:
    """Refuse a format of files and a decoder that do not go together, and options that only one of them has."""
    loc = ("source", "files")
    files, decode = _at(root, loc), _at(root, ("decode",))
    kind = _at(root, (*loc, "format"))
    rows = isinstance(kind, Scalar) and kind.text != "lines"
    by_rows = isinstance(decode, Keys) and "rows" in decode.entries
    if by_rows and not rows:
        what = "rows are those of files, and the source has none of a format with rows"
        yield Finding(("decode",), what, "write source: {files: {path: ..., format: csv}}, or json, parquet, avro")
    if rows and decode is not None and not by_rows:
        yield Finding(("decode",), "files of a format with rows have their own columns", "write decode: {rows: {}}")
    if not isinstance(files, Keys):
        return
    for key, wanted in (("whole_files", False), ("schema_hints", True)):
        if key in files.entries and rows is not wanted:
            what = f"is for files {'with rows' if wanted else 'of lines'} only"
            yield Finding((*loc, key), what, "take it away", True)
    options = _at(root, (*loc, "options"))
    for key in options.entries if isinstance(options, Keys) else ():
        if key.lower() in _OF_FILES:
            yield Finding((*loc, "options", key), "this option belongs to the router", _OF_FILES[key.lower()], True)


_OF_FILES = {
    "cleansource": "write source.files.after",
    "sourcearchivedir": "write source.files.after",
    "maxfilespertrigger": "write source.files.files_per_batch",
    "wholetext": "write source.files.whole_files",
    "inferschema": "take it away; types are inferred, see schema_hints",
    "rescueddatacolumn": "take it away; there is always a column _rescued",
}


def _trigger_kind(root: Node) -> Iterator[Finding]:
    trigger = _at(root, ("trigger",))
    if not isinstance(trigger, Keys):
        return
    chosen = [key for key in trigger.entries if key in {"once", "every", "continuous"} and _is_chosen(trigger, key)]
    if not chosen:
        hint = "write once: true, every: 10 s or continuous: true, or take `trigger` away"
        yield Finding(("trigger",), "chooses nothing", hint)
    for key in chosen[1:]:
        yield Finding(("trigger", key), f"`{chosen[0]}` is the trigger already", "keep one of the two", True)


def _routes(root: Node) -> Iterator[Finding]:
    routes = _at(root, ("routes",))
    none = routes is None or (isinstance(routes, Items) and not routes.items)
    if none and isinstance(root, Keys) and not _is_given(root, "bronze"):
        yield Finding(("routes",), "nothing would be written: no routes and no bronze", "add a route, or `bronze`")


def _unique_names(root: Node, loc: Loc, noun: str) -> Iterator[Finding]:
    first: dict[str, tuple[int, Scalar]] = {}
    for index, item in enumerate(_items(root, loc)):
        name = item if isinstance(item, Scalar) else _at(item, ("name",))
        if not isinstance(name, Scalar) or not name.text:
            continue
        at, other = first.setdefault(underscored(name.text), (index, name))
        if at != index:  # an alias is the same node
            same = "the same name" if other.text == name.text else "a name that makes the same tables (- becomes _)"
            yield Finding(
                (*loc, index, *(("name",) if name is not item else ())),
                f"the {noun} at line {other.line} has {same}",
                "give each a name of its own",
            )


def _unique_identities(root: Node) -> Iterator[Finding]:
    """Refuse two routes, or two sinks of a route, of which both are, or were, what one name stands for."""
    first: dict[str, tuple[int, int]] = {}
    for index, item in enumerate(_items(root, ("routes",))):
        written = _at(item, ("was",)) or _at(item, ("name",))
        if not isinstance(written, Scalar) or not written.text:
            continue
        other, line = first.setdefault(underscored(written.text), (index, written.line))
        renamed = _is_given_text(item) or _is_given_text(_items(root, ("routes",))[other])
        if other != index and renamed:
            what = f"the route at line {line} is, or was, {written.text} as well"
            yield Finding(
                ("routes", index), what, "a name has one heir: give `was` to one of the two, and take new names"
            )


def _is_given_text(route: Node) -> bool:
    return isinstance(_at(route, ("was",)), Scalar)


def _shared_lookups(root: Node) -> Iterator[Finding]:
    """Refuse lookups of different routes that have one name and are not the same: each is loaded once for all."""
    first: dict[str, tuple[int, int, Node]] = {}
    for route, _ in enumerate(_items(root, ("routes",))):
        for index, item in enumerate(_items(root, ("routes", route, "lookup"))):
            name = _at(item, ("name",))
            if not isinstance(name, Scalar) or not name.text:
                continue
            at, _, other = first.setdefault(name.text, (route, name.line, item))
            if at != route and plain_data(item) != plain_data(other):
                what = f"route {at + 1} has another lookup of this name, at line {first[name.text][1]}"
                yield Finding(("routes", route, "lookup", index, "name"), what, "write the same, or take another name")


def _own_tables(root: Node) -> Iterator[Finding]:
    """Compare the tables that the router itself writes; the ledger has a default."""
    names = _tables(root)
    for index, key in enumerate(names):
        for other in list(names)[:index]:
            if names[key] == names[other]:
                at = key if _at(root, (key,)) else other
                what = f"`{key}` and `{other}` are the same table"
                yield Finding((at,), what, "give each a table of its own")


def _bronze_per_topic(root: Node) -> Iterator[Finding]:
    """Refuse listed topics of which bronze cannot have a table each; those of a pattern are not known yet."""
    bronze = _bronze(root)
    if bronze is None or not bronze.per_topic:
        return
    if bronze.others in bronze.taken:
        what = f"{bronze.others} is for topics that no table can be named after, and is another of the router's tables"
        yield Finding(("bronze",), what, "give one of the two another name")
    if _at(root, ("source", "files")):
        yield Finding(("bronze",), "the topic of a file's lines is the file, and no name", "give bronze one table")
    yield from _topics_named(root, bronze.named_after, "bronze")


def _topics_named(root: Node, named_after: Callable[[str], str | None], whose: str) -> Iterator[Finding]:
    """Refuse listed topics that name no table, or the same one as another; a message shows no value."""
    loc = ("source", "kafka", "topics")
    first: dict[str, Scalar] = {}
    for index, topic in enumerate(_items(root, loc)):
        if not isinstance(topic, Scalar) or topic.broken:
            continue
        table = named_after(topic.text)
        if table is None:
            what = f"{whose} has a table for each topic, and none can be named after this one"
            yield Finding((*loc, index), what, NAMED_AFTER)
        elif first.setdefault(table, topic).text != topic.text:
            what = f"{whose} has a table for each topic, and this one and that at line {first[table].line}, "
            what += f"column {first[table].column} would have the same"
            yield Finding((*loc, index), what, NAMED_AFTER)


NAMED_AFTER = (
    "a table's name has small letters, digits and underscores, and hyphens of a topic become underscores; name one "
    "table for all topics, or read this one with a configuration of its own"
)


def _fixed_tables(root: Node, registry: Registry) -> Iterator[Finding]:
    """Refuse a sink that would write among the router's own rows."""
    bronze = _bronze(root)
    own = {table: key for key, table in _tables(root).items() if key != "bronze"}
    for route, item in enumerate(_items(root, ("routes",))):
        for sink, node in enumerate(_items(item, ("sinks",))):
            table = _fixed_table(node, registry)
            key = "bronze" if bronze and table in bronze else own.get(table)
            if key:
                loc = ("routes", route, "sinks", sink)
                yield Finding(loc, f"the sink writes to the table of `{key}`", "give the sink a table of its own")


def _shared_tables(root: Node, registry: Registry) -> Iterator[Finding]:
    """Refuse templates with which rows that differ in a field could meet in one table."""
    topics = [topic.text for topic in _items(root, ("source", "kafka", "topics")) if isinstance(topic, Scalar)]
    listed = {"topic": frozenset(map(underscored, topics))} if topics else {}
    for route, item in enumerate(_items(root, ("routes",))):
        rule = _resolved(registry, Rule, _at(item, ("match",)))  # type: ignore[type-abstract]
        for index, node in enumerate(_items(item, ("sinks",))):
            sink = _resolved(registry, Sink, node)
            template = sink.table_template() if isinstance(sink, (TableSink, MergingSink)) else None
            if sink is None or template is None:
                continue
            if may_collide(template, {**listed, **(rule.known_values() if rule else {})}):
                what = "events that differ in its fields could name one table: a_b and c, a and b_c both make a_b_c"
                loc = ("routes", route, "sinks", index, sink.part_name, "table")
                yield Finding(loc, what, APART)
            if any(field == "topic" for field, _ in pieces_of(template)):
                yield from _topics_named(root, partial(_named_after, template), "a sink")


def _views(root: Node, registry: Registry) -> Iterator[Finding]:
    """Refuse views of what is not there, views that write what others write, and circles."""
    routes = [name.text for item in _items(root, ("routes",)) if isinstance(name := _at(item, ("name",)), Scalar)]
    views, lets = dict[str, View](), shared(Let, [plain_data(item) for item in _items(root, ("let",))])
    for index, item in enumerate(_items(root, ("views",))):
        with suppress(ValidationError):
            view = View.model_validate(with_named(plain_data(item), "let", lets))
            views[view.name] = view
            if view.source.route and view.source.route not in routes:
                hint = suggestion(view.source.route, routes, "the routes")
                yield Finding(("views", index, "from", "route"), "there is no such route", hint)
    taken = {**{table: f"`{key}`" for key, table in _tables(root).items()}, **_sink_tables(root, registry)}
    for index, item in enumerate(_items(root, ("views",))):
        name = _at(item, ("name",))
        if not isinstance(name, Scalar) or name.text not in views:
            continue
        view = views[name.text]
        loc = ("views", index)
        if view.source.view and view.source.view not in views:
            yield Finding(
                (*loc, "from", "view"), "there is no such view", suggestion(view.source.view, views, "the views")
            )
        for table, whose in taken.items():
            if templates_meet(view.into, table):
                what = f"it could name a table of {whose}: {table}"
                yield Finding(
                    (*loc, "into"), what, "give the tables of views a layer, or names, of their own: gold.{table}_x"
                )
        for other in list(views.values())[: list(views).index(view.name)]:
            if templates_meet(view.into, other.into):
                what = f"it could name a table of the view {other.name}: {other.into}"
                yield Finding((*loc, "into"), what, "give each view names of its own: gold.{table}_x")
        if circle := _circle(view, views):
            yield Finding((*loc, "from"), f"the views read each other in a circle: {' -> '.join(circle)}", "break it")


def _sink_tables(root: Node, registry: Registry) -> dict[str, str]:
    """Return the tables, or templates of tables, that sinks write, and whose they are."""
    found = dict[str, str]()
    for item in _items(root, ("routes",)):
        name = _at(item, ("name",))
        for node in _items(item, ("sinks",)):
            sink = _resolved(registry, Sink, node)
            if isinstance(sink, (TableSink, MergingSink)) and (names := names_of(sink)):
                found[names] = f"the route {name.text if isinstance(name, Scalar) else ''}"
    return found


def _circle(view: View, views: dict[str, View]) -> list[str]:
    """Return the views of a circle that begins with one, by name; nothing where there is none."""
    way, ends = [(view, [view.name])], list[str]()
    while way and not ends:
        one, path = way.pop()
        for other in views.values():
            if reads(one, other):
                if other.name == view.name:
                    ends = [*path, other.name]
                elif other.name not in path:
                    way.append((other, [*path, other.name]))
    return ends


APART = (
    "leave one field; or let `select` make one column of them and name that; or limit one with `match: {field: "
    "{column: ..., one_of: [...]}}`; or write `collisions: accept`"
)


def _locations(root: Node, registry: Registry) -> Iterator[Finding]:
    """Refuse locations in which two tables could lie in one place, or one within another."""
    first = dict[Location, Node]()
    for loc, found in _located(root, registry):
        at = (*loc, "location")
        if fault := found.faults():
            yield Finding(at, fault, PLACES)
        else:
            yield from (Finding(at, *told) for told in _conflicts(root, found, first))
        if (node := _at(root, at)) is not None:
            first[found] = node


def _conflicts(root: Node, found: Location, first: dict[Location, Node]) -> Iterator[tuple[str, str]]:
    """Yield what a location has in common with the places of lake, checkpoint and locations before it, and a hint."""
    for key, place in _own_places(root):
        if found.overlaps(place):
            yield f"a table could lie within `{key}`, or that within the table", PLACES
    for other, node in first.items():
        if found.bucket and found.bucket == other.bucket and found.options != other.options:
            what = f"the bucket {found.bucket} has other options at line {node.line}, and Spark takes one set for each"
            yield what, "give both the same `storage_options`, or each a bucket"
        if (other.names, other.place) == (found.names, found.place) or other.faults():
            continue
        if found.meets(other):
            hint = "a table has one place, whoever writes it: give both the same `location`"
            yield f"a table could have this location, and that at line {node.line}", hint
        elif found.overlaps(other.place):
            yield f"a table could lie where one does by the location at line {node.line}, or within it", PLACES
    if found.options and found.bucket is None and not is_local(found.place) and _beside_the_lake(root, found):
        what = "the lake is in the same kind of storage, and Spark knows one set of options for all buckets of no name"
        yield what, "take `storage_options` away; or give one bucket, and the field in the path"


PLACES = "give every table a folder of its own, beside the lake: s3://bucket/games/{table}"


def _located(root: Node, registry: Registry) -> Iterator[tuple[Loc, Location]]:
    """Yield the locations of bronze and of sinks, each with where its part stands."""
    written = _at(root, ("bronze",))
    if isinstance(written, Keys) and "location" in written.entries:
        with suppress(ValidationError):
            bronze = Bronze.model_validate(plain_data(written))
            if bronze.location:
                yield ("bronze",), bronze.location.at(bronze.table)
    for route, item in enumerate(_items(root, ("routes",))):
        for index, node in enumerate(_items(item, ("sinks",))):
            sink = _resolved(registry, Sink, node)
            if isinstance(sink, (TableSink, MergingSink)) and sink.location:
                yield ("routes", route, "sinks", index, sink.part_name), sink.location.at(names_of(sink))


def _own_places(root: Node) -> Iterator[tuple[str, str]]:
    """Yield the places of lake and checkpoint, as far as they are given and can be used."""
    for key in ("lake", "checkpoint"):
        node = _at(root, (key,))
        if isinstance(node, Scalar) and node.text and not node.broken:
            with suppress(ValueError):
                yield key, normalized(node.text)


def _beside_the_lake(root: Node, found: Location) -> bool:
    """Say whether the lake is in the same kind of storage."""
    lake = _at(root, ("lake",))
    scheme = lake.text.partition("://")[0].lower() if isinstance(lake, Scalar) else ""
    return SCHEMES.get(scheme) == SCHEMES.get(found.place.partition("://")[0].lower()) is not None


def _named_after(template: str, topic: str) -> str:
    """Return the table of a topic, as far as a template tells; the topic where it makes no name."""
    made = (underscored(topic) if field == "topic" else text or "x" for field, text in pieces_of(template))
    return folded("".join(made)) or topic


def _resolved(registry: Registry, family: type[P], node: Node | None) -> P | None:
    """Return the part that a node means; None where it is at fault, which is reported already."""
    try:
        return registry.resolve(family, plain_data(node)) if node is not None else None
    except ValidationError:
        return None


def _fixed_table(node: Node, registry: Registry) -> str:
    """Return the one table a sink writes to, or nothing when that is not known here."""
    part = _resolved(registry, Sink, node)
    try:
        table = part.table() if isinstance(part, (TableSink, MergingSink)) else ""
    except Exception:  # a Column cannot be made without a Spark session; `check --plan` makes it
        return ""
    return table if isinstance(table, str) else ""


def _tables(root: Node) -> dict[str, str]:
    found = {key: _at(root, (key,)) for key in ("bronze", "dead_letters", "ledger")}
    for key in ("bronze", "dead_letters"):
        if isinstance(found[key], Keys):
            found[key] = _at(root, (key, "table"))
    names = {key: node.text for key, node in found.items() if isinstance(node, Scalar) and node.text}
    default = {} if found["ledger"] else {"ledger": str(Config.model_fields["ledger"].default)}
    return {**names, **default}


def _bronze(root: Node) -> BronzeTables | None:
    """Return the tables of bronze, as far as the configuration names any."""
    names = _tables(root)
    bronze = names.pop("bronze", None)
    return BronzeTables(bronze, frozenset(names.values())) if bronze else None


def _at(root: Node, loc: Loc) -> Node | None:
    node: Node | None = root
    for element in loc:
        if isinstance(node, Keys):
            entry = node.entries.get(str(element))
            node = entry.value if entry else None
        elif isinstance(node, Items) and isinstance(element, int):
            node = node.items[element]
        else:
            return None
    return node


def _items(root: Node, loc: Loc) -> Sequence[Node]:
    node = _at(root, loc)
    return node.items if isinstance(node, Items) else ()


def _is_given(node: Keys, key: str) -> bool:
    """Say whether a key has a value other than null and the empty list."""
    value = _at(node, (key,))
    if isinstance(value, Scalar):
        return value.value is not None
    return value is not None and not (isinstance(value, Items) and not value.items)


def _is_chosen(node: Keys, key: str) -> bool:
    """Say whether a kind of trigger is switched on: `once: false` is not."""
    return _is_given(node, key) and not _is_false(_at(node, (key,)))


def _is_false(value: Node | None) -> bool:
    return isinstance(value, Scalar) and value.text.strip().lower() == "false"
