"""An executor that lacks something is refused in a sentence, before anything is staged there."""

from __future__ import annotations

import json
import pickle
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from router import ApplyingSink, Batch, Outcome
from router.config.models import Config
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.outbox.apply import Applier
from router.engine.retryable_errors import is_temporary
from router.engine.spark import executors
from router.engine.spark.executors import ExecutorCheck, Executors, guard_task, installed_versions, refusal_by_executors
from router.engine.start.checks import refuse_speculation
from router.errors import StartError
from router.registry import load_registry


@pytest.fixture(scope="module")
def registry():
    return load_registry()


def check(lake, **changes):
    lake.write("_executors/games", b"run-1")
    return ExecutorCheck(**{"token": "run-1", "lake": lake, "mark": "_executors/games", **changes})


def reports(check):
    """Run a task that says that it has worked, as a worker of Spark would; return what it reports."""
    executors.passed.clear()

    def work(batches):
        yield pa.RecordBatch.from_arrays([pa.array(['{"worked": true}'])], names=["report"])

    task = pickle.loads(cloudpickle.dumps(guard_task(work, check, reports=True)))
    return [json.loads(text) for batch in task(iter([])) for text in batch.column("report").to_pylist()]


def test_an_executor_that_has_everything_works_and_the_driver_finds_its_mark(lake):
    run = Executors(check(lake, versions=installed_versions(), modules=("router_sinks",)))

    assert run.without_looks(reports(run.check)) == [{"worked": True}]

    assert len(run.seen) == 1
    assert [info.base_name for info in lake.files.get_file_info(_all("_executors"))] == ["games"], "marks are removed"


def test_every_task_names_the_mark_of_its_process_since_a_report_may_be_lost(lake):
    run = Executors(check(lake))
    first = reports(run.check)
    task = guard_task(lambda batches: iter(()), run.check, reports=True)

    (again,) = [json.loads(text) for batch in task(iter([])) for text in batch.column("report").to_pylist()]

    assert again["mark"] == first[0]["mark"]
    run.without_looks([again])
    assert run.without_looks(first) == [{"worked": True}], "a mark is looked for once"


@pytest.mark.parametrize("there", [True, False], ids=["another folder", "no folder"])
def test_a_lake_that_is_another_folder_on_the_executor_is_refused(lake, tmp_path, there):
    elsewhere = tmp_path / "elsewhere"
    if there:
        elsewhere.mkdir()
    run = Executors(replace(check(lake), lake=Lake.at(str(elsewhere))))

    found = reports(run.check)

    assert "worked" not in str(found)
    assert elsewhere.exists() == there, "the look makes no folder"
    with pytest.raises(StartError, match=f"{elsewhere} is not the driver's lake .* {socket.gethostname()}"):
        run.without_looks(found)


def test_a_mark_of_another_run_is_not_the_drivers(lake):
    found = reports(check(lake, token="run-2"))

    assert "not the driver's lake" in found[0]["faults"][0]


def test_a_mark_that_the_driver_does_not_see_is_refused(lake, monkeypatch):
    monkeypatch.setattr(executors, "PAUSE_SECONDS", 0)
    run = Executors(check(lake))
    found = reports(run.check)
    lake.delete(found[0]["mark"])

    with pytest.raises(StartError, match=f"does not see what host {socket.gethostname()} writes"):
        run.without_looks(found)


def test_another_version_and_a_module_that_is_not_there_are_named(lake):
    found = reports(check(lake, versions={**installed_versions(), "deltalake": "0.1"}, modules=("region_rules",)))

    (report,) = found
    assert "cannot import region_rules (No module named 'region_rules')" in report["faults"][0]
    assert f"deltalake {installed_versions()['deltalake']} and the driver 0.1" in report["faults"][1]


def test_a_storage_that_fails_is_no_fault_of_the_executor(lake, monkeypatch):
    monkeypatch.setattr(Lake, "write", _full)

    with pytest.raises(OSError, match="No space") as raised:
        reports(check_of_a_full(lake))
    assert is_temporary(raised.value)


def check_of_a_full(lake):
    return ExecutorCheck("run-1", lake=lake, mark=_mark(lake))


def _mark(lake):
    Path(lake.root).mkdir()
    with lake.files.open_output_stream("mark") as stream:
        stream.write(b"run-1")
    return "mark"


def _full(*_):
    raise OSError(28, "No space left on device")


def _all(folder):
    from pyarrow import fs

    return fs.FileSelector(folder)


