"""What a child is handed, and what it hands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.api.jobs.blobs import digest_bytes
from planner.api.jobs.errors import BlobDamaged, BlobMissing
from planner.api.jobs.limits import Limits
from planner.api.jobs.sandbox import Confinement

__all__ = ["JobInput", "JobResult"]


@dataclass(frozen=True, slots=True)
class JobInput:
    """`folder`: the child's, as `planner.api.jobs.handover` lays it out, removed after it; `cache`: a folder that
    children with the same inputs share, where there is one for them."""

    kind: str
    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    folder: Path
    limits: Limits
    confinement: Confinement
    cache: Path | None = None

    @property
    def scratch(self) -> Path:
        """Where the child works."""
        return self.folder / "work"

    def read(self, name: str) -> bytes:
        """An input.  BlobMissing, BlobDamaged."""
        if name not in self.inputs:
            raise BlobMissing(f"{self.kind}: expected an input {name!r}, found {', '.join(self.inputs) or 'none'}")
        digest = self.inputs[name]
        try:
            content = (self.folder / "in" / name).read_bytes()
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None
        if digest_bytes(content) != digest:
            raise BlobDamaged(f"blob {digest}: its file has other content")
        return content

    def lay_out(self, name: str, at: str) -> Path:
        """An input as a file of the scratch folder, by a relative path: messages may name it."""
        path = Path(at)
        path.write_bytes(self.read(name))
        return path


@dataclass(frozen=True, slots=True)
class JobResult:
    """`files`: content and media type by name; `plan`: the bytes of plan.json, one of the files, where the work was to
    find one; `cancelled`: it is what there was when the end was asked for; not `shared`: a limit has shaped it."""

    files: Mapping[str, tuple[bytes, str]]
    summary: Mapping[str, Any] = field(default_factory=dict)
    plan: bytes | None = None
    cancelled: bool = False
    shared: bool = True
