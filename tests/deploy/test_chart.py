"""The chart, as Helm renders it: pods are held to little, and options and settings are those of the program."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from typing import Any

import pytest
import yaml

from planner.api.settings import Settings, settings_of
from planner.version import __version__
from tests.deploy.charts import CASES, CHART, digest, golden_text, objects

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
MODULES = {"store": "upkeep", "serve": "serve", "worker": "jobs.command"}


def of_kind(case: str, kind: str) -> list[dict[str, Any]]:
    return [o for o in objects(case) if o["kind"] == kind]


def pods(case: str) -> list[tuple[str, dict[str, Any]]]:
    """Component and specification of every pod."""
    found = [o["spec"]["template"] for o in objects(case) if o["kind"] in ("Deployment", "Job")]
    return [(t["metadata"]["labels"]["app.kubernetes.io/component"], t["spec"]) for t in found]


def container(case: str, component: str) -> dict[str, Any]:
    (spec,) = [spec for name, spec in pods(case) if name == component]
    (found,) = spec["containers"]
    return dict(found)


@pytest.mark.parametrize("case", CASES)
def test_the_golden_files_are_what_helm_makes_of_the_chart(case: str) -> None:
    first = golden_text(case).partition("\n")[0]
    assert first == f"# {digest(case)}", "the chart has changed; run `python -m tests.deploy.charts --write`"


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_held_to_little(case: str) -> None:
    assert {name for name, _ in pods(case)} == {"api", "worker", "migrate"}
    for _, spec in pods(case):
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # else Kubernetes may set PLANNER_PORT
        outer = spec["securityContext"]
        assert outer["runAsNonRoot"] is True
        assert outer["runAsUser"] == outer["fsGroup"] == 10001
        assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {v["name"]: set(v) - {"name"} for v in spec["volumes"]} == {
            "data": {"emptyDir"},
            "tmp": {"emptyDir"},
            "store": {"secret"},
        }
        (inner,) = spec["containers"]
        assert inner["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in inner["resources"]["limits"]
        assert {m["mountPath"] for m in inner["volumeMounts"]} == {"/data", "/tmp", "/run/secrets/planner"}


@pytest.mark.parametrize("case", CASES)
def test_arguments_are_those_of_the_program(case: str) -> None:
    for _, spec in pods(case):
        command, *options = spec["containers"][0]["args"]
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"planner.api.{MODULES[command]}").configure(parser)
        parser.parse_args(options)


@pytest.mark.parametrize("case", CASES)
def test_variables_are_settings_with_values_of_their_form(case: str) -> None:
    known = {f"PLANNER_{name.upper()}" for name in Settings.__dataclass_fields__}
    for _, spec in pods(case):
        given = {v["name"]: v["value"] for v in spec["containers"][0]["env"]}
        assert {name for name in given if name.startswith("PLANNER_")} <= known
        settings_of(argparse.Namespace(), given)


def test_probes_ask_for_what_there_is() -> None:
    api = container("default", "api")
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        probed = api[probe]["httpGet"]
        assert (probed["path"], probed["port"]) == (path, "http")
        assert probed["httpHeaders"] == [{"name": "Host", "value": "localhost"}]  # known whatever PLANNER_NAMES says
    worker = container("default", "worker")
    (file,) = [a.partition("=")[2] for a in worker["args"] if a.startswith("--alive=")]
    assert all(f"find {file} " in worker[probe]["exec"]["command"][2] for probe in ("startupProbe", "livenessProbe"))


@pytest.mark.parametrize("case", CASES)
def test_tables_are_changed_before_the_programs_of_a_release_begin(case: str) -> None:
    (job,) = of_kind(case, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["store", "migrate"]
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]  # at the first installation there is none


@pytest.mark.parametrize("case", CASES)
def test_selectors_find_the_pods_that_they_mean(case: str) -> None:
    labels = {d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"] for d in of_kind(case, "Deployment")}
    (service,) = of_kind(case, "Service")
    assert service["spec"]["selector"].items() <= labels["plans-api"].items()
    assert not service["spec"]["selector"].items() <= labels["plans-worker"].items()
    for kind, selected in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        for found in of_kind(case, kind):
            selector = found["spec"][selected]["matchLabels"]
            assert selector.items() <= labels[found["metadata"]["name"]].items()
    for scaler in of_kind(case, "ScaledObject") + of_kind(case, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["scaleTargetRef"]["name"] in labels


def test_nobody_reaches_workers() -> None:
    for case in ("default", "full"):
        policies = {o["metadata"]["name"]: o["spec"] for o in of_kind(case, "NetworkPolicy")}
        assert policies["plans-worker"]["ingress"] == []
        assert all(p["policyTypes"] == ["Ingress", "Egress"] for p in policies.values())
        assert "ports" not in container(case, "worker")


def test_a_scaled_deployment_has_no_number_of_its_own() -> None:
    for case, scaled in (("default", False), ("full", True), ("hpa", True)):
        (worker,) = [d for d in of_kind(case, "Deployment") if d["metadata"]["name"] == "plans-worker"]
        assert ("replicas" not in worker["spec"]) is scaled


def test_workers_are_added_where_tasks_wait_and_are_not_taken_from_those_that_run() -> None:
    (scaler,) = of_kind("full", "ScaledObject")
    wait, running = scaler["spec"]["triggers"]
    assert wait["metadata"]["query"] == 'max(planner_store{what="oldest_s"})'
    assert wait["metricType"] == "Value"  # an age is no sum over pods
    assert running["metadata"]["query"] == 'max(planner_store{what="tasks_running"})'
    slots = [a.partition("=")[2] for a in container("full", "worker")["args"] if a.startswith("--slots=")]
    assert (running["metricType"], [running["metadata"]["threshold"]]) == ("AverageValue", slots)
    (scaler,) = of_kind("hpa", "HorizontalPodAutoscaler")
    assert [m["external"]["target"]["type"] for m in scaler["spec"]["metrics"]] == ["Value", "AverageValue"]


def test_the_image_is_of_this_version_or_of_one_digest() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == __version__
    assert container("default", "api")["image"] == f"planner:{__version__}"
    assert re.fullmatch(r"planner@sha256:0{64}", container("full", "worker")["image"])


def test_the_schema_knows_every_value_and_no_other() -> None:
    def compare(schema: dict[str, Any], value: Any, where: str) -> None:
        if schema.get("additionalProperties") is not False:
            return
        assert set(schema["properties"]) - {"global"} == set(value), where
        for name, inner in value.items():
            compare(schema["properties"][name], inner, f"{where}.{name}")

    assert SCHEMA["additionalProperties"] is False
    compare(SCHEMA, VALUES, "values")


def test_the_address_of_the_database_holds_no_password() -> None:
    pattern = SCHEMA["properties"]["store"]["properties"]["url"]["pattern"]
    for good in ("postgresql://?service=planner", "postgresql://planner@db/planner", VALUES["store"]["url"]):
        assert re.search(pattern, good)
    for bad in ("postgresql://planner:secret@db/planner", "mysql://db"):
        assert not re.search(pattern, bad)
