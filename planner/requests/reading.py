"""Another system's strategy as a plan of ours, priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.requests.values import profile_of

if TYPE_CHECKING:
    from planner.emit.reading import Reading
    from planner.ir import DeviceMesh, Graph
    from planner.planning import PlanDocument, Planned, Request
    from planner.planning.pipeline import Parts
    from planner.planning.searched import RequestDocument
    from planner.requests.model import ModelSource

__all__ = ["HARDWARE", "StrategyFile", "strategy_file"]

HARDWARE = "ascend-910b"  # unless told otherwise: most files are of MindSpore


@dataclass(frozen=True)
class StrategyFile:
    """A file that was read, with the model that it is of; `plan`: as it says, `free`: what is found without it."""

    source: Path
    found: Reading
    request: Request
    graph: Graph
    parts: Parts
    bind: Mapping[str, int]
    batch: int | None
    hardware: str

    @property
    def mesh(self) -> DeviceMesh:
        """That of one stage."""
        return self.found.mesh

    @property
    def stages(self) -> int:
        return self.parts.stages

    def plan(self) -> tuple[Planned, PlanDocument]:
        """InputError where the file's layouts do not fit the model."""
        from planner.planning.constraints import constraints_text
        from planner.planning.searched import FileDocument, RequestDocument
        from planner.requests.recorded import profile_text

        requested = RequestDocument(
            devices=self.mesh.devices * self.stages,
            hardware=self.hardware,
            profile=profile_text(self.hardware),
            mesh=str(self.mesh),
            stages=self.stages,
            micro_batches=self.parts.micro_batches if self.stages > 1 else None,
            target=self.found.target,
            constraints=FileDocument(name="constraints.json", text=constraints_text(self.found.constraints)),
            bind=dict(sorted(self.bind.items())),
            batch=self.batch,
        )
        try:
            return self._planned(self.request, self.found.stages or None, requested)
        except InputError as e:
            raise InputError(f"{self.source}: {e}") from e

    def free(self) -> PlanDocument:
        _, plan = self._planned(replace(self.request, meshes=None, constraints=None), None)
        return plan

    def _planned(
        self, wanted: Request, held: Mapping[str, int] | None, requested: RequestDocument | None = None
    ) -> tuple[Planned, PlanDocument]:
        from planner.planning import describe, make_plan
        from planner.planning.pipeline import plan_in_parts

        pipeline = None
        if self.parts.stages > 1 or self.parts.micro_batches > 1:
            planned, pipeline = plan_in_parts(self.graph, wanted, self.parts, held=held)
        else:
            planned = make_plan(self.graph, wanted)
        bind, batch = dict(self.bind), self.parts.batch
        return planned, describe(planned, bind=bind, batch=batch, pipeline=pipeline, request=requested)


def strategy_file(
    file: Path,
    form: str,
    model: ModelSource,
    *,
    names: Path | None = None,
    hardware: str = HARDWARE,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    micro_batches: int | None = None,
) -> StrategyFile:
    """Reads a file of `form`, a key of `planner.emit.FORMATS`, for `model`.

    `names`: a JSON file with the names that it has for the model's parameters; `micro_batches`: of a pipeline, into how
    many parts the batch goes.  InputError, UsageError where the file is not of that form, or not for this model.
    """
    from planner.emit import read
    from planner.planning import Request
    from planner.planning.pipeline import in_parts
    from planner.pricing import Settings

    sizes = dict(bind or {})

    def load(batch: int | None) -> Graph:
        return model.load(bind=sizes, batch=batch)

    found = read(form, file, load(batch), names)
    stages = max(found.stages.values(), default=0) + 1
    if stages == 1 and micro_batches is not None:
        raise UsageError(f"--micro-batches: {file} has no pipeline stages; leave it out")
    devices = found.mesh.devices
    graph, parts = in_parts(load, batch, stages, micro_batches or found.micro_batches, devices)
    settings = Settings(training=graph.loss is not None, target=found.target)
    request = Request(devices, profile_of(hardware), settings, meshes=(found.mesh,), constraints=found.constraints)
    return StrategyFile(file, found, request, graph, parts, sizes, batch, hardware)
