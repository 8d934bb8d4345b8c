"""The key of a request of `planner search`: a digest of all that its answer depends on.

Every option counts unless its field says otherwise, so that an option added later cannot be forgotten.  A time limit
does not count: only answers that no limit in seconds has touched are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.cache import digest_of, file_digest, source_digest
from planner.requests.model import ModelSource
from planner.requests.search import SearchRequest
from planner.version import __version__

__all__ = ["RequestKey", "request_key"]

FILES = ("constraints", "warm_start", "hardware")  # a packaged profile counts with the sources


@dataclass(frozen=True, slots=True)
class RequestKey:
    """`model` stands for the file, `rest` for the options, the files they name, and the code."""

    model: str
    rest: str

    def of(self, devices: int) -> str:
        """Key of the request as it is put."""
        return digest_of(["request", self.model, self.rest, devices])

    def of_graph(self, graph: str, devices: int) -> str:
        """Key of the request about a graph of this digest, whichever file it is in."""
        return digest_of(["graph", graph, self.rest, devices])


def request_key(options: SearchRequest, source: ModelSource | None = None) -> RequestKey | None:
    """None where a file cannot be read: what reads it says so better.  `source`: as of `Searcher`."""
    values: dict[str, Any] = {k: _plain(v) for k, v in options.keyed.items()}
    values["bind"] = sorted(options.bind)
    try:
        source = source or ModelSource(options.model)
        model = digest_of([source.digest, source.name])
        for name in FILES:
            given = getattr(options, name)
            if given is not None and Path(given).is_file():
                values[f"{name} content"] = file_digest(Path(given))
        code = source_digest()
    except (OSError, ValueError):
        return None
    return RequestKey(model, digest_of([values, __version__, code]))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
