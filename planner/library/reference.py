"""docs/python.md, made of the docstrings: `python -m planner.library.reference > docs/python.md`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, Final

import planner

__all__ = ["reference"]

_HEAD: Final = """\
# The Python API

This page is the reference of the Python API, for users who plan from a program or a notebook. It is made of the
docstrings (`python -m planner.library.reference > docs/python.md`), and a test compares.
[notebook.ipynb](notebook.ipynb) goes from `import planner` to a report, cell by cell.

```python
import planner

model = planner.build("gpt", layers=4, batch=64)  # or planner.load("model.onnx")
plan = planner.search(model, devices=8, hardware="h100")  # the plan that `planner search` writes
plan.parallelism, plan.step_time, plan.memory, plan.gap
plan.report("report.html")  # in a notebook, plan.report() is shown inline
plan.emit("torch", "out/")
```

Importing `planner` loads nothing heavy: functions are loaded when they are first used. They stand on what the command
line and the service stand on, and give the same bytes for the same request; keywords are the options of the command
line (`time_limit=10`, `memory_limit="64GiB"`, `target="megatron"`), with types that checkers see. An unknown one is an
`OptionError` that names the nearest. What is wrong is a `PlannerError` with the object, what was expected, what was
found, and what to do.

Searches can be watched and ended:

```python
token = planner.Cancellation()
threading.Timer(20, token.cancel).start()
plan = planner.search(model, devices=64, progress=lambda p: print(p.seconds, p.gap), cancellation=token)
plan.cancelled  # whether it is the best plan so far, rather than the last word
```

`plan.operators()`, `plan.parameters()` and `plan.collectives()` are tables: iterate over their rows, take a column
(`table["seconds"]`), or call `to_pandas()`, which alone needs pandas.

Some functions share their name with a package inside (`planner.search`). The function is what `planner.search` means;
the package is imported from: `from planner.search.control import Control`.
"""

_FUNCTIONS: Final = (
    *("load", "build", "capture", "search", "evaluate", "verify", "emit", "read", "report", "diff", "explain"),
    *("load_plan", "machines"),
)
_VALUES: Final = (
    *("Plan", "Model", "Graph", "Machine", "Progress", "Cancellation", "Table", "Report", "Diff", "Emission"),
    *("Evaluation", "Explanation", "Verification"),
)
_ERRORS: Final = (
    *("PlannerError", "UsageError", "OptionError", "InputError", "InfeasibleError", "NoPlanError"),
    "VerificationError",
)
_SECTION: Final = re.compile(r"^(Args|Returns|Raises|Options):$")
_ENTRY: Final = re.compile(r"^    (?=\S)([^:]+): ")


def reference() -> str:
    """The page."""
    parts = [_HEAD, "## Functions\n"]
    for name in _FUNCTIONS:
        function = getattr(planner, name)
        parts += [f"### planner.{name}\n", f"```text\n{_signature(name, function)}\n```\n", _text(function)]
    parts.append("## Values\n")
    for name in _VALUES:
        parts += [f"### planner.{name}\n", _text(getattr(planner, name)), *_members(getattr(planner, name))]
    parts.append("## Errors\n")
    parts += [f"- `planner.{name}`: {_line(getattr(planner, name))}" for name in _ERRORS]
    return "\n".join(part.rstrip("\n") + ("\n" if not part.startswith("- ") else "") for part in parts) + "\n"


def _signature(name: str, function: Any) -> str:
    """Without types, which the text and type checkers have."""
    shown, starred = [], False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            starred = True
            shown.append(f"**{p.name}" if p.kind is p.VAR_KEYWORD else f"*{p.name}")
        else:
            shown.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return "\n".join(textwrap.wrap(f"planner.{name}({', '.join(shown)})", 110, subsequent_indent="    "))


def _text(value: Any) -> str:
    """The docstring, its sections as lists, its aligned lines and examples as they are."""
    out: list[str] = []
    listed = False
    for line in (inspect.getdoc(value) or "").split("\n"):
        section = _SECTION.match(line)
        if section:
            listed = section[1] != "Returns"
            out += [f"**{section[1]}**", ""]
        elif listed and line.startswith("    "):
            entry = _ENTRY.match(line)
            out.append(_ENTRY.sub(r"- `\1`: ", line) if entry else f"  {line.strip()}")
        else:
            listed = listed and not line.strip()
            out.append(line.strip() if out and not line.startswith(("    >>>", "    <")) else line)
    return _fenced("\n".join(out)) + "\n"


def _fenced(text: str) -> str:
    """Examples, and lines of names with two spaces before what they mean, in blocks."""
    blocks = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if block.startswith(">>>"):
            blocks.append(f"```pycon\n{block}\n```")
        elif all(re.match(r"\w+  +\S", line) or line.startswith("  ") for line in lines) and "**" not in block:
            blocks.append("\n".join(re.sub(r"^(\w+)  +", r"- `\1`: ", line) for line in lines))
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def _members(kind: type[Any]) -> Iterator[str]:
    """Properties and methods, a line each."""
    own = {f.name for f in fields(kind)} if is_dataclass(kind) else set()
    for name, member in vars(kind).items():
        if name.startswith("_") or name in own or not inspect.getdoc(member):
            continue
        if isinstance(member, property | cached_property):
            yield f"- `.{name}`: {_line(member)}"
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            yield f"- `.{name}()`: {_line(member)}"
    yield ""


def _line(value: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    description = inspect.getdoc(value) or ""
    return " ".join(description.split("\n\n")[0].split())


if __name__ == "__main__":
    print(reference(), end="")
