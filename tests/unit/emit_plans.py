"""Plans for the tests of emitters: searched ones, and documents edited to have more layers or stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from planner.cli.main import main
from planner.planning import PlanDocument, read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
MEGATRON = (
    "mesh=4x2", "*.q_proj.matmul b0=x n=y", "*.k_proj.matmul b0=x n=y", "*.v_proj.matmul b0=x n=y",
    "*.o_proj.matmul b0=x k=y", "*.gate_proj.matmul b0=x n=y", "*.up_proj.matmul b0=x n=y",
    "*.down_proj.matmul b0=x k=y", "*.softmax d0=x d1=y", "*.embed_tokens.gather i0=x v=y", "lm_head.matmul b0=x n=y",
    "*.self_attn.add_2 produced=[x,_,_]", "model.layers.?.add produced=[x,_,_]",
    "model.embed_tokens.gather layout=[x,_,_]",
)  # fmt: skip
"""llama_tiny.onnx after Shoeybi et al. 2019, every sum reduced where it arises."""


def search(folder: Path, model: str, devices: int, *pins: str, recompute: str = "auto") -> PlanDocument:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / model), "--devices", str(devices), "--hardware", "ascend-910b", "--no-cache"]
    assert main([*arguments, "--recompute", recompute, "--out", str(folder), "--force", *options]) == 0
    return read_plan(folder / "plan.json")


def deepened(plan: PlanDocument, layers: int) -> PlanDocument:
    """A plan of llama_tiny with so many layers, the last of its own repeated."""
    document = plan.model_dump(by_alias=True)
    last = "model.layers.1."

    def repeated(table: dict[str, object]) -> dict[str, object]:
        own = {n: v for n, v in table.items() if n.startswith(last)}
        out: dict[str, object] = {}
        for n, v in table.items():
            out[n] = v
            if own and n == list(own)[-1]:
                for k in range(2, layers):
                    text = json.dumps(own).replace("model.layers.1", f"model.layers.{k}")
                    out |= json.loads(text)
        return out

    for table in ("operators", "parameters", "tensors"):
        document[table] = repeated(document[table])
    blocks = document["schedule"]["recompute"]
    if blocks:
        text = json.dumps(blocks[-1])
        blocks += [json.loads(text.replace("model.layers.1", f"model.layers.{k}")) for k in range(2, layers)]
    return PlanDocument.model_validate(document)


def staged(plan: PlanDocument, where: Sequence[int], *, micro_batches: int) -> PlanDocument:
    """A plan of llama_tiny with layer i on stage `where[i]`, what is before the layers on the first stage, what is
    behind them on the last."""
    document = plan.model_dump(by_alias=True)
    stages = max(where) + 1
    document["stages"] = document["stages"] * stages
    document["cluster"]["devices"] *= stages
    document["schedule"] |= {"stages": stages, "micro_batches": micro_batches}
    seen = False
    for name, op in document["operators"].items():
        inside = name.startswith("model.layers.")
        seen = seen or inside
        op["stage"] = where[int(name.split(".")[2])] if inside else (stages - 1 if seen else 0)
    return PlanDocument.model_validate(document)
