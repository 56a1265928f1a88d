"""What people load into Prometheus and Grafana: queries name metrics that exist, alerts fire and are silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from router.engine.status.metrics import METRICS
from tests.engine.promtool import NEEDS_PROMTOOL, promtool

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
PROMETHEUS = {"up"}
"""Metrics that Prometheus adds to those of a scrape."""
IN_QUERIES = re.compile(r"\b(?:router_\w+|up)\b(?=[{\s\[)]|$)")


def series() -> dict[str, tuple[str, ...]]:
    """Return the names of all series, with their labels."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(PROMETHEUS, ())
    for metric in METRICS:
        if metric.kind == "histogram":
            found[f"{metric.name}_bucket"] = (*metric.labels, "le")
            found[f"{metric.name}_sum"] = metric.labels
            found[f"{metric.name}_count"] = metric.labels
        else:
            found[metric.name] = metric.labels
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each query of the dashboard with the title of its panel."""
    for panel in json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target


QUERIES = {
    **{rule["alert"]: rule["expr"] for rule in alerts()},
    **{f"{title} {target['refId']}": target["expr"] for title, target in targets()},
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_names_a_metric_that_exists(name: str) -> None:
    """Without it a panel is empty, and an alert silent, for ever."""
    named = set(IN_QUERIES.findall(QUERIES[name]))
    assert named, QUERIES[name]
    assert named <= series().keys()


@pytest.mark.parametrize(
    ("title", "target"), list(targets()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_legend_names_labels_that_the_query_has(title: str, target: dict[str, Any]) -> None:
    """Without it the lines of a panel have no names."""
    labels = {"instance", "job"}
    for name in IN_QUERIES.findall(target["expr"]):
        labels |= set(series()[name])
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_every_metric_is_shown_or_explained_by_a_time() -> None:
    """Without it a metric is added, and nobody sees it."""
    shown = {name for query in QUERIES.values() for name in IN_QUERIES.findall(query)}
    hidden = {metric.name for metric in METRICS if not any(name.startswith(metric.name) for name in shown)}
    assert hidden == {"router_source_end_read_timestamp_seconds"}


def test_every_alert_says_what_to_do() -> None:
    """Without it somebody is woken up, and does not know for what."""
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "todo"}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    """Without it an alert that can never fire, or always does, looks like one that works."""
    cases: dict[str, set[bool]] = {}
    for test in yaml.safe_load((DEPLOY / "alerts.test.yaml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            cases.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert cases == {rule["alert"]: {True, False} for rule in alerts()}


@NEEDS_PROMTOOL
def test_the_alerts_do_what_their_cases_say() -> None:
    assert "SUCCESS" in promtool("check", "rules", DEPLOY / "alerts.yaml")
    assert "SUCCESS" in promtool("test", "rules", DEPLOY / "alerts.test.yaml")


@NEEDS_PROMTOOL
def test_prometheus_understands_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """Without it a panel shows an error in place of the state of the night."""
    rules = []
    for number, (_, target) in enumerate(targets()):
        query = target["expr"].replace("$__rate_interval", "5m").replace("$job", "job").replace("$instance", ".*")
        rules.append({"record": f"panel:{number}", "expr": query})
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)
