"""Check what no single field can tell: what belongs together, and what excludes each other.

The checks read the tree, not the models, so that they report even if another fault keeps the models from being made.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from router.api.parts import Part, Rule
from router.api.sinks import LakeSink, MergingSink, Sink
from router.config.models import Bronze, Config, Let, Source, View, names_of, read_shared, reads_tables_of, with_named
from router.config.yaml_tree import Items, Keys, Scalar, YamlNode, plain_data
from router.registry import suggest_names
from router.storage.addresses import STORAGE_BY_SCHEME, is_local, normalize_address
from router.table_names import BronzeTables, fold_name, may_collide, templates_meet, to_underscores
from router.templates import fill_template, template_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.registry import KeyPath, Registry
    from router.storage.locations import Location


P = TypeVar("P", bound=Part)
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """What a check found, and where."""

    loc: KeyPath
    what: str
    hint: str
    at_key: bool = False
    code: str = "conflict"


def cross_checks(root: YamlNode, registry: Registry) -> Iterator[Finding]:
    """Run every check on a tree with its variables replaced."""
    yield from _source_kind(root)
    yield from _check_topics(root)
    yield from _kafka_options(root)
    yield from _check_files(root)
    yield from _trigger_kind(root)
    yield from _check_routes(root)
    yield from _unique_names(root, ("routes",), "route")
    yield from _unique_identities(root)
    for index, _ in enumerate(_items_at(root, ("routes",))):
        yield from _unique_names(root, ("routes", index, "expect"), "expectation")
        yield from _unique_names(root, ("routes", index, "lookup"), "lookup")
    yield from _shared_lookups(root)
    yield from _unique_names(root, ("expectations",), "expectation")
    yield from _own_tables(root)
    yield from _bronze_per_topic(root)
    yield from _fixed_tables(root, registry)
    yield from _shared_tables(root, registry)
    yield from _check_locations(root, registry)
    yield from _unique_names(root, ("let",), "query")
    yield from _unique_names(root, ("views",), "view")
    yield from _check_views(root, registry)


def _source_kind(root: YamlNode) -> Iterator[Finding]:
    source = _node_at(root, ("source",))
    if not isinstance(source, Keys):
        return
    kinds = list(Source.model_fields)
    written = [key for key in source.entries if key in kinds]
    if not source.entries:
        yield Finding(("source",), "names no kind", f"write one of: {', '.join(kinds)}")
    for kind in written:
        if not _has_value(source, kind):
            yield Finding(("source", kind), "has no options", f"write {{{kind}: {{...}}}}", at_key=True)
    for kind in written[1:]:
        message = f"`{written[0]}` is the source already"
        yield Finding(("source", kind), message, f"keep one of: {', '.join(written)}", at_key=True)


def _check_topics(root: YamlNode) -> Iterator[Finding]:
    loc = ("source", "kafka")
    kafka = _node_at(root, loc)
    if not isinstance(kafka, Keys):
        return
    has_topics = _has_value(kafka, "topics")
    has_pattern = _has_value(kafka, "pattern")
    if not has_topics and not has_pattern:
        yield Finding(loc, "names no topics", "add `topics: [...]` or `pattern`")
    if has_topics and has_pattern:
        yield Finding((*loc, "pattern"), "is set together with `topics`", "keep one of the two", at_key=True)


_KAFKA_OPTIONS_OF_ROUTER = {
    "kafka.bootstrap.servers": "write source.kafka.servers",
    "subscribe": "write source.kafka.topics",
    "subscribepattern": "write source.kafka.pattern",
    "assign": "write source.kafka.topics; all their partitions are read",
    "startingoffsets": "write source.kafka.start",
    "startingtimestamp": "write source.kafka.start_time",
    "startingoffsetsbytimestamp": "write source.kafka.start_time",
    "maxoffsetspertrigger": "write source.kafka.rows_per_batch",
    "includeheaders": "remove it; headers are always read",
    "kafka.auto.offset.reset": "write source.kafka.start; offsets live in the checkpoint",
    "kafka.enable.auto.commit": "remove it; offsets live in the checkpoint",
    "kafka.key.deserializer": "remove it; records are read as bytes, see `decode`",
    "kafka.value.deserializer": "remove it; records are read as bytes, see `decode`",
    "kafka.interceptor.classes": "remove it; Spark refuses it",
    "endingoffsets": "remove it; a stream has no end, see `trigger: {once: true}`",
    "endingtimestamp": "remove it; a stream has no end, see `trigger: {once: true}`",
    "endingoffsetsbytimestamp": "remove it; a stream has no end, see `trigger: {once: true}`",
}
"""Options that would work against the router, in lower case since Spark does not tell cases apart."""

# https://spark.apache.org/docs/4.0.0/streaming/structured-streaming-kafka-integration.html
_KAFKA_OPTIONS_OF_SPARK = (
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


def _kafka_options(root: YamlNode) -> Iterator[Finding]:
    loc = ("source", "kafka", "options")
    options = _node_at(root, loc)
    if not isinstance(options, Keys):
        return
    of_spark = {name.lower() for name in _KAFKA_OPTIONS_OF_SPARK}
    for key in options.entries:
        # Spark does not tell cases apart.
        name = key.lower()
        if name in _KAFKA_OPTIONS_OF_ROUTER:
            hint = _KAFKA_OPTIONS_OF_ROUTER[name]
            yield Finding((*loc, key), "this option belongs to the router", hint, at_key=True)
        elif name == "failondataloss" and _is_false(_node_at(root, (*loc, key))):
            message = "Spark would silently skip records that Kafka has deleted"
            hint = "remove it; a run stops if records are gone, and `--accept lost-records` continues after them"
            yield Finding((*loc, key), message, hint, at_key=True)
        elif not name.startswith("kafka.") and name not in of_spark:
            near = suggest_names(key, _KAFKA_OPTIONS_OF_SPARK, "those of Spark")
            hint = f"one of the Kafka client is written `kafka.{key}`; {near}"
            yield Finding((*loc, key), "Spark would ignore this option", hint, at_key=True)


def _check_files(root: YamlNode) -> Iterator[Finding]:
    """Refuse a format of files and a decoder that do not go together, and options that only one of them has."""
    loc = ("source", "files")
    file_format = _node_at(root, (*loc, "format"))
    has_rows = isinstance(file_format, Scalar) and file_format.text != "lines"
    decode = _node_at(root, ("decode",))
    decodes_rows = isinstance(decode, Keys) and "rows" in decode.entries
    if decodes_rows and not has_rows:
        message = "rows are those of files, and the source has none of a format with rows"
        yield Finding(("decode",), message, "write source: {files: {path: ..., format: csv}}, or json, parquet, avro")
    if has_rows and decode is not None and not decodes_rows:
        yield Finding(("decode",), "files of a format with rows have their own columns", "write decode: {rows: {}}")

    files = _node_at(root, loc)
    if not isinstance(files, Keys):
        return
    if has_rows and "whole_files" in files.entries:
        yield Finding((*loc, "whole_files"), "is for files of lines only", "remove it", at_key=True)
    if not has_rows and "schema_hints" in files.entries:
        yield Finding((*loc, "schema_hints"), "is for files with rows only", "remove it", at_key=True)
    options = _node_at(root, (*loc, "options"))
    if isinstance(options, Keys):
        for key in options.entries:
            hint = _FILE_OPTIONS_OF_ROUTER.get(key.lower())
            if hint:
                yield Finding((*loc, "options", key), "this option belongs to the router", hint, at_key=True)


_FILE_OPTIONS_OF_ROUTER = {
    "cleansource": "write source.files.after",
    "sourcearchivedir": "write source.files.after",
    "maxfilespertrigger": "write source.files.files_per_batch",
    "wholetext": "write source.files.whole_files",
    "inferschema": "remove it; types are inferred, see schema_hints",
    "rescueddatacolumn": "remove it; there is always a column _rescued",
}


def _trigger_kind(root: YamlNode) -> Iterator[Finding]:
    trigger = _node_at(root, ("trigger",))
    if not isinstance(trigger, Keys):
        return
    kinds = {"once", "every", "continuous"}
    chosen = [key for key in trigger.entries if key in kinds and _is_switched_on(trigger, key)]
    if not chosen:
        hint = "write once: true, every: 10 s or continuous: true, or remove `trigger`"
        yield Finding(("trigger",), "chooses nothing", hint)
    for key in chosen[1:]:
        yield Finding(("trigger", key), f"`{chosen[0]}` is the trigger already", "keep one of the two", at_key=True)


def _check_routes(root: YamlNode) -> Iterator[Finding]:
    if not isinstance(root, Keys) or _has_value(root, "bronze"):
        return
    routes = _node_at(root, ("routes",))
    # Anything but a list is refused by the model.
    if routes is None or (isinstance(routes, Items) and not routes.items):
        yield Finding(("routes",), "nothing would be written: no routes and no bronze", "add a route, or `bronze`")


def _unique_names(root: YamlNode, loc: KeyPath, noun: str) -> Iterator[Finding]:
    """Refuse two things of one list with names that would make the same tables."""
    first: dict[str, tuple[int, Scalar]] = {}
    for index, item in enumerate(_items_at(root, loc)):
        # If a name stands for something, the item itself is the name.
        name = item if isinstance(item, Scalar) else _node_at(item, ("name",))
        if not isinstance(name, Scalar) or not name.text:
            continue
        first_index, first_name = first.setdefault(to_underscores(name.text), (index, name))
        if first_index == index:
            continue
        same = "the same name"
        if first_name.text != name.text:
            same = "a name that makes the same tables (- becomes _)"
        place: KeyPath = (*loc, index) if name is item else (*loc, index, "name")
        yield Finding(place, f"the {noun} at line {first_name.line} has {same}", "give each a name of its own")


def _unique_identities(root: YamlNode) -> Iterator[Finding]:
    """Refuse two routes, or two sinks of a route, of which both are, or were, what one name stands for."""
    routes = _items_at(root, ("routes",))
    first: dict[str, tuple[int, int]] = {}
    for index, route in enumerate(routes):
        identity = _node_at(route, ("was",)) or _node_at(route, ("name",))
        if not isinstance(identity, Scalar) or not identity.text:
            continue
        first_index, line = first.setdefault(to_underscores(identity.text), (index, identity.line))
        if first_index == index:
            continue
        # Two names that are the same, of which neither was given by `was`, are another check's.
        if _is_renamed(route) or _is_renamed(routes[first_index]):
            message = f"the route at line {line} is, or was, {identity.text} as well"
            hint = "a name has one heir: give `was` to one of the two, and take new names"
            yield Finding(("routes", index), message, hint)


def _is_renamed(route: YamlNode) -> bool:
    return isinstance(_node_at(route, ("was",)), Scalar)


def _shared_lookups(root: YamlNode) -> Iterator[Finding]:
    """Refuse lookups of different routes that have one name and are not the same: each is loaded once for all."""
    first: dict[str, tuple[int, int, YamlNode]] = {}
    for route, item in enumerate(_items_at(root, ("routes",))):
        for index, lookup in enumerate(_items_at(item, ("lookup",))):
            name = _node_at(lookup, ("name",))
            if not isinstance(name, Scalar) or not name.text:
                continue
            first_route, line, first_lookup = first.setdefault(name.text, (route, name.line, lookup))
            if first_route != route and plain_data(lookup) != plain_data(first_lookup):
                message = f"route {first_route + 1} has another lookup of this name, at line {line}"
                yield Finding(
                    ("routes", route, "lookup", index, "name"), message, "write the same, or take another name"
                )


def _own_tables(root: YamlNode) -> Iterator[Finding]:
    """Compare the tables that the router itself writes; the ledger has a default."""
    for (other, other_table), (key, table) in combinations(_router_tables(root).items(), 2):
        if table == other_table:
            # A default has no place in the file.
            place = key if _node_at(root, (key,)) else other
            yield Finding((place,), f"`{key}` and `{other}` are the same table", "give each a table of its own")


def _bronze_per_topic(root: YamlNode) -> Iterator[Finding]:
    """Refuse listed topics of which bronze cannot have a table each; those of a pattern are not known yet."""
    bronze = _bronze_tables(root)
    if bronze is None or not bronze.per_topic:
        return
    if bronze.others in bronze.taken:
        message = (
            f"{bronze.others} is for topics that no table can be named after, and is another of the router's tables"
        )
        yield Finding(("bronze",), message, "give one of the two another name")
    if _node_at(root, ("source", "files")):
        yield Finding(("bronze",), "the topic of a file's lines is the file, and no name", "give bronze one table")
    yield from _topics_named(root, bronze.named_after, "bronze")


def _topics_named(root: YamlNode, table_of: Callable[[str], str | None], whose: str) -> Iterator[Finding]:
    """Refuse listed topics that name no table, or the same one as another; a message shows no value."""
    loc = ("source", "kafka", "topics")
    first: dict[str, Scalar] = {}
    for index, topic in enumerate(_items_at(root, loc)):
        if not isinstance(topic, Scalar) or topic.broken:
            continue
        table = table_of(topic.text)
        if table is None:
            message = f"{whose} has a table for each topic, and none can be named after this one"
            yield Finding((*loc, index), message, TOPIC_HINT)
            continue
        first_topic = first.setdefault(table, topic)
        if first_topic.text != topic.text:
            place = f"line {first_topic.line}, column {first_topic.column}"
            message = f"{whose} has a table for each topic, and this one and that at {place} would have the same"
            yield Finding((*loc, index), message, TOPIC_HINT)


TOPIC_HINT = (
    "a table's name has small letters, digits and underscores, and hyphens of a topic become underscores; name one "
    "table for all topics, or read this one with a configuration of its own"
)


def _fixed_tables(root: YamlNode, registry: Registry) -> Iterator[Finding]:
    """Refuse a sink that would write among the router's own rows, or append to a table with one row per key."""
    bronze = _bronze_tables(root)
    keys = {table: key for key, table in _router_tables(root).items() if key != "bronze"}
    first: dict[str, tuple[YamlNode, bool]] = {}
    for loc, node in _sink_nodes(root):
        sink = _resolve_part(registry, Sink, node)
        table = names_of(sink) if isinstance(sink, LakeSink) else ""
        merges = isinstance(sink, MergingSink)
        other, other_merges = first.setdefault(table, (node, merges))
        if table and merges != other_merges:
            message = f"{table} cannot have one row per key and be appended to: so does the sink at line {other.line}"
            yield Finding(loc, message, "give one of the two another table")
        key = keys.get(table)
        if bronze and "{" not in table and table in bronze:
            key = "bronze"
        if key:
            yield Finding(loc, f"the sink writes to the table of `{key}`", "give the sink a table of its own")


