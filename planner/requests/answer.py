"""What one search answers: the plan files, the documents of `--json`, the summary; kept and found again as it is."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.cache import Store
from planner.files import write_whole

__all__ = ["Answer", "finished", "write_plans"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Contents of the plan files, best first, with a document for each (all but where it is written); `messages` are
    for standard error; `details`: how every operator is split; `model` is the file that was planned, without its
    weights; `record`: how the search went, and what it found by time and memory (`planner.requests.record_file`)."""

    plans: tuple[str, ...]
    documents: tuple[dict[str, Any], ...]
    summary: str
    messages: tuple[str, ...] = ()
    details: str = ""
    cached: bool = False
    cancelled: bool = False
    model: bytes = b""
    record: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def recall(cls, store: Store, key: str) -> Answer | None:
        """The answer to the request with this key, or to one that proved to ask the same; None where none is kept."""
        pointer = store.read("requests", key)
        return None if pointer is None else cls.read(store, pointer.decode("ascii", "replace"))

    @classmethod
    def read(cls, store: Store, key: str) -> Answer | None:
        """The answer kept under its content's key."""
        content = store.read("plans", key)
        if content is None:
            return None
        try:
            data = json.loads(content)
            return cls(
                tuple(data["plans"]),
                tuple(data["documents"]),
                data["summary"],
                tuple(data["messages"]),
                data["details"],
                cached=True,
                model=zlib.decompress(base64.b64decode(data["model"])),
                record=data.get("record", {}),
            )
        except (ValueError, KeyError, TypeError, zlib.error):
            store.note(f"cache: entry {key[:12]} is not an answer; it is ignored")
            return None

    def keep(self, store: Store, key: str) -> None:
        model = base64.b64encode(zlib.compress(self.model)).decode()
        store.write("plans", key, json.dumps(asdict(replace(self, cached=False)) | {"model": model}).encode())


def finished(answer: Answer, paths: list[str]) -> dict[str, Any]:
    """The document for `--json`: that of the best plan, and all plans under `plans`."""
    documents = [{"plan": path, **document} for path, document in zip(paths, answer.documents, strict=True)]
    listed = ("plan", "mesh", "objective_s", "gap", "step_time_s", "peak_memory_bytes")
    return {
        **documents[0],
        "cached": answer.cached,
        "cancelled": answer.cancelled,
        "plans": [{name: d[name] for name in listed} for d in documents],
    }


def write_plans(contents: Mapping[Path, str]) -> None:
    """Writes each file whole or not at all.  OSError where one cannot be written."""
    for path, text in contents.items():
        write_whole(path, text.encode())
