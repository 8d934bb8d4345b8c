"""Ranks of one process, a thread each, which meet at their collectives: every strategy of an operator in PyTorch.

What each rank runs is what a process would run: the operator's function, with autograd; the collectives of
`planner.runtime.collectives` are replaced by ones that exchange tensors between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import planner.runtime.arrays
import planner.runtime.collectives
from planner.ir import DeviceMesh
from planner.kernels import ShardContext
from planner.rules import Strategy, local_op
from planner.runtime.arrays import torch_function
from planner.runtime.collectives import Inside
from planner.runtime.registry import Call
from planner.runtime.workers import Ledger
from tests.rules.prover import Case, Cuts, compare

__all__ = ["check", "meeting", "operands_of"]


@dataclass
class _Group:
    """Threads that wait for each other, and what each of them brought."""

    ranks: tuple[int, ...]
    barrier: threading.Barrier = field(init=False)
    brought: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(len(self.ranks), timeout=20)

    def meet(self, value: Any) -> list[Any]:
        """What all ranks brought, in their order."""
        self.brought[_rank()] = value
        self.barrier.wait()
        found = [self.brought[r] for r in self.ranks]
        self.barrier.wait()
        return found


_HERE = threading.local()


def _rank() -> int:
    rank: int = _HERE.rank
    return rank


@dataclass
class _Context:
    """What an operator reads of a process's `Context`."""

    rank: int
    groups: dict[tuple[int, ...], _Group]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ledger: Ledger = field(default_factory=Ledger)
    draw: Tensor | None = None

    def group(self, mesh: DeviceMesh, axes: tuple[str, ...]) -> tuple[_Group, tuple[int, ...]]:
        ranks = next(ranks for ranks in mesh.groups(axes) if self.rank in ranks)
        return self.groups[tuple(ranks)], tuple(ranks)


def _all_reduce(value: Tensor, group: _Group, reduction: str = "sum") -> Tensor:
    stacked = torch.stack([v.detach() for v in group.meet(value)])
    if reduction == "sum":
        return stacked.sum(0, dtype=value.dtype)
    return stacked.amax(0) if reduction == "max" else stacked.amin(0)


def _all_gather(value: Tensor, ranks: int, dim: int, group: _Group) -> Tensor:
    return torch.cat([v.detach() for v in group.meet(value)], dim)


def _all_to_all_v(value: Tensor, dim: int, send: Sequence[int], receive: Sequence[int], group: _Group) -> Tensor:
    me = group.ranks.index(_rank())
    parts = [p[me] for p in group.meet(torch.split(value.detach(), list(send), dim))]
    assert [p.shape[dim] for p in parts] == list(receive)
    return torch.cat(parts, dim)


@contextmanager
def meeting(mesh: DeviceMesh) -> Iterator[list[_Context]]:
    """A context for each rank of a mesh, whose threads meet."""
    axes = {a for n in range(1, len(mesh.names) + 1) for a in _subsets(mesh.names, n)}
    groups = {tuple(g): _Group(tuple(g)) for chosen in axes for g in mesh.groups(chosen)}
    module, arrays = planner.runtime.collectives, planner.runtime.arrays
    kept = module.all_reduce, module.all_to_all_v, module.all_gather, arrays.all_gather
    module.all_reduce, module.all_to_all_v = _all_reduce, _all_to_all_v  # type: ignore[assignment]
    module.all_gather = arrays.all_gather = _all_gather  # type: ignore[assignment, attr-defined]
    try:
        yield [_Context(r, groups) for r in range(mesh.devices)]
    finally:
        module.all_reduce, module.all_to_all_v, module.all_gather = kept[:3]
        arrays.all_gather = kept[3]  # type: ignore[attr-defined]


def _subsets(names: Sequence[str], count: int) -> set[tuple[str, ...]]:
    from itertools import permutations

    return set(permutations(names, count))


