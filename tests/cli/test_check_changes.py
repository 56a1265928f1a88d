"""`router check --lake` shows what a start refuses before anything else."""

from __future__ import annotations

from router.cli.check import in_order_of_severity
from router.engine.preflight.lake_changes import Change


def test_refusals_come_first_and_safe_lines_last():
    changes = [Change(severity, ("routes",), severity, "") for severity in ("safe", "to do", "safe", "refused")]

    assert [change.severity for change in in_order_of_severity(changes)] == ["refused", "to do", "safe", "safe"]
