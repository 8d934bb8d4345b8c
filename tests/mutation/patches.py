"""Faults that are in force only while one operator, or one redistribution, is executed on the devices."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from planner.ir import DeviceMesh, Layout, Op
from planner.kernels.shards import Shards
from planner.lowering import Redistribute
from planner.verify.execute import VirtualDevices
from tests.mutation.faults import Effect, Fault
from tests.mutation.produced import reduced

__all__ = ["Patch", "during", "during_redistribution"]

Patch = Callable[[Callable[..., Any]], Callable[..., Any]]  # the real function → the wrong one


@dataclass
class _Window:
    """Whether the fault is in force now."""

    effect: Effect = field(default_factory=Effect)
    open: bool = False


def during(name: str, target: str, patch: Patch, *, backward: bool | None = None) -> Fault:
    """`target` (a dotted name) is wrong while operator `name` runs."""

    @contextmanager
    def fault() -> Iterator[Effect]:
        window = _Window()
        with ExitStack() as stack:
            _replace(stack, target, patch, window)
            for phase in ("forward", "backward") if backward is None else (("forward", "backward")[backward],):
                _open(stack, phase, lambda op: isinstance(op, Op) and op.name == name, window)
            yield window.effect

    return fault


def during_redistribution(move: Redistribute, target: str, patch: Patch) -> Fault:
    @contextmanager
    def fault() -> Iterator[Effect]:
        window = _Window()
        with ExitStack() as stack:
            _replace(stack, target, patch, window)
            _open(stack, "redistribute", lambda given: given == move, window)
            yield window.effect

    return fault


def _replace(stack: ExitStack, target: str, patch: Patch, window: _Window) -> None:
    module, _, name = target.rpartition(".")
    holder = pkgutil.resolve_name(module)
    real = getattr(holder, name)
    wrong = patch(real)

    def chosen(*args: Any, **named: Any) -> Any:
        return wrong(*args, **named) if window.open else real(*args, **named)

    stack.enter_context(mock.patch.object(holder, name, chosen))


def _open(stack: ExitStack, method: str, applies: Callable[[object], bool], window: _Window) -> None:
    """Runs what the fault applies to as it should be, too, to see whether it makes a difference."""
    real: Callable[..., Any] = getattr(VirtualDevices, method)

    def run(self: VirtualDevices, what: Any, *rest: Any) -> Any:
        if not applies(what):
            return real(self, what, *rest)
        before = dict(self.values), dict(self.gradients), dict(self.residuals)
        right = real(self, what, *rest)
        for store, old in zip((self.values, self.gradients, self.residuals), before, strict=True):
            store.clear()
            store.update(old)  # type: ignore[arg-type]
        window.open = True
        try:
            wrong = real(self, what, *rest)
        except Exception:
            window.effect.changed += 1
            raise
        finally:
            window.open = False
        layouts = _layouts(self, method, what)
        for layout, a, b in zip(
            layouts, *(([x] if method == "redistribute" else x) for x in (right, wrong)), strict=True
        ):
            _compare(window.effect, layout, a, b, self.mesh)
        return wrong

    stack.enter_context(mock.patch.object(VirtualDevices, method, run))


def _layouts(devices: VirtualDevices, method: str, what: Any) -> Sequence[Layout | None]:
    if isinstance(what, Redistribute):
        return [what.target]
    strategy = devices.program.strategies[what.name]
    return strategy.results if method == "forward" else strategy.operand_gradients


def _compare(effect: Effect, layout: Layout | None, a: Shards | None, b: Shards | None, mesh: DeviceMesh) -> None:
    if a is None or b is None:
        effect.changed += a is not b
        return
    if layout is not None and len(layout.dims) == a[0].ndim:
        a, b = tuple(reduced(a, layout, mesh)), tuple(reduced(b, layout, mesh))
    for x, y in zip(a, b, strict=True):
        effect.note(x, y)
