"""What the user's code offers: a module, or a function that makes one, by `package.module:name` or `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from planner.errors import InputError, PlannerError, UsageError
from planner.nearest import did_you_mean
from planner.torch.capture.unallocated import without_weights

__all__ = ["built", "named_object"]


def named_object(text: str, option: str = "MODULE") -> Any:
    """The object of a Python module or file.  UsageError for another spelling, InputError where it is not there or its
    code fails."""
    where, sign, name = text.rpartition(":")
    if not sign or not where or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            f"{option} {text!r:.120}: expected package.module:function or path/to/file.py:function, a function that "
            "returns the module"
        )
    home = _loaded(where, option)
    found: Any = home
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n in vars(home) if not n.startswith("_")] if found is home else []
            raise InputError(f"{option} {text}: {where} has no {name}{did_you_mean(name, known)}")
        found = getattr(found, part)
    return found


def built(text: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The module that the text names, without memory for its weights where it is made here.

    InputError where that is no module, or its code fails.
    """
    found = _without_weights(lambda: named_object(text), f"MODULE {text}")
    if isinstance(found, nn.Module):
        if arguments:
            raise UsageError(f"--arg: {text} is a module already, and takes no arguments; name the function or class")
        return found
    if not callable(found):
        raise InputError(
            f"MODULE {text}: expected a torch.nn.Module or a function that returns one, found {type(found).__name__}"
        )
    try:
        module = _without_weights(lambda: found(**arguments), f"MODULE {text}")
    except InputError as error:
        if isinstance(error.__cause__, TypeError):
            _check_arguments(found, text, arguments)
        raise
    if not isinstance(module, nn.Module):
        raise InputError(
            f"MODULE {text}: expected the function to return a torch.nn.Module, found {type(module).__name__}"
        )
    return module


def _check_arguments(found: Any, text: str, arguments: Mapping[str, Any]) -> None:
    """UsageError where the function takes other arguments than --arg gives."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # such as that of a builtin
        return
    takes = signature.parameters.values()
    named = [p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in takes if p.name in named and p.default is p.empty and p.name not in arguments]
    if missing:
        raise UsageError(f"MODULE {text}: it needs the argument {missing[0]}; give it with --arg {missing[0]}=VALUE")
    other = [] if any(p.kind is p.VAR_KEYWORD for p in takes) else [n for n in arguments if n not in named]
    if other:
        takes_what = f"it takes {', '.join(named)}" if named else "it takes none"
        raise UsageError(f"--arg {other[0]}: {text} has no such argument; {takes_what}{did_you_mean(other[0], named)}")


def _without_weights(make: Any, what: str) -> Any:
    """Once more with weights where the code reads one while the module is made."""
    try:
        with without_weights():
            return make()
    except PlannerError:
        raise
    except Exception as error:
        if "meta" not in str(error):
            raise failed(what, error) from error
    except SystemExit as error:
        raise failed(what, error) from error
    try:
        return make()
    except PlannerError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(what, error) from error


def failed(what: str, error: BaseException) -> InputError:
    """The error of the user's code, with the line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = " ".join(str(error).split())[:300]
    if "attempted relative import" in said:
        return InputError(
            f"{what}: it imports from its own package{place}, which a file alone is not part of; name it as "
            "package.module:function, from the folder that the package lies in"
        )
    return InputError(f"{what}: its code failed with {type(error).__name__}: {said}{place}; call it in Python first")


def _loaded(where: str, option: str) -> Any:
    """A Python module; its folder, or the one that the command is in, is where its own imports are looked up."""
    path = Path(where)
    if where.endswith(".py"):
        if not path.is_file():
            raise InputError(f"{option}: {where}: no such file; give the path of a Python file, or package.module")
        return _file(path.resolve(), f"{option} {where}")
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"{option} {where!r:.120}: expected the name of a Python module, or the path of a .py file")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise InputError(
                f"{option}: there is no module {error.name} in {Path.cwd()} or among the installed packages; give "
                "package.module:function, or path/to/file.py:function"
            ) from error
        raise failed(f"{option} {where}", error) from error


def _file(path: Path, what: str) -> Any:
    name = path.stem if path.stem.isidentifier() else "exported_file"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name if name not in sys.modules else f"{name}_of_export", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{what}: cannot be loaded as Python code; give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module
