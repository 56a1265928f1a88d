"""A plugin file with an observer that fails after it has noted what it heard."""

from router import BatchReport, hookimpl

HEARD: list[BatchReport] = []


@hookimpl
def router_batch_finished(report: BatchReport) -> None:
    HEARD.append(report)
    raise RuntimeError("an observer must not break delivery")
