"""Tables kept open between batches: always the newest version, never a table that is gone."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from router.delta import table_cache as module
from router.delta.commit import commit_files, to_arrow
from router.delta.lake import Lake
from router.delta.table_cache import TableCache
from router.errors import TableError
from router.storage.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable

    from router.delta.commit import TableCommit

TABLE = "silver.poker"
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def put(lake: Lake, land: Callable[..., TableCommit]) -> Callable[..., None]:
    """Append rows as somebody else would, with a handle of their own."""

    def put(version: int, rows: pa.Table = ROWS, table: str = TABLE) -> None:
        assert commit_files(lake, land(lake, table, rows, version), {})

    return put


def opened(handles: TableCache, table: str = TABLE) -> DeltaTable:
    found = handles.open_tables([table])[table]
    assert found is not None
    return found


def test_a_kept_table_shows_what_others_committed(lake: Lake, put: Callable[..., None]) -> None:
    """Without it a column that a colleague added is taken for a new one, and a replayed batch is committed twice."""
    handles = TableCache(lake)
    put(0)
    first = opened(handles)
    put(1, pa.table({"id": [3], "tip": ["x"]}))

    again = opened(handles)

    assert again is first, "a table in use is opened once"
    assert again.version() == 2, "one commit for the column, one for the rows"
    assert to_arrow(again).names == ["id", "tip"]
    assert again.transaction_version(f"query/route/sink/{TABLE}") == 1


def test_a_table_that_was_removed_is_not_there(lake: Lake, put: Callable[..., None]) -> None:
    """Without it the next commit lands in a folder without a first version, and nobody can read the table."""
    handles = TableCache(lake)
    put(0)
    opened(handles)
    shutil.rmtree(Path(lake.address(TABLE)))

    assert handles.open_tables([TABLE]) == {TABLE: None}


@pytest.mark.parametrize("versions", [1, 3], ids=["as many versions", "more versions"])
def test_a_table_made_in_place_of_another_is_opened_anew(lake: Lake, put: Callable[..., None], versions: int) -> None:
    """Without it rows are written with the columns of a table that is gone."""
    handles = TableCache(lake)
    put(0)
    opened(handles)
    shutil.rmtree(Path(lake.address(TABLE)))
    for version in range(versions):
        put(version, pa.table({"name": ["other"]}))

    assert to_arrow(opened(handles)).names == ["name"]


@pytest.mark.parametrize("limit", ["FILES", "TABLES"])
def test_tables_of_many_files_are_not_kept(
    lake: Lake, put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Without it the driver holds the file lists of every table it ever wrote."""
    monkeypatch.setattr(module, limit, 2)
    handles = TableCache(lake)
    for table in ("silver.a", "silver.b", "silver.c"):
        put(0, table=table)

    found = handles.open_tables(["silver.a", "silver.b", "silver.c"])

    assert all(found.values())
    assert len(handles.held) == 2
    put(1, table="silver.b")
    assert opened(handles, "silver.b").version() == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("known", [True, False], ids=["open", "opened anew"])
def test_a_table_with_an_empty_commit_is_not_written(
    lake: Lake, put: Callable[..., None], version: int, known: bool
) -> None:
    """Without it the next commit goes on top of rows that are lost: an empty one looks like one without rows."""
    handles = TableCache(lake)
    put(0)
    if known:
        opened(handles)
    put(1)
    put(2)
    Path(lake.address(TABLE), "_delta_log", f"{version:020}.json").write_bytes(b"")

    with pytest.raises(TableError, match=f"{version:020}.json is empty"):
        handles.open_tables([TABLE])


def test_a_table_that_cannot_be_read_keeps_no_other_from_it(lake: Lake, put: Callable[..., None]) -> None:
    for table in ("silver.a", "silver.b"):
        put(0, table=table)
    log = Path(lake.address("silver.a"), "_delta_log", f"{0:020}.json")
    log.write_bytes(log.read_bytes()[:100])

    found = TableCache(lake).open_readable_tables(["silver.a", "silver.b", "silver.c"])

    assert isinstance(found["silver.a"], TableError)
    assert found["silver.b"] is not None
    assert found["silver.c"] is None


def test_a_table_is_opened_once_however_often_it_is_written(
    lake: Lake, land: Callable[..., TableCommit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each batch reads the log of each of its tables anew: its own commit is taken for another table."""
    opened = list[str]()
    open_table = TableCache._open_anew
    monkeypatch.setattr(TableCache, "_open_anew", lambda self, name: opened.append(name) or open_table(self, name))
    handles = TableCache(lake)
    for version in range(6):
        rows = pa.table({"id": [3], "tip": ["x"]}) if version == 3 else ROWS
        handle = handles.open_tables([TABLE])[TABLE]
        commit_files(lake, land(lake, TABLE, rows, version), {}, handle)

    assert opened == [TABLE, TABLE], "for the first batch, which made it, and for the second"
    assert to_arrow(handles.open_tables([TABLE])[TABLE]).names == ["id", "tip"]


def test_more_tables_than_handles_are_opened_once_too(
    lake: Lake, land: Callable[..., TableCommit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it 5 000 tables take gigabytes of the driver, or each batch reads the log of each of them."""
    monkeypatch.setattr(module, "TABLES", 2)
    tables = [f"silver.t{number}" for number in range(5)]
    opened = list[str]()
    open_table = Lake.open
    monkeypatch.setattr(Lake, "open", lambda self, name: opened.append(name) or open_table(self, name))
    handles = TableCache(lake)
    for version in range(6):
        works = [land(lake, name, ROWS, version) for name in tables]
        if version > 1:
            opened.clear()
        found = handles.open_tables(tables)
        assert all(commit_files(lake, work, {}, found[work.table]) for work in works)
        assert not any(commit_files(lake, work, {}, handles.open_tables([work.table])[work.table]) for work in works)

    assert opened == []
    assert not handles.held, "an append leaves no handle"
    assert [table.version() for table in handles.open_tables(tables).values() if table] == [5] * 5


def test_a_file_has_the_content_of_one_of_those_who_create_it(tmp_path: Path) -> None:
    """Without it two writers of one commit, or of one manifest, publish a file that is half of each."""
    files = LocalFiles(str(tmp_path))
    for number in range(50):
        contents = [str(writer).encode() * (1 + writer * 10_000) for writer in range(4)]
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(partial(files.create_if_absent, f"log/{number}"), contents))
        assert [content for content, stamp in zip(contents, won, strict=True) if stamp] == [files.read(f"log/{number}")]
    assert len(list(Path(tmp_path, "log").iterdir())) == 50
