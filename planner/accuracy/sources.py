"""What training frameworks do that a published row does not say, by framework and version, each with its source.

A row's own fields always win; `NOTES` are phrases of a row's own text that settle a field.  Nothing here is keyed by
data set, model or row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["FRAMEWORKS", "HARDWARE", "Framework", "framework_of", "hardware_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Defaults of a framework.

    Attributes:
        pattern: begins the row's `source` (repository, and commit or path where versions differ).
        tensor: fields of `Configuration` that hold where tensor parallelism is used.
        always: fields that hold always.
        zero: optimizer sharding where the row says nothing; `zero_with_pipeline` replaces 3 where there are stages.
        interleaves: whether several chunks per pipeline rank are customary, so that a missing count is a gap.
        micro_batches: what a missing micro-batch size means; `stages`: the local batch is cut in as many parts as
            there are stages; `one`: samples one by one.
        recompute: what a missing statement on recomputation means; None: whatever memory demands.
        offloads: with parameters divided, activations that do not fit wait in the host's memory.
        vocab_multiple: the vocabulary is padded to this times the tensor-parallel ranks; 0: not padded.
        untied: decoders of GPT's kind have an output layer of their own.
        notes: (phrase, fields) that a row's note or precision settles.
        files: (pattern, fields) of the configuration files that a row's source names, for what rows leave out of them;
            the last that is found wins.
    """

    name: str
    pattern: str
    source: str
    always: Mapping[str, Any] = field(default_factory=dict)
    tensor: Mapping[str, Any] = field(default_factory=dict)
    zero: Literal[0, 1, 2, 3] = 0
    zero_with_pipeline: Literal[1, 3] = 3
    interleaves: bool = False
    micro_batches: Literal["one", "stages"] = "one"
    recompute: Literal["none", "selective", "full"] | None = None
    offloads: bool = False
    vocab_multiple: int = 0
    untied: bool = False
    notes: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    files: tuple[tuple[str, Mapping[str, Any]], ...] = ()


_OVERLAPPED: Final[Mapping[str, Any]] = {"overlap_gradients": True, "overlap_parameters": True}
_EARLY: Final[Mapping[str, Any]] = {"attention": "unfused", "sequence_parallel": False, "loss": "operators"}
_SPLIT_SEQUENCE: Final[Mapping[str, Any]] = {"sequence_parallel": True}
_HIDDEN_TENSOR: Final[Mapping[str, Any]] = {"sequence_parallel": True, "overlap_tensor": True}
_TRANSFORMER_ENGINE: Final[Mapping[str, Any]] = {**_HIDDEN_TENSOR, "cast_gathers": True}
_HALF: Final[Mapping[str, Any]] = {"parameter_bytes": 2, "gradient_bytes": 2}
_SINGLE: Final[Mapping[str, Any]] = {"parameter_bytes": 4, "gradient_bytes": 4}

