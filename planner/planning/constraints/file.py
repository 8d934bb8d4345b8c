"""The constraints file (schema `planner.constraints/1`, YAML or JSON); a plan.json or a search configuration of
HyperParallel taken as constraints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from planner.errors import InputError
from planner.planning.constraints import notation
from planner.planning.constraints.parse import Lines, parse_text
from planner.planning.constraints.search_yaml import constraints_of_search, is_search
from planner.planning.constraints.values import (
    Constraints,
    Counts,
    LayoutPin,
    OperatorPin,
    ParameterPin,
    Rest,
    StrategyPin,
    TensorPin,
)
from planner.planning.document import SCHEMA as PLAN_SCHEMA
from planner.planning.document import LayoutDocument, PlanDocument
from planner.planning.plan_file import read_plan
from planner.planning.roles import role_from_text

__all__ = ["SCHEMA", "constraints_of_plan", "parse_constraints", "read_constraints"]

SCHEMA = "planner.constraints/1"
MOST_BYTES = 8 * 2**20


def _patterns(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(v, str) and v for v in items):
        raise ValueError(f"expected a pattern such as 'block.*.mlp.*', or a list of patterns, found {value!r}")
    return tuple(items)


_Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]
_Layout = Annotated[LayoutPin, BeforeValidator(notation.parse_layout)]
_Counts = Annotated[tuple[Counts | None, ...], BeforeValidator(notation.parse_counts)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)


class _Operator(_Part):
    match: _Patterns = ()
    type: _Patterns = ()
    reads: _Patterns = ()
    strategy: Annotated[StrategyPin, BeforeValidator(notation.parse_factors)] | None = None
    roles: Annotated[StrategyPin, BeforeValidator(notation.parse_roles)] | None = None
    shard: _Counts = ()
    shard_out: _Counts = ()

    @model_validator(mode="after")
    def _complete(self) -> _Operator:
        if not (self.match or self.type or self.reads):
            raise ValueError("names no operator; give `match`, `type` or `reads`")
        if not (self.strategy or self.roles or self.shard or self.shard_out):
            raise ValueError("pins nothing; give `strategy`, `roles`, `shard` or `shard_out`")
        return self

    def pin(self, where: str) -> OperatorPin:
        strategy = StrategyPin(
            None if self.strategy is None else self.strategy.factors,
            () if self.roles is None else self.roles.roles,
            self.shard,
            self.shard_out,
        )
        return OperatorPin(where, strategy, self.match, self.type, self.reads)


class _Tensor(_Part):
    match: _Patterns
    layout: _Layout | None = None
    produced: _Layout | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Tensor:
        if self.layout is None and self.produced is None:
            raise ValueError("pins nothing; give `layout` (as it is read) or `produced` (as it is delivered)")
        return self


class _Parameter(_Part):
    match: _Patterns
    stored: _Layout | None = None
    compute: _Layout | None = None

    @model_validator(mode="after")
    def _complete(self) -> _Parameter:
        if self.stored is None and self.compute is None:
            raise ValueError("pins nothing; give `stored` or `compute`")
        return self


class _File(_Part):
    schema_: Literal["planner.constraints/1"] = Field(alias="schema")
    mesh: Annotated[tuple[tuple[int, ...], ...], BeforeValidator(notation.parse_meshes)] = ()
    operators: list[_Operator] = []
    tensors: list[_Tensor] = []
    parameters: list[_Parameter] = []
    rest: Annotated[Rest, BeforeValidator(notation.parse_rest)] = Rest()
    batch: dict[str, Annotated[int, Field(ge=0, le=32)]] = {}


def read_constraints(path: str | os.PathLike[str]) -> Constraints:
    """InputError, naming the line, where the file cannot be read or understood."""
    file = Path(path)
    try:
        size = file.stat().st_size
        text = "" if size > MOST_BYTES else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise InputError(f"constraints {path}: cannot be read ({e}); give a YAML or JSON file in UTF-8") from e
    if f'"{PLAN_SCHEMA}"' in text[:200] or (size > MOST_BYTES and file.suffix == ".json"):
        return constraints_of_plan(read_plan(file), file.name)
    if size > MOST_BYTES:
        raise InputError(f"constraints {path}: {size} bytes; expected at most {MOST_BYTES}: use patterns")
    return parse_constraints(text, file.name)


def parse_constraints(text: str, name: str, *, numbered: bool = True) -> Constraints:
    """The constraints in a YAML or JSON text; `name` is what messages call it, with the line where they are
    `numbered`.  InputError as above."""
    data, lines = parse_text(text, name)
    lines = replace(lines, numbered=numbered)
    if is_search(data):
        return constraints_of_search(data, name, lines)
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise InputError(f"constraints {name}: expected a mapping with schema: {SCHEMA}, found {found!r}")
    try:
        parsed = _File.model_validate(data)
    except ValidationError as e:
        raise InputError(_message(name, e, lines)) from e

    def where(*path: str | int) -> str:
        return lines.where(name, path)

    return Constraints(
        name,
        parsed.mesh,
        tuple(o.pin(where("operators", i)) for i, o in enumerate(parsed.operators)),
        tuple(TensorPin(where("tensors", i), t.match, t.layout, t.produced) for i, t in enumerate(parsed.tensors)),
        tuple(
            ParameterPin(where("parameters", i), p.match, p.stored, p.compute) for i, p in enumerate(parsed.parameters)
        ),
        replace(parsed.rest, where=where("rest") if "rest" in data else ""),
        tuple(parsed.batch.items()),
    )


def _message(name: str, error: ValidationError, lines: Lines) -> str:
    errors = error.errors()
    first = errors[0]
    path = tuple(p for p in first["loc"] if isinstance(p, str | int))
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "is not a key that is known here"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"constraints {lines.where(name, path)}: {'.'.join(map(str, path)) or 'file'}: {what}{more}"


def constraints_of_plan(plan: PlanDocument, name: str) -> Constraints:
    """The whole plan pinned: its mesh, the role of every axis in every operator, the layouts parameters are stored in.

    What is left to the search is how tensors travel in between.
    """

    def roles(strategy: Mapping[str, str]) -> StrategyPin:
        try:
            return StrategyPin(roles=tuple((axis, role_from_text(text)) for axis, text in strategy.items()))
        except ValueError as e:
            raise InputError(f"constraints {name}: {e}") from e

    def layout(document: LayoutDocument) -> LayoutPin:
        try:
            return notation.parse_layout({"dims": document.dims, "partial": document.partial, "parts": document.parts})
        except ValueError as e:
            raise InputError(f"constraints {name}: {e}") from e

    return Constraints(
        name,
        (plan.mesh.shape,),
        tuple(OperatorPin(f"{name} operators.{n}", roles(o.strategy), (n,)) for n, o in plan.operators.items()),
        (),
        tuple(ParameterPin(f"{name} parameters.{n}", (n,), layout(p.stored)) for n, p in plan.parameters.items()),
    )
