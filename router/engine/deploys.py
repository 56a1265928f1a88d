"""Keep what ran from which batch on, beside the manifests of its run, for `router history`.

The first batch that is decided by another configuration, version of the router or plugin notes it: the text of the
configuration, in which variables are not replaced and which has no comment and no secret, who started it where, and the
version that each table of the lake had then, which maintenance keeps for a while. A note is compressed: a configuration
of 200 routes that changes daily has less than 5 MB of them after a year. Nothing else needs them, so neither a damaged
one nor one that cannot be written stops anything.
"""

from __future__ import annotations

import getpass
import json
import logging
import platform
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from router.config.problems import without_secrets
from router.delta.history import newest_version
from router.delta.table_cache import THREADS
from router.engine.source.position import arrival_of
from router.errors import first_line
from router.moments import parse_moment

if TYPE_CHECKING:
    from router.config.loader import Loaded
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore

log = logging.getLogger("router")
FOLDER = "deploys"
_ENDING = ".json.zlib"
"""Not `.gz`: file systems of Arrow decompress such files by themselves."""


@dataclass(frozen=True)
class Deploy:
    """What ran from a batch on: `configuration` is the fingerprint of `text`, `versions` are those it ran with.

    `arrival` is that of the records of `batch`, its first one, and orders deploys of all runs. `at` is ISO 8601 in UTC,
    when that batch began.
    """

    configuration: str
    versions: tuple[str, ...]
    text: str = field(repr=False)
    user: str
    host: str
    at: str
    run: str
    batch: int
    arrival: int
    tables: dict[str, int] = field(hash=False, repr=False)

    @property
    def since(self) -> int:
        """Return when its first batch began, in milliseconds since 1970."""
        return round(parse_moment(self.at).timestamp() * 1000)

    def is_of(self, configuration: str, versions: tuple[str, ...]) -> bool:
        """Return whether it has a configuration, by its fingerprint, and versions."""
        return (self.configuration, self.versions) == (configuration, versions)


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return ""


def note_deploy(loaded: Loaded, store: CheckpointStore, lake: Lake, ordinal: int, batch: int) -> None:
    """Note what runs from a batch on, which has not begun, unless it is what ran before.

    A batch that was decided before is not of it. What cannot be read or written is logged: nothing waits for a note.
    """
    try:
        versions = loaded.registry.versions(loaded.config)
        newest = read_deploys(store, newest=True)
        if newest and newest[0].is_of(loaded.fingerprint, versions):
            return
        if store.read_manifest(batch) is not None:
            batch += 1
        deploy = Deploy(
            configuration=loaded.fingerprint,
            versions=versions,
            text=without_secrets(loaded.text, loaded.registry.entries),
            user=_find_user(),
            host=platform.node(),
            at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            run=store.run,
            batch=batch,
            arrival=arrival_of(ordinal, batch),
            tables=_newest_versions(lake),
        )
        store.write(f"{FOLDER}/{store.run}/{batch:010d}{_ENDING}", zlib.compress(json.dumps(asdict(deploy)).encode()))
    except Exception as error:
        log.warning("%s: `router history` will not have this start: %s", loaded.config.name, first_line(error))


def _newest_versions(lake: Lake) -> dict[str, int]:
    """Return the version of each table, without those whose log cannot be listed."""

    def find_newest(table: str) -> int | None:
        with suppress(OSError, ValueError, AttributeError):  # a damaged log
            return newest_version(lake, table)
        return None

    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        versions = pool.map(find_newest, tables)
    return {table: newest for table, newest in zip(tables, versions, strict=True) if newest is not None}


def read_deploys(store: CheckpointStore, *, newest: bool = False) -> list[Deploy]:
    """Return what has run, oldest first; or only the `newest` of the store's run, if there is one."""
    paths = store.json_paths(f"{FOLDER}/{store.run}" if newest else FOLDER, _ENDING)
    if newest:
        paths = paths[-1:]
    with ThreadPoolExecutor(THREADS) as pool:
        noted = [deploy for deploy in pool.map(lambda path: _read_deploy(store, path), paths) if deploy]
    deploys: list[Deploy] = []
    for deploy in sorted(noted, key=lambda deploy: deploy.arrival):
        # One that was refused before it decided a batch leaves the same on both sides.
        if not deploys or not deploys[-1].is_of(deploy.configuration, deploy.versions):
            deploys.append(deploy)
    return deploys


def _read_deploy(store: CheckpointStore, path: str) -> Deploy | None:
    try:
        content = {"tables": {}, **json.loads(zlib.decompress(store.read(path) or b""))}
        values = {field.name: content[field.name] for field in fields(Deploy)}
        return Deploy(**{**values, "versions": tuple(content["versions"]), "arrival": int(content["arrival"])})
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        log.warning("%s is damaged and left out (%s)", store.address_of(path), type(error).__name__)
        return None
