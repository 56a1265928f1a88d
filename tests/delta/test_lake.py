"""Where tables live."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from router.delta.dataset import native_files
from router.delta.history import newest_version
from router.delta.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """Fill a lake with tables, and with things that are none."""
    for name in ("silver/uno", "silver/hearts", "gold/daily"):
        write_deltalake(f"{lake.root}/{name}", pa.table({"id": [1]}))
    for folder in ("silver/no_table", "_router/games/manifests", ".trash/x", "empty"):
        Path(lake.root, folder).mkdir(parents=True)
    Path(lake.root, "silver", "notes.txt").write_text("not a table")
    Path(lake.root, "README").write_text("a lake")
    return lake


@pytest.mark.parametrize(
    "place",
    [str, lambda path: f"{path}/", lambda path: f"file://{path}", lambda path: path.relative_to(Path.cwd())],
    ids=["path", "slash at the end", "URI", "relative"],
)
def test_one_lake_has_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], str | Path]
) -> None:
    """Without it a restart from another folder, or with a slash, starts another lake."""
    monkeypatch.chdir(tmp_path)
    lake = Lake.at(str(place(tmp_path / "lake")))
    monkeypatch.chdir("/")

    assert lake.address("silver.uno") == f"{tmp_path}/lake/silver/uno"
    assert lake.is_local


def test_a_bucket_keeps_its_address() -> None:
    """Without it tables in an object store land in a folder of the driver."""
    lake = Lake.at("s3://bucket/lake/")

    assert lake.address("silver.uno") == "s3://bucket/lake/silver/uno"
    assert not lake.is_local


def test_tables_and_layers_are_found(filled: Lake) -> None:
    """Without it the cap on tables counts wrong, and a view misses tables."""
    assert filled.table_names("silver") == ["silver.hearts", "silver.uno"]
    assert filled.table_names("nowhere") == []
    assert filled.layer_names() == ["empty", "gold", "silver"]


def test_a_table_opens_or_is_none(filled: Lake) -> None:
    """Without it a folder with a file in it stops the stream, or a table is taken for new."""
    table = filled.open("silver.uno")

    assert table is not None
    assert table.version() == 0
    assert filled.open("silver.no_table") is None
    assert filled.open("silver.nowhere") is None


def test_a_new_lake_is_empty(lake: Lake) -> None:
    """Without it the first start fails."""
    assert lake.layer_names() == []
    assert lake.open("silver.uno") is None
    assert lake.read("silver/none") is None
    assert not Path(lake.root).exists()  # who looks leaves nothing


def test_files_are_read_by_their_path_in_the_lake(filled: Lake) -> None:
    """Without it what a batch left beside its tables cannot be looked at."""
    assert filled.read("README") == b"a lake"


def test_a_lake_travels_to_executors_with_its_rights(tmp_path: Path) -> None:
    """Without it tasks cannot write where the driver can."""
    lake = Lake.at(str(tmp_path), {"secret": "hush"})
    assert lake.files is not None

    copy = pickle.loads(pickle.dumps(lake))

    assert copy == lake
    assert copy.options == {"secret": "hush"}
    assert copy.files.get_file_info("").path == ""


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    """Without it the password of a lake stands in logs and error messages."""
    assert "hush" not in repr(Lake.at(str(tmp_path), {"secret": "hush"}))


def test_rows_are_read_without_objects_of_python(tmp_path: Path) -> None:
    """Without it one of thirty calls of `router ledger` ends with 134: Arrow closes files while Python ends."""
    place = tmp_path / "a b" / "silver" / "uno"
    rows = {"n": [1, 2, 3], "game": ["uno", "a/b c%d", None]}
    write_deltalake(place, pa.table(rows), partition_by=["game"])
    table = DeltaTable(place)
    files = native_files(table)
    assert isinstance(files, fs.SubTreeFileSystem)
    assert isinstance(files.base_fs, fs.LocalFileSystem)
    assert table.to_pyarrow_table(filesystem=files).sort_by("n").to_pydict() == rows


def test_the_newest_version_is_found_behind_the_last_checkpoint(lake: Lake) -> None:
    """Without it the version before a deploy is an older one, whose rows are taken for all that there were."""
    for number in range(12):
        write_deltalake(lake.address("silver.uno"), pa.table({"n": [number]}), mode="append")
        assert newest_version(lake, "silver.uno") == number
        if number == 7:
            DeltaTable(lake.address("silver.uno")).create_checkpoint()
    DeltaTable(lake.address("silver.uno")).create_checkpoint()
    assert newest_version(lake, "silver.uno") == 11