def _shared_tables(root: YamlNode, registry: Registry) -> Iterator[Finding]:
    """Refuse templates with which rows that differ in a field could meet in one table."""
    listed: dict[str, frozenset[str]] = {}
    topics = [topic.text for topic in _items_at(root, ("source", "kafka", "topics")) if isinstance(topic, Scalar)]
    if topics:
        listed["topic"] = frozenset(to_underscores(topic) for topic in topics)
    for loc, node in _sink_nodes(root):
        sink = _resolve_part(registry, Sink, node)
        if not isinstance(sink, LakeSink):
            continue
        template = sink.table_template()
        if template is None:
            continue
        # A rule can list the values of a field: then none of them can be mistaken for another.
        known_values = dict(listed)
        rule = _resolve_part(registry, Rule, _node_at(root, (*loc[:2], "match")))  # type: ignore[type-abstract]
        if rule:
            known_values |= rule.known_values()
        if may_collide(template, known_values):
            message = "events that differ in its fields could name one table: a_b and c, a and b_c both make a_b_c"
            yield Finding((*loc, sink.part_name, "table"), message, COLLISION_HINT)
        if "topic" in template_fields(template):
            yield from _topics_named(root, partial(_table_of_topic, template), "a sink")


def _check_views(root: YamlNode, registry: Registry) -> Iterator[Finding]:
    """Refuse views of what is not there, views that write what others write, and circles."""
    views_by_index = _readable_views(root)
    views = {view.name: view for view in views_by_index.values()}
    routes = _route_names(root)
    tables = {table: f"`{key}`" for key, table in _router_tables(root).items()}
    tables |= _sink_tables(root, registry)
    for index, view in views_by_index.items():
        loc = ("views", index)
        if view.source.route and view.source.route not in routes:
            hint = suggest_names(view.source.route, routes, "the routes")
            yield Finding((*loc, "from", "route"), "there is no such route", hint)
        if view.source.view and view.source.view not in views:
            hint = suggest_names(view.source.view, views, "the views")
            yield Finding((*loc, "from", "view"), "there is no such view", hint)
        for table, whose in tables.items():
            if templates_meet(view.into, table):
                message = f"it could name a table of {whose}: {table}"
                hint = "give the tables of views a layer, or names, of their own: gold.{table}_x"
                yield Finding((*loc, "into"), message, hint)
        for other in views.values():
            # Of two that meet the later one is at fault.
            if other.name == view.name:
                break
            if templates_meet(view.into, other.into):
                message = f"it could name a table of the view {other.name}: {other.into}"
                yield Finding((*loc, "into"), message, "give each view names of its own: gold.{table}_x")
        circle = _find_circle(view, views)
        if circle:
            message = f"the views read each other in a circle: {' -> '.join(circle)}"
            yield Finding((*loc, "from"), message, "break it")


