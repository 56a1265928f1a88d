"""Keep what ran from which batch on, beside the manifests of its run, for `router history`.

The first batch that is decided by another configuration, version of the router or plugin notes it: the text of the
configuration, in which variables are not replaced and which has no comment and no secret, who started it where, and
the version that each table of the lake had then. A note is compressed: a configuration that changes daily over 200
tables has less than 5 MB of them after a year. Nothing else needs them, so a damaged one stops nothing.
"""

from __future__ import annotations

import getpass
import json
import logging
import platform
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from router.config.problems import without_secrets
from router.delta.history import newest_version
from router.delta.table_cache import THREADS
from router.engine.source.position import arrival_of

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

    `arrival` is that of the records of `batch`, its first one, and orders deploys of all runs. `tables`: table -> its
    version before that batch. `at` is ISO 8601 in UTC, when that batch began.
    """

    configuration: str
    versions: tuple[str, ...]
    text: str = field(repr=False)
    user: str = ""
    host: str = ""
    at: str = ""
    run: str = ""
    batch: int = 0
    arrival: int = 0
    tables: dict[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, loaded: Loaded) -> Deploy:
        """Return what is about to run."""
        text = without_secrets(loaded.text, loaded.registry.entries)
        return cls(loaded.fingerprint, loaded.registry.versions(loaded.config), text, _find_user(), platform.node())

    def is_same(self, other: Deploy) -> bool:
        """Return whether configuration and versions are the same."""
        return (self.configuration, self.versions) == (other.configuration, other.versions)


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return ""


def note_deploy(deploy: Deploy, store: CheckpointStore, lake: Lake, ordinal: int, batch: int) -> None:
    """Note what runs from a batch on, unless it is what ran before; a batch that was decided before is not of it."""
    if store.read_manifest(batch) is not None:
        batch += 1
    newest = read_deploys(store, newest=True)
    if newest and newest[0].is_same(deploy):
        return
    noted = replace(
        deploy,
        at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        run=store.run,
        batch=batch,
        arrival=arrival_of(ordinal, batch),
        tables=_versions_of_tables(lake),
    )
    content = zlib.compress(json.dumps(asdict(noted)).encode())
    store.write(f"{FOLDER}/{store.run}/{batch:010d}{_ENDING}", content)


def _versions_of_tables(lake: Lake) -> dict[str, int]:
    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        versions = pool.map(lambda table: newest_version(lake, table), tables)
        return {table: version for table, version in zip(tables, versions, strict=True) if version >= 0}


def read_deploys(store: CheckpointStore, *, newest: bool = False) -> list[Deploy]:
    """Return what has run, oldest first; or only the `newest` of the store's run, if there is one."""
    paths = store.json_paths(FOLDER, _ENDING)
    if newest:
        paths = [path for path in paths if path.startswith(f"{FOLDER}/{store.run}/")][-1:]
    with ThreadPoolExecutor(THREADS) as pool:
        deploys = [deploy for deploy in pool.map(lambda path: _read_deploy(store, path), paths) if deploy]
    return sorted(deploys, key=lambda deploy: deploy.arrival)


def _read_deploy(store: CheckpointStore, path: str) -> Deploy | None:
    try:
        content = json.loads(zlib.decompress(store.read(path) or b""))
        return Deploy(**{**content, "versions": tuple(content["versions"])})
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        log.warning("%s is damaged and left out (%s)", store.address_of(path), type(error).__name__)
        return None
