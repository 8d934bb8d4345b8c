"""The OpenAPI document is a promise to clients: what it says today, it goes on saying.

`python -m tests.service.openapi --write` makes the golden file anew where something was added; it refuses where
something was removed or changed, unless `--break` says that clients are to be broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from planner.api.app import create_app
from planner.api.settings import Settings

__all__ = ["GOLDEN", "broken", "document"]

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "openapi.json"
WORDS: Final = frozenset(("description", "summary", "title"))  # for people: programs make nothing of them
LISTS_THAT_GROW: Final = frozenset(("enum", "anyOf", "oneOf", "tags"))
WRITE: Final = "python -m tests.service.openapi --write"


def document(folder: Path) -> dict[str, Any]:
    """As it is served, but for the version, and words and examples for people."""
    found: dict[str, Any] = _bare(json.loads(json.dumps(create_app(Settings(data=folder)).openapi())))
    del found["info"]["version"]
    return found


def _bare(found: Any) -> Any:
    if isinstance(found, list):
        return [_bare(entry) for entry in found]
    if not isinstance(found, dict):
        return found
    # A property may be called `title`; then it has a schema, where words are a text.
    return {k: _bare(v) for k, v in found.items() if k != "examples" and not (k in WORDS and isinstance(v, str))}


def broken(golden: Any, found: Any, at: str = "") -> Iterator[str]:
    """What a client may rely on by the golden document, and cannot any more."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for name, value in golden.items():
            if name not in found:
                yield f"{at}/{name}: removed"
            elif name == "required" and isinstance(value, list):
                yield from _required(value, found[name], f"{at}/{name}")
            elif name == "parameters" and isinstance(value, list):
                yield from _parameters(value, found[name], f"{at}/{name}")
            elif name in LISTS_THAT_GROW and isinstance(value, list):
                lost = (e for e in value if not any(_holds(e, other) for other in found[name]))
                yield from (f"{at}/{name}: {entry!r} removed" for entry in lost)
            else:
                yield from broken(value, found[name], f"{at}/{name}")
        if "required" in found and "required" not in golden and found["required"]:
            yield f"{at}/required: {found['required']!r} added, which clients do not send"
    elif golden != found:
        yield f"{at}: {golden!r} became {found!r}"


def _holds(golden: Any, found: Any) -> bool:
    """Whether an entry of a list is there as it was, or as one whose own choices have grown."""
    return next(broken(golden, found), None) is None


def _required(golden: list[str], found: list[str], at: str) -> Iterator[str]:
    """Of what is sent no more may be required, of what is answered no less: either is a change."""
    if sorted(golden) != sorted(found):
        yield f"{at}: {sorted(golden)} became {sorted(found)}"


def _parameters(golden: list[dict[str, Any]], found: list[dict[str, Any]], at: str) -> Iterator[str]:
    """By place and name, as their order means nothing."""
    old, new = ({f"{p['in']}/{p['name']}": p for p in listed} for listed in (golden, found))
    yield from broken(old, new, at)
    for name in new.keys() - old.keys():
        if new[name].get("required"):
            yield f"{at}/{name}: added and required, which clients do not send"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="make the golden file anew")
    parser.add_argument("--break", dest="break_clients", action="store_true", help="also where clients break")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = document(Path(folder))
    if GOLDEN.exists() and not options.break_clients:
        lines = list(broken(json.loads(GOLDEN.read_text(encoding="utf-8")), found))
        if lines:
            print("\n".join([*lines, "nothing was written: these break clients"]), file=sys.stderr)
            return 1
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
