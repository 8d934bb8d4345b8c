"""ranks.json: what every rank's file takes and gives, as parts of the model's tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from planner.emit.onnx.domain import DOMAIN, VERSION
from planner.emit.onnx.ranks.rank import Held, RankGraph
from planner.ir import DeviceMesh, Graph

__all__ = ["SCHEMA", "entry_of", "index_text"]

SCHEMA: Final = "planner.onnx-ranks/1"


def entry_of(rank: RankGraph, file: str) -> dict[str, Any]:
    """What one file takes (`inputs`), holds (`initializers`) and gives (`outputs`)."""
    sides = {"inputs": rank.inputs, "initializers": rank.stored, "outputs": rank.outputs}
    return {"rank": rank.rank, "file": file, **{side: _side(rank, held) for side, held in sides.items()}}


def _side(rank: RankGraph, held: Mapping[str, Held]) -> dict[str, Any]:
    out = {}
    for name, h in held.items():
        t = rank.graph.tensors[h.tensor]
        layout = {k: v for k, v in h.layout.to_json("").items() if k != "mesh"}
        out[name] = {"tensor": h.tensor, "role": str(t.role), "layout": layout, "region": _region(rank, h)}
    return out


def _region(rank: RankGraph, h: Held) -> list[list[int]] | None:
    shape = rank.graph.tensors[h.tensor].shape
    if shape is None:
        return None
    return [[s.start, s.stop] for s in h.layout.region_in_parts(shape, rank.mesh, rank.rank)]


def index_text(mesh: DeviceMesh, graph: Graph, entries: list[dict[str, Any]]) -> bytes:
    """The file: a rank to a line."""
    named = {h["tensor"] for e in entries for side in ("inputs", "initializers", "outputs") for h in e[side].values()}
    tensors = {
        n: {"shape": None if t.shape is None else list(t.shape), "dtype": t.dtype}
        for n, t in graph.tensors.items()
        if n in named
    }
    head = {
        "schema": SCHEMA,
        "model": graph.name,
        "domain": {"name": DOMAIN, "version": VERSION},
        "mesh": [{"name": a.name, "size": a.size} for a in mesh.axes],
        "tensors": tensors,
    }
    lines = ",\n ".join(json.dumps(e) for e in entries)
    return (json.dumps(head)[:-1] + ',\n"ranks": [\n ' + lines + "\n]}\n").encode()
