"""What stands in plan.json, the native plan file from which everything else derives (docs/plan-format.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planner.cost_models.pipeline import Schedule, stage_numbers
from planner.ir import DeviceMesh, Layout, MeshAxis, Reduction
from planner.planning.searched import SearchDocument
from planner.targets import Target

__all__ = [
    "SCHEMA",
    "ExecutedDocument",
    "LayoutDocument",
    "OperatorDocument",
    "ParameterDocument",
    "PinDocument",
    "PlanDocument",
    "ReaderDocument",
    "RedistributionDocument",
    "RunDocument",
    "StepDocument",
    "TensorDocument",
]

SCHEMA = "planner.plan/1"
MESH = "m0"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class LayoutDocument(_Part):
    mesh: str
    dims: list[list[str]]
    partial: dict[str, Literal["sum", "max", "min"]] = {}
    parts: list[int] = Field(default=[], exclude_if=lambda parts: not parts)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.parts and (len(self.parts) != len(self.dims) or min(self.parts) < 1 or max(self.parts) < 2):
            raise ValueError(f"parts {self.parts}: expected one number of at least 1 per dimension, some more than 1")
        return self

    def layout(self) -> Layout:
        partial = tuple((a, Reduction(op)) for a, op in self.partial.items())
        return Layout(tuple(tuple(d) for d in self.dims), partial, tuple(self.parts))


class ModelDocument(_Part):
    """`bind` and `batch` repeat how the file was read, so that it can be read alike again.  `repeated`: runs of equal
    blocks, each block the names of its operators; corresponding ones share a position."""

    name: str
    digest: str
    bind: dict[str, int] = {}
    batch: int | None = None
    operators: int
    parameters: int
    loss: str | None = None
    repeated: list[list[list[str]]] = []


class InputDocument(_Part):
    """`layout`: as its first reader reads it."""

    shape: list[int] | None
    dtype: str
    layout: LayoutDocument | None = None


class ClusterDocument(_Part):
    hardware: str
    profile_digest: str
    devices: int = Field(ge=1)
    devices_per_server: int | None
    memory_limit_bytes: int | None


class AxisDocument(_Part):
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,31}$")
    size: int = Field(ge=1)


class MeshDocument(_Part):
    """`groups`: axes joined by a dot → the communication groups over them, as lists of ranks."""

    axes: list[AxisDocument] = Field(min_length=1, max_length=7)
    groups: dict[str, list[list[int]]] = {}

    def mesh(self) -> DeviceMesh:
        return DeviceMesh(tuple(MeshAxis(a.name, a.size) for a in self.axes))


class ChunkDocument(_Part):
    """A part of the model that a stage runs in passes of its own: seconds of one micro-batch forward, backward (of
    which gradients of weights take `weights_s`), and sent on."""

    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    weights_s: float = Field(ge=0)
    sends_s: float = Field(ge=0)


class StageDocument(_Part):
    """A pipeline stage: `operators` counts those that it runs; `peak_memory_bytes` is of one of its devices.
    `forward_s`, `backward_s`: of one micro-batch, `once_s`: of what happens once a step, `sends_s`: of a micro-batch to
    the next stage; all 0 where the batch is not in parts.  `chunks`: of each of its chunks, where the order is not
    1F1B."""

    mesh: str
    operators: int
    peak_memory_bytes: int = 0
    forward_s: float = Field(default=0.0, ge=0)
    backward_s: float = Field(default=0.0, ge=0)
    once_s: float = Field(default=0.0, ge=0)
    sends_s: float = Field(default=0.0, ge=0)
    chunks: list[ChunkDocument] = Field(default=[], exclude_if=lambda chunks: not chunks)


class TensorDocument(_Part):
    """`layout` as produced; `gradient` as the producer wants it (absent where there is none)."""

    shape: list[int] | None
    dtype: str
    role: str
    layout: LayoutDocument
    gradient: LayoutDocument | None = None


class InnerDocument(_Part):
    kind: str
    axes: list[str]
    bytes: int
    backward: bool
    count: int


class PinDocument(_Part):
    """What a user forced on one operator, tensor or parameter (`name`); `rest`: on everything that is not named.
    `source`: the file and line, or the option."""

    object: Literal["operator", "tensor", "parameter", "rest"]
    name: str = ""
    pin: str
    source: str


class RunDocument(_Part):
    """One execution of an operator in the simulated step.  `inside_s`, of `seconds`: in collectives within it."""

    phase: Literal["forward", "recompute", "backward"]
    begin_s: float = Field(ge=0)
    seconds: float = Field(ge=0)
    inside_s: float = Field(default=0.0, ge=0)


class OperatorDocument(_Part):
    """`strategy`: mesh axis → `split:FACTOR`, `replicate`, `defer` or `linear:GROUP` (see docs/semantics.md).
    `inputs`, `outputs`: the tensors that its operands and results are.  `stage`: the pipeline stage that runs it,
    `chunk`: in which of its chunks of the model."""

    type: str
    source: str = ""
    module: str = ""
    strategy: dict[str, str]
    inputs: list[str] = []
    outputs: list[str] = []
    operands: list[LayoutDocument | None]
    results: list[LayoutDocument | None]
    inner: list[InnerDocument] = []
    runs: list[RunDocument] = []
    stage: int = Field(default=0, ge=0)
    chunk: int = Field(default=0, ge=0, exclude_if=lambda chunk: not chunk)


class ReaderDocument(_Part):
    """An operand that a parameter is; `transposed`: turned by an operator in between."""

    operator: str
    slot: int = Field(ge=0)
    transposed: bool = False


class StageSumDocument(_Part):
    """The gradient of a parameter that several stages hold, summed among them by an all-reduce once a step, behind the
    last micro-batch and before the update.  `bytes` of the stored shard that each rank gives; `groups`: ranks of the
    whole pipeline, which count stage by stage; `seconds` of all groups at once."""

    bytes: int = Field(ge=0)
    groups: list[list[int]]
    seconds: float = Field(ge=0)


class ParameterDocument(_Part):
    """`aliases`: other operands that read the same parameter, as OPERATOR:SLOT.  `readers`: every operand that it is,
    directly or as a cast or a transpose in between has left it.  `optimizer_s`: of its update, once a step.
    `stages`: of a pipeline, those that read it, each of which holds it with its state; `across`: the sum of its
    gradient among them, where they are several and it is trained."""

    shape: list[int]
    stored: LayoutDocument
    compute: list[LayoutDocument]
    gradient: LayoutDocument | None
    optimizer: LayoutDocument | None
    aliases: list[str] = []
    readers: list[ReaderDocument] = []
    optimizer_s: float = Field(default=0.0, ge=0)
    stages: list[int] = []
    across: StageSumDocument | None = None


class StepDocument(_Part):
    kind: str
    axes: list[str]
    dim: int = -1
    to_dim: int = -1
    target: LayoutDocument
    bytes: int


class RedistributionDocument(_Part):
    """`reader` names the operator that the conversion serves alone; empty when it serves all.  `begin_s`: in the
    simulated step."""

    tensor: str
    direction: Literal["forward", "gradient"]
    reader: str = ""
    source: LayoutDocument
    target: LayoutDocument
    steps: list[StepDocument]
    seconds: float
    begin_s: float = Field(default=0.0, ge=0)


class ScheduleDocument(_Part):
    """`recompute`: blocks of operators that run again in the backward pass instead of keeping what is inside.
    `stages` above 1: a pipeline; sizes and costs of operators are those of one of `micro_batches`, which run in this
    `order`, each stage in so many `chunks` of the model; `sends_overlap`: whether stages compute while they send.
    `run`: of a plan made of a known configuration, how its step is run (keys of `planner evaluate`), as far as the
    clock asks."""

    mode: Literal["training", "inference"]
    precision: Literal["bf16", "fp16", "fp32"]
    optimizer: Literal["adam", "momentum", "sgd"]
    target: Target
    stages: int = Field(default=1, ge=1)
    micro_batches: int = Field(default=1, ge=1, le=10**9)
    chunks: int = Field(default=1, ge=1, le=10**4, exclude_if=lambda chunks: chunks == 1)
    order: Schedule | Literal[""] = ""
    sends_overlap: bool = True
    run: dict[str, str | int | float | bool] = {}
    recompute: list[list[str]] = []

    @property
    def pass_order(self) -> Schedule:
        """The order in which micro-batches run; 1F1B where there is nothing to order."""
        return self.order or "1f1b"

    @property
    def copies(self) -> int:
        """How many micro-batches pass together, interleaved."""
        copies = self.run.get("copies", 1)
        return copies if isinstance(copies, int) and not isinstance(copies, bool) and copies > 0 else 1

    @property
    def passes(self) -> int:
        """How often a step passes through the model: copies do so together."""
        return max(1, self.micro_batches // self.copies)


class CostDocument(_Part):
    """All seconds of the plan but those of stages are multiples of `price_resolution_s` (0: not told), so that sums of
    them are exact as integers.  `gap` is that of the step time and its lower bound.  `parts_s` add up to the
    objective; of a plan of one stage and one micro-batch `step_parts_s` to the step time, `memory_bytes` to the
    peak."""

    objective_s: float
    objective_lower_bound_s: float
    gap: float
    step_time_s: float
    step_time_lower_bound_s: float = Field(default=0.0, ge=0)
    step_parts_s: dict[str, float] = {}
    parts_s: dict[str, float]
    peak_memory_bytes: int
    memory_bytes: dict[str, int] = {}
    price_resolution_s: float = Field(default=0.0, ge=0)


class ExecutedDocument(_Part):
    """What `planner verify` ran, where it agreed with the model: the `whole` graph or a smaller sibling, with or
    without gradients, in so many stages and micro-batches.  `plan_digest`: SHA-256 of the plan as it was then, but for
    this and `verification`, so that the proof of one plan does not stand in another."""

    plan_digest: str
    whole: bool
    gradients: bool
    stages: int = Field(ge=1)
    micro_batches: int = Field(ge=1)
    seed: int


class PlanDocument(_Part):
    """The whole file.  Operators are keyed by their first output, everything else by tensor name."""

    schema_: Literal["planner.plan/1"] = Field(alias="schema")
    model: ModelDocument
    inputs: dict[str, InputDocument]
    cluster: ClusterDocument
    meshes: dict[str, MeshDocument]
    stages: list[StageDocument] = Field(min_length=1)
    tensors: dict[str, TensorDocument]
    operators: dict[str, OperatorDocument]
    parameters: dict[str, ParameterDocument]
    redistributions: list[RedistributionDocument]
    schedule: ScheduleDocument
    pins: list[PinDocument] = []
    cost: CostDocument
    search: SearchDocument
    verification: Literal["none", "sibling", "forward", "full"] = "none"
    executed: ExecutedDocument | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """That of one stage."""
        return self.meshes[self.stages[0].mesh].mesh()

    @property
    def devices(self) -> int:
        """Of all stages, which have as many each."""
        return len(self.stages) * self.mesh.devices

    def is_frozen(self, parameter: str) -> bool:
        """Whether a step trains, and leaves this parameter as it is: then it has no state that ZeRO 1 or 2 divides."""
        return self.schedule.mode == "training" and self.parameters[parameter].gradient is None

    def chunk(self, operator: str) -> int:
        """The chunk of the model, counted from its beginning, that the operator is in."""
        s, op = self.schedule, self.operators[operator]
        return int(stage_numbers(s.pass_order, s.stages, s.chunks)[op.stage, op.chunk])
