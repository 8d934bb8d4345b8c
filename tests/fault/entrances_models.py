"""Changed models, and what the planner does with a model that comes from outside."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx

from planner.api.jobs.requests import search_options
from planner.emit import TARGETS, Given, emit
from planner.errors import PlannerError
from planner.frontends import Imported
from planner.frontends.file.strip import strip_model
from planner.frontends.importer import import_bytes
from planner.planning import PlanDocument, read_plan
from planner.requests.cancel import Cancellation
from planner.requests.searcher import Searcher
from planner.requests.watch import Silent
from tests.fault.mutating import (
    WHOLE,
    changed_bytes,
    changed_message,
    varint_changed,
)

__all__ = [
    "SAMPLES",
    "changed_model",
    "changed_proto",
    "changed_wire",
    "models",
    "names_in",
    "options_of_search",
    "search",
    "use",
]

ROOT: Final = Path(__file__).parents[2]
SAMPLES: Final = ("mlp", "gpt_tiny", "bert_tiny", "llama_tiny", "moe_tiny", "resnet18_tiny", "vit_tiny")
STRATEGIES: Final = ("fsdp", "ddp", "zero1", "megatron:tp=2", "megatron:tp=2,pp=2", "megatron:dp=2,recompute=full")
SEARCHED: Final = 0.5  # of the models that are understood: the others end sooner
LARGEST_NODE_TEST: Final = 4096  # bytes


@cache
def models() -> tuple[tuple[onnx.ModelProto, tuple[str, ...]], ...]:
    """Sample graphs and ONNX's own tests of operators, with the names in each."""
    from onnx.backend.test.loader import load_node_model_tests

    found = [onnx.ModelProto.FromString((ROOT / "sample_graphs" / f"{n}.onnx").read_bytes()) for n in SAMPLES]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = [t.model for t in load_node_model_tests() if t.model.ByteSize() < LARGEST_NODE_TEST]
    hostile = [_parsed(p.read_bytes()) for p in sorted((ROOT / "tests" / "hostile").glob("*.onnx"))
               if p.stat().st_size < LARGEST_NODE_TEST]  # fmt: skip
    kinds = tuple(sorted({n.op_type for m in found + small for n in m.graph.node}))
    return tuple((m, (*names_in(m), *kinds)) for m in (*found * 40, *small, *filter(None, hostile)))


def _parsed(content: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(content)
    except Exception:
        return None


def names_in(model: onnx.ModelProto) -> list[str]:
    """Of tensors, attributes and dimensions, each a few times as likely as an operator's type."""
    out = [n for node in model.graph.node for n in (*node.input, *node.output, *(a.name for a in node.attribute))]
    return (out or ["x"]) * 4


def changed_model(rng: random.Random) -> tuple[bytes, str]:
    source, names = rng.choice(models())
    model = onnx.ModelProto()
    model.CopyFrom(source)
    return _changed(model, rng, names), ".onnx"


def changed_proto(content: bytes, rng: random.Random) -> bytes:
    """A model by its structure, and what is none by bytes."""
    model = _parsed(content)
    if model is None or rng.random() < 0.1:
        return changed_bytes(content, rng)
    return _changed(model, rng, [*names_in(model), *rng.choice(models())[1]])


def _changed(model: onnx.ModelProto, rng: random.Random, names: Sequence[str]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if rng.random() < 0.15 and model.graph.node:
            _rewire(model, rng, names)
        else:
            changed_message(model, rng, names)
    return model.SerializeToString()


def _rewire(model: onnx.ModelProto, rng: random.Random, names: Sequence[str]) -> None:
    """An operand of another operator, another operator in its place, or another size of a tensor."""
    node = rng.choice(model.graph.node)
    declared = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    match rng.randrange(4):
        case 0 if node.input:
            other = rng.choice(model.graph.node)
            node.input[rng.randrange(len(node.input))] = rng.choice((*other.input, *other.output, ""))
        case 1:
            node.op_type = rng.choice(names)
        case 2 if model.graph.initializer:
            t = rng.choice(model.graph.initializer)
            if t.dims:
                t.dims[rng.randrange(len(t.dims))] = rng.choice(WHOLE[:12])
        case _ if declared:
            dims = rng.choice(declared).type.tensor_type.shape.dim
            if dims:
                rng.choice(dims).dim_value = rng.choice((0, 1, 2, 3, 4, 5, 7, 8, 1024, 2**31, 2**40, -1))


def changed_wire(rng: random.Random) -> tuple[bytes, str]:
    content = rng.choice(models())[0].SerializeToString()
    return (changed_bytes(content, rng) if rng.random() < 0.7 else varint_changed(content, rng)), ".onnx"


def options_of_search(rng: random.Random) -> dict[str, Any]:
    out: dict[str, Any] = {"devices": rng.choice((1, 2, 2, 4, 4, 6, 8)), "time_limit": 2.0, "name": "m"}
    more = {
        "mode": ("training", "inference"), "batch": (1, 4, 6, 64), "recompute": ("none", "blocks"),
        "stages": (2, 3), "micro_batches": (2, 4), "optimizer": ("sgd", "momentum"), "precision": ("fp32", "fp16"),
        "memory_limit": ("1MiB", "64GiB", "1KiB"), "space": ("whole", "operators"), "strategy": STRATEGIES,
        "target": ("torch", "megatron", "mindspore"), "mesh": ("2x2", "4", "2"), "top_k": (2,),
        "hardware": ("ascend-910b", "h100", "v100"), "pin": (["rest=data_parallel"], ["* m=x"]),
    }  # fmt: skip
    for name in rng.sample(list(more), rng.choice((0, 0, 1, 1, 2, 3))):
        out[name] = rng.choice(more[name])
    return out


def search(path: Path, rng: random.Random) -> str:
    """What a child of the service does with a model, and with its plan where there is one."""
    content = path.read_bytes()
    batch = rng.choice((None, None, None, 4, 7))
    graph = import_bytes(content, name="m", batch=batch)
    stripped = strip_model(content, "m.onnx")
    if rng.random() > SEARCHED:
        return "imported"
    given = options_of_search(rng)
    given.pop("batch", None)
    model = path.with_name("m.onnx")
    model.write_bytes(stripped)
    options = search_options(given | ({} if batch is None else {"batch": batch}))
    options.model = model
    graphs = {batch: Imported(graph, stripped)}
    (devices,) = options.counts
    answer = Searcher(options, None, None, Cancellation(), watch=Silent(), graphs=graphs).search(devices)
    plan = PlanDocument.model_validate_json(answer.plans[0])
    use(plan, path.with_name("plan.json"), model, rng, text=answer.plans[0])
    return "planned"


def use(plan: PlanDocument, path: Path, model: Path | None, rng: random.Random, text: str | None = None) -> None:
    """Writes, reads, reports and emits it; a target may refuse."""
    from planner.report import diff_document, report_document, report_html, trace_document

    if text is not None:
        path.write_text(text, encoding="utf-8")
        read_plan(path)
    use = rng.choice((report_document, report_html, trace_document, lambda p: diff_document(p, p)))
    use(plan)
    for target in rng.sample(sorted(TARGETS), 3):
        needs = "model" in TARGETS[target].needs
        if needs and model is None:
            continue
        try:
            emit(target, Given(plan, model_file=model if needs else None))
        except PlannerError:
            continue
