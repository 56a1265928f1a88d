"""Compare a configuration with checkpoint, ledger and tables: what changes with it, and what would be lost.

`router check FILE --lake` reports all changes, and every start those that it can find without a plan of Spark. A start
is refused if rows would be lost: rows of a sink that is gone wait in its outbox or its quarantine, and nothing sends,
merges or releases them any more. Reads logs and notes, on the driver; writes nothing but an acceptance.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

from deltalake.exceptions import DeltaError

from router.api.sinks import LakeSink, MergingSink, TableSink
from router.config.models import names_of
from router.delta.commit import to_arrow
from router.delta.history import log_commits, log_versions
from router.delta.schema_diff import compare_schemas, delta_schema
from router.delta.table_cache import TABLES
from router.delta.transaction_id import parse_transaction_id
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.lost_tables import tables_of_newest_batches
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.merge.backlog import BacklogStore
from router.engine.merge.coordinator import MergedTables
from router.engine.merge.key_checks import changed_keys
from router.engine.quarantine.table import quarantined_in
from router.engine.start.checks import (
    Checkpoint,
    check_lake_and_checkpoint,
    refuse_moved,
    refuse_other_source,
    refuse_shared,
)
from router.engine.start.spark_checkpoint import refuse_left_topics
from router.engine.views.sources import ViewTables
from router.errors import StartError, TableError, ViewError, first_line
from router.own_names import OUTBOX, OWN_LAYERS
from router.storage.locations import may_make_name
from router.table_names import template_pattern, to_underscores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from router.acceptance import Accepted
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.delta.schema_diff import SchemaDiff
    from router.delta.table_cache import TableCache
    from router.engine.label.layout import Layout, Target
    from router.engine.views.refresh import Refresher

log = logging.getLogger("router")
_EXAMINED_BATCHES = 20
"""Batches whose tables a start looks at: reading a hundred manifests takes up to half a second."""
_SHOWN_TABLES = 5
"""Tables that a message names."""
_RECENT = 100
"""Commits of a table that are searched for who has written it."""
GONE_TODO = (
    "if it has another name now, write `was` there; else put it back until nothing waits for it "
    "(`router quarantine list FILE`, `router replay FILE`), or run with --accept gone-sinks, and the rows stay where "
    "they are until it comes back"
)
"""What a person can do about a sink that is gone while rows wait for it."""
Severity = Literal["safe", "to do", "refused"]
"""What a change requires: nothing; something of a person, while the stream runs; or it stops the start."""


@dataclass(frozen=True)
class Change:
    """One change: what it is, where it stands in the configuration, and the next step if there is one."""

    severity: Severity
    place: tuple[str | int, ...]
    what: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.todo}" if self.todo else self.what


@dataclass(frozen=True)
class WaitingRows:
    """The rows that wait for a sink: in its outbox, parked, in its quarantine, in a batch that was cut off."""

    outbox: int = 0
    parked: int = 0
    quarantined: int = 0
    cut_off: int = 0

    def __bool__(self) -> bool:
        return bool(self.outbox or self.parked or self.quarantined or self.cut_off)

    def __str__(self) -> str:
        parts = []
        if self.outbox:
            parts.append(f"{self.outbox:,} rows wait in its outbox")
        if self.parked:
            parts.append(f"{self.parked:,} are parked")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} are quarantined")
        if self.cut_off:
            parts.append(f"{self.cut_off:,} are in a batch that was cut off")
        return ", ".join(parts)


@dataclass(frozen=True)
class LakeChanges:
    """A configuration, compared with what its query has left in checkpoint, ledger and tables."""

    config: Config
    tables: TableCache
    checkpoint: Lake

    @cached_property
    def _past(self) -> Checkpoint:
        return Checkpoint.read(self.checkpoint)

    @cached_property
    def store(self) -> CheckpointStore:
        """Return the store of the run that the checkpoint has."""
        return CheckpointStore(self.checkpoint, self._past.run or "")

    @property
    def _lake(self) -> Lake:
        return self.tables.lake

    @cached_property
    def _sink_places(self) -> dict[str, tuple[str | int, ...]]:
        """Return where each sink (`route/sink`, as its ids go by) stands in the configuration."""
        places: dict[str, tuple[str | int, ...]] = {}
        for index, route in enumerate(self.config.routes):
            for number, name in enumerate(route.named_sinks):
                places[f"{route.identity}/{name}"] = ("routes", index, "sinks", number)
        return places

    def at_start(self) -> list[Change]:
        """Return the changes that a start reports: they need neither the plan of a batch nor a look at every table."""
        changes = [*self.lost_names(), *self.gone_sinks(), *self.foreign_views()]
        return [*changes, *self.unwritten_tables(self._written_lately())]

    def all_but_views(self, layout: Layout) -> list[Change]:
        """Return all changes but those of views; `layout` is that of the next batch."""
        changes = [
            *self.find_refusals(),
            *self.first_start(),
            *self.lost_names(),
            *self.unknown_names(),
            *self.gone_sinks(),
            *self.foreign_views(),
            *self.changed_sinks(),
            *self.changed_keys(),
            *self.changed_types(layout, named_by_rows=True),
        ]
        return [*changes, *self.unwritten_tables(self._lake.every_table())]

    # The query as a whole

    def find_refusals(self) -> Iterator[Change]:
        """Yield why a start would refuse to continue with this checkpoint, source and lake."""
        config = self.config
        checks: tuple[tuple[tuple[str, ...], Callable[[], None]], ...] = (
            (("source",), partial(refuse_other_source, self.store, config, self._past)),
            (("source",), partial(refuse_left_topics, config, self.checkpoint)),
            (("routes",), partial(refuse_moved, self._lake, config)),
            (("name",), partial(refuse_shared, self._lake, config)),
            (("lake",), partial(check_lake_and_checkpoint, self._lake, config.ledger, config.name, self._past)),
        )
        for place, check in checks:
            try:
                check()
            except StartError as error:
                yield Change("refused", place, str(error))

    def first_start(self) -> Iterator[Change]:
        """Yield that a query has no batch in its checkpoint, and the tables that have rows without it."""
        if self._past.decided >= 0:
            return
        sentence = f"{self.checkpoint.root} has no batch: a start reads the source from its beginning, as a new query"
        own = {self.config.dead_letters, self.config.ledger}
        names = self.config.written_names()
        filled = [table for table in self._lake.every_table() if any(may_make_name(name, table) for name in names)]
        filled = sorted({*filled} - own)
        if not filled:
            yield Change("safe", ("name",), sentence)
            return
        shown = ", ".join(filled[:_SHOWN_TABLES])
        if len(filled) > _SHOWN_TABLES:
            shown += f" and {len(filled) - _SHOWN_TABLES} more tables"
        todo = "go back to the former `name` and `checkpoint`, or take other tables, unless they are to have both"
        yield Change("to do", ("name",), f"{sentence}; {shown} already have rows, and get its rows also", todo)

    # Sinks

    def changed_sinks(self) -> Iterator[Change]:
        """Yield the sinks that are new since the newest batch, and those that are gone and no rows wait for."""
        newest = self._newest_manifest()
        manifest = self.store.read_manifest(newest) if newest >= 0 else None
        if manifest is None:
            return
        for key in sorted({*self._sink_places} - {*manifest.targets}):
            yield Change("safe", self._sink_places[key], f"{key} is new: it gets records from the next one on")
        for key in sorted({*manifest.targets} - {*self._sink_places}):
            route, _, sink = key.partition("/")
            if not self._count_waiting(route, sink):
                sentence = f"{key} is gone, or has another name; no rows wait for it, and it gets none from now on"
                yield Change("safe", self._place_of_route(route), sentence)

    def lost_names(self) -> Iterator[Change]:
        """Yield the routes and sinks that ran under a former name (`was`), and have another one by now."""
        now = id_names(self.config)
        for shown, former in sorted(self.store.read_note().identities.items()):
            if now.get(shown, former) == former:
                continue
            yield Change(
                "refused",
                self._place_of_name(shown),
                what=f"{shown} was {former}, and its ids, its tables and what waits for it go by that name",
                todo=f"write `was: {former.rpartition('/')[2]}` again, or give it another name; or run with --accept "
                "gone-sinks, and it starts as a new one",
            )

    def unknown_names(self) -> Iterator[Change]:
        """Yield the former names (`was`) that the ledger does not have, as far as it has any."""
        known_routes = {route for route, _ in self._totals if route is not None}
        if not known_routes:
            return
        todo = "correct it, if the route or sink has run under another name"
        for index, route in enumerate(self.config.routes):
            if route.was and route.was not in known_routes:
                fault = f"route {route.name} was {route.was}, and the ledger has no such route"
                yield Change("to do", ("routes", index, "was"), fault, todo)
            for number, sink in enumerate(route.sinks):
                if sink.was and (route.identity, sink.was) not in self._totals:
                    fault = f"the sink was {sink.was}, and the ledger has no such sink of route {route.identity}"
                    yield Change("to do", ("routes", index, "sinks", number), fault, todo)

    def _place_of_name(self, shown: str) -> tuple[str | int, ...]:
        name, _, sink = shown.partition("/")
        for index, route in enumerate(self.config.routes):
            if sink and route.identity == name:
                return ("routes", index, "sinks", [*route.shown_sinks].index(sink))
            if not sink and route.name == name:
                return ("routes", index)
        return ("routes",)

    def gone_sinks(self) -> Iterator[Change]:
        """Yield the sinks that the configuration does not have any more and that rows wait for.

        Rows of a sink that a person let go (`--accept gone-sinks`) are no reason to refuse a start.
        """
        accepted = self.store.read_note().gone_sinks
        for route, sink in sorted(self.former_sinks()):
            waiting = self._count_waiting(route, sink)
            if not waiting:
                continue
            key = f"{route}/{sink}"
            loss = f"{key} is gone, or has another name or kind, and {waiting}"
            if key in accepted:
                yield Change("safe", ("routes",), f"{loss}: they stay there, as was accepted")
                continue
            yield Change("refused", self._place_of_route(route), loss, GONE_TODO)

    def _place_of_route(self, name: str) -> tuple[str | int, ...]:
        for index, route in enumerate(self.config.routes):
            if route.identity == name:
                return ("routes", index, "sinks")
        return ("routes",)

    def former_sinks(self) -> set[tuple[str, str]]:
        """Return route and name of each sink that has an outbox or a quarantine, and nothing that works on it any more.

        Such a sink is gone, or another kind of sink has its name.
        """
        own = f"{to_underscores(self.config.name)}__"
        tables = [*self._lake.table_names("outbox"), *self._lake.table_names("quarantine")]
        current: set[str] = set()
        for route, name, sink in self.config.all_sinks():
            current.add(quarantine_of(self.config.name, route, name))
            if not isinstance(sink, TableSink):
                current.add(outbox_of(self.config.name, route, name))
        orphaned = {table for table in tables if table.partition(".")[2].startswith(own)} - current
        # The ledger is read only if there is such a table: its names alone do not tell routes and sinks apart.
        if not orphaned and not self._cut_off:
            return set()
        former: set[tuple[str, str]] = set()
        for counted_route, counted_sink in {*self._totals, *self._cut_off}:
            if counted_route is None or counted_sink is None:  # rows of the ledger about the source
                continue
            of_sink = {of(self.config.name, counted_route, counted_sink) for of in (outbox_of, quarantine_of)}
            if not of_sink.isdisjoint(orphaned) or (counted_route, counted_sink) in self._cut_off:
                former.add((counted_route, counted_sink))
        return former

    @cached_property
    def _cut_off(self) -> dict[tuple[str, str], int]:
        """Return the rows of a batch that was cut off, by the route and sink in whose outbox they are or will be.

        A sink that is gone gets none of them, and the ledger does not have the batch yet.
        """
        newest = self._newest_manifest()
        # The ledger counts the rows of a batch that has ended.
        if newest <= self._past.last or newest <= self._last_in_ledger():
            return {}
        manifest = self.store.read_manifest(newest)
        if manifest is None:
            return {}
        rows: dict[tuple[str, str], int] = {}
        for commit in manifest.commits:
            if commit.table.startswith(OUTBOX) and commit.target not in self._sink_places:
                route, _, sink = commit.target.partition("/")
                rows[route, sink] = rows.get((route, sink), 0) + commit.rows
        return rows

    def _newest_manifest(self) -> int:
        """Return the last batch that the run has decided, -1 for none."""
        if not self.store.run:
            return -1
        paths = self.store.json_paths(f"manifests/{self.store.run}")
        if not paths:
            return -1
        return int(paths[-1].rpartition("/")[2].removesuffix(".json"))

    def _last_in_ledger(self) -> int:
        table = self.tables.open_tables([self.config.ledger])[self.config.ledger]
        return ledger.last_batch(table, self.config.name, self.store.run)

    def _count_waiting(self, route: str, sink: str) -> WaitingRows:
        counts = self._totals.get((route, sink), {})
        backlog = BacklogStore(self.store, f"{route}/{sink}").read_now()
        return WaitingRows(
            outbox=max(counts.get("backlog", 0), sum(of_table.rows for of_table in backlog.values())),
            parked=max(counts.get("parked", 0), 0),
            quarantined=self._count_quarantined(route, sink),
            cut_off=self._cut_off.get((route, sink), 0),
        )

    @cached_property
    def _totals(self) -> dict[tuple[str | None, str | None], dict[str, int]]:
        return ledger.read_totals(self.config)

    def _count_quarantined(self, route: str, sink: str) -> int:
        table = quarantine_of(self.config.name, route, sink)
        try:
            handle = self._lake.open(table)
            if handle is None:
                return 0
            return sum(part.rows for part in quarantined_in(self._lake, handle, (route, sink, table)))
        except (DeltaError, TableError) as error:
            # Nothing but its sink reads it: a damaged one keeps no stream from starting.
            log.warning("%s: %s cannot be read: %s", self.config.name, table, first_line(error))
            return 0

    def changed_keys(self) -> Iterator[Change]:
        """Yield the tables that were merged by other keys, in another order, or with a history and now without."""
        for key, error in changed_keys(self.tables, self.store, self.config):
            yield Change("refused", self._sink_places[key], str(error))

    # Tables

    def unwritten_tables(self, names: Iterable[str]) -> Iterator[Change]:
        """Yield those of some tables that the query has written and nothing of the configuration writes any more."""
        for table in sorted(names):
            if table.startswith(OWN_LAYERS) or self._is_written(table):
                continue
            writers = self._former_writers(table)
            if not writers or writers & self._sinks_named_by_rows:
                continue
            sentence = f"{table} is not written any more ({', '.join(sorted(writers))} did), and stays as it is"
            readers = sorted(self._find_readers(table))
            if not readers:
                yield Change("safe", ("routes",), sentence)
                continue
            todo = "leave it out there (`except`), or drop it, unless its rows are to stay"
            yield Change("to do", ("routes",), f"{sentence}; {', '.join(readers)} still reads its rows", todo)

    def _written_lately(self) -> set[str]:
        """Return the tables of the newest batches, and those that sinks have merged into."""
        tables = tables_of_newest_batches(self.store, _EXAMINED_BATCHES)
        for key, place in self._sink_places.items():
            sink = self.config.routes[int(place[1])].sinks[int(place[3])]
            if isinstance(sink, MergingSink):
                tables |= MergedTables(self.store, key).names
        return tables

    @cached_property
    def _sinks_named_by_rows(self) -> frozenset[str]:
        """Return the sinks whose tables only their rows name."""
        keys = set()
        for route, name, sink in self.config.all_sinks():
            if isinstance(sink, LakeSink) and not names_of(sink):
                keys.add(f"{route}/{name}")
        return frozenset(keys)

    def _is_written(self, table: str) -> bool:
        bronze = self.config.bronze_tables()
        if table in (self.config.dead_letters, self.config.ledger) or (bronze and table in bronze):
            return True
        names = [*self.config.written_names(), *(view.into for view in self.config.views)]
        return any(template_pattern(template).fullmatch(table) for template in names if template)

    def foreign_views(self) -> Iterator[Change]:
        """Yield the views whose table a view of another configuration makes."""
        for index, view in enumerate(self.config.views):
            for written in filter(None, map(parse_transaction_id, self._last_ids(view.into))):
                if written.kind == "view" and written.name != self.config.name:
                    what = f"{view.into} is the table of the view {written.view} of the configuration {written.name}"
                    yield Change("refused", ("views", index, "into"), what, "give `into` another name")
                    break

    def _former_writers(self, table: str) -> set[str]:
        """Return the sinks and views of the query that a table's last commits are of; none if it cannot be read."""
        return {writer for name in self._last_ids(table) for writer in self._writer_of_transaction(table, name)}

    def _last_ids(self, table: str) -> set[str]:
        """Return the transaction ids of a table's last commits; none if it cannot be read."""
        try:
            commits = log_commits(self._lake, table, log_versions(self._lake, table)[-_RECENT:])
            return {name for commit in commits for name in commit.transactions}
        except TableError:
            return set()

    def _writer_of_transaction(self, table: str, app_id: str) -> set[str]:
        """Return the sink or view that a transaction id names as a writer of a table, if it is of this query."""
        written = parse_transaction_id(app_id)
        if written is None or written.query_name != self.config.name or written.table != table:
            return set()
        if written.kind == "view":
            return {f"view {written.view}"}
        if written.kind in ("rows", "release", "unblock", "held"):
            return {f"{written.route}/{written.sink}"}
        if written.kind in ("bronze", "dead_letters"):
            return {written.kind}
        return set()

    def _find_readers(self, table: str) -> Iterator[str]:
        """Yield the views and lookups that read a table, by what its name tells."""
        sources = ViewTables(self.config, self._lake, self.tables)
        for view in self.config.views:
            try:
                is_source = sources.is_source(view)
            except StartError:  # only rows name the tables of its route, which the view reports itself
                continue
            if table in view.joined_tables or is_source(table):
                yield f"view {view.name}"
        for name, lookup in self.config.lookups_by_name().items():
            if lookup.table == table or (lookup.let is not None and table in lookup.let.joined_tables):
                yield f"lookup {name}"

    def changed_types(self, layout: Layout, *, named_by_rows: bool) -> Iterator[Change]:
        """Yield how the columns of the next batches differ from those of the tables that they go into.

        With `named_by_rows` also for the tables that rows name, as far as they are there: each is opened.
        """
        for target in layout.targets:
            names = sorted(self._tables_of(target, named_by_rows=named_by_rows))
            for first in range(0, len(names), TABLES):
                opened = self.tables.open_readable_tables(names[first : first + TABLES])
                for table, handle in opened.items():
                    if handle is not None and not isinstance(handle, TableError):
                        yield from self._type_changes(target, table, delta_schema(to_arrow(handle)))

    def _tables_of(self, target: Target, *, named_by_rows: bool) -> set[str]:
        """Return the tables that rows of a target go into; of a merging sink also those behind its outbox."""
        tables = {target.table} if target.table else set()
        place = self._sink_places[target.key]
        sink = self.config.routes[int(place[1])].sinks[int(place[3])]
        if not isinstance(sink, LakeSink):
            return tables
        template = names_of(sink)
        if template and "{" not in template:
            return {*tables, template}
        if not named_by_rows:
            return tables
        if isinstance(sink, MergingSink):
            return tables | MergedTables(self.store, target.key).names
        if not template:
            return tables
        pattern = template_pattern(template)
        layer = template.partition(".")[0]
        for name in self._lake.layer_names() if "{" in layer else [layer]:
            tables |= {table for table in self._lake.table_names(name) if pattern.fullmatch(table)}
        return tables - self.config.fixed_tables()

    def _type_changes(self, target: Target, table: str, columns: pa.Schema) -> Iterator[Change]:
        difference = compare_schemas(columns, target.schema)
        place = self._sink_places[target.key]
        for conflict in difference.conflicts.values():
            sentence = f"{table}: {conflict}: a row whose value cannot become that is a dead letter"
            yield Change("to do", place, sentence, "cast it in `select`, or give the sink another table")
        # An outbox belongs to the router, and always grows.
        if not target.outbox:
            yield from _describe_growth(target, table, difference, place)

    # Views

    def changed_views(self, refresher: Refresher) -> Iterator[Change]:
        """Yield the views that the next refresh computes in full because they are new or have changed."""
        for index, view in enumerate(self.config.views):
            try:
                why = refresher.full_by_definition(view)
            except StartError as error:  # its note is damaged, which is the view's trouble
                yield Change("to do", ("views", index), str(error))
                continue
            if why:
                yield Change("safe", ("views", index), f"view {view.name} will be computed in full: {why}")

    def full_views(self, refresher: Refresher) -> Iterator[Change]:
        """Yield the views that will be computed in full, once or every time; Spark analyses their queries."""
        changed = {change.place: change for change in self.changed_views(refresher)}
        yield from changed.values()
        for index, view in enumerate(self.config.views):
            place = ("views", index)
            if place in changed:
                continue
            try:
                plan = refresher.plan_view(view)
            except ViewError as error:
                yield Change("to do", place, str(error))
                continue
            if plan.way == "full":
                yield Change("safe", place, f"view {view.name} is computed in full every time: {plan.why}")