def test_without_the_router_a_task_says_so(lake, monkeypatch):
    task = cloudpickle.dumps(guard_task(print, check(lake), reports=True))
    monkeypatch.setitem(__import__("sys").modules, "router.engine.spark.executors", None)

    (row,) = pickle.loads(task)(iter([]))

    monkeypatch.undo()
    with pytest.raises(StartError, match=r"cannot import the router .*router submit"):
        Executors().without_looks([json.loads(row.column("report")[0].as_py())])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark "
            "cannot run with different minor versions.",
            "it runs Python 3.10 and the driver 3.11",
        ),
        (
            'Job aborted: java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory',
            "there is no /opt/python on its machine",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/python": Exec failed, error: 2 (No such file or directory)',
            "there is no /opt/python on its machine",
        ),
        (
            "  import pyarrow\nModuleNotFoundError: No module named 'pyarrow'\n\n at org.apache",
            "No module named 'pyarrow'",
        ),
        ("Error from python worker:\n  pyenv: python3.10: command not found\n", "does not start: pyenv: python3.10"),
    ],
    ids=["python", "no python", "no python on java 21", "no pyarrow", "no daemon"],
)
def test_what_spark_says_of_an_executor_that_cannot_work_is_one_sentence(text, says):
    refused = refusal_by_executors(RuntimeError(text))

    assert says in str(refused)
    assert "\n" not in str(refused)
    assert refused is not None
    assert not is_temporary(refused)


def test_the_task_of_a_sink_that_lacks_something_is_refused_in_a_sentence(lake, tmp_path):
    """Without it an executor that joins late sends rows of another lake, or fails with a traceback."""
    elsewhere = Executors(replace(check(lake), lake=Lake.at(str(tmp_path / "elsewhere"))))
    executors.passed.clear()
    batch = Batch("games", 0, "wins", "rest", guards=elsewhere.guard_task)

    class Sends(ApplyingSink):
        def apply(self, events, batch):
            (_sent,) = batch.guarded(lambda rows: iter(["sent"]))(iter([]))
            return Outcome(1)

    with pytest.raises(StartError, match=r"an executor cannot work: .*elsewhere is not the driver's lake"):
        Applier(lake, CheckpointStore(lake, "run"), "ops.dead", "games:run").apply_once(Sends(), 1, None, batch)


def test_every_job_of_a_sink_that_comes_with_the_router_looks_at_its_executors():
    jobs = {
        path.name: (text.count(".mapInArrow("), text.count("batch.guarded("))
        for path in (Path(__file__).parents[3] / "plugins").rglob("*.py")
        if ".mapInArrow(" in (text := path.read_text())
    }

    assert jobs == {"job.py": (2, 2), "kafka.py": (1, 1), "reports.py": (1, 1)}


def test_without_a_run_the_task_of_a_sink_is_as_it_was():
    assert Batch("games", 0, "wins", "rest").guarded(print) is print


def test_marks_of_a_driver_that_was_killed_are_deleted_at_the_next_start(lake):
    """Without it each killed driver leaves files in the lake for ever."""
    cluster = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://there:7077"))
    for name in ("games@host-1", "games@host-2", "games.repair@host-3", "other@host-4"):
        lake.write(f"_executors/{name}", b"a token of before")

    run = Executors.of_session(cluster, [], lake, "games")

    left = sorted(info.base_name for info in lake.files.get_file_info(_all("_executors")))
    assert left == ["games", "games.repair@host-3", "other@host-4"], "those of others stay"
    assert lake.read("_executors/games") == run.check.token.encode()


def test_other_errors_of_a_job_are_none_of_an_executor():
    assert refusal_by_executors(RuntimeError("java.io.IOException: Stream is closed")) is None


def test_speculation_is_for_tables_only(registry):
    upsert = {"upsert": {"table": "silver.gamers", "keys": ["event.gamer_id"], "newest_by": "offset"}}
    for sink, refused in ({"tables": "silver.{event.game}"}, False), (upsert, True):
        config = Config.model_validate(
            {
                "name": "games",
                "lake": "lake",
                "source": {"files": {"path": "in"}},
                "decode": {"json": {"schema": "game string, gamer_id string"}},
                "routes": [{"name": "games", "match": {"sql": "true"}, "sinks": [sink]}],
                "dead_letters": "ops.dead_letters",
            },
            context={"resolve": registry.resolve},
        )
        refuse_speculation("false", config)
        with (
            pytest.raises(StartError, match="games/upsert would send or merge rows twice") if refused else nullcontext()
        ):
            refuse_speculation("true", config)
