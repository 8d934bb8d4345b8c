"""Fields of a request, and how the command line has them: one place for what an option is called and may be."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any

from planner.errors import UsageError
from planner.requests.values import byte_size, size_with_unit

__all__ = ["add_options", "default_of", "option", "options_of", "read", "refuse_others", "sent_of"]


def option(
    default: Any = None,
    *,
    sent: bool | Mapping[str, Any] = True,
    keyed: bool = True,
    recorded: bool = True,
    **argument: Any,
) -> Any:
    """A field, and how the command line has it: arguments of `argparse.ArgumentParser.add_argument`; `help` may be
    what makes the text, and `choices` what may still grow.

    `sent`: whether a service is asked for it, and what that says of it beyond this: `description` where `help` speaks
    of the command line, `examples`, limits as of `pydantic.Field` (`ge`, `le`, `pattern`, …; of a list `max_length`);
    `keyed`: whether the answer depends on it; `recorded`: whether a plan says that it was asked for.
    """
    metadata = {"option": argument, "sent": sent, "keyed": keyed, "recorded": recorded}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(request: type[Any]) -> tuple[Field[Any], ...]:
    """The fields that are options, in their order."""
    return tuple(f for f in fields(request) if "option" in f.metadata)


def sent_of(request: type[Any]) -> tuple[str, ...]:
    """Names of the options that a service is asked for, beside the devices."""
    return tuple(f.name for f in options_of(request) if f.metadata["sent"])


def add_options(parser: argparse.ArgumentParser, request: type[Any], names: Iterable[str] | None = None) -> None:
    """The options of a request to the command line, or those of these names."""
    wanted = None if names is None else set(names)
    for f in options_of(request):
        if wanted is None or f.name in wanted:
            argument = dict(f.metadata["option"])
            if callable(argument.get("help")):
                argument["help"] = argument["help"]()
            if argument.get("type") is byte_size:  # a program that sends a number counts bytes, people forget the unit
                argument["type"] = size_with_unit
            parser.add_argument(f"--{f.name.replace('_', '-')}", default=default_of(f), **argument)


def default_of(f: Field[Any]) -> Any:
    """What the option is where it is not given."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def refuse_others(options: Mapping[str, Any], known: Collection[str]) -> None:
    """UsageError where there is an option of another name."""
    for name in options.keys() - set(known):
        raise UsageError(f"{name}: no such option; there are {', '.join(sorted(known))}")


def read(request: type[Any], name: str, value: Any) -> Any:
    """The value of an option that came as JSON or as text, as the command line would have read it.  UsageError."""
    argument = next(f for f in options_of(request) if f.name == name).metadata["option"]
    said = f"argument --{name.replace('_', '-')}"
    several, flag = argument.get("action") == "append", argument.get("action") == "store_true"
    if several:
        return [str(v) for v in (value if isinstance(value, list | tuple) else [value])]
    if flag:
        if not isinstance(value, bool):
            raise UsageError(f"{said}: expected true or false, found {value!r:.60}")
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise UsageError(f"{said}: expected one value, found {value!r:.60}")
    text = str(value)
    try:
        made = argument["type"](text) if "type" in argument else text
    except argparse.ArgumentTypeError as e:
        raise UsageError(f"{said}: {e}") from e
    except ValueError as e:
        raise UsageError(f"{said}: invalid {argument['type'].__name__} value: {text!r:.60}") from e
    choices = argument.get("choices")
    if choices is not None and made not in choices:
        raise UsageError(f"{said}: invalid choice: {made!r:.60} (choose from {', '.join(map(repr, choices))})")
    return made
