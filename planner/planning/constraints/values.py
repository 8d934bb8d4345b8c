"""What a constraints file says, as values: pins of strategies and layouts, and what becomes of the rest.

Mesh axes go by the names of the plan, outermost first: x, y, z, w, v, u.  Where numbers stand instead, they count
shards and hold on every mesh that can form them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.ir import DeviceMesh, Layout, Reduction
from planner.rules.strategy import AxisRole, Strategy

__all__ = [
    "Constraints",
    "Counts",
    "Degrees",
    "JobDescription",
    "LayoutPin",
    "OperatorPin",
    "ParameterPin",
    "Rest",
    "RestKind",
    "StrategyPin",
    "TensorPin",
    "split_of",
]

Counts = tuple[int, ...]
RestKind = Literal["search", "replicated", "data_parallel", "zero"]


def split_of(strategy: Strategy, mesh: DeviceMesh) -> dict[str, tuple[str, ...]]:
    """Factor, or mode, → the axes that split it, in mesh order; the members of a mode are not named again."""
    found: dict[str, tuple[str, ...]] = {}
    for name, role in zip(mesh.names, strategy.roles, strict=True):
        if role.kind == "split":
            found[role.factor] = (*found.get(role.factor, ()), name)
    return found


def _missing(axes: tuple[str, ...], mesh: DeviceMesh) -> str | None:
    lacking = [a for a in axes if a not in mesh.names]
    return f"mesh {mesh} has no axis {', '.join(lacking)}" if lacking else None


@dataclass(frozen=True, slots=True)
class LayoutPin:
    """`dims`: the axes of every dimension, split in exactly these `parts`, with exactly the pending reductions
    `partial`; `counts`: shards per dimension, whatever is pending; neither: whole on every rank."""

    dims: tuple[tuple[str, ...], ...] | None = None
    counts: Counts | None = None
    partial: tuple[tuple[str, Reduction], ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def rank(self) -> int | None:
        """Number of dimensions of the tensors that it fits; None: any."""
        if self.dims is not None:
            return len(self.dims)
        return None if self.counts is None else len(self.counts)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims or () for a in d) + tuple(a for a, _ in self.partial)

    def misfit(self, mesh: DeviceMesh) -> str | None:
        """Why no layout of the mesh can be meant, if so."""
        return _missing(self.axes, mesh)

    def admits(self, layout: Layout, mesh: DeviceMesh) -> bool:
        if self.counts is not None:
            return layout.counts(mesh) == self.counts
        if self.dims is None:
            return layout.is_replicated
        # An axis of one rank splits nothing, and layouts leave it out.
        dims = tuple(tuple(a for a in d if mesh.sizes.get(a) != 1) for d in self.dims)
        partial = {a: op for a, op in self.partial if mesh.sizes.get(a) != 1}
        parts = tuple(n if axes else 1 for n, axes in zip(self.parts, dims, strict=False))
        parts = parts if any(n > 1 for n in parts) else ()
        return layout.dims == dims and layout.parts == parts and dict(layout.partial) == partial

    def distance(self, layout: Layout, mesh: DeviceMesh) -> int:
        """In how many dimensions and pending axes the layout differs: orders what is offered instead."""
        if self.counts is not None:
            return sum(a != b for a, b in zip(layout.counts(mesh), self.counts, strict=True))
        dims = self.dims or ((),) * len(layout.dims)
        pending = set(self.partial) ^ set(layout.partial)
        apart = sum(a != b for a, b in zip(layout.dims, dims, strict=True))
        return apart + len(pending) + (layout.parts != self.parts)

    def __str__(self) -> str:
        if self.counts is not None:
            return f"[{', '.join(map(str, self.counts))}] shards"
        return "replicated" if self.dims is None else str(Layout(self.dims, self.partial, self.parts))


@dataclass(frozen=True, slots=True)
class StrategyPin:
    """Every part that is given must hold.

    factors    factor, or mode → its axes, or its number of shards; what is not named is not split
    roles      axis → its role; axes not named are free
    shard      shards per dimension, operand by operand (None: free, as are operands beyond the last)
    shard_out  likewise of the results
    """

    factors: tuple[tuple[str, tuple[str, ...] | int], ...] | None = None
    roles: tuple[tuple[str, AxisRole], ...] = ()
    shard: tuple[Counts | None, ...] = ()
    shard_out: tuple[Counts | None, ...] = ()

    @classmethod
    def of(cls, strategy: Strategy, mesh: DeviceMesh, *, sums_pass: bool) -> StrategyPin:
        """What a strategy of a known configuration comes to: the role of every axis, so that sums are carried out where
        they arise; `sums_pass`: what it splits alone, so that pending sums may pass through the operator."""
        if sums_pass:
            return cls(factors=tuple(split_of(strategy, mesh).items()))
        return cls(roles=tuple(zip(mesh.names, strategy.roles, strict=True)))

    @property
    def axes(self) -> tuple[str, ...]:
        named = [a for _, split in self.factors or () if not isinstance(split, int) for a in split]
        return (*named, *(a for a, _ in self.roles))

    @property
    def splits(self) -> bool:
        """Whether something is to be split."""
        tuples = [n for counts in (*self.shard, *self.shard_out) for n in counts or ()]
        factors = [n for _, n in self.factors or ()]
        return bool(self.axes_by_factor) or any(n != 1 for n in tuples) or any(n not in (1, ()) for n in factors)

    @property
    def axes_by_factor(self) -> Mapping[str, tuple[str, ...]]:
        """Factor, or mode → the axes that are named to split it."""
        found = {f: split for f, split in self.factors or () if not isinstance(split, int)}
        for axis, role in self.roles:
            if role.kind == "split":
                found[role.factor] = (*found.get(role.factor, ()), axis)
        return found

    def misfit(self, mesh: DeviceMesh) -> str | None:
        """Why no strategy on the mesh can be meant, if so."""
        return _missing(self.axes, mesh)

    @property
    def only_roles(self) -> bool:
        """Whether nothing but roles is demanded."""
        return self.factors is None and not self.shard and not self.shard_out

    def admits(self, strategy: Strategy, mesh: DeviceMesh) -> bool:
        return not self.distance(strategy, mesh)

    def distance(self, strategy: Strategy, mesh: DeviceMesh) -> int:
        """How many of the demands the strategy fails: orders what is offered instead."""
        wrong = 0
        if self.factors is not None:
            split = split_of(strategy, mesh)
            named = set()
            for factor, wanted in self.factors:
                named.add(factor)
                axes = split.get(factor, ())
                if isinstance(wanted, int):
                    wrong += mesh.size(axes) != wanted
                else:
                    wrong += set(axes) != {a for a in wanted if mesh.sizes.get(a) != 1}
            wrong += sum(f not in named for f in split)
        by_axis = dict(zip(mesh.names, strategy.roles, strict=True))
        wrong += sum(by_axis.get(a) != role for a, role in self.roles if mesh.sizes.get(a) != 1)
        for wanted_counts, layouts in ((self.shard, strategy.operands), (self.shard_out, strategy.results)):
            for counts, layout in zip(wanted_counts, layouts, strict=False):
                if counts is not None and layout is not None:
                    wrong += layout.counts(mesh) != counts
        return wrong

    def __str__(self) -> str:
        parts = []
        if self.factors is not None:
            split = " ".join(f"{f}={n if isinstance(n, int) else '.'.join(n)}" for f, n in self.factors)
            parts.append(split or "replicated")
        if self.roles:
            parts.append(" ".join(f"{a}:{r.factor if r.kind == 'split' else r.kind}" for a, r in self.roles))
        for key, tuples in (("shard", self.shard), ("shard_out", self.shard_out)):
            if tuples:
                shown = ", ".join("free" if c is None else f"({', '.join(map(str, c))})" for c in tuples)
                parts.append(f"{key} ({shown})")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class OperatorPin:
    """Of the operators that `match` a pattern, have one of the `types` and read a parameter that matches `reads`
    (each where given).  `where` names the place in the file."""

    where: str
    strategy: StrategyPin
    match: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorPin:
    """`layout`: how every reader reads the tensor; `produced`: how its producer delivers it."""

    where: str
    match: tuple[str, ...]
    layout: LayoutPin | None = None
    produced: LayoutPin | None = None


@dataclass(frozen=True, slots=True)
class ParameterPin:
    """`stored`: with gradient and optimizer state; `compute`: how every operator reads it."""

    where: str
    match: tuple[str, ...]
    stored: LayoutPin | None = None
    compute: LayoutPin | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """What is not named: searched, replicated, or split by nothing but the batch over `axes` (None: those that no pin
    gives to another index), with parameters whole (data_parallel) or split over these axes (zero)."""

    kind: RestKind = "search"
    axes: tuple[str, ...] | None = None
    where: str = ""

    def __str__(self) -> str:
        return self.kind if self.axes is None else f"{self.kind} over {', '.join(self.axes)}"


@dataclass(frozen=True, slots=True)
class Degrees:
    """Meshes are data x context x tensor: x splits samples wherever there are any, y the positions of the first input;
    z is left to the search."""

    where: str


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What a file says of the job beside its pins; None and () leave it open.  `memory_limit`: bytes per device;
    `batch`: samples per step; `uniform_stages`: all of equally many layers; `notes`: what the file describes and
    nobody reads, in words."""

    where: str
    devices: int | None = None
    hardware: str | None = None
    memory_limit: int | None = None
    batch: int | None = None
    stages: tuple[int, ...] = ()
    micro_batches: tuple[int, ...] = ()
    recompute: Literal["none", "blocks"] | None = None
    uniform_stages: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraints:
    """All that a user forces.  `meshes`: the only shapes considered, if any; `batch`: input → its batch dimension;
    `degrees`: what the axes of the meshes do; `job`: what else the file says."""

    source: str
    meshes: tuple[tuple[int, ...], ...] = ()
    operators: tuple[OperatorPin, ...] = ()
    tensors: tuple[TensorPin, ...] = ()
    parameters: tuple[ParameterPin, ...] = ()
    rest: Rest = Rest()
    batch: tuple[tuple[str, int], ...] = ()
    degrees: Degrees | None = None
    job: JobDescription | None = None

    def __add__(self, other: Constraints) -> Constraints:
        """Both hold; of the rest and the batch, the other's where it says something."""
        return Constraints(
            " and ".join(dict.fromkeys(s for s in (self.source, other.source) if s)),
            self.meshes or other.meshes,
            self.operators + other.operators,
            self.tensors + other.tensors,
            self.parameters + other.parameters,
            other.rest if other.rest.where else self.rest,
            self.batch + other.batch,
            self.degrees or other.degrees,
            self.job or other.job,
        )
