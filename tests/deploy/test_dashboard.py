"""The dashboard and the scaler ask for metrics and labels that the service has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from planner.api.jobs.store import Store
from planner.api.observe import Metrics
from planner.api.routes.health import flat

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "deploy" / "grafana" / "planner.json").read_text(encoding="utf-8"))
SCALING = yaml.safe_load((ROOT / "docs" / "deploy" / "helm" / "planner" / "values.yaml").read_text())["autoscaling"]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERIES += [SCALING["waitQuery"], SCALING["runningQuery"]]
SELECTOR = re.compile(r"(planner_\w+)\{([^}]*)\}")
OF_PROMETHEUS = {"job", "le"}  # labels that are not of the metric itself
TOTALS = {what: {"x": 1} for what in ("lost-leases", "restarts", "deaths", "failures", "purged")}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Labels of every sample that a service shows, by name."""
    metrics = Metrics()
    metrics.requests.labels("GET", "/", "200").inc()
    metrics.seconds.labels("GET", "/").observe(1.0)
    metrics.problems.labels("not-found").inc()
    metrics.worker_ends.labels("hung").inc()
    counts = flat(Store(tmp_path_factory.mktemp("store")).counts())
    out: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(metrics.text(counts, TOTALS).decode()):
        for sample in family.samples:
            out.setdefault(sample.name, []).append(sample.labels)
    return out


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_a_metric_with_its_labels(query: str, shown: dict[str, list[dict[str, str]]]) -> None:
    found = SELECTOR.findall(query)
    assert found, f"{query}: no metric with a selector"
    for name, selector in found:
        assert name in shown, f"{query}: no metric {name}; there are {', '.join(sorted(shown))}"
        labels = {label for sample in shown[name] for label in sample}
        for label, equal, value in re.findall(r'(\w+)(=|!=)"([^"]*)"', selector):
            assert label in labels | OF_PROMETHEUS, f"{query}: {name} has no label {label}"
            if equal == "=" and label == "what" and name == "planner_store":
                assert value in {sample["what"] for sample in shown[name]}, f"{query}: no {value}"
        grouped = re.search(r"by \((\w+)\)", query)
        assert grouped is None or grouped[1] in labels


def test_every_total_of_the_store_is_on_the_dashboard(shown: dict[str, list[dict[str, str]]]) -> None:
    queried = {name for query in QUERIES for name, _ in SELECTOR.findall(query)}
    totals = {name for name in shown if name.endswith("_total")}
    assert totals <= queried


def test_panels_lie_beside_each_other() -> None:
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(places)
