"""Places of tables outside of their lake's layout: one each, whatever their names are."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from router.delta.lake import Lake
from router.delta.located_files import LocatedFiles
from router.storage.locations import Location
from router.table_names import fold_name

if TYPE_CHECKING:
    from pathlib import Path

GAMES = "silver.{event.game}"


@pytest.mark.parametrize(
    ("names", "place", "table", "wanted"),
    [
        (GAMES, "s3://lake-{event.game}/tables", "silver.big_win", "s3://lake-big-win/tables"),
        (GAMES, "s3://lake/{event.game}/{table}", "silver.uno", "s3://lake/uno/uno"),
        ("silver.{event.game}_wins", "gs://lake/{ event.game }", "silver.uno_wins", "gs://lake/uno"),
        ("silver.{event.game}_wins", "gs://lake/{table}", "silver.uno_wins", "gs://lake/uno_wins"),
        ("silver.{a}_{b}", "az://lake/{table}", "silver.x_y_z", "az://lake/x_y_z"),
        ("gold.wins", "abfss://c@account.dfs.core.windows.net/wins/", "gold.wins", "abfss://c@account.dfs.core.windows.net/wins"),
        ("bronze.{topic}", "abfss://{topic}@a.dfs.core.windows.net", "bronze.a_b", "abfss://a-b@a.dfs.core.windows.net"),
        ("gold.wins", "/data/wins", "gold.other", None),
        (GAMES, "/data/{table}", "gold.uno", None),
        (GAMES, "file:///data/{table}", "silver.uno", "/data/uno"),
    ],
)  # fmt: skip
def test_a_table_has_its_place(names: str, place: str, table: str, wanted: str | None) -> None:
    """Without it a bucket per topic is written as no tool of the cloud expects it."""
    assert Location(names, place).place_of(table) == wanted


def test_the_key_of_one_table_is_not_used_for_another_in_its_bucket() -> None:
    """Without it the second of two locations in one bucket is read and written with the rights of the first."""
    places = [
        Location(f"gold.{name}", f"s3://lake/{name}", {"aws_access_key_id": name, "aws_secret_access_key": "s"})
        for name in ("one", "two", "three")
    ]
    store = Lake("/lake", locations=tuple(places)).store
    assert isinstance(store, LocatedFiles)
    opened = [store.find_storage(f"gold/{name}/part.parquet").storage for name in ("one", "two", "three", "one")]
    assert len({id(one) for one in opened}) == 3
    assert opened[0] is opened[3]


@given(st.text(), st.text())
def test_no_value_leaves_its_place_or_shares_it(one: str, other: str) -> None:
    """Without it a record decides where the router writes."""
    tables = [name for value in (one, other) if (name := fold_name(f"silver.{value}"))]
    for place in ("/data/games/{event.game}/rows", "s3://b/games/{event.game}", "s3://games-{event.game}/rows"):
        location = Location(GAMES, place)
        before, _, after = place.partition("{event.game}")
        found = set()
        for table in tables:
            try:
                found.add(location.place_of(table))
            except ValueError:
                found.add(table)
        for at in found - set(tables):
            assert at is not None
            assert at.startswith(before)
            assert at.endswith(after)
            assert "/" not in at.removeprefix(before).removesuffix(after)
            assert ".." not in at
        assert len(found) == len(set(tables))


def test_a_name_that_is_no_bucket_is_said() -> None:
    """Without it the rows of such a name end in somebody else's bucket, or in an error of the cloud's library."""
    with pytest.raises(ValueError, match=r"no bucket can be called lake-x-, .*silver\.x_"):
        Location(GAMES, "s3://lake-{event.game}").place_of("silver.x_")


@pytest.mark.parametrize(
    ("names", "place", "what"),
    [
        (GAMES, "/data", "all tables of the sink would lie in one place; add {event.game}"),
        (GAMES, "/data/{event.level}", "`location` has the field event.level, which no table's name tells"),
        ("silver.{a}_{b}", "/data/{a}", "`location` has the field a, which no table's name tells; it can have {table}"),
        ("gold.wins", "/data/{event.game}", "`location` has the field event.game"),
        ("", "/data/{table}", "the names of the sink's tables are not known"),
    ],
)
def test_a_place_for_two_tables_is_a_fault(names: str, place: str, what: str) -> None:
    """Without it two tables get one log."""
    assert Location(names, place).explain_shared_places().startswith(what)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("/data/{table}", "/data/{table}", True),
        ("/data/{table}", "/data/wins", True),
        ("/data/{table}", "/data", True),
        ("/data/{table}/rows", "/data/wins", True),
        ("/data/a_{table}", "/data/b_{table}", False),
        ("/data/a/{table}", "/data/b/{table}", False),
        ("/data/{table}", "file:/data/uno/x", True),
        ("s3://b/x", "s3a://b/x/y", True),
        ("s3://b/x", "gs://b/x", False),
        ("s3://b-{table}/x", "s3://b-uno/x", True),
        ("s3://b-{table}/x", "s3://b/x", False),
        ("az://c/x", "abfss://c@a.dfs.core.windows.net/x", True),
    ],
)
def test_places_within_each_other_are_seen(one: str, other: str, overlap: bool) -> None:
    """Without it maintenance deletes the files of one table as leftovers of another."""
    assert Location(GAMES, one).may_overlap(Location(GAMES, other).place_with_holes) is overlap
    assert Location(GAMES, other).may_overlap(Location(GAMES, one).place_with_holes) is overlap


@pytest.fixture
def elsewhere(tmp_path: Path) -> Lake:
    """Return a lake of two tables, one of which is elsewhere."""
    lake = Lake.at(str(tmp_path / "lake"), {"key": "hush"}, (Location(GAMES, str(tmp_path / "games/{event.game}")),))
    for table in ("silver.uno", "gold.wins"):
        lake.note_location(table)
        write_deltalake(lake.address(table), pa.table({"n": [1]}))
    return lake


def test_a_table_elsewhere_is_one_of_the_lake(elsewhere: Lake, tmp_path: Path) -> None:
    """Without it verify, repair and maintenance pass over it."""
    assert (tmp_path / "games/uno/_delta_log").is_dir()
    assert not (tmp_path / "lake/silver").exists()
    for lake in (elsewhere, pickle.loads(pickle.dumps(elsewhere)), Lake.at(str(tmp_path / "lake")).as_noted()):
        assert lake.layer_names() == ["gold", "silver"]
        assert lake.every_table() == ["gold.wins", "silver.uno"]
        assert lake.open("silver.uno")
        assert lake.spark_address("silver.uno") == str(tmp_path / "games/uno")
        assert lake.for_spark("silver/uno/part") == str(tmp_path / "games/uno/part")
        assert lake.for_spark() == str(tmp_path / "lake")
    assert elsewhere.noted_locations() == {"silver.uno": str(tmp_path / "games/uno")}
    assert "hush" not in repr(elsewhere)


@pytest.mark.parametrize(
    ("folder", "place", "wanted"),
    [
        ("{event.game}", "games/{table}", "games/uno"),
        ("{event", "games/{table}", "games/uno"),
        ("a", "{{x}}/{table}", "{x}/uno"),
        ("}", "{{{table}}}", "{uno}"),
    ],
)
def test_braces_of_a_folder_are_no_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, place: str, wanted: str
) -> None:
    """Without it readers without the configuration look for a table in another folder."""
    root = tmp_path / folder
    root.mkdir()
    monkeypatch.chdir(root)
    location = Location(GAMES, place)
    lake = Lake.at("lake", {}, (location,))
    lake.note_location("silver.uno")
    write_deltalake(lake.address("silver.uno"), pa.table({"n": [1]}))

    assert lake.address("silver.uno") == str(root / wanted)
    assert Lake.at("lake").as_noted().address("silver.uno") == lake.address("silver.uno")
    assert location.may_overlap(str(root / wanted))
    assert not location.may_overlap(str(root / "lake"))


def test_files_are_reached_by_the_lakes_paths(elsewhere: Lake, tmp_path: Path) -> None:
    """Without it whoever stages, moves or deletes files has to ask where a table is."""
    files, store = elsewhere.files, elsewhere.store
    log = "silver/uno/_delta_log"
    (commit,) = files.get_file_info(fs.FileSelector(log))
    assert (commit.path, commit.is_file) == (f"{log}/{0:020}.json", True)
    assert [info.path for info in files.get_file_info([commit.path, "gold/wins", "silver/none"])] == [
        commit.path, "gold/wins", "silver/none"
    ]  # fmt: skip
    assert store.list_stamps(log, after=f"{log}/") == {commit.path: store.read_stamp(commit.path)}

    stamp = store.create_if_absent("silver/uno/x", b"1")
    assert stamp
    assert store.create_if_absent("silver/uno/x", b"2") is None
    assert (tmp_path / "games/uno/x").read_bytes() == b"1"
    files.create_dir("_aside/uno", recursive=True)
    files.move("silver/uno/x", "_aside/uno/x")
    assert (tmp_path / "lake/_aside/uno/x").read_bytes() == b"1"
    assert not (tmp_path / "games/uno/x").exists()
    files.copy_file("_aside/uno/x", "silver/uno/y")
    files.move("silver/uno/y", "silver/uno/z")
    with files.open_input_stream("silver/uno/z") as stream:
        assert stream.read() == b"1"
    elsewhere.delete("silver/uno/z", "silver/uno/none")
    assert elsewhere.read("silver/uno/z") is None
    files.delete_dir("silver/uno")
    assert not (tmp_path / "games/uno").exists()


def test_a_table_without_a_place_can_have_no_file(tmp_path: Path) -> None:
    """Without it one name stops the stream, instead of going to the quarantine."""
    lake = Lake.at(str(tmp_path), {}, (Location(GAMES, "s3://x{event.game}"),))

    with pytest.raises(OSError, match="no bucket can be called xa-"):
        lake.note_location("silver.a_")
    with pytest.raises(OSError, match="no bucket can be called xa-"):
        lake.files.open_output_stream("silver/a_/part")
