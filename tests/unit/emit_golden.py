"""The golden files of every target (tests/golden/emit): plans that are kept, and what each target makes of them.

    python -m tests.unit.emit_golden            writes the files anew; look at the difference before it is committed
    python -m tests.unit.emit_golden --plans    searches the plans anew as well, which new prices may change

A folder TARGET/PLAN holds the files, `lost.txt` with what they do not carry, or `refused.txt` with the reason why there
are none.  ONNX models are kept as text.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import onnx
from google.protobuf import text_format

from planner.builder import build
from planner.cli.main import main
from planner.emit import TARGETS, Given, emit
from planner.errors import PlannerError
from planner.planning import PlanDocument, read_plan

__all__ = ["CASES", "FOLDER", "cases_of", "emitted", "expected"]

FOLDER: Final = Path(__file__).parents[1] / "golden" / "emit"
MLP: Final = ("mlp", {"features": 64, "hidden": 4096, "layers": 3, "classes": 32, "batch": 64})
GPT: Final = ("gpt", {"layers": 2, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8, "batch": 16})
ONE_LAYER: Final = (GPT[0], GPT[1] | {"layers": 1})
MOE: Final = (
    "moe",
    {"layers": 1, "hidden": 32, "heads": 4, "kv_heads": 4, "experts": 4, "vocab": 64, "seq": 8, "batch": 16},
)
LLAMA: Final = (
    "llama",
    {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "vocab": 64, "seq": 8, "batch": 16},
)
MEGATRON: Final = (
    "mesh=2x2", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y", "transformer.wte.gather i0=x v=y", "lm_head.matmul b0=x n=y",
    "lm_head.transpose d0=y", "rest=data_parallel",
)  # fmt: skip
TWO_LAYOUTS: Final = tuple(p for p in MEGATRON if "transpose" not in p)
LLAMA_PINS: Final = (
    "mesh=2x2", "*.[qkv]_proj.matmul b0=x n=y", "*.o_proj.matmul b0=x k=y", "*.gate_proj.matmul b0=x n=y",
    "*.up_proj.matmul b0=x n=y", "*.down_proj.matmul b0=x k=y", "model.embed_tokens.gather i0=x v=y",
    "lm_head.matmul b0=x n=y", "*.[qkv]_proj.weight stored=[_,x.y]", "*norm.weight stored=[x]",
)  # fmt: skip
BLOCKS: Final = (*(p for p in TWO_LAYOUTS if "rest" not in p), "input_ids layout=[x,_]", "labels layout=[x,_]")

CASES: Final[dict[str, tuple[tuple[str, dict[str, int]], tuple[str, ...]]]] = {
    "mlp-data": (MLP, ("--devices", "8", "--pin", "mesh=8", "--pin", "rest=data_parallel")),
    "mlp-zero": (MLP, ("--devices", "8", "--pin", "mesh=8", "--pin", "rest=zero")),
    "mlp-pipeline": (
        MLP,
        ("--devices", "8", "--stages", "2", "--micro-batches", "4", "--pin", "mesh=4", "--pin", "rest=data_parallel"),
    ),
    "gpt-tensor": (GPT, ("--devices", "4", "--target", "mindspore", *(o for p in MEGATRON for o in ("--pin", p)))),
    "gpt-two-layouts": (GPT, ("--devices", "4", *(o for p in TWO_LAYOUTS for o in ("--pin", p)))),
    "gpt-blocks": (
        ONE_LAYER,
        ("--devices", "4", *(o for p in (*BLOCKS, "*.layernormalization d0=x") for o in ("--pin", p))),
    ),
    "gpt-sequence": (
        ONE_LAYER,
        ("--devices", "4", *(o for p in (*BLOCKS, "*.ln_?.layernormalization d0=x d1=y") for o in ("--pin", p))),
    ),
    "gpt-recompute": (
        GPT,
        ("--devices", "4", "--pin", "mesh=4", "--pin", "rest=zero", "--recompute", "blocks", "--micro-batches", "4"),
    ),
    "llama-tensor": (LLAMA, ("--devices", "4", *(o for p in LLAMA_PINS for o in ("--pin", p)))),
    "llama-megatron": (LLAMA, ("--devices", "8", "--strategy", "megatron:tp=2,pp=2,micro_batch=2,recompute=full")),
    "moe-experts": (
        MOE,
        ("--devices", "4", "--pin", "mesh=4", "--pin", "reads=*.experts.* e=x", "--pin", "rest=data_parallel"),
    ),
}

# Of a network of nn.Linear, which holds weights the other way round: for targets that name its modules.
TURNED: Final = {"llama-tensor": ("dtensor", "huggingface")}
# As frameworks divide transformers that take degrees.
DEGREES: Final = dict.fromkeys(("gpt-blocks", "gpt-sequence"), ("torchtitan", "deepspeed", "megatron"))


def cases_of(target: str) -> tuple[str, ...]:
    return tuple(c for c in CASES if target in (TURNED | DEGREES).get(c, TARGETS))


@cache
def _models() -> Path:
    """A folder with the model of each case and names of its parameters, which outlives the tests of one run."""
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    for name, ((kind, sizes), _) in CASES.items():
        model = build(kind, sizes)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        turned = [i.name for i in model.graph.initializer if len(i.dims) == 2 and "embed" not in i.name]
        names = {"parameters": {n: {"name": n, "transposed": True} for n in turned if n.endswith(".weight")}}
        (folder / f"{name}.json").write_text(json.dumps(names), encoding="utf-8")
    return folder


def emitted(target: str, case: str) -> dict[str, bytes]:
    """File → content, as kept."""
    needs = "model" in TARGETS[target].needs
    plan = read_plan(FOLDER / "plans" / f"{case}.json")
    try:
        model, names = _models() / f"{case}.onnx", _models() / f"{case}.json"
        found = emit(target, Given(plan, names if case in TURNED else None, model_file=model if needs else None))
    except PlannerError as e:
        return {"refused.txt": f"{e}\n".encode()}
    files = {"lost.txt": "".join(f"{line}\n" for line in found.lost).encode()}
    for name, content in found.files.items():
        if name.startswith("rank_") and name not in ("rank_00000.onnx", "rank_00001.onnx"):
            continue  # like the second
        if name == "plan.json" and PlanDocument.model_validate_json(content) == plan:
            continue  # the plan itself, which is kept already
        if name.endswith(".onnx"):
            files[f"{name}.txt"] = _text(onnx.load_from_string(content)).encode()
        else:
            files[name] = content
    return files


def _text(model: onnx.ModelProto) -> str:
    """ONNX's own text, which cannot express device configurations, and these behind it."""
    devices = [text_format.MessageToString(c, as_one_line=True) for c in model.configuration]
    nodes = [
        f"{node.output[0]}: {text_format.MessageToString(c, as_one_line=True)}"
        for node in model.graph.node
        for c in node.device_configurations
    ]
    return "\n".join([onnx.printer.to_text(model), *devices, *nodes]) + "\n"


def expected(target: str, case: str) -> dict[str, bytes]:
    folder = FOLDER / target / case
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _write(plans: bool) -> None:
    for case, (_, options) in CASES.items():
        path = FOLDER / "plans" / f"{case}.json"
        if plans or not path.is_file():
            with tempfile.TemporaryDirectory() as out:
                model = str(_models() / f"{case}.onnx")
                arguments = ["search", model, "--hardware", "ascend-910b", "--no-cache", "--out", out]
                assert main([*arguments, *options]) == 0
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes((Path(out) / "plan.json").read_bytes())
    for target in TARGETS:
        shutil.rmtree(FOLDER / target, ignore_errors=True)
        for case in cases_of(target):
            for name, content in emitted(target, case).items():
                path = FOLDER / target / case / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


if __name__ == "__main__":
    _write("--plans" in sys.argv[1:])
