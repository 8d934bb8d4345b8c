"""What a child is handed, and what it hands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.api.jobs.blobs import Blobs
from planner.api.jobs.errors import BlobMissing
from planner.api.jobs.limits import Limits

__all__ = ["JobInput", "JobResult"]


@dataclass(frozen=True, slots=True)
class JobInput:
    """`folder`: the store's; `scratch`: an empty folder of the child's own, removed after it; `cached`: whether a
    search may be answered by that of another job."""

    kind: str
    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    folder: Path
    scratch: Path
    limits: Limits
    cached: bool = True

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.folder / "blobs")

    def read(self, name: str) -> bytes:
        """An input.  BlobMissing, BlobDamaged."""
        if name not in self.inputs:
            raise BlobMissing(f"{self.kind}: expected an input {name!r}, found {', '.join(self.inputs) or 'none'}")
        return self.blobs.read(self.inputs[name])

    def lay_out(self, name: str, at: str) -> Path:
        """An input as a file of the scratch folder, by a relative path: messages may name it."""
        path = Path(at)
        path.write_bytes(self.read(name))
        return path


@dataclass(frozen=True, slots=True)
class JobResult:
    """`files`: content and media type by name; `plan`: the bytes of plan.json, where the work was to find one;
    `cancelled`: it is what there was when the end was asked for; not `shared`: a limit has shaped it."""

    files: Mapping[str, tuple[bytes, str]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    plan: bytes | None = None
    cancelled: bool = False
    shared: bool = True
