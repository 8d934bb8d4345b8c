"""Graphs and counts that the tests of the evaluator share."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from planner.builder import build
from planner.cost_models import load_profile
from planner.cost_models.kernels import Kernel
from planner.evaluate import Configuration, layout_of, program_of_configuration, traced_as
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.lowering import Program
from planner.trace import Unit, Workload

B, S, H, A, V = 1, 2048, 2048, 16, 32768  # samples, sequence, hidden width, heads, vocabulary
SBH = B * S * H
PRODUCTS = ("product", "convolution")


_BUILT: WeakKeyDictionary[Graph, tuple[str, dict[str, Any]]] = WeakKeyDictionary()


@lru_cache(maxsize=256)
def graph(architecture: str, **sizes: Any) -> Graph:
    made = import_bytes(build(architecture, sizes).SerializeToString(), name=architecture)
    _BUILT[made] = architecture, sizes
    return made


def gpt(layers: int = 3, **sizes: Any) -> Graph:
    return graph("gpt", **{"layers": layers, "batch": B, "seq": S, "hidden": H, "heads": A, "vocab": V, **sizes})


def llama(layers: int = 3, **sizes: Any) -> Graph:
    given = {"batch": B, "seq": S, "hidden": H, "heads": A, "kv_heads": 4, "ffn": 5632, "vocab": V}
    return graph("llama", **{"layers": layers, **given, **sizes})


def small(layers: int = 4) -> Graph:
    """Large enough to price in compute, small enough to trace in a moment."""
    return gpt(layers, seq=512, hidden=1024, heads=8, vocab=8192)


def blocks(w: Workload) -> list[Unit]:
    return [u for u, repeated in zip(w.units, w.repeated, strict=True) if repeated]


def sent(u: Unit, phase: str) -> Counter[tuple[str, str, bool]]:
    """(kind, axes, hidden) → how often."""
    found: Counter[tuple[str, str, bool]] = Counter()
    for t, n in {"forward": u.sent_forward, "backward": u.sent_backward, "core": u.sent_core}[phase].items():
        found[t.kind, ".".join(t.axes), t.hidden] += n
    return found


def flops(u: Unit, phase: str, *kinds: str) -> float:
    kernels: dict[Kernel, int] = dict(u.forward if phase == "forward" else u.backward)
    return sum(k.flops * n for k, n in kernels.items() if k.kind in kinds)


def traced(g: Graph, **c: Any) -> Workload:
    return workload(g, Configuration(**c))


def workload(g: Graph, c: Configuration) -> Workload:
    """Of one rank; `g`, which `graph` has built, is of one rank's samples, and those it shares experts with."""
    return _workload(g, c.attention != "unfused", c.fuse, layout_of(c))


@lru_cache(maxsize=1024)
def _workload(g: Graph, fused: bool, fuse: bool, c: Configuration) -> Workload:
    return traced_as(c.with_(attention="fused" if fused else "unfused", fuse=fuse), _program(g, c))


@lru_cache(maxsize=512)
def _program(g: Graph, c: Configuration) -> Program:
    architecture, sizes = _BUILT[g]
    (samples,) = {s[0] for t in g.inputs if (s := g.tensors[t].shape)}
    whole = graph(architecture, **{**sizes, "batch": samples // c.ep * c.dp})
    return program_of_configuration(whole, c, load_profile("a100-80"))
