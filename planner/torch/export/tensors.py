"""Inputs of a module as they are written on the command line: `ids:int64[8,2048]`."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError
from planner.nearest import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DTYPES", "TensorSpec", "empty_tensors", "named_value", "tensor_specs"]

DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
_ONE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*):)?(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\]")
_MOST_DIMENSIONS = 16
_MOST_ELEMENTS = 1 << 48  # of one input; nothing is allocated, and more is a slip of the keyboard


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input: `name` is empty where it is given by its place."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def empty(self) -> Tensor:
        """A tensor of this kind that takes no memory."""
        import torch

        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta")


def tensor_specs(text: str) -> tuple[TensorSpec, ...]:
    """argparse type: one input or several, with commas or spaces between them.  ArgumentTypeError."""
    found, at = [], 0
    for match in _ONE.finditer(text):
        if text[at : match.start()].strip(" ,;\n\t"):
            break
        found.append(_spec(match, text))
        at = match.end()
    if not found or text[at:].strip(" ,;\n\t"):
        raise argparse.ArgumentTypeError(
            f"expected inputs such as ids:int64[8,2048] or float32[32,3,224,224], found {text!r:.120}"
        )
    return tuple(found)


def _spec(match: re.Match[str], text: str) -> TensorSpec:
    dtype, dims = match["dtype"], match["dims"].strip()
    if dtype not in DTYPES:
        hint = did_you_mean(dtype, DTYPES, before=" ")
        raise argparse.ArgumentTypeError(
            f"{text!r:.120}: expected one of the types {', '.join(DTYPES)}, found {dtype!r:.40}"
            + (f";{hint}" if hint else "")
        )
    sizes = [d.strip() for d in dims.split(",")] if dims else []
    if not all(d.isascii() and d.isdigit() and 0 < int(d) < 10**9 for d in sizes if len(d) < 20) or any(
        len(d) >= 20 for d in sizes
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r:.120}: expected whole sizes of at least 1 between the brackets, found [{dims:.60}]"
        )
    shape = tuple(map(int, sizes))
    elements = 1
    for size in shape:
        elements *= size
    if len(shape) > _MOST_DIMENSIONS or elements > _MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(
            f"{text!r:.120}: expected at most {_MOST_DIMENSIONS} dimensions and {_MOST_ELEMENTS:,} elements, found "
            f"{len(shape)} and {elements:,}"
        )
    return TensorSpec(match["name"] or "", dtype, shape)


def named_value(text: str) -> tuple[str, Any]:
    """argparse type: `name=value`, the value as Python writes it, or a word.  ArgumentTypeError."""
    name, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r:.120}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return name, value


def empty_tensors(specs: Sequence[TensorSpec], option: str) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Tensors by place and by name.  UsageError where two have one name, or one without a name follows one with."""
    listed: list[Tensor] = []
    named: dict[str, Tensor] = {}
    for spec in specs:
        if spec.name in named:
            raise UsageError(f"{option}: {spec.name} is given twice; leave one out")
        if spec.name:
            named[spec.name] = spec.empty()
        elif named:
            raise UsageError(
                f"{option}: an input without a name follows one with a name; name it, or write it further in front"
            )
        else:
            listed.append(spec.empty())
    return tuple(listed), named
