"""`planner verify PLAN [MODEL]`: proof of a plan by execution on virtual devices."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.cli.kept import kept_model
from planner.cli.options import add_model_options, bindings, progress_to
from planner.errors import InputError, VerificationError

if TYPE_CHECKING:
    from planner.ir import Graph
    from planner.planning import PlanDocument
    from planner.verify.check import Verdict
    from planner.verify.sibling import Budget, Sibling

__all__ = ["configure", "run"]

# FLOPs of a forward pass that are executed as they stand; larger graphs are proved on a sibling.  The whole and
# the sharded model run once each, with the backward pass twice the forward: some minutes on two cores.
TRAINING_FLOPS = 4e11
INFERENCE_FLOPS = 1.5e12


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json of `planner search`")
    add_model_options(parser, optional=True)
    parser.add_argument("--whole", action="store_true", help="execute the whole graph, however long it takes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights and inputs")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.frontends import load_model
    from planner.lowering.check import check_program
    from planner.planning import read_plan, write_plan
    from planner.planning.programs import program_of
    from planner.verify.sibling import Budget, work_of

    say = progress_to(quiet=False)
    plan = read_plan(options.plan)
    bind = bindings(options.bind) or plan.model.bind
    batch = options.batch if options.batch is not None else plan.model.batch
    graph = load_model(kept_model(options.plan, options.model, "MODEL"), bind=bind, batch=batch)
    program = program_of(plan, graph)
    wrong = check_program(program)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise VerificationError(f"plan {options.plan}: {wrong[0]}{more}; search again")
    training = plan.schedule.mode == "training"
    budget = Budget(TRAINING_FLOPS if training else INFERENCE_FLOPS)
    sibling = not options.whole and not budget.holds(work_of(graph, program.rules))

    def work() -> tuple[Verdict, str, int]:
        from planner.verify.check import verify_program

        if not sibling:
            return verify_program(program, seed=options.seed, progress=_meter(say)), "the whole graph", len(graph.ops)
        smaller = _sibling(plan, graph, budget)
        say(f"the whole graph is too large to execute here; proving a sibling: {smaller.description}")
        verdict = verify_program(smaller.program, seed=options.seed, progress=_meter(say))
        return verdict, smaller.description, len(smaller.graph.ops)

    verdict, description, operators = _in_child(work)
    if verdict.ok:
        full: Literal["full", "forward"] = "full" if training else "forward"
        write_plan(plan.model_copy(update={"verification": "sibling" if sibling else full}), options.plan)
    document = {
        "ok": verdict.ok,
        "max_error": verdict.max_error,
        "worst": verdict.worst,
        "devices": verdict.devices,
        "checked": list(verdict.checked),
        "scope": "sibling" if sibling else "whole",
        "executed": description,
        "operators": operators,
        "outputs": verdict.outputs,
        "parameters": verdict.parameters,
        "failures": list(verdict.failures),
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print(_text(document))
    return 0 if verdict.ok else 1


def _sibling(plan: PlanDocument, graph: Graph, budget: Budget) -> Sibling:
    from cost_models import load_profile
    from planner.planning.document import role_from_text
    from planner.pricing import Settings
    from planner.verify.sibling import make_sibling

    mesh = plan.mesh
    roles = {n: tuple(role_from_text(o.strategy[a]) for a in mesh.names) for n, o in plan.operators.items()}
    stored = {n: p.stored.layout() for n, p in plan.parameters.items()}
    schedule = plan.schedule
    settings = Settings(schedule.mode == "training", schedule.precision, schedule.optimizer, schedule.target)
    try:
        profile = load_profile(plan.cluster.hardware)
    except ValueError:  # a profile of the user's own; prices only choose among equivalent conversions here
        profile = load_profile("a100-80")
    return make_sibling(graph, mesh, roles, stored, settings, profile, budget)


def _in_child(work: Callable[[], tuple[Verdict, str, int]]) -> tuple[Verdict, str, int]:
    """`work()` in a child process: native code may abort on strange models, and nothing else can survive that."""
    from planner.frontends.sandbox import Limits, run_limited

    if "onnxruntime" in sys.modules:  # its threads do not survive a fork
        return work()
    unlimited = Limits(memory_bytes=1 << 42, cpu_seconds=10**7, wall_seconds=1e7)
    try:
        found: tuple[Verdict, str, int] = run_limited(work, limits=unlimited, what="executing the plan")
    except InputError as e:
        raise VerificationError(f"no verdict: {e}") from e
    return found


def _meter(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Reports every few seconds how far the sharded run has come."""
    last = time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"executed {done} of {total} instructions on every device")

    return tick


def _text(d: dict[str, Any]) -> str:
    head = "ok" if d["ok"] else "FAILED"
    lines = [
        f"{head}: {' and '.join(d['checked'])} of {d['executed']} on {d['devices']} virtual devices",
        f"  compared {d['outputs']} outputs with ONNX Runtime's, "
        f"{d['parameters']} parameter gradients with the whole graph's",
        f"  largest relative error {d['max_error']:.3g}" + (f" ({d['worst']})" if d["worst"] else ""),
    ]
    return "\n".join(lines + [f"  {f}" for f in d["failures"][:20]])
