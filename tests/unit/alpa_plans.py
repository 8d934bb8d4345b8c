"""Alpa's plans for the models of its tests, pinned: what its tests assert of shardings, or its options force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.ir import Graph, Op
from tests.unit.known import TRAINING, Found, Links, Roles, of_weights, pinned

__all__ = [
    "WHOLE",
    "alternating_convolutions",
    "by_axis",
    "experts_by_data",
    "experts_over_one_axis",
    "experts_split_state",
    "masked_language_by_weights",
    "megatron_recomputed",
    "perceptron_by_data",
    "perceptron_split_state",
    "perceptron_split_state_2d",
    "tied_embedding_by_rows",
    "transformer_by_weights",
]

WHOLE = {"[_]", "[_,_]", "[_,_,_]", "[_,_,_,_]"}


def by_axis(axis: int, factor: str) -> Roles:
    """The factor on that axis; the other may do anything."""
    return (factor, None) if axis == 0 else (None, factor)


# Perceptrons.


def perceptron_by_data(graph: Graph, links: Links, axis: int) -> Found:
    return pinned(graph, links, of_weights(lambda _: by_axis(axis, "m")), lambda _: WHOLE)


def perceptron_split_state(graph: Graph, links: Links, axis: int) -> Found:
    """The batch split, all parameters stored split (ZeRO 2)."""
    name = "xy"[axis]
    split = {f"[{name},_]", f"[_,{name}]", f"[{name}]"}
    return pinned(graph, links, of_weights(lambda _: by_axis(axis, "m")), lambda _: split)


def perceptron_split_state_2d(graph: Graph, links: Links) -> Found:
    """The batch over the first axis; columns, rows over the second; all parameters stored split over both."""
    split = {"[x,y]", "[y,x]", "[x.y,_]", "[_,x.y]", "[x.y]"}
    roles = of_weights(lambda w: ("m", "k" if int(w.split(".")[0][-1]) % 2 else "n"))
    return pinned(graph, links, roles, lambda _: split)


# Transformers.


def transformer_by_weights(graph: Graph, links: Links, batch: str, column: Callable[[str], bool]) -> Found:
    """On two axes: the batch over the first; columns or rows, with a column's bias, over the second."""

    def stored(name: str) -> set[str]:
        module, _, kind = name.rpartition(".")
        if kind == "bias":
            return {"[y]"} if column(module) else {"[_]"}
        return {"[_]"} if "norm" in module else {"[_,y]"} if column(module) else {"[y,_]"}

    roles = of_weights(lambda w: (batch, "n" if column(w.removesuffix(".weight")) else "k"))
    return pinned(graph, links, roles, stored)


def megatron_recomputed(graph: Graph, links: Links, axis: int) -> Found:
    """Columns and rows in turn, normalisations repeated on every rank, and every layer computed again backward."""
    name = "xy"[axis]

    def column(module: str) -> bool:
        return module.endswith(("qvk_combined", "intermediate"))

    def roles(op: Op) -> Roles | None:
        if op.type == "LayerNormalization":
            return by_axis(axis, "_")
        return of_weights(lambda w: by_axis(axis, "n" if column(w.removesuffix(".weight")) else "k"))(op)

    def stored(parameter: str) -> set[str]:
        module, _, kind = parameter.rpartition(".")
        if "norm" in module:
            return {"[_]"}
        if kind == "bias":
            return {f"[{name}]" if column(module) else "[_]"}
        return {f"[_,{name}]" if column(module) else f"[{name},_]"}

    return pinned(graph, links, roles, stored, replace(TRAINING, recompute=True))


def tied_embedding_by_rows(graph: Graph, links: Links) -> Found:
    """The batch over the first axis, the vocabulary over the second."""
    roles = {"Gather": ("i0", "v"), "SoftmaxCrossEntropyLoss": ("n", "c")}
    return pinned(graph, links, lambda op: roles.get(op.type), lambda _: {"[y,_]"})


def masked_language_by_weights(graph: Graph, links: Links) -> Found:
    """The batch over the first axis; columns, rows and the vocabulary over the second; the head's transform whole."""

    def columns(name: str) -> bool:
        return name.rpartition(".")[0].endswith(("qvk_combined", "intermediate"))

    def roles(op: Op) -> Roles | None:
        if op.type == "Gather":
            return ("i0", "v" if op.inputs[0] == "words.weight" else "_")
        if op.type == "SoftmaxCrossEntropyLoss":
            return ("n", "c")
        if op.type != "MatMul" or not op.inputs[1].endswith(".weight"):
            return None
        return ("b0", "_" if "transform" in op.inputs[1] else "n" if columns(op.inputs[1]) else "k")

    def stored(name: str) -> set[str]:
        if name in ("words.weight", "decoder.bias"):
            return {"[y,_]", "[y]"}
        if not name.startswith("layer.") or "norm" in name:
            return WHOLE
        bias = name.endswith(".bias")
        return {"[y]" if bias else "[_,y]"} if columns(name) else {"[_]" if bias else "[y,_]"}

    return pinned(graph, links, roles, stored)


# Mixtures of experts.


def experts_over_one_axis(graph: Graph, links: Links) -> Found:
    """On two axes: the batch over both, the experts over the second."""

    def stored(name: str) -> set[str]:
        return {"[y,_,_]"} if name.endswith(("wi", "wo")) else WHOLE

    return pinned(graph, links, of_weights(lambda _: ("b0", "b0")), stored)


def experts_by_data(graph: Graph, links: Links) -> Found:
    """Everything replicated, experts too."""

    def roles(op: Op) -> Roles | None:
        if op.type == "Einsum" and op.inputs[1].endswith(("wi", "wo")):
            return (None, "G")
        return of_weights(lambda _: (None, "b0"))(op)

    return pinned(graph, links, roles, lambda _: WHOLE)


def experts_split_state(graph: Graph, links: Links) -> Found:
    """Experts split, all other parameters replicated in use and stored split."""

    def stored(name: str) -> set[str]:
        return {"[y,_,_]"} if name.endswith(("wi", "wo")) else {"[y,_]", "[_,y]", "[y]"}

    return pinned(graph, links, of_weights(lambda _: (None, "b0")), stored)


# Convolutions.


def alternating_convolutions(graph: Graph, links: Links, axis: int) -> Found:
    """Output channels and input channels in turn."""
    name = "xy"[axis]

    def roles(op: Op) -> Roles | None:
        return by_axis(axis, "oi"[int(op.inputs[1][5]) % 2]) if op.type == "Conv" else None

    def stored(parameter: str) -> set[str]:
        row = int(parameter.partition(".")[0][-1]) % 2
        if parameter.endswith(".weight"):
            return {f"[_,{name},_,_]" if row else f"[{name},_,_,_]"}
        return {"[_]" if row else f"[{name}]"}

    return pinned(graph, links, roles, stored)