def _describe_growth(
    target: Target, table: str, difference: SchemaDiff, place: tuple[str | int, ...]
) -> Iterator[Change]:
    """Yield what becomes of new and wider columns, by the `evolution` of the sink."""
    new = ", ".join(column.name for column in difference.added)
    wider = ", ".join(column.name for column in difference.widened)
    parts = []
    if new:
        parts.append(f"lacks {new}")
    if wider:
        parts.append(f"is too narrow for {wider}")
    if not parts:
        return
    lacks = " and ".join(parts)
    if target.evolution == "fail":
        outcome = "the stream stops at the first row with a value for it (`evolution: fail`)"
        todo = "let the table grow before, or take another `evolution`"
        yield Change("to do", place, f"{table} {lacks}: {outcome}", todo)
    elif target.evolution == "quarantine":
        outcome = "rows with a value for it are quarantined"
        todo = "`router quarantine approve FILE` lets the table grow"
        yield Change("to do", place, f"{table} {lacks}: {outcome}", todo)
    elif target.evolution == "freeze":
        yield Change("safe", place, f"{table} {lacks}: rows land without what does not fit (`evolution: freeze`)")
    else:
        yield Change("safe", place, f"{table} {lacks}: it grows with the first row that has a value for it")


def id_names(config: Config) -> dict[str, str]:
    """Return the names that the ids of routes and sinks go by, by the names that people see.

    A sink's stand behind the name that the ids of its route go by: `route/sink`.
    """
    names: dict[str, str] = {}
    for route in config.routes:
        names[route.name] = route.identity
        for shown, identity in route.shown_sinks.items():
            names[f"{route.identity}/{shown}"] = f"{route.identity}/{identity}"
    return names


