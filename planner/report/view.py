"""A plan as pictures show it: the tree of its operators, and for every group what flows between its members.

Of every group the members are drawn in rows, and between them a label ("pill") for each set of redistributions.  A
redistribution of a parameter has no place between operators; it stands with those that read the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.planning.document import PlanDocument
from planner.report.colours import Splits
from planner.report.figures import Figures, figures
from planner.report.layout import Drawing, draw
from planner.report.tree import Tree, grow

__all__ = ["SIZES", "Level", "Pill", "View", "view"]

# Kind of box → width and height while it is closed.
SIZES: Mapping[str, tuple[float, float]] = {
    "operator": (208.0, 46.0),
    "input": (132.0, 28.0),
    "pill": (184.0, 24.0),
    "group": (228.0, 64.0),
}


@dataclass(frozen=True, slots=True)
class Pill:
    """`moves`: numbers of redistributions that what flows from one member to others goes through."""

    moves: tuple[int, ...]
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """What is inside a group.  Items of the drawing: members, then pills, then bends."""

    members: tuple[int, ...]
    pills: tuple[Pill, ...]
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class View:
    """`levels`: group → its inside.  `splits[i]`: letters of operator i, one for each mesh axis.  `of_parameters`:
    operator number → the redistributions of parameters that it waits for or causes."""

    plan: PlanDocument
    costs: Figures
    tree: Tree
    levels: Mapping[int, Level]
    splits: tuple[str, ...]
    of_parameters: Mapping[int, tuple[int, ...]]


def view(plan: PlanDocument, also: Mapping[str, int] | None = None) -> View:
    """`also`: as of `grow`."""
    costs = figures(plan)
    tree = grow(plan, costs, also)
    splits = Splits.of(plan)
    flows, of_parameters = _flows(plan, tree)
    return View(
        plan,
        costs,
        tree,
        _levels(tree, flows),
        tuple(splits.letters(plan.operators[n]) for n in tree.operators),
        of_parameters,
    )


_Flows = dict[tuple[int, int], set[int]]  # (node, node that reads; -1: nobody) → redistributions


def _flows(plan: PlanDocument, tree: Tree) -> tuple[_Flows, dict[int, tuple[int, ...]]]:
    source = {t: tree.number[n] for n, o in plan.operators.items() for t in o.outputs if t}
    source.update({n: i for n, i in tree.number.items() if i >= len(tree.operators)})
    readers: dict[str, list[tuple[int, object]]] = {}
    for name, o in plan.operators.items():
        for t, layout in zip(o.inputs, o.operands, strict=False):
            if t:
                readers.setdefault(t, []).append((tree.number[name], layout))
    flows: _Flows = {(source[t], reader): set() for t, found in readers.items() if t in source for reader, _ in found}
    parameters: dict[int, list[int]] = {}
    for i, move in enumerate(plan.redistributions):
        here = readers.get(move.tensor, [])
        target = move.target if move.direction == "forward" else move.source
        served = [n for n, layout in here if layout == target] or [n for n, _ in here]
        if move.reader in tree.number:
            served = [tree.number[move.reader]]
        if move.tensor in source:
            for reader in served or [-1]:
                flows.setdefault((source[move.tensor], reader), set()).add(i)
        else:
            for reader in dict.fromkeys(served):
                parameters.setdefault(reader, []).append(i)
    return flows, {n: tuple(moves) for n, moves in parameters.items()}


def _levels(tree: Tree, flows: _Flows) -> dict[int, Level]:
    between: dict[int, dict[tuple[int, int], set[int]]] = {
        i: {} for i, n in enumerate(tree.nodes) if n.kind not in ("operator", "input")
    }
    paths: dict[int, list[int]] = {}

    def path(node: int) -> list[int]:
        if node not in paths:
            paths[node] = tree.path(node)[::-1]
        return paths[node]

    for (a, b), moves in flows.items():
        up = path(a)
        if b < 0:
            group, pair = up[-2], (a, -1)
        else:
            down = path(b)
            depth = next(k for k in range(len(up)) if k >= len(down) or up[k] != down[k])
            group, pair = up[depth - 1], (up[depth], down[depth])
        between[group].setdefault(pair, set()).update(moves)
    return {group: _level(tree, group, pairs) for group, pairs in between.items()}


def _level(tree: Tree, group: int, pairs: Mapping[tuple[int, int], set[int]]) -> Level:
    members = tree.nodes[group].children
    place = {m: k for k, m in enumerate(members)}
    targets: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for (a, b), found in pairs.items():
        targets.setdefault((a, tuple(sorted(found))), []).append(b)
    pills: list[Pill] = []
    edges: list[tuple[int, int]] = []
    for (a, moves), readers in targets.items():
        reached = tuple(b for b in readers if b >= 0)
        here = place[a]
        if moves:
            pills.append(Pill(moves, a, reached))
            edges.append((here, here := len(members) + len(pills) - 1))
        edges += [(here, place[b]) for b in reached]
    return Level(members, tuple(pills), draw(_widths(tree, members, len(pills)), edges))


def _widths(tree: Tree, members: Sequence[int], pills: int) -> list[float]:
    return [SIZES[box_kind(tree.nodes[m].kind)][0] for m in members] + [SIZES["pill"][0]] * pills


def box_kind(kind: str) -> str:
    """The key of `SIZES` for a kind of node."""
    return kind if kind in SIZES else "group"
