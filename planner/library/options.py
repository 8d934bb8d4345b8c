"""Keywords of functions, checked and read as the command line reads its options."""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, Final, ForwardRef, Literal, TypedDict, TypeVar, cast

from planner.errors import OptionError, UsageError
from planner.library.wording import in_keywords
from planner.requests.options import default_of, options_of, read
from planner.requests.values import plan_file
from planner.search.solvers import SolverName
from planner.targets import Target

__all__ = ["EvaluationOptions", "SearchOptions", "documented", "given_options", "keywords_of", "refuse_unknown"]

F = TypeVar("F", bound=Callable[..., Any])
Files = str | os.PathLike[str]


class SearchOptions(TypedDict, total=False):
    """Options of `search`, with the names that the command line has for them."""

    bind: Mapping[str, int] | Sequence[str]
    batch: int | None
    nodes: int | None
    mesh: str | None
    mode: Literal["training", "inference"] | None
    memory_limit: int | str | None
    optimizer: Literal["adam", "momentum", "sgd"]
    precision: Literal["bf16", "fp16", "fp32"]
    recompute: Literal["auto", "none", "blocks"]
    stages: int
    micro_batches: int | None
    constraints: Files | None
    pin: str | Sequence[str]
    strategy: str | None
    risk: Literal["expected", "upper"]
    space: Literal["whole", "operators"] | None
    solver: SolverName
    time_limit: float | None
    target: Target
    reproducible: bool
    top_k: int
    front: bool
    warm_start: Files | None
    save_problem: Files | None
    save_all_meshes: bool


class EvaluationOptions(TypedDict, total=False):
    """Options of `evaluate`, with the names that the command line has for them."""

    bind: Mapping[str, int] | Sequence[str]
    batch: int | None
    strategy: str | None
    precision: Literal["bf16", "fp16", "fp32"] | None
    optimizer: Literal["adam", "momentum", "sgd"] | None
    memory_limit: int | str | None


def refuse_unknown(function: str, given: Collection[str], known: Collection[str]) -> None:
    """OptionError for a keyword that is not known, with the nearest that is."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}"
            raise OptionError(f"{function} has no option {name!r}; {hint}")


def keywords_of(request: type[Any]) -> tuple[str, ...]:
    """Names of the options that are keywords: all but what a `Machine` says."""
    return tuple(f.name for f in options_of(request) if f.name not in ("hardware", "devices"))


def given_options(function: str, request: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `request`, as its options are on the command line: sizes may be numbers or texts such as `64GiB`,
    `bind` a mapping or a list of `DIM=SIZE`, None is the default.

    OptionError for an unknown keyword and for a value of another type.
    """
    refuse_unknown(function, given, keywords_of(request))
    found = {}
    for f in options_of(request):
        if f.name in given:
            value = given[f.name]
            found[f.name] = default_of(f) if value is None else _read(request, f.name, value)
    return found


def _read(request: type[Any], name: str, value: Any) -> Any:
    argument = next(f for f in options_of(request) if f.name == name).metadata["option"]
    if name == "bind" and isinstance(value, Mapping):
        value = [f"{dimension}={size}" for dimension, size in value.items()]
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        value = value.__index__()  # an integer of numpy, too
    if argument.get("type") in (Path, plan_file) and not isinstance(value, str):
        raise OptionError(f"{name}: expected a path, found {value!r:.60}")
    try:
        return read(request, name, value)
    except UsageError as e:
        raise OptionError(in_keywords(str(e))) from None


def documented(request: type[Any], options: type[Any]) -> Callable[[F], F]:
    """Gives a function that takes `**options` the signature that it stands for, and its docstring what each means.

    `options`: the TypedDict of the keywords; `request` says what each is by default, and for.
    """
    types = {name: _spelled(kind) for name, kind in options.__annotations__.items()}
    known = keywords_of(request)

    def wrap(function: F) -> F:
        own = inspect.signature(function)
        named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = [f for f in options_of(request) if f.name in known and f.name not in own.parameters]
        more = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=types.get(f.name, f.type)
            )
            for f in fields
        ]
        cast(Any, function).__signature__ = own.replace(parameters=[*named, *more])
        lines = [_line(f.name, f.metadata["option"]) for f in fields]
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    Options:\n" + "\n".join(lines) + "\n    "
        return function

    return wrap


def _spelled(kind: Any) -> str:
    return kind.__forward_arg__ if isinstance(kind, ForwardRef) else str(kind)


def _default(f: Field[Any]) -> Any:
    default = default_of(f)
    return tuple(default) if isinstance(default, list) else default


def _line(name: str, argument: Mapping[str, Any]) -> str:
    own = argument.get("help", "")
    description = _OWN.get(name) or in_keywords(own() if callable(own) else own)
    choices = f"one of {', '.join(argument['choices'])}" if "choices" in argument else ""
    text = "; ".join(part for part in (description, choices) if part)
    return textwrap.fill(
        f"{name}: {text}", 100, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
    )


# Of options that are given otherwise here than on the command line, or described there beside the model.
_OWN: Final = {
    "bind": "the sizes of symbolic dimensions, a mapping such as {'sequence': 128}; default: those of the model",
    "batch": "the global batch size; it binds the batch dimension, or replaces a static one; default: the model's own",
    "memory_limit": "memory that a plan may use on each device, in bytes or as 64GiB; default: what the profile leaves",
    "pin": "one constraint or a list of them, such as '*.fc1.* m=x n=y', '*.weight stored=[_,x]', 'rest=data_parallel'",
    "strategy": "a known configuration: ddp, zero1, fsdp, hsdp:shard=8, megatron:tp=8,pp=4,recompute=full, …",
    "target": "search only plans that this framework can express",
    "front": "also list in `figures['uniform']` which configuration is the fastest for each smaller amount of memory",
}
