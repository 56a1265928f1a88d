"""The views of a stream, as its status has them: by the note that each refresh writes next to the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.status.snapshot import NAMED_TARGETS, ViewStatus
from router.engine.views.note import Note, view_note_path
from router.errors import to_printable

if TYPE_CHECKING:
    from router.config.models import Config


def noted_views(config: Config) -> dict[str, Note]:
    """Return the notes about the views that were made, or whose refresh failed. One small file each is read."""
    store = CheckpointStore(lake_and_checkpoint(config)[1])
    notes: dict[str, Note] = {}
    for view in config.views:
        note = Note.from_json(store.load(view_note_path(view.name)))
        if note.at or note.failed:
            notes[view.name] = note
    return notes


def views_of_lake(config: Config) -> tuple[ViewStatus, ...]:
    """Return the views of a configuration as their notes have them."""
    notes = noted_views(config)
    views = []
    for view in config.views:
        status = ViewStatus(view.name, view.into, every=view.refresh_seconds)
        if view.name in notes:
            status = with_note(status, notes[view.name])
        views.append(status)
    return tuple(views)


def refresh_time(note: Note) -> float | None:
    """Return when the refresh that wrote a note ended, in seconds since 1970; None if there was none."""
    return datetime.fromisoformat(note.at).timestamp() if note.at else None


def with_note(status: ViewStatus, note: Note) -> ViewStatus:
    """Return a view as a note has it, unless that is older than what is known."""
    status = _with_failure(status, note)
    refreshed = refresh_time(note)
    if refreshed is None or refreshed < (status.refreshed or 0.0):
        return status
    return replace(
        status,
        targets=tuple(sorted(note.targets)[:NAMED_TARGETS]),
        tables=len(note.targets),
        rows=note.rows,
        refreshed=refreshed,
        way=note.way,
        why=note.why,
        seconds=note.seconds,
        commits=note.commits,
    )


def _with_failure(status: ViewStatus, note: Note) -> ViewStatus:
    """Return a view with the failure that a note has, or without one, unless this process has looked later."""
    if note.failed:
        failed_since = datetime.fromisoformat(note.failed_since).timestamp()
        if status.checked is not None and failed_since <= status.checked:
            return status
        return replace(status, failed=to_printable(f"view {status.view}: {note.failed}"), failed_since=failed_since)
    # After a failure here another process has refreshed it: the view can be made again.
    refreshed = refresh_time(note)
    if status.checked is None or (refreshed is not None and refreshed > status.checked):
        return replace(status, failed="", failed_since=None)
    return status