def _together(contexts: Sequence[_Context], work: Callable[[int], Any]) -> list[Any]:
    """What each rank makes, run in step."""
    found: list[Any] = [None] * len(contexts)
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        _HERE.rank = rank
        try:
            found[rank] = work(rank)
        except BaseException as error:
            failed.append(error)
            for group in contexts[rank].groups.values():
                group.barrier.abort()

    threads = [threading.Thread(target=run, args=(r,)) for r in range(len(contexts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
    return found


def _tensor(x: Any) -> Tensor | None:
    return None if x is None else torch.from_numpy(np.array(x, copy=True))


def operands_of(subject: Case, strategy: Strategy, cuts: Cuts) -> list[list[Any]]:
    """Local operands, by rank."""
    columns: list[Sequence[Any]] = []
    for i, value in enumerate(subject.inputs):
        target, result = strategy.results[0], subject.results[0]
        if value is None:
            columns.append((None,) * cuts.mesh.devices)
        elif i == subject.rule.shape_operand and target is not None and result is not None:
            local = np.array(target.local_shape(result.shape, cuts.mesh), dtype=np.int64)
            columns.append((local,) * cuts.mesh.devices)
        else:
            columns.append(cuts(f"operand {i}", value, strategy.operands[i]))
    return [[c[r] for c in columns] for r in range(cuts.mesh.devices)]


def check(
    subject: Case, strategy: Strategy, cuts: Cuts, dy: Sequence[Any], whole: Sequence[Any], *, exact: bool = True
) -> bool:
    """Compares what ranks compute under a strategy with the whole operator; False where PyTorch does not run it.

    `dy` are gradients of the results, and `whole` those of the operands that follow; empty where there are none.
    """
    mesh, rule = cuts.mesh, subject.rule
    operands = operands_of(subject, strategy, cuts)
    split = strategy.split
    op = local_op(subject.op, rule, strategy, mesh)
    function = torch_function(op.type, aware=rule.aware(split))
    if function is None:
        return False
    shapes = [
        None if v is None or layout is None else layout.local_shape(v.shape, mesh)
        for v, layout in zip(subject.results, strategy.results, strict=True)
    ]
    columns = [
        (None,) * mesh.devices if g is None else cuts(f"gradient {j}", g, strategy.result_gradients[j])
        for j, g in enumerate(dy)
    ]
    known = [
        x if n and subject.graph.tensors[n].value is not None and i != rule.shape_operand and not pending else None
        for i, (n, x, pending) in enumerate(
            zip(op.inputs, subject.inputs, (bool(x and x.partial) for x in strategy.operands), strict=True)
        )
    ]

    with meeting(mesh) as contexts:

        def work(rank: int) -> tuple[list[Any], list[Any]] | None:
            place = ShardContext.of(rule, split, mesh, rank)
            given = [_tensor(x) for x in operands[rank]]
            wanted = [i for i in rule.differentiable if whole and i < len(given) and whole[i] is not None]
            for i in wanted:
                given[i].requires_grad_()  # type: ignore[union-attr]
            here = [operands[rank][i] if i == rule.shape_operand else k for i, k in enumerate(known)]
            inside = Inside(contexts[rank], mesh, split)  # type: ignore[arg-type]
            found = function(Call(op, given, shapes, place, inside, place.reduced_factors(), False, here))
            if found is None:
                return None
            results = [found] if isinstance(found, Tensor) else list(found)
            results += [None] * (len(op.outputs) - len(results))
            if strategy.scale != 1.0:
                results = [None if y is None else y * strategy.scale for y in results]
            gradients: list[Any] = [None] * len(given)
            pairs = [
                (y, _tensor(c[rank])) for y, c in zip(results, columns, strict=False)
                if y is not None and y.requires_grad and c[rank] is not None
            ]  # fmt: skip
            if wanted and pairs:
                made = torch.autograd.grad(
                    [y for y, _ in pairs], [given[i] for i in wanted], [g for _, g in pairs], allow_unused=True
                )
                for i, g in zip(wanted, made, strict=True):
                    gradients[i] = np.zeros_like(operands[rank][i]) if g is None else g.numpy()
            return [None if y is None else y.detach().numpy() for y in results], gradients

        ranks = _together(contexts, work)
    if any(r is None for r in ranks):
        assert all(r is None for r in ranks), "some ranks decline and some do not"
        return False
    for j, expected in enumerate(subject.results):
        if expected is not None:
            compare(f"result {j}", [r[0][j] for r in ranks], strategy.results[j], expected, mesh, half=subject.half)
    for i, expected in enumerate(whole):
        if expected is not None:
            layout = strategy.operand_gradients[i]
            compare(f"gradient {i}", [r[1][i] for r in ranks], layout, expected, mesh, half=subject.half)
    return True
