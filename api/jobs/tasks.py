"""What is computed.  Two requests that ask the same are one task, whoever asks.

kind          inputs                      options
plan          model[, constraints]        those of `planner search`, by name; `name`: the model's name in the plan
artifact      plan.json[, model.onnx,     name: report.html, report.json, trace.json, explain.json, TARGET.zip
              history.json]
diff          a, b (plan.json)            form: json or html
evaluation    model, or model and plan    those of `planner evaluate`, by name
explanation   plan.json[, model.onnx]     operator (or none: the plan as a whole), alternatives
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from planner.api.jobs.lanes import lane_of
from planner.cache import digest_of, file_digest, source_digest

__all__ = ["KINDS", "Submission", "Task", "code_digest"]

KINDS: Final = ("plan", "artifact", "diff", "evaluation", "transfer", "explanation")


@cache
def code_digest() -> str:
    """Digest of the code that computes results, as it was when this process first asked."""
    folder = Path(__file__).parent
    own = sorted(folder.rglob("*.py"))
    return digest_of([source_digest(), [[p.relative_to(folder).as_posix(), file_digest(p)] for p in own]])


@dataclass(frozen=True, slots=True)
class Task:
    """`inputs`: digests of blobs by name; `options`: a JSON object; `apart`: the tenant for whom alone it is computed,
    where there is one."""

    kind: str
    inputs: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str = field(default_factory=code_digest)
    apart: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"task kind {self.kind!r}: expected one of {', '.join(KINDS)}")

    def lane(self, size: int) -> int:
        """What it waits with; `size`: bytes of all inputs."""
        return lane_of(self.kind, self.options, size)

    @property
    def key(self) -> str:
        """Digest of all that the result depends on."""
        apart = [self.apart] if self.apart else []
        return digest_of([self.kind, dict(self.inputs), dict(self.options), self.code, *apart])

    @property
    def options_text(self) -> str:
        return json.dumps(dict(self.options), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is asked for; with an `idempotency` key, what has another `fingerprint` is another request.
    `webhook`: the URL and the secret of the request that is sent once it has ended."""

    task: Task
    name: str
    idempotency: str | None = None
    fingerprint: str = ""
    webhook: tuple[str, str] | None = None