FRAMEWORKS: Final[tuple[Framework, ...]] = (
    Framework(
        name="llm-foundry",
        pattern=r"mosaicml/llm-foundry",
        source="mosaicml/llm-foundry scripts/train/benchmarking: PyTorch FSDP, limit_all_gathers, flash attention 2, "
        "eager mode; mosaicml/composer: mixed precision DEFAULT reduces in fp32, PURE in bf16",
        always={**_OVERLAPPED, "fuse": False, "loss": "softmax"},
        zero=3,
        recompute="none",
        notes=((r"MP mode PURE", {"gradient_bytes": 2}),),
    ),
    Framework(
        name="Megatron-LM 2020-2021",
        pattern=r"NVIDIA/Megatron-LM@\w+:images/(tables\.tex|cases_april2021)",
        source="Megatron-LM (1909.08053), 2104.04473: fused softmax without flash attention, full recomputation, "
        "gradients summed in fp32 after the backward pass, no distributed optimizer",
        always=_EARLY,
        recompute="full",
        vocab_multiple=128,
    ),
    Framework(
        name="Megatron-LM 2022",
        pattern=r"calculon-ai/calculon",
        source="2205.05198 tables 4 and 5: baseline with full recomputation, or sequence parallelism with selective",
        always=_EARLY,
        recompute="full",
        vocab_multiple=128,
    ),
    Framework(
        name="Megatron-DeepSpeed 2022",
        pattern=r"VIA-Research/vTrain",
        source="vTrain (2312.12391), config/validation: use_checkpoint true, 1f1b, use_gradient_bucket false",
        always=_EARLY,
        recompute="full",
        vocab_multiple=128,
    ),
    Framework(
        name="Megatron-LM 2024",
        pattern=r"NVIDIA/Megatron-LM",
        source="NVIDIA/Megatron-LM README.md (June 2024): --overlap-grad-reduce, --overlap-param-gather, "
        "--use-distributed-optimizer, --tp-comm-overlap, flash attention, untied output (parameters agree)",
        always={**_OVERLAPPED, "overlap_pipeline": True, "attention": "native"},
        tensor=_HIDDEN_TENSOR,
        zero=1,
        interleaves=True,
        vocab_multiple=128,
        untied=True,
    ),
    Framework(
        name="Megatron Bridge",
        pattern=r"NVIDIA-NeMo/Megatron-Bridge",
        source="NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs: grad_reduce_in_fp32 false, no recomputation "
        "but where a base configuration names it, tp_comm_overlap unless NVFP4; FSDP (zero 3) is Megatron's own, with "
        "cpu_offloading_num_layers; "
        "Transformer Engine quantises what it gathers",
        always={**_OVERLAPPED, "overlap_pipeline": True, "gradient_bytes": 2, "attention": "native"},
        tensor=_TRANSFORMER_ENGINE,
        zero=1,
        interleaves=True,
        recompute="none",
        offloads=True,
        vocab_multiple=128,
        notes=((r"NVFP4", {"overlap_tensor": False}),),
    ),
    Framework(
        name="NeMo",
        pattern=r"NVIDIA/NeMo",
        source="NVIDIA/NeMo docs/source/performance: distributed optimizer with overlapped bf16 gradient sums and "
        "parameter gathering, tensor-parallel overlap, flash attention, sequence parallelism; Transformer Engine",
        always={**_OVERLAPPED, "overlap_pipeline": True, "gradient_bytes": 2, "attention": "native"},
        tensor=_TRANSFORMER_ENGINE,
        zero=1,
        interleaves=True,
        vocab_multiple=128,
    ),
    Framework(
        name="torchtitan",
        pattern=r"pytorch/torchtitan",
        source="torchtitan (2410.06511): fully_shard with fp32 reduction, compile, sequence parallelism; "
        "parallelize_llama.py keeps parameters gathered where there are stages; torch.distributed.pipelining sums "
        "gradients over ranks once a step, and holds them whole until then; pipeline_llama.py cuts the local batch "
        "in as many micro-batches as stages; float8_tensor_parallel of torchao casts before it gathers, with scales "
        "by row after (pytorch/torchtitan issue 845); the loss is compiled since bbb1b616 (April 2025)",
        always={**_OVERLAPPED, "loss": "softmax"},
        tensor={**_SPLIT_SEQUENCE, "cast_gathers": True},
        zero=3,
        zero_with_pipeline=1,
        interleaves=True,
        micro_batches="stages",
        notes=((r"async ?tp", {"overlap_tensor": True}), (r"fp8-row", {"cast_gathers": False})),
        files=((r":benchmarks/\S*_2025-?(0[4-9]|1[0-2])", {"loss": "fused"}),),
    ),
    Framework(
        name="SimuMax benchmark (Megatron-LM 0.14)",
        pattern=r"MooreThreads/SimuMax",
        source="MooreThreads/SimuMax docs/b200/b200_real_repro_guide.md, simu_tools/megatron_scripts: no overlap, "
        "distributed optimizer, fp32 gradient sums, flash attention, sequence parallelism, no layer recomputed",
        always={"attention": "native"},
        tensor=_SPLIT_SEQUENCE,
        zero=1,
        recompute="none",
        vocab_multiple=128,
    ),
    Framework(
        name="MindFormers",
        pattern=r"mindspore-lab/mindformers",
        source="mindspore-lab/mindformers r1.3.0: graph mode, flash attention, optimizer parallel, "
        "gradient sums in fused groups beside the backward pass, mindformers/core/loss/loss.py; param_init_type and "
        "use_flash_attention of its configuration files; "
        "mindspore.cn tutorials on micro-batch interleaving",
        always={**_OVERLAPPED, **_SINGLE, "sequence_parallel": False, "attention": "native", "loss": "one_hot"},
        zero=1,
        notes=((r"\b(fp|float)16", _HALF),),
        files=(
            (r"configs/(glm[23]/|llama2/\w+_bf16)|research/(deepseek2|mixtral|qwenvl)/", _HALF),
            (r"research/(llama3/finetune_llama3_8b|llama3_1/finetune_llama3_1_8b|yi/finetune_yi_6b)", _HALF),
            (r"configs/gpt2/(\w+_small_(lora|txtcls)|pretrain_gpt2_small|run_gpt2(_lora|_txtcls)?\.yaml)", _SINGLE),
            (r"research/qwen/finetune_qwen_7b(_auto_parallel)?\.yaml", _SINGLE),
            (r"configs/gpt2/|configs/glm\d/run_\w+_800_32G", {"attention": "unfused"}),
            (r"configs/glm\d/run_glm\d_6b\.yaml|configs/glm3/run_\w+_finetune_800T", {"attention": "unfused"}),
            (r"configs/glm3/finetune_glm3_6b_bf16|research/deepseek2/", {"attention": "unfused"}),
        ),
    ),
    Framework(
        name="MindSpeed-LLM",
        pattern=r"Ascend/(MindSpeed-LLM|ModelLink)",
        source="Ascend/MindSpeed-LLM 1.0.RC3 README.md and examples: Megatron with --use-flash-attn, "
        "--sequence-parallel, --overlap-grad-reduce; mc2 fuses products with tensor-parallel collectives; "
        "--use-fused-swiglu and --use-fused-rotary-pos-emb in examples/mcore; no --use-flash-attn for Bloom",
        always={"overlap_gradients": True, "attention": "native", "fuse": False, "loss": "operators"},
        tensor=_SPLIT_SEQUENCE,
        recompute="none",
        vocab_multiple=128,
        notes=((r"mc2[^;]* on", {"overlap_tensor": True}),),
        files=((r"examples/mcore/", {"fuse": True}), (r"bloom", {"attention": "unfused"})),
    ),
)

