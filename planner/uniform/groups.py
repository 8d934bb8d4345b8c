"""The workload of a configuration whose ZeRO divides over groups of ranks, by that of one that divides over all.

What ranks compute and send for activations is the same.  Weights are gathered from the parts that a group stores, and
gradients, which are summed over all ranks, end in these parts: both by the paths that the redistribution search finds
where the data-parallel ranks are two axes of the mesh, copies of the weights and parts of them.  A weight counts as one
dimension there; with several it may find a path that is a little shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.ir import DeviceMesh, Layout, Reduction
from planner.pricing import Machine, Settings
from planner.redistribute import Redistributions, scattered
from planner.redistribute.steps import FREE
from planner.trace import Exchange, Workload

__all__ = ["Groups"]


class _Path(NamedTuple):
    """What takes the place of an exchange: where it happens once a step, and of what ranks add up parts."""

    once: tuple[Exchange, ...]
    every_pass: tuple[Exchange, ...]


@dataclass(frozen=True, eq=False)
class Groups:
    """Exchanges in groups, found once for those that are alike."""

    profile: HardwareProfile
    _known: dict[object, dict[Exchange, _Path]] = field(default_factory=dict)

    def regrouped(self, over_all: Workload, c: Configuration) -> Workload:
        """The workload of `c`, which says over how many ranks it divides (`shard_ranks`); `over_all`: that of the same
        over all data-parallel ranks, the first axis of its mesh."""
        first, *rest = over_all.mesh.axes
        copies = c.dp * c.cp // (c.shard_ranks or c.dp * c.cp)
        parts = first.size // copies
        mesh = DeviceMesh.of(*(n for n in (copies, parts) if n > 1), *(a.size for a in rest))
        count = len(mesh.axes) - len(rest)
        named = {first.name: mesh.names[:count]}
        named |= {a.name: (name,) for a, name in zip(rest, mesh.names[count:], strict=True)}
        machine = Machine(self.profile, mesh, Settings(True, c.precision, c.optimizer))
        known = self._known.setdefault((mesh, machine.settings, tuple(named.items())), {})
        units = {id(u): u for u in over_all.units}
        wanted = dict.fromkeys(x for u in units.values() for x in (*u.gathers, *u.scatters) if x not in known)
        known |= _in_groups([*wanted], machine, named)
        made = {
            key: replace(
                u,
                gathers=tuple(y for x in u.gathers for y in known[x].once),
                # Of the two ways of a gradient this one says what is divided, whichever is faster over all ranks.
                sums=tuple(y for x in u.scatters for y in known[x].once),
                scatters=tuple(y for x in u.scatters for y in known[x].every_pass),
                stored=_stored(u.weights, u.stored, c, copies),
                frozen_stored_bytes=_stored(u.frozen_bytes, u.frozen_stored_bytes, c, copies),
            )
            for key, u in units.items()
        }
        tied = tuple(replace(t, stored=_stored(t.weights, t.stored, c, copies)) for t in over_all.tied)
        every = tuple(made[id(u)] for u in over_all.units)
        return replace(over_all, units=every, tied=tied, exchanged_over=mesh, like=over_all)


def _in_groups(
    exchanges: Sequence[Exchange], machine: Machine, named: Mapping[str, tuple[str, ...]]
) -> dict[Exchange, _Path]:
    """What takes the place of each; `named`: the axes of the machine's mesh that each axis has become.

    Weights of a unit are exchanged together, so that a path is that of all of them.
    """
    mesh = machine.mesh
    copies, width = mesh.names[0], 4 if machine.settings.precision == "fp32" else 2
    found: dict[Exchange, _Path] = {}
    together: dict[tuple[str, tuple[str, ...], int], list[Exchange]] = defaultdict(list)
    for x in exchanges:
        axes = tuple(name for axis in x.axes for name in named[axis])
        if copies in axes and x.kind in ("all_gather", "reduce_scatter"):
            elements = x.elements / x.share if machine.profile.axes is None else x.elements
            together[x.kind, axes, max(1, round(elements / mesh.size(axes))) * mesh.size(axes)].append(x)
        else:  # all ranks sum what all of them hold whole; and a way that is shorter for some sizes is taken as it is
            found[x] = _Path(*2 * ((replace(x, axes=axes),),))
    cases, ends = [], []
    for kind, axes, elements in together:
        # A first dimension that is divided among all other ranks, so that these take no part.
        others, within = (tuple(n for n in mesh.names if n not in axes), tuple(n for n in axes if n != copies))
        shape = mesh.size(others), elements
        parts, whole = Layout((others, within)), Layout((others, ()))
        pending = replace(whole, partial=tuple((n, Reduction.SUM) for n in mesh.names if n in axes))
        cases.append((shape, shape[0] * elements * width, Reduction.SUM, (), None, 1.0))
        ends.append((parts, whole) if kind == "all_gather" else (pending, parts))
    tables = Redistributions.of_all(cases, mesh, machine)
    for alike, table, (source, target) in zip(together.values(), tables, ends, strict=True):
        path, whole_bytes = table.path(source, target), table.shape[1] * width
        ways = [
            [(str(s.kind), s.axes, s.group_bytes(table.bytes, mesh) / whole_bytes) for s in steps if s.kind not in FREE]
            for steps in (path, scattered(path))
        ]
        for x in alike:
            once, every_pass = (
                tuple(replace(x, kind=kind, axes=axes, elements=x.elements * part) for kind, axes, part in way)
                for way in ways
            )
            found[x] = _Path(once, every_pass)
    return found


def _stored(read: float, stored: float, c: Configuration, copies: int) -> float:
    """Of elements that are read, those that a rank stores where it stores so many over all ranks: what does not divide
    is stored whole."""
    ranks = c.dp * c.cp
    if c.ep > 1 or ranks == 1:
        return min(read, stored * copies)
    divided = (read - stored) / (1 - 1 / ranks)
    return read - divided + divided * copies / ranks
