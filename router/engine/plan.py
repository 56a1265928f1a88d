"""Plan a batch: raw records -> events -> one labelled frame. Lazy: nothing runs here.

The labels say in one projection where every row goes, so N routes cost one pass. What a user's expression raises on
a row is caught on that row (see `tried`): a rule becomes null, which is no match; a projection becomes a dead letter.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.engine import tombstones
from router.engine.label.expressions import Untranslatable
from router.engine.fuse import Fused, fused
from router.engine.guard import any_of, holds
from router.engine.layout import Layout
from router.engine.route import Draft, letter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from router.config.models import Config
    from router.parts import Decoder


log = logging.getLogger("router")


@dataclass(frozen=True)
class Plan:
    """Be the records of a batch and how they are labelled. `label(raw)` keeps a column `_aside` where raw has one.

    `fused` says how tasks label the records that they land; as text, why that is left to Spark.
    """

    raw: DataFrame
    label: Callable[[DataFrame], DataFrame]
    layout: Layout
    fused: Fused | str

    @cached_property
    def frame(self) -> DataFrame:
        """Return the labelled records."""
        return self.label(self.raw)


def plan(config: Config, raw: DataFrame) -> Plan:
    """Label the records of one batch; see Planner."""
    return Planner(config, config.decode).plan(raw)


@dataclass(frozen=True)
class _Made:
    """Be what is made once for a decoder."""

    layout: Layout
    levels: list[dict[str, Column]]
    labels: list[Column]
    fused: Fused | str


class Planner:
    """Label the records of batches. Needs the columns of `RAW_SCHEMA`; the decoder must be prepared already.

    Every level is one projection for all routes: Spark analyses a plan anew for each, which is what a small batch
    spends its time on. A column gets a level of its own only if it is costly and used more than once. The columns are
    made once per decoder and used for every batch: each is some calls across the gateway.
    """

    def __init__(self, config: Config, decoder: Decoder, *, quiet: bool = False) -> None:
        self.config = config
        self.decoder = decoder
        self.quiet = quiet
        own = frozenset(name for name in (config.bronze, config.dead_letters, config.ledger) if name)
        self.drafts = [Draft(index, route, own) for index, route in enumerate(config.routes)]
        self.made: tuple[Decoder, _Made] | None = None
        self.told: str | None = None

    def refresh(self, wanted: frozenset[str] = frozenset()) -> None:
        """Let the decoder fetch what the next batch, or rows of this one, need. Raises OSError where it cannot now."""
        self.decoder = self.decoder.refresh(wanted)

    def plan(self, raw: DataFrame) -> Plan:
        """Return the plan of one batch. Lazy."""
        decoder = self.decoder
        if self.made is None or self.made[0] is not decoder:  # one that learnt something is another object
            self.made = (decoder, self._make(decoder.decode(raw)))
        made = self.made[1]

        def label(records: DataFrame) -> DataFrame:
            frame = decoder.decode(records)
            for level in made.levels:
                frame = frame.withColumns(level)
            return frame.select(*made.labels, *(["_aside"] if "_aside" in records.columns else []))

        return Plan(raw, label, made.layout, made.fused)

    def _matched(self, frame: DataFrame) -> list[dict[str, Column]]:
        """Return the levels that say what could be decoded, and which routes match."""
        decoded = F.col("event").isNotNull()
        found = {"_failed": F.col("_error").isNotNull(), "_bare": ~decoded & F.col("_error").isNull()}
        matched = {draft.matched: draft.route.match.matches() for draft in self.drafts}
        marks = tombstones.columns(self.config, frame)
        if not marks:
            return [found | {name: holds(decoded, rule) for name, rule in matched.items()}]
        takers = [draft.matched for draft in self.drafts if tombstones.taken(draft.route)]
        living = decoded & ~F.col(tombstones.TOMBSTONE)
        level = {name: holds(decoded if name in takers else living, rule) for name, rule in matched.items()}
        lost = ~any_of([F.col(name) for name in takers]) | ~F.col(tombstones.TOMBSTONE)
        return [found | marks, level, {name: F.col(name) & lost for name in found}]

    def _fused(self, frame: DataFrame, layout: Layout) -> Fused | str:
        try:
            found: Fused | str = fused(self.config, self.decoder, self.drafts, layout, frame)
        except Untranslatable as why:
            found = str(why)
        told = stages(found)
        if told != self.told and not self.quiet:
            log.info("%s: %s", self.config.name, told)
        self.told = told
        return found

    def _make(self, frame: DataFrame) -> _Made:
        levels = self._matched(frame)
        decoded = ~F.col("_failed") & ~F.col("_bare")
        for level in (Draft.checks, Draft.values, Draft.tables):
            found = {name: column for draft in self.drafts for name, column in level(draft, frame).items()}
            levels += [found] if found else []
        whole = reduce(lambda whole, level: whole.withColumns(level), levels, frame)
        routes = tuple(draft.labels(whole, self.config) for draft in self.drafts)
        layout = Layout(self.config.bronze, self.config.dead_letters, routes, "_wanted" in frame.columns)
        unmatched = decoded & ~any_of([F.col(draft.matched) for draft in self.drafts])
        labels = {"_unmatched": unmatched, "_dead": _dead(self.drafts, unmatched, self.config)}
        for draft in self.drafts:
            labels |= draft.verdicts()
        chosen = [labels[name].alias(name) if name in labels else F.col(name) for name in layout.columns()]
        return _Made(layout, levels, chosen, self._fused(frame, layout))


def stages(fused: Fused | str) -> str:
    """Say in which stages a batch runs, and why."""
    if isinstance(fused, str):
        return f"Spark decodes and matches, tasks land: {fused}"
    return "tasks decode, match and land in one stage"


def _dead(drafts: list[Draft], unmatched: Column, config: Config) -> Column:
    """Return the dead letters of a row: an array of stage, reason, route and sink; null for nearly every row."""
    found = [letter(F.col("_failed"), "decode", F.col("_error"))]
    if config.unmatched == "dead_letters":
        found.append(letter(unmatched, "match", F.lit("no route matches")))
    found += [letter for draft in drafts for letter in draft.letters()]
    # concat, not filter: a lambda would take the projection out of whole-stage code generation
    return F.when(any_of(when for when, _ in found), F.concat(*[entry for _, entry in found]))
