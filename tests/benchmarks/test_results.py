"""Results survive an interruption, and only valid runs make a figure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.__main__ import main
from benchmarks.cells import SHORT, Cell
from benchmarks.results import Results, median, median_steps, ratio
from benchmarks.runs import Job, Run, Task, append_run, read_runs
from router_bench.machine import Label
from tests.benchmarks.conftest import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.results import CellResult

WARM = Cell("router", "warm", 1000, 7, repeat=3)
COLD = Cell("loop", "cold", 1000, 7, repeat=3, options=(("engine", "spark"),))
TASK = Task("127.0.0.1:1", "topic", "a int", {"json": {}}, 100, 7, 4, 100, {"a": 100}, "/tmp/x", {"engine": "spark"})


def test_the_median_of_a_warm_cell_leaves_its_cold_batch_out(measured: Callable[..., CellResult]) -> None:
    assert median(measured(WARM, 90.0, 3.0, 1.0, 2.0)) == 2.0


def test_the_median_of_a_cold_cell_takes_every_process(measured: Callable[..., CellResult]) -> None:
    result = measured(COLD, 9.0, 3.0, 5.0, process_seconds=12.0)

    assert median(result) == 5.0
    assert median(result, "process_seconds") == 12.0


def test_one_wrong_run_leaves_no_figure(measured: Callable[..., CellResult]) -> None:
    result = measured(WARM, 9.0, 3.0, 3.0, problem="wrong result: bronze: 1 rows, 2 expected")

    assert median(result) is None
    assert result.problem.startswith("wrong result")


def test_a_cell_whose_process_ended_after_the_cold_batch_has_no_figure(measured: Callable[..., CellResult]) -> None:
    assert measured(WARM, 9.0).problem
    assert median(None) is None


@pytest.mark.parametrize(
    ("slower", "faster", "expected"), [(12.0, 4.0, 3.0), (None, 4.0, None), (12.0, None, None), (12.0, 0.0, None)]
)
def test_a_ratio_needs_both_figures(slower: float | None, faster: float | None, expected: float | None) -> None:
    assert ratio(slower, faster) == expected


def test_steps_are_medians_by_name() -> None:
    runs = [Run(1, steps={"land": 3.0, "commit": 1.0}), Run(1, steps={"land": 5.0}), Run(1, steps={"land": 4.0})]

    assert median_steps(runs) == {"land": 4.0, "commit": 0.0}


def test_results_come_back_from_their_file(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(WARM, 9.0, 3.0, 1.0, 2.0, steps={"land": 1.5}, samples=[{"batches": 50.0}])
    measured(COLD, 9.0, 3.0, 5.0)

    assert Results.load(results.path).cells == results.cells
    assert Results.load(results.path).scale == SHORT


def test_an_interrupted_session_goes_on_with_what_is_missing(
    results: Results, measured: Callable[..., CellResult]
) -> None:
    measured(WARM, 9.0, 3.0, 1.0, 2.0)
    measured(COLD, 9.0, 3.0)
    kept = Results.load(results.path)

    assert kept.complete(WARM)
    assert not kept.complete(COLD)  # two of three processes
    assert not kept.complete(Cell("queries", "cold", 1000, 7))


def test_the_file_has_every_run_and_the_median(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(WARM, 9.0, 3.0, 1.0, 2.0)
    content = json.loads(results.path.read_text())

    assert content["cells"][0]["median_seconds"] == 2.0
    assert [run["seconds"] for run in content["cells"][0]["runs"]] == [9.0, 3.0, 1.0, 2.0]
    label = content["cells"][0]["label"]
    assert (label["date"], label["commit"], label["dirty"]) == ("2026-11-21", "a" * 40, False)
    assert label["machine"]["processor"] == "Zeta 9"
    assert "machine" not in content


def test_list_marks_what_resume_would_keep(
    results: Results,
    measured: Callable[..., CellResult],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Label, "now", lambda date="": LABEL)
    measured(SHORT.warm("router", 200), 9.0, 3.0)
    measured(SHORT.warm("router", 1), 9.0, 3.0, foreign_cores=1.0)
    words = ["--only", "width", "--resume", "--list", "--out", str(results.path.parent)]

    assert main(words) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["= ", "= "]
    assert main([*words, "--redo", "noisy"]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["  ", "= "]


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        (LABEL, True),
        (replace(LABEL, commit="b" * 40, date="2026-12-01"), True),
        (replace(LABEL, machine={**LABEL.machine, "processor": "Omega 1"}), False),
        (replace(LABEL, machine={**LABEL.machine, "cores": "64"}), False),
        (replace(LABEL, machine={**LABEL.machine, "memory": "48 GB"}), False),
        (Label(), False),
    ],
    ids=["this one", "another commit", "another processor", "more cores", "more memory", "unknown"],
)
def test_resume_takes_over_no_cell_of_another_machine(
    results: Results,
    measured: Callable[..., CellResult],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    label: Label,
    kept: bool,
) -> None:
    """Figures of two machines under one heading are wrong figures."""
    monkeypatch.setattr(Label, "now", lambda date="": LABEL)
    measured(SHORT.warm("router", 1), 9.0, 3.0, label=label)

    assert main(["--only", "width", "--resume", "--list", "--out", str(results.path.parent)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("= " if kept else "  ")
    assert ("measured again: warm/router/json/300000ev/1t/4p: " in shown.err) != kept
    assert (label.machine_text() in shown.err) != kept


def test_an_old_file_is_of_an_unknown_machine(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(WARM, 9.0, 3.0, 1.0, 2.0)
    content = json.loads(results.path.read_text())
    del content["cells"][0]["label"]
    results.path.write_text(json.dumps({**content, "machine": LABEL.machine, "date": "2026-11-22"}))
    (result,) = Results.load(results.path).cells.values()

    assert result.label == Label()
    assert result.label.machine_text() == "unknown machine"
    assert not result.label.same_machine(result.label)


def test_an_unknown_measurement_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="no measurement wram"):
        main(["--only", "wram", "--list"])


def test_a_job_and_its_runs_travel_through_files(tmp_path: Path) -> None:
    job = Job("loop", "benchmarks.subjects.loop", TASK, 2, "workers", str(tmp_path / "runs.jsonl"))
    job.write(tmp_path / "job.json")
    run = Run(1.5, peaks={"worker_mb": 100.0})
    append_run(tmp_path / "runs.jsonl", run)
    append_run(tmp_path / "runs.jsonl", run)

    assert Job.read(tmp_path / "job.json") == job
    assert read_runs(tmp_path / "runs.jsonl") == [run, run]
    assert read_runs(tmp_path / "other.jsonl") == []


def test_every_run_of_a_task_has_folders_of_its_own() -> None:
    first, second = TASK.nth(0), TASK.nth(1)

    assert len({first.lake, second.lake, first.checkpoint, second.checkpoint}) == 4