def refuse_changes(changes: LakeChanges, accept: Accepted) -> None:
    """Log what changes with a configuration. Raises StartError for what would lose rows, unless it is accepted.

    An acceptance is noted, so that it is needed once; a sink that was put back has to be let go again.
    """
    config = changes.config
    store = changes.store
    accepted = frozenset(store.read_note().gone_sinks)
    former = frozenset(f"{route}/{sink}" for route, sink in changes.former_sinks())
    still_accepted = accepted & former
    if "gone-sinks" in accept:
        still_accepted = former
        store.change_note(identities={})
    if still_accepted != accepted:
        store.change_note(gone_sinks=sorted(still_accepted))
    noticed = changes.at_start()
    tell_changes(config, noticed)
    refused = [str(change) for change in noticed if change.severity == "refused"]
    if refused:
        raise StartError(f"{config.name}: {'. '.join(refused)}")
    renamed = {shown: identity for shown, identity in id_names(config).items() if shown != identity}
    # A route that is put back after some starts without it has its former name still.
    noted = store.read_note().identities
    if {**noted, **renamed} != noted:
        store.change_note(identities={**noted, **renamed})


def tell_changes(config: Config, changes: Iterable[Change]) -> None:
    """Log changes: those that require something of a person as a warning, safe ones as information."""
    for change in changes:
        if change.severity == "to do":
            log.warning("%s: %s", config.name, change)
        elif change.severity == "safe":
            log.info("%s: %s", config.name, change)
