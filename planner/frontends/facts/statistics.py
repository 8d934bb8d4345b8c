"""Batch normalisations that an export has frozen: they normalise by stored statistics, or have become part of a
convolution.  What is exported so cannot be told from a network whose statistics are frozen on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir import Graph, Op, Role

__all__ = ["frozen_statistics"]

_TO_TRAIN = (
    "to train them, export a module in train() with torch.onnx.export(..., dynamo=False, "
    "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)"
)


def frozen_statistics(graph: Graph) -> list[str]:
    """Of a graph that is to be trained, a line for each kind of batch normalisation whose statistics are neither
    computed from the batch nor updated."""
    stored = [op.name for op in graph.ops if op.type == "BatchNormalization" and not _trains(op)]
    folded = [op.name for op in graph.ops if op.type in ("Conv", "ConvTranspose") and _folded(op, graph)]
    out = []
    if stored:
        out.append(
            f"stored statistics normalise in {_these(stored, 'batch normalisation')}, as exported for inference: the "
            f"plan neither computes them from the batch nor updates them, and has no collectives for it; {_TO_TRAIN}"
        )
    if folded:
        out.append(
            f"the exporter seems to have folded a batch normalisation into the weights of "
            f"{_these(folded, 'convolution')}: the plan trains no such normalisation; {_TO_TRAIN}"
        )
    return out


def _trains(op: Op) -> bool:
    by_age = op.opset < 7 and not op.attributes.get("is_test", 0)
    return bool(op.attributes.get("training_mode", 0)) or any(op.outputs[1:]) or by_age


def _folded(op: Op, graph: Graph) -> bool:
    """Whether the weight goes by a name of the exporter's own, or is of another module than the operator, which has
    then the path of the normalisation."""
    weight = graph.tensors.get(op.inputs[1])
    if weight is None or weight.role is not Role.PARAMETER:
        return False
    if weight.name.startswith("onnx::Conv"):
        return True
    owner = weight.name.rpartition(".")[0]
    around = f"{owner}.".startswith(f"{op.module}.") or op.module.endswith(f".{owner}")
    return bool(owner and op.module) and not around


def _these(names: Sequence[str], what: str) -> str:
    more = f", and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({', '.join(names[:3])}{more})"
