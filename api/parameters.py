"""Query parameters of the service: their types, and how an option of the command line becomes one."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import Field as DataclassField
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from planner.cost_models import profile_names
from planner.requests.options import default_of
from planner.requests.values import byte_size, positive, seconds

__all__ = ["Name", "parameter"]

_COUNT: Final = {"ge": 1, "le": 10**9}
_SIZE: Final = {"pattern": r"^[0-9]{1,15}(\.[0-9]{1,6})?([kKmMgGtT]([iI]?[bB])?|[bB])?$"}
_TEXT: Final = {"min_length": 1, "max_length": 1000, "pattern": r"^[^\x00-\x1f\x7f]+$"}
_MOST: Final = 200  # entries of a list

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")]
Hardware = Annotated[str, Field(json_schema_extra={"enum": list(profile_names())})]

_OWN: Final[Mapping[str, Any]] = {"hardware": Hardware}  # never a file of the service's machine
# Type and usual limits of a value, by how the command line reads it; what is not here is a text that it reads.
_KINDS: Final[Mapping[Any, tuple[type, Mapping[str, Any]]]] = {
    None: (str, _TEXT),
    positive: (int, _COUNT),
    byte_size: (str, _SIZE),
    int: (int, {}),
    float: (float, {}),
    seconds: (float, {}),
}


def parameter(option: DataclassField[Any]) -> tuple[Any, Any]:
    """Annotation and default of the parameter for a field made by `planner.requests.options.option`."""
    argument, default = option.metadata["option"], default_of(option)
    limits = {} if option.metadata["sent"] is True else dict(option.metadata["sent"])
    described = {name: limits.pop(name) for name in ("description", "examples") if name in limits}
    described.setdefault("description", _sentence(argument.get("help"), argument.get("choices", ())))
    several = argument.get("action") == "append"
    if several:
        described["max_length"] = limits.pop("max_length", _MOST)
    kind = _kind(option.name, argument, limits)
    if several:
        kind = list[kind]  # type: ignore[valid-type]  # a type that is made here
    return Annotated[kind if default is not None else kind | None, Field(**described)], default


def _kind(name: str, argument: Mapping[str, Any], limits: Mapping[str, Any]) -> Any:
    """The type of one value, with its limits."""
    if name in _OWN:
        return _OWN[name]
    if "choices" in argument:
        return Literal[tuple(argument["choices"])]
    if argument.get("action") == "store_true":
        return bool
    plain, usual = _KINDS.get(argument.get("type"), _KINDS[None])
    return Annotated[plain, Field(**(dict(limits) if "pattern" in limits else {**usual, **limits}))]


def _sentence(said: str | Callable[[], str] | None, choices: Container[str]) -> str | None:
    """Help of the command line, whose options are parameters here; a value that it begins with stays as it is."""
    words = (said() if callable(said) else said or "").replace("--", "")
    if not words:
        return None
    first = words if words.partition(":")[0] in choices else words[0].upper() + words[1:]
    return first if first.endswith("…") else f"{first}."