def _readable_views(root: YamlNode) -> dict[int, View]:
    """Return the views by their place, without options at fault, which are reported already."""
    lets = read_shared(Let, [plain_data(item) for item in _items_at(root, ("let",))])
    views: dict[int, View] = {}
    for index, item in enumerate(_items_at(root, ("views",))):
        view = read_sound(View.model_validate, with_named(plain_data(item), "let", lets), depth=1)
        if view:
            views[index] = view
    return views


def read_sound(read: Callable[[object], T], data: object, depth: int) -> T | None:
    """Return the result of reading data, if need be without the options at fault, which stand at some depth.

    So a mistake in one option hides none that several parts make together. None if nothing can be read.
    """
    try:
        return read(data)
    except ValidationError as error:
        faulty = {line["loc"][:depth] for line in error.errors(include_url=False)}
    with suppress(ValidationError):
        return read(_remove_places(data, faulty))
    return None


def _remove_places(data: object, faulty: set[tuple[int | str, ...]]) -> object:
    """Return a mapping, and those in it, without some places."""
    if not isinstance(data, dict):
        return data
    left = {}
    for key, value in data.items():
        if (key,) not in faulty:
            left[key] = _remove_places(value, {place[1:] for place in faulty if place[:1] == (key,)})
    return left


def _route_names(root: YamlNode) -> list[str]:
    names = []
    for item in _items_at(root, ("routes",)):
        name = _node_at(item, ("name",))
        if isinstance(name, Scalar):
            names.append(name.text)
    return names


