"""What `planner explain --json` prints (docs/explain.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "SCHEMA",
    "AlternativeDocument",
    "ChoiceDocument",
    "ExplanationDocument",
    "LimitDocument",
    "MeshDocument",
    "ModuleAlternativeDocument",
    "ModuleDocument",
    "MoveDocument",
    "OutcomeDocument",
    "ParameterCostDocument",
    "PlanFigures",
    "RefusedDocument",
    "SplitDocument",
    "TopDocument",
    "UndividedDocument",
]

SCHEMA = "planner.explanation/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlanFigures(_Part):
    """Of the plan at hand: the very figures of its file, and what it does per second, where that can be counted."""

    model: str
    operators: int
    hardware: str
    devices: int
    mesh: str
    stages: int
    micro_batches: int
    objective_s: float
    objective_lower_bound_s: float
    gap: float
    step_time_s: float
    parts_s: dict[str, float]
    peak_memory_bytes: int
    memory_limit_bytes: int | None

    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    flops_per_s_per_device: float | None = None
    mfu: float | None = None


class OutcomeDocument(_Part):
    """A search with something else pinned, or lifted.  Differences are to the plan that is explained, as it is priced
    today: of the step in `difference_s`, by cause in `step_parts_difference_s`; of the objective, which prices
    everything one after the other, in `objective_difference_s` and `parts_difference_s`."""

    mesh: str
    objective_s: float
    difference_s: float
    step_parts_difference_s: dict[str, float]
    objective_difference_s: float
    parts_difference_s: dict[str, float]
    objective_lower_bound_s: float
    gap: float
    status: Literal["optimal", "feasible"]
    step_time_s: float
    peak_memory_bytes: int


class AlternativeDocument(OutcomeDocument):
    """`split`: factor → shards; `why`: the difference in words; `command` prints this very step."""

    split: dict[str, int]
    pin: str
    why: str
    command: str


class RefusedDocument(_Part):
    """A split that the operator's rule offers, and that no plan of this request can have."""

    split: dict[str, int]
    reason: str


class MoveDocument(_Part):
    """A redistribution; `shared`: it serves other operators as well."""

    tensor: str
    direction: Literal["forward", "gradient"]
    reader: str
    source: str
    target: str
    collectives: list[str]
    seconds: float
    shared: bool = False


class ParameterCostDocument(_Part):
    """What a parameter that the operator reads costs in a step; `shared`: others read it, too."""

    name: str
    stored: str
    gathered_s: float
    synchronised_s: float
    optimizer_s: float
    shared: bool


class ChoiceDocument(_Part):
    """An operator as planned, and what it costs.

    own_s     what stands on its account: runs, what it makes moved, parameters it is the first to read
    inside_s  of the runs' seconds, in collectives within
    reads     redistributions of what it reads, which stand on the account of what made it
    writes    of what it makes
    alike     operators of the plan that look alike and are split alike, itself included
    """

    operator: str
    type: str
    source: str
    module: str
    strategy: dict[str, str]
    split: dict[str, int]
    rule: str
    factors: dict[str, int]
    operands: list[str | None]
    results: list[str | None]
    runs_s: dict[str, float]
    inside_s: float
    inner: list[str]
    reads: list[MoveDocument]
    writes: list[MoveDocument]
    parameters: list[ParameterCostDocument]
    own_s: float
    alike: int = 1


class UndividedDocument(_Part):
    """A size that these axes of the plan's mesh do not divide: factors of this size, in so many `operators`, are never
    split over them."""

    size: int
    axes: list[str]
    shards: int
    factors: list[str]
    operators: int


class LimitDocument(_Part):
    """Something that restricts the search, and the search without it.

    binding          a better plan is found then
    operator         how the operator that is explained is split then
    smallest         memory: the smallest limit tried, in bytes, at which the step gets shorter
    largest_without  memory: the largest limit tried at which it does not
    """

    kind: Literal["memory", "pin", "mesh", "target", "recompute", "all"]
    name: str
    binding: bool
    saves_s: float
    why: str
    outcome: OutcomeDocument | None = None
    operator: dict[str, int] | None = None
    smallest: int | None = None
    largest_without: int | None = None


class MeshDocument(_Part):
    """A candidate of the search."""

    mesh: str
    recompute: bool
    status: str
    objective_s: float | None
    bound_s: float
    step_time_s: float | None = None


class TopDocument(_Part):
    """One of the most expensive operators, with the best alternative to its choice; `total_s`: of all alike."""

    choice: ChoiceDocument
    total_s: float
    alternative: AlternativeDocument | None
    reason: str = ""


class SplitDocument(_Part):
    """Operators of a module that are divided in one way, in words, with what stands on their account."""

    text: str
    operators: list[str]
    own_s: float


class ModuleAlternativeDocument(OutcomeDocument):
    """The products of a module split otherwise, all of them; `splits`: product → factor → shards; `command` makes the
    same search, and is empty where no command line can."""

    splits: dict[str, dict[str, int]]
    text: str
    why: str
    command: str


class ModuleDocument(_Part):
    """A module as planned.

    alike            modules that differ from it in the numbers of their path alone, itself included
    parts_s          what stands on the account of its operators, by part of the objective; they add up to own_s
    alike_s          of all modules alike
    parameter_bytes  of its weights on one device, and where they are `trained` of gradients and optimizer state
    sent_bytes       by a device in a step, for its parameters and for what it makes
    freed            what its operators were freed from to find alternatives
    """

    module: str
    alike: int
    operators: int
    products: list[str]
    splits: list[SplitDocument]
    parts_s: dict[str, float]
    own_s: float
    alike_s: float
    parameter_bytes: int
    trained: bool = True
    sent_bytes: int
    alternatives: list[ModuleAlternativeDocument] = []
    freed: str = ""
    reason: str = ""


class ExplanationDocument(_Part):
    """`module`: of a module; `choice`, `alternatives`, `refused`: of an operator; `meshes`, `operators`,
    `redistributions`: of the plan as a whole.  `searches`: how many were made."""

    schema_: Literal["planner.explanation/1"] = Field(default="planner.explanation/1", alias="schema")
    plan: PlanFigures
    notes: list[str] = []
    module: ModuleDocument | None = None
    choice: ChoiceDocument | None = None
    alternatives: list[AlternativeDocument] = []
    refused: list[RefusedDocument] = []
    more_refused: int = 0
    limits: list[LimitDocument] = []
    binding: str
    undivided: list[UndividedDocument] = []
    meshes: list[MeshDocument] = []
    operators: list[TopDocument] = []
    redistributions: list[MoveDocument] = []
    searches: int
