"""Why a plan is as it is, by the very search that found it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.requests.model import ModelSource
from planner.requests.plan_model import model_of_plan
from planner.requests.rates import rates_of_plan
from planner.requests.values import progress_to

if TYPE_CHECKING:
    from planner.explain import Case, ExplanationDocument
    from planner.ir import DeviceMesh
    from planner.planning import PlanDocument, Planned, Request
    from planner.planning.constraints import Constraints
    from planner.planning.pipeline import Pipelined
    from planner.planning.searched import FileDocument, RequestDocument
    from planner.pricing import PriceTables
    from planner.requests.search import SearchRequest

__all__ = ["explained", "explanation"]


def explanation(
    plan: Path,
    operator: str | None = None,
    *,
    model: Path | None = None,
    most: int = 3,
    hardware: str | None = None,
    quiet: bool = True,
) -> ExplanationDocument:
    """The explanation of a plan file.  InputError where the plan does not say what was asked for, or the model is not
    there; errors as of `planner.explain.explain`."""
    from planner.planning import read_plan

    document = read_plan(plan)
    source = ModelSource(model_of_plan(plan, model, "--model"))
    return explained(document, source, operator, most=most, hardware=hardware, say=progress_to(quiet=quiet))


def explained(
    plan: PlanDocument,
    source: ModelSource,
    operator: str | None = None,
    *,
    most: int = 3,
    hardware: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ExplanationDocument:
    """As `explanation`, of a plan and its model; `say` hears of every search."""
    from planner.explain import explain

    with tempfile.TemporaryDirectory(prefix="planner-explain-") as folder:
        case = _case(plan, source, hardware, Path(folder), say)
        found = explain(case, operator, most=most)
        return found.model_copy(
            update={"plan": found.plan.model_copy(update=rates_of_plan(plan, case.graph, case.request.profile))}
        )


def _case(
    plan: PlanDocument, source: ModelSource, hardware: str | None, folder: Path, say: Callable[[str], None]
) -> Case:
    from planner.explain import Case
    from planner.requests.cancel import Cancellation
    from planner.requests.prepared import Prepared
    from planner.requests.recorded import arguments_of, request_of
    from planner.search.control import Control

    requested = _request(plan, hardware)
    try:
        wanted, options = request_of(requested, source.path), request_of(_with_files(requested, folder), source.path)
        options.check()
    except UsageError as e:
        raise InputError(f"plan: at search.request: {e}; search again") from e
    prepared = Prepared(options, Cancellation(), source=source)
    request = prepared.request(requested.devices)

    def find(request: Request, tables: dict[DeviceMesh, PriceTables]) -> tuple[Planned, Pipelined | None]:
        return prepared.plan(request, Control(request.time_limit), tables=tables)

    def command(pins: Sequence[str]) -> str:
        return shlex.join(["planner", "search", *arguments_of(wanted, pins)])

    return Case(
        plan,
        prepared.graph,
        request,
        _parts(options, prepared.configured),
        find,
        command,
        say=say,
        notes=[_missing(f) for f in (requested.profile, requested.constraints) if f is not None and not _there(f)],
    )


def _there(file: FileDocument) -> bool:
    try:
        return Path(file.name).read_text(encoding="utf-8") == file.text
    except (OSError, ValueError):
        return False


def _missing(file: FileDocument) -> str:
    return (
        f"{file.name} is not there, or has another content: for the commands above, write what plan.json keeps of it "
        "(search.request) to that name"
    )


def _request(plan: PlanDocument, hardware: str | None) -> RequestDocument:
    from planner.cost_models import profile_names

    requested = plan.search.request
    if requested is None:
        raise InputError(
            f"plan of {plan.model.name}: it does not say what was asked for (search.request), as plans of this version "
            "do; search again"
        )
    if requested.devices != plan.cluster.devices:
        raise InputError(
            f"plan of {plan.model.name}: at search.request.devices: expected {plan.cluster.devices} as of "
            f"cluster.devices, found {requested.devices}; search again"
        )
    if hardware is not None:
        return requested.model_copy(update={"hardware": hardware, "profile": None})
    if requested.profile is None and requested.hardware not in profile_names():
        raise InputError(
            f"plan of {plan.model.name}: at search.request: it keeps no profile of {requested.hardware}; give it with "
            "--hardware"
        )
    return requested


def _with_files(requested: RequestDocument, folder: Path) -> RequestDocument:
    """The texts kept in the request as files in the folder."""

    def at(file: FileDocument | None, kind: str) -> FileDocument | None:
        if file is None:
            return None
        name = Path(file.name).name
        path = folder / kind / (name if name.strip(".") else kind)
        path.parent.mkdir()
        path.write_text(file.text, encoding="utf-8")
        return file.model_copy(update={"name": str(path)})

    profile, constraints = at(requested.profile, "profile"), at(requested.constraints, "constraints")
    hardware = requested.hardware if profile is None else profile.name
    return requested.model_copy(update={"hardware": hardware, "profile": profile, "constraints": constraints})


def _parts(options: SearchRequest, configured: Constraints | None) -> list[tuple[str, Constraints]]:
    """What the constraints consist of, each part by its option; `configured`: the pins of --strategy."""
    from planner.planning.constraints import parse_pin, read_constraints

    found = [] if configured is None else [(f"--strategy {options.strategy}", configured)]
    if options.constraints is not None:
        found.append((f"--constraints {options.constraints.name}", read_constraints(options.constraints)))
    return found + [(f"--pin {text!r}", parse_pin(text)) for text in options.pin]