def _sink_tables(root: YamlNode, registry: Registry) -> dict[str, str]:
    """Return the tables, or templates of tables, that sinks write, and whose they are."""
    tables: dict[str, str] = {}
    for loc, node in _sink_nodes(root):
        sink = _resolve_part(registry, Sink, node)
        if not isinstance(sink, LakeSink):
            continue
        names = names_of(sink)
        if names:
            route = _node_at(root, (*loc[:2], "name"))
            tables[names] = f"the route {route.text if isinstance(route, Scalar) else ''}"
    return tables


def _find_circle(view: View, views: dict[str, View]) -> list[str]:
    """Return the views of a circle that begins with one, by name; nothing if there is none."""
    # Ways from the view to what it reads, each with the names on it; the last way is followed first.
    ways = [(view, [view.name])]
    while ways:
        end, names = ways.pop()
        for other in views.values():
            if not reads_tables_of(end, other):
                continue
            if other.name == view.name:
                return [*names, other.name]
            if other.name not in names:
                ways.append((other, [*names, other.name]))
    return []


COLLISION_HINT = (
    "leave one field; or let `select` make one column of them and name that; or limit one with `match: {field: "
    "{column: ..., one_of: [...]}}`; or write `collisions: accept`"
)


def _check_locations(root: YamlNode, registry: Registry) -> Iterator[Finding]:
    """Refuse locations in which two tables could lie in one place, or one within another."""
    first: dict[Location, YamlNode] = {}
    for loc, location in _written_locations(root, registry):
        place = (*loc, "location")
        fault = location.explain_shared_places()
        if fault:
            yield Finding(place, fault, LOCATION_HINT)
        else:
            for message, hint in _location_conflicts(root, location, first):
                yield Finding(place, message, hint)
        node = _node_at(root, place)
        if node is not None:
            first[location] = node


