"""How an ATen operator is written as ONNX nodes.

    @aten("linear.default")
    def _linear(w: Writer, x: Value, weight: Value, bias: Value | None = None) -> Value:
        ...

A translator is called with the arguments of the operator in ATen's order and by ATen's names; tensors are `Value`s,
anything else is as Python has it.  It returns the `Value` of the result, or a tuple of several.  Where an operand or a
result is complex, the translator `complex_numbers` of the operator is called instead.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["Translator", "aten", "is_known", "translator"]

Translator = Callable[..., Any]

_TRANSLATORS: dict[str, Translator] = {}
_COMPLEX: dict[str, Translator] = {}


def aten(*names: str, complex_numbers: bool = False) -> Callable[[Translator], Translator]:
    """Register a translator for operators, as `linear.default`.  ValueError for one that has a translator already."""
    known = _COMPLEX if complex_numbers else _TRANSLATORS

    def register(function: Translator) -> Translator:
        for name in names:
            if name in known:
                raise ValueError(f"aten.{name} has two translators; keep one")
            known[name] = function
        return function

    return register


def translator(target: Any, *, complex_numbers: bool = False) -> Translator | None:
    """The translator of an operator of a captured graph; None where there is none."""
    _load()
    return (_COMPLEX if complex_numbers else _TRANSLATORS).get(_name(target))


def is_known(target: Any) -> bool:
    """Whether the operator has a translator."""
    return translator(target) is not None


def _name(target: Any) -> str:
    """`linear.default`, of ATen alone; operators of other namespaces keep theirs: `transformers::grouped_mm`."""
    space = getattr(target, "namespace", "")
    name = str(target)
    return name.removeprefix("aten.") if space == "aten" else name


@cache
def _load() -> None:
    from planner.torch.capture import operators

    for module in pkgutil.iter_modules(operators.__path__):
        importlib.import_module(f"{operators.__name__}.{module.name}")
