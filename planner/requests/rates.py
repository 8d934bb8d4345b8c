"""What a step does per second: samples, tokens, operations of a device, and MFU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.cost_models import HardwareProfile
    from planner.ir import Graph
    from planner.planning import PlanDocument

__all__ = ["computed_flops", "rates", "rates_beside", "rates_of_plan", "tokens_of_sample", "utilisation"]

# The backward pass computes once as much as the forward pass for the gradients of activations.
_PASSES: Final = {"frozen": 2, "inference": 1}


def rates(
    graph: Graph,
    micro_batches: int,
    batch: int | None,
    seconds: float,
    devices: int,
    profile: HardwareProfile,
    *,
    precision: str,
    mode: str = "training",
    frozen: bool = False,
) -> dict[str, float | None]:
    """`graph`: of a micro-batch, of which a step has so many; `frozen`: no gradients of weights are computed; None for
    what cannot be counted."""
    rate = tokens = None
    if batch is not None and seconds > 0:
        rate = batch / seconds
        each = tokens_of_sample(graph)
        tokens = None if each is None else rate * each
    kind = "frozen" if frozen and mode == "training" else mode
    flops_per_s, mfu = utilisation(graph, micro_batches, seconds, devices, profile, precision=precision, mode=kind)
    return {"samples_per_s": rate, "tokens_per_s": tokens, "flops_per_s_per_device": flops_per_s, "mfu": mfu}


def rates_of_plan(plan: PlanDocument, graph: Graph, profile: HardwareProfile) -> dict[str, float | None]:
    """`graph`: as the plan has it, of a micro-batch."""
    from planner.report.diff.batch import samples

    s = plan.schedule
    return rates(
        graph,
        s.micro_batches,
        samples(plan),
        plan.cost.step_time_s,
        plan.devices,
        profile,
        precision=s.precision,
        mode=s.mode,
        frozen=bool(s.run.get("frozen")),
    )


def rates_beside(plan: PlanDocument, model: Path) -> dict[str, float | None]:
    """By the model that was planned, where it lies beside the plan; nothing where it cannot be read."""
    from planner.planning.rebuild import profile_of_plan
    from planner.requests.model import ModelSource

    if not model.is_file():
        return {}
    try:
        graph = ModelSource(model).load(bind=plan.model.bind, batch=plan.model.batch)
        return rates_of_plan(plan, graph, profile_of_plan(plan)) if graph.digest == plan.model.digest else {}
    except PlannerError:
        return {}


def utilisation(
    graph: Graph,
    micro_batches: int,
    seconds: float,
    devices: int,
    profile: HardwareProfile,
    *,
    precision: str,
    mode: str,
) -> tuple[float | None, float | None]:
    """Operations a second and device, and their share of what the machine's products reach at most; `graph`: of a
    micro-batch; `mode` as of `computed_flops`.  None for both where they cannot be counted."""
    from planner.cost_models.device import resolve_rate

    computed = computed_flops(graph, mode) * micro_batches
    if not computed or profile.device is None or seconds <= 0:
        return None, None
    flops_per_s = computed / seconds / devices
    return flops_per_s, flops_per_s / resolve_rate(profile.device.matmul_flops_per_s, precision)


def computed_flops(graph: Graph, mode: str = "training") -> int:
    """Operations that a step of the graph computes; `mode`: training, frozen (training without gradients of any
    weight) or inference.  In training, weights that the graph has as constants have no gradient, and what no trained
    weight enters has no backward pass."""
    from planner.frontends.facts.flops import flops

    if mode != "training":
        return sum(flops(graph, op) for op in graph.ops) * _PASSES[mode]
    passes = _passes_by_operator(graph)
    return sum(flops(graph, op) * passes[op.name] for op in graph.ops)


def _passes_by_operator(graph: Graph) -> dict[str, int]:
    """How often a training step computes as much as the forward pass of an operator does: for the result, and for the
    gradients of the two factors of a product.  The gradient of an input of the model counts, as is usual: a model that
    is trained whole has three passes throughout."""
    from planner.ir import Role
    from planner.work.activity import trained_parameters

    trained = trained_parameters(graph)
    still = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
    still.update(t.name for t in graph.parameters if t.name not in trained)
    entered = set(trained)
    passes = {}
    for op in graph.ops:
        read = [t for t in op.inputs if t]
        if read and all(t in still for t in read):
            still.update(t for t in op.outputs if t)
        if not any(t in entered for t in read):
            passes[op.name] = 1
            continue
        entered.update(t for t in op.outputs if t)
        passes[op.name] = 2 if any(t in still for t in op.inputs[:2]) else 3
    return passes


def tokens_of_sample(graph: Graph) -> int | None:
    """Tokens of a sample; None where the first input is not a row of them for each."""
    first = graph.tensors[graph.inputs[0]] if graph.inputs else None
    if first is not None and first.shape is not None and len(first.shape) == 2 and first.dtype.startswith("int"):
        return first.shape[1]
    return None