def _location_conflicts(
    root: YamlNode, location: Location, first: dict[Location, YamlNode]
) -> Iterator[tuple[str, str]]:
    """Yield what a location has in common with the places of lake, checkpoint and locations before it, and a hint."""
    for key, place in _own_places(root):
        if location.may_overlap(place):
            yield f"a table could lie within `{key}`, or that within the table", LOCATION_HINT
    for other, node in first.items():
        if location.bucket and location.bucket == other.bucket and location.options != other.options:
            message = f"the bucket {location.bucket} has other options at line {node.line}"
            hint = "give both the same `storage_options`, or each a bucket"
            yield f"{message}, and Spark takes one set for each", hint
        # Two sinks may write one table, at one place.
        if (other.names, other.place) == (location.names, location.place) or other.explain_shared_places():
            continue
        if location.may_share_names(other):
            hint = "a table has one place, whoever writes it: give both the same `location`"
            yield f"a table could have this location, and that at line {node.line}", hint
        elif location.may_overlap(other.place_with_holes):
            yield f"a table could lie where one does by the location at line {node.line}, or within it", LOCATION_HINT
    # Spark is told the options of a location by its bucket: without one they are those of the storage.
    has_own_options = location.options and location.bucket is None and not is_local(location.place)
    if has_own_options and _shares_storage_with_lake(root, location):
        message = (
            "the lake is in the same kind of storage, and Spark knows one set of options for all buckets of no name"
        )
        yield message, "remove `storage_options`; or give one bucket, and the field in the path"


