"""A pipeline that runs freely: every instruction reads what the devices themselves have made, and nothing is put right
on the way.  So what the verifier shows by induction, instruction by instruction, is seen at the end of a step, too."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from planner.ir import Graph, Layout, Role
from planner.kernels.shards import Array, Shards
from planner.lowering import Staged
from planner.lowering.program import StageInstruction
from planner.lowering.touched import Key
from planner.verify import pipeline as module
from planner.verify.cells import Part
from planner.verify.double import in_double
from planner.verify.reference import gradients, run_ops

__all__ = ["wrong_gradients"]

_CLOSE = 1e-9


class _Loose(Part):
    """Goes on from what was compared last, not from the whole model's value."""

    last: tuple[Layout, Shards] | None = None

    def step(self, instruction: StageInstruction) -> None:
        self.last = None
        super().step(instruction)

    def _compare(self, what: str, shards: Shards, layout: Layout, *rest: Any) -> Any:
        self.last = layout, shards
        return super()._compare(what, shards, layout, *rest)

    def _anchored(self, whole: Array, layout: Layout) -> Shards:
        last, self.last = self.last, None
        if last is not None and last[0] == layout:
            return last[1]
        return super()._anchored(whole, layout)

    def _contribute(self, key: Key, shards: Shards, whole: Array, who: tuple[str, ...]) -> None:
        held = self.devices.gradients.pop(key, None)
        if held is not None:
            shards = tuple(a + b for a, b in zip(held, shards, strict=True))
            whole, who = self.sums.pop(key) + whole, (*self.added.pop(key), *who)
        super()._contribute(key, shards, whole, who)


def wrong_gradients(pipeline: Staged, batch: Graph) -> list[str]:
    """What of the step's gradients is not that of the model on the `batch` of all micro-batches together, computed
    operator by operator on one device."""
    with patch.object(module, "Part", _Loose):
        proof = module.PipelineProof(pipeline)
        report = proof.run()
    whole = in_double(batch)
    fed = [proof.inputs(m) for m in range(pipeline.micro_batches)]
    values = {t.name: proof.first.value(t.name) for t in whole.parameters}
    values |= {t.name: proof.first.value(t.name) for t in whole.tensors.values() if t.role is Role.CONSTANT}
    values |= {t: np.concatenate([x[t] for x in fed]) for t in fed[0]}
    wanted = set(pipeline.program.final_gradients)
    found = gradients(whole, values, run_ops(whole, values), wanted, active=pipeline.program.active)
    out = list(report.failures)
    for name, expected in found.items():
        off = np.max(np.abs(proof.totals.expected[name] - expected), initial=0.0)
        if off > _CLOSE * max(float(np.max(np.abs(expected), initial=0.0)), 1e-6):
            out.append(f"gradient of {name}: off by {off:.2g} from that of the whole batch")
    return out
