"""The JVM is started with what the router wants and nothing that contradicts what was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from router.engine.session import class_archive, java_options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUTER_CACHE", str(tmp_path))
    return tmp_path


def collectors(settings: dict[str, str]) -> list[str]:
    return [one for one in java_options(settings).split() if "GC" in one]


def asked(options: str) -> list[str]:
    return java_options({"spark.driver.extraJavaOptions": options}).split()


def test_a_collector_that_was_asked_for_stands_alone() -> None:
    """Without it the JVM ends with `Multiple garbage collectors selected`."""
    assert collectors({}) == ["-XX:+UseParallelGC"]
    assert collectors({"spark.driver.extraJavaOptions": "-XX:+UseG1GC -Dx=1"}) == []
    assert collectors({"spark.driver.extraJavaOptions": "-Dx=1"}) == ["-XX:+UseParallelGC"]


def test_the_archive_of_classes_is_used_once_it_is_there() -> None:
    """Without it a start takes seconds longer."""
    class_archive().write_bytes(b"")
    assert f"-XX:SharedArchiveFile={class_archive()}" in asked("")


def test_no_archive_is_used_while_another_one_is_asked_for_or_made() -> None:
    """Without it the JVM refuses to start: it reads one archive and cannot make one while it does."""
    class_archive().write_bytes(b"")
    assert not [one for one in asked("-XX:ArchiveClassesAtExit=/tmp/x.jsa") if "Archive" in one]


def test_avro_is_kept_from_making_room_for_what_a_record_claims() -> None:
    """Without it one record of ten bytes ends the JVM."""
    assert sum("avro.limits" in one for one in asked("-Dx=1")) == 3