LOCATION_HINT = "give every table a folder of its own, outside of the lake: s3://bucket/games/{table}"


def _written_locations(root: YamlNode, registry: Registry) -> Iterator[tuple[KeyPath, Location]]:
    """Yield the locations of bronze and of sinks, each with where its part stands."""
    written = _node_at(root, ("bronze",))
    if isinstance(written, Keys) and "location" in written.entries:
        with suppress(ValidationError):
            bronze = Bronze.model_validate(plain_data(written))
            if bronze.location:
                yield ("bronze",), bronze.location.location_of(bronze.table)
    for loc, node in _sink_nodes(root):
        sink = _resolve_part(registry, Sink, node)
        if isinstance(sink, LakeSink) and sink.location:
            yield (*loc, sink.part_name), sink.location.location_of(names_of(sink))


def _own_places(root: YamlNode) -> Iterator[tuple[str, str]]:
    """Yield the places of lake and checkpoint, as far as they are given and can be used."""
    for key in ("lake", "checkpoint"):
        node = _node_at(root, (key,))
        if isinstance(node, Scalar) and node.text and not node.broken:
            with suppress(ValueError):
                yield key, normalize_address(node.text)


def _shares_storage_with_lake(root: YamlNode, location: Location) -> bool:
    """Say whether a location is in the same kind of storage as the lake."""
    lake = _node_at(root, ("lake",))
    if not isinstance(lake, Scalar):
        return False
    kind = _storage_kind(location.place)
    return kind is not None and _storage_kind(lake.text) == kind


