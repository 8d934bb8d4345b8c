"""`planner search --save-problem DIR`: what `planner check` needs to prove objective and bound without the search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.planning import Planned
from planner.planning.proof import Certified, certify_chosen, certify_others
from planner.search.certificates.file import write_certificate
from planner.search.saved.instance import write_instance

__all__ = ["described", "save_problem"]

SECONDS = 60.0  # for the proof of the chosen mesh, unless it has to be the same every time
OTHER_SECONDS = 10.0


def save_problem(
    planned: Planned,
    folder: Path,
    *,
    others: bool = False,
    reproducible: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Writes `problem.json.gz` and `certificate.json` of the mesh chosen, with `others` also
    `problem-MESH.json.gz` and `certificate-MESH.json` of the rest; the document for `--json`.

    InputError where a file cannot be written.
    """
    unit = planned.priced.machine.unit_s
    chosen = certify_chosen(planned, seconds=None if reproducible else SECONDS, cancelled=cancelled)
    entry = _write(chosen, folder, "", unit, planned.priced.graph.name)
    document: dict[str, Any] = {**entry, "others": [], "lower_bound_of_all_meshes_s": None, "gap_of_all_meshes": None}
    if not others:
        return document
    seconds = None if reproducible else OTHER_SECONDS
    rest = certify_others(planned, seconds=seconds, cancelled=cancelled)
    document["others"] = [_write(c, folder, f"-{c.name}", unit, planned.priced.graph.name) for c in rest]
    # A mesh on which the pins do not fit holds no plan; any other without a certificate leaves the bound open.
    every = [chosen, *(c for c in rest if c.option.unfit is None)]
    proofs = [c.certificate for c in every]
    bounds = [p.bound for p in proofs if p is not None and p.bound is not None]
    if all(proofs) and bounds and planned.solution.cost is not None:
        cost = planned.solution.cost
        bound = min(*bounds, cost)
        document["lower_bound_of_all_meshes_s"] = bound * unit
        document["gap_of_all_meshes"] = (cost - bound) / cost if cost else 0.0
    return document


def _write(certified: Certified, folder: Path, suffix: str, unit: float, model: str) -> dict[str, Any]:
    problem, proof = folder / f"problem{suffix}.json.gz", folder / f"certificate{suffix}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if certified.problem is not None:
            write_instance(certified.problem, problem, name=f"{model} on mesh {certified.name}")
        if certified.certificate is not None:
            write_certificate(certified.certificate, proof)
    except OSError as e:
        raise InputError(f"--save-problem {folder}: cannot be written ({e}); give another directory") from e
    shown = None if certified.certificate is None else certified.certificate.bound
    cost = None if certified.certificate is None else certified.certificate.cost
    return {
        "mesh": str(certified.option.mesh),
        "recompute": certified.option.recompute,
        "problem": None if certified.problem is None else str(problem),
        "certificate": None if certified.certificate is None else str(proof),
        "infeasible": certified.certificate is not None and shown is None,
        "cost": cost,
        "lower_bound": certified.bound,
        "certified_lower_bound": shown,
        "certified_lower_bound_s": None if shown is None else shown * unit,
        "certified_gap": None if shown is None or not cost else max(0.0, (cost - shown) / cost),
        "unit_s": unit,
        "reason": certified.reason or None,
    }


def described(document: dict[str, Any]) -> list[str]:
    """Lines for the reader of the summary."""
    if document["certificate"] is None:
        return [f"problem of mesh {document['mesh']} written to {document['problem']}; {document['reason']}"]
    gap = document["certified_gap"]
    shown = "" if gap is None else f": the objective is within {gap:.2%} of the least on this mesh"
    lines = [
        f"certified   mesh {document['mesh']} (this mesh only){shown}",
        f"            prove it with: planner check {document['problem']} {document['certificate']}",
    ]
    if document["others"]:
        whole = document["gap_of_all_meshes"]
        listed = (
            "some have no certificate" if whole is None else f"the objective is within {whole:.2%} of the least on any"
        )
        lines.append(f"            with the {len(document['others'])} other meshes: {listed}")
    return lines
