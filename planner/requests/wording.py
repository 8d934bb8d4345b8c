"""Messages in the words of Python, and of HTTP, whose parameters are called alike.

Messages of the core name an option as the command line does, `--memory-limit 8GiB`, which is a notation: the name, and
behind it perhaps a value.  Here it is read as such, and written as a keyword: `memory_limit=8GiB`.  What belongs to
launchers of other systems (`--tensor-model-parallel-size 4`) is no option of ours, and stays.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import Final

__all__ = ["in_keywords"]

# Options that no request has: of the files that are written and read, and of the model.
_OTHERS: Final = ("devices", "out", "names", "hosts", "model", "plan", "format", "alternatives", "details", "json")
_FREE: Final = ("hardware", "constraints", "warm_start", "save_problem", "names", "hosts", "out", "strategy", "mesh")
# A value is a quoted text, what holds a digit, `=` or a colon between letters, or a word in capitals.
_VALUE: Final = r"'[^']*'|\"[^\"]*\"|[^\s,;()']*[\d=][^\s,;()']*[^\s,;:()'.]|-?\d|[A-Z][A-Z|]*\b"
_OPTION: Final = re.compile(rf"(?:\bthe |\b)?(?:argument )?(?<![\w-])--([a-z][a-z-]*)(?:([ =])({_VALUE}|[\w./+-]+))?")


def in_keywords(text: str) -> str:
    """The text with options as keywords: `--batch 8` is `batch=8`, `--time-limit` is `time_limit`."""
    return _OPTION.sub(_keyword, text).replace(" (details)", "")


def _keyword(found: re.Match[str]) -> str:
    name, between, value = found[1].replace("-", "_"), found[2], found[3]
    known = _of_requests()
    choices = known[name] if name in known else _of_models().get(name)
    if choices is None:
        return found[0]
    if value is None:
        return name
    after = found.string[found.end() : found.end() + 2]
    if name == "bind" and "=" in value:
        dimension, _, size = value.strip("'").partition("=")
        return f"bind={{{dimension!r}: {size}}}"
    given = between == "=" or re.fullmatch(_VALUE, value) or value in choices
    if given or (name in _FREE and after in (":", ": ")):
        return f"{name}={value}"
    return f"{name}{between}{value}"


@cache
def _of_requests() -> dict[str, tuple[str, ...]]:
    """Options by name, with the values that they may have where these are few."""
    from planner.requests.evaluation import EvaluationRequest
    from planner.requests.options import options_of
    from planner.requests.search import SearchRequest

    found: dict[str, tuple[str, ...]] = dict.fromkeys(_OTHERS, ())
    for request in (EvaluationRequest, SearchRequest):
        for f in options_of(request):
            found[f.name] = tuple(f.metadata["option"].get("choices", ()))
    return found


@cache
def _of_models() -> dict[str, tuple[str, ...]]:
    """The sizes of models that can be built, likewise."""
    from planner.builder.architectures import ARCHITECTURES

    return {f.name: f.metadata.get("choices", ()) for a in ARCHITECTURES.values() for f in fields(a.sizes)}