def _storage_kind(place: str) -> str | None:
    scheme, _, _ = place.partition("://")
    return STORAGE_BY_SCHEME.get(scheme.lower())


def _table_of_topic(template: str, topic: str) -> str:
    """Return the table of a topic, as far as a template tells; the topic if it makes no name."""
    # What other fields hold is not known: any text stands for it.
    name = fill_template(template, lambda field: to_underscores(topic) if field == "topic" else "x")
    return fold_name(name) or topic


def _sink_nodes(root: YamlNode) -> Iterator[tuple[KeyPath, YamlNode]]:
    """Yield the sinks of all routes, each with where it stands."""
    for route, item in enumerate(_items_at(root, ("routes",))):
        for index, node in enumerate(_items_at(item, ("sinks",))):
            yield ("routes", route, "sinks", index), node


def _resolve_part(registry: Registry, family: type[P], node: YamlNode | None) -> P | None:
    """Return the part that a node means; None if it is at fault, which is reported already."""
    if node is None:
        return None
    # A rule without one of its options would be another rule.
    return read_sound(partial(registry.resolve, family), plain_data(node), depth=0 if family is Rule else 2)


def _router_tables(root: YamlNode) -> dict[str, str]:
    """Return the tables that the router itself writes, by their keys; the ledger last if it has its default."""
    tables: dict[str, str] = {}
    for key in ("bronze", "dead_letters", "ledger"):
        node = _node_at(root, (key,))
        if key != "ledger" and isinstance(node, Keys):
            node = _node_at(node, ("table",))
        if isinstance(node, Scalar) and node.text:
            tables[key] = node.text
    if _node_at(root, ("ledger",)) is None:
        tables["ledger"] = str(Config.model_fields["ledger"].default)
    return tables


def _bronze_tables(root: YamlNode) -> BronzeTables | None:
    """Return the tables of bronze, as far as the configuration names any."""
    tables = _router_tables(root)
    bronze = tables.pop("bronze", None)
    if bronze is None:
        return None
    return BronzeTables(bronze, frozenset(tables.values()))


def _node_at(root: YamlNode, loc: KeyPath) -> YamlNode | None:
    node: YamlNode | None = root
    for element in loc:
        if isinstance(node, Keys):
            entry = node.entries.get(str(element))
            node = entry.value if entry else None
        elif isinstance(node, Items) and isinstance(element, int):
            node = node.items[element]
        else:
            return None
    return node


def _items_at(root: YamlNode, loc: KeyPath) -> Sequence[YamlNode]:
    node = _node_at(root, loc)
    return node.items if isinstance(node, Items) else ()


def _has_value(node: Keys, key: str) -> bool:
    """Say whether a key has a value other than null and the empty list."""
    value = _node_at(node, (key,))
    if isinstance(value, Scalar):
        return value.value is not None
    if isinstance(value, Items):
        return bool(value.items)
    return value is not None


def _is_switched_on(node: Keys, key: str) -> bool:
    """Say whether a kind of trigger is switched on: `once: false` is not."""
    return _has_value(node, key) and not _is_false(_node_at(node, (key,)))


def _is_false(value: YamlNode | None) -> bool:
    return isinstance(value, Scalar) and value.text.strip().lower() == "false"
