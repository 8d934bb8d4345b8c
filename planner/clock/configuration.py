"""`Configuration`: a parallel training configuration as people write it down, whatever the framework.

The text form is `scheme:key=value,…`: `megatron:tp=8,pp=4,dp=2,zero=1,recompute=full,micro_batch=1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, Literal, get_args

from planner.cost_models.pipeline import chunks_of_schedule
from planner.errors import UsageError

__all__ = [
    "ATTENTIONS",
    "CONTEXTS",
    "LOSSES",
    "MATRIX_TYPES",
    "RECOMPUTES",
    "SCHEDULES",
    "Configuration",
    "Context",
    "Loss",
    "MatrixType",
    "Recompute",
    "Schedule",
]

Recompute = Literal["none", "selective", "products", "full"]
Attention = Literal["unfused", "fused", "native"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
Context = Literal["ring", "all-to-all", "gather"]
Loss = Literal["fused", "softmax", "operators", "one_hot"]
MatrixType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp8-row", "mxfp8", "fp4"]
RECOMPUTES: Final[tuple[str, ...]] = get_args(Recompute)
CONTEXTS: Final[tuple[Context, ...]] = get_args(Context)
ATTENTIONS: Final[tuple[str, ...]] = get_args(Attention)
SCHEDULES: Final[tuple[str, ...]] = get_args(Schedule)
LOSSES: Final[tuple[str, ...]] = get_args(Loss)
MATRIX_TYPES: Final[tuple[str, ...]] = get_args(MatrixType)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """How a model is trained on `devices` = dp · cp · tp · pp ranks (tp innermost, then cp, dp, pp).

    Attributes:
        dp, tp, pp, cp: ranks of data, tensor, pipeline and context (sequence of attention) parallelism.
        context: how attention goes about positions that are divided: keys and values are passed round among the ranks,
            beside computing; or an all-to-all before and one behind attention divide its heads instead
            (DeepSpeed-Ulysses); or keys and values are gathered, as always where attention is several operators.
        ep: ranks that share the experts of a layer; a divisor of dp · cp · tp's data part dp · cp.
        zero: what data-parallel ranks divide: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
        shard_ranks: data- and context-parallel ranks that divide it (hybrid sharding); None: all of them.
        sequence_parallel: what lies between tensor-parallel regions is split along the sequence.
        recompute: what the backward pass computes again: nothing; the core of attention; all but the results of
            attention and of every second product (torchtitan's selection of operators); every block.
        recompute_blocks: with `full`, the fraction of blocks that are run again.
        offload: the fraction of blocks whose activations wait in the host's memory for the backward pass, copied beside
            computing.
        recompute_layers, offload_layers: the same by chunk of the model, in blocks, in place of the fractions: ranks
            that hold fewer micro-batches at once have more room.
        micro_batch: samples of one rank in a micro-batch; micro_batches: of a step.
        copies: micro-batches that pass together, interleaved: the collectives of one run beside the computing of the
            others (MindSpore's MicroBatchInterleaved with as many copies, DeepSpeed's Domino).
        schedule, virtual_stages: order of the passes, and chunks of the model per pipeline rank.
        stage_layers: layers of each chunk of the model, from its beginning; None: dealt evenly.
        precision: the type activations have; matrix_type: the type matrix units compute in; None: the
            same.  `fp8-row` scales every row, `mxfp8` every block of 32, `fp8` whole tensors.  Types of 8 and 4 bits
            are for the products of repeated blocks; what stands before and after them computes in `precision`.
        cast_gathers: what tensor-parallel ranks gather for products is cast to the matrix type first.
        parameter_bytes: width in which weights are held and gathered; None: that of `precision`, beside a copy in
            single precision for the optimizer.  Four with a precision of two: weights are cast before every use.
        gradient_bytes: width in which gradients are kept and summed.
        attention: scores, softmax and weighted sum run one by one, as one portable kernel (FlashAttention 1 and 2), or
            as the vendor's own kernel for the machine (cuDNN, FlashAttention 3, Ascend's).
        frozen: weights are not trained (small adapters beside them are): no gradients of weights, no optimizer.
        loss: cross-entropy is one kernel; a kernel for log-softmax among others (torch); operator by operator in place
            (Megatron's over divided classes); operator by operator against labels spread out (MindFormers).
        fuse: whether chains of elementwise operators run as one kernel.
        overlap_gradients, overlap_parameters: gradient sums run beside the backward pass; gathering of
            parameters beside the forward pass.
        overlap_tensor: tensor-parallel collectives are cut in pieces that run beside the products.
        overlap_pipeline: transfers between stages run beside computing.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    context: Context = "ring"
    ep: int = 1
    zero: Literal[0, 1, 2, 3] = 0
    shard_ranks: int | None = None
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    recompute_blocks: float = 1.0
    offload: float = 0.0
    recompute_layers: tuple[int, ...] | None = None
    offload_layers: tuple[int, ...] | None = None
    micro_batch: int = 1
    micro_batches: int = 1
    copies: int = 1
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    stage_layers: tuple[int, ...] | None = None
    precision: Literal["fp32", "fp16", "bf16"] = "bf16"
    matrix_type: MatrixType | None = None
    cast_gathers: bool = False
    parameter_bytes: Literal[2, 4] | None = None
    gradient_bytes: Literal[2, 4] = 4
    attention: Attention = "fused"
    frozen: bool = False
    loss: Loss = "fused"
    fuse: bool = True
    overlap_gradients: bool = False
    overlap_parameters: bool = False
    overlap_tensor: bool = False
    overlap_pipeline: bool = False
    optimizer: Literal["adam", "momentum", "sgd"] = "adam"

    def __post_init__(self) -> None:
        if min(_COUNTED(self)) < 1:
            name, found = next((n, v) for n, v in zip(_COUNTS, _COUNTED(self), strict=True) if v < 1)
            raise UsageError(f"strategy: {name}: expected at least 1, found {found}")
        if (self.dp * self.cp) % self.ep:
            raise UsageError(f"strategy: ep={self.ep}: expected a divisor of dp * cp = {self.dp * self.cp}")
        if self.context != "ring" and self.cp == 1:
            raise UsageError(
                f"strategy: context={self.context} says how attention goes about positions that are divided, but cp=1; "
                "give cp, or leave it out"
            )
        if self.shard_ranks is not None and (self.dp * self.cp) % self.shard_ranks:
            raise UsageError(
                f"strategy: shard_ranks={self.shard_ranks}: expected a divisor of dp * cp = {self.dp * self.cp}"
            )
        if self.micro_batches % self.copies:
            raise UsageError(
                f"strategy: copies={self.copies}: expected a divisor of the {self.micro_batches} micro-batches of a "
                "step, of which so many pass together"
            )
        wanted = chunks_of_schedule(self.order, self.virtual_stages)
        if self.virtual_stages != wanted:
            raise UsageError(
                f"strategy: virtual_stages={self.virtual_stages}: the schedule {self.schedule} runs with {wanted}"
            )
        chunks = self.pp * self.virtual_stages
        if self.stage_layers is not None and (len(self.stage_layers) != chunks or min(self.stage_layers) < 1):
            raise UsageError(
                f"strategy: stage_layers={'-'.join(map(str, self.stage_layers))}: expected {chunks} counts of at least "
                "1, one for each chunk (pp * virtual_stages)"
            )
        if self.recompute_layers is not None:
            self._check_counts("recompute_layers", self.recompute_layers, chunks, alone=self.recompute == "full")
        if self.offload_layers is not None:
            self._check_counts("offload_layers", self.offload_layers, chunks, alone=not self.offload)
        for name, share in (("recompute_blocks", self.recompute_blocks), ("offload", self.offload)):
            if not 0 <= share <= 1:
                raise UsageError(f"strategy: {name}: expected a fraction, found {share}")

    def _check_counts(self, name: str, counts: tuple[int, ...], chunks: int, *, alone: bool) -> None:
        text = f"strategy: {name}={'-'.join(map(str, counts))}: "
        if len(counts) != chunks or min(counts) < 0:
            raise UsageError(f"{text}expected {chunks} counts, one for each chunk (pp * virtual_stages)")
        if not alone or (name == "recompute_layers" and self.recompute_blocks != 1):
            needed = "recompute=full without recompute_blocks" if name == "recompute_layers" else "no offload"
            raise UsageError(f"{text}expected {needed} beside it")

    @property
    def offloads(self) -> bool:
        """Whether activations of any block wait in the host's memory."""
        return self.offload > 0 or any(self.offload_layers or ())

    @property
    def exchanges_heads(self) -> bool:
        """Whether context-parallel ranks divide heads inside attention, in place of positions."""
        return self.context == "all-to-all"

    @property
    def devices(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Samples per step."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def passes(self) -> int:
        """How often a step passes through the model: copies do so together."""
        return self.micro_batches // self.copies

    @property
    def scatters_every_pass(self) -> bool:
        """Whether gradients are scattered in every pass: a rank that keeps its part alone has no room to add the
        others' up.  ZeRO 2 does so under accumulation (DeepSpeed), ZeRO 3 always."""
        return self.zero == 3 or (self.zero == 2 and self.passes > 1)

    @property
    def order(self) -> Schedule:
        """The schedule; 1F1B with several chunks per rank is interleaved."""
        return "interleaved" if self.schedule == "1f1b" and self.virtual_stages > 1 else self.schedule

    @property
    def matrix(self) -> str:
        """The type matrix units compute in."""
        return self.matrix_type or self.precision

    @property
    def activation_bytes(self) -> int:
        """Width of an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def weight_bytes(self) -> int:
        """Width in which weights are held and gathered."""
        return self.parameter_bytes or self.activation_bytes

    def text(self) -> str:
        """`key=value,…` of what differs from the defaults."""
        default = Configuration()
        stated = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return ",".join(f"{k}={v}" for k, v in stated if v != getattr(default, k)) or "single device"

    def with_(self, **changes: object) -> Configuration:
        """With other values of some fields.  As `dataclasses.replace`, which takes much longer: searches make some
        hundred thousand."""
        if not _FIELDS.issuperset(changes):
            raise TypeError(f"Configuration has no {', '.join(sorted(set(changes) - _FIELDS))}")
        made = self.unchecked(changes)
        if not _CHECKED.isdisjoint(changes):
            made.__post_init__()
        return made

    def unchecked(self, changes: Mapping[str, object]) -> Configuration:
        """With other values of some fields, which are known to go together."""
        made = object.__new__(Configuration)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        return made


_COUNTS: Final = ("dp", "tp", "pp", "cp", "ep", "micro_batch", "micro_batches", "copies", "virtual_stages")
_COUNTED: Final = attrgetter(*_COUNTS)
_CHECKED: Final = frozenset((
    *_COUNTS, "context", "shard_ranks", "schedule", "recompute", "recompute_blocks", "offload", "recompute_layers",
    "offload_layers", "stage_layers",
))  # fmt: skip
_FIELDS: Final = frozenset(f.name for f in fields(Configuration))