GENERIC: Final = Framework(
    name="unknown",
    pattern="",
    source="assumed: fused attention, gradient sums beside the backward pass",
    always=_OVERLAPPED,
)

# Hardware as published -> profiles in order of preference; what follows the product name (host, system) adds nothing.
HARDWARE: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (r"GB300", ("gb300",)),
    (r"GB200", ("gb200",)),
    (r"B300", ("b300",)),
    (r"B200", ("b200",)),
    (r"H200", ("h200",)),
    (r"H100-?96GB", ("h100-96",)),
    (r"H100-?PCIe", ("h100-pcie",)),
    (r"H100", ("h100",)),
    (r"A100-?PCIe", ("a100-pcie",)),
    (r"A100-(SXM\d?-)?40GB", ("a100-40",)),
    (r"A100", ("a100-80",)),
    (r"V100", ("v100",)),
    (r"L40S", ("l40s",)),
    (r"910C|Atlas 900 A3|Atlas 800T A3", ("ascend-910c",)),
    (r"910B1", ("ascend-910b1", "ascend-910b")),
    (r"910B2", ("ascend-910b2", "ascend-910b")),
    # The Atlas 800T A2 is sold with 280 and 313 TFLOP/s parts, the Atlas 900 A2 PoDc with 376 TFLOP/s ones; rows of the
    # same configuration on both differ by 12 %, which bears that out.
    (r"910B3|Atlas 800T A2", ("ascend-910b3", "ascend-910b")),
    (r"910B4", ("ascend-910b4",)),
    (r"910B|Atlas 900 A2", ("ascend-910b",)),
    (r"910A|Ascend 910\b", ("ascend-910a",)),
)


def framework_of(source: str) -> Framework:
    """The first framework whose pattern begins the source; the generic one where none does."""
    return next((f for f in FRAMEWORKS if re.match(f.pattern, source)), GENERIC)


def hardware_of(name: str, profiles: Collection[str]) -> str | None:
    """The profile for a published hardware name, None where the product or its profile is unknown."""
    for pattern, candidates in HARDWARE:
        if re.search(pattern, name, re.IGNORECASE):
            return next((c for c in candidates if c in profiles), None)
    return None
