"""Jobs of published rows, and what the search makes of each, by the clock that predicts the rows.

A job is what rows have in common that compete: data set, model, machine, devices, batch and sequence, and how a step is
run (types, widths, kernels, what overlaps).  The space that is searched varies parallelism, micro-batches, schedule,
ZeRO and recomputation and keeps the rest as it was published.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from planner.accuracy.models import Model
from planner.accuracy.predictor import Predictor, graph_of
from planner.accuracy.rows import Case, read_rows
from planner.accuracy.sources import FRAMEWORKS, GENERIC, Framework
from planner.clock import Configuration, Prediction, predict
from planner.cost_models import HardwareProfile, profile_names, usable_memory_bytes
from planner.planning.schemes import in_words
from planner.uniform import Sample, Scored, Space, best_of, refined
from tests.bench.experts_reasons import Kinds

__all__ = ["Job", "Published", "compared", "jobs_of", "limit_of", "published_of", "sample_of", "searched", "space_of"]

COUNTED: Final = 100  # configurations that are faster than the published one are counted up to so many
_BEGUN: Final = 8  # fastest configurations that are changed further, and those laid out anew, as `planner search` does
_LAID_OUT: Final = 2
_SIZES: Final = {"micro-batch": "micro_batch", "TP": "tp", "CP": "cp", "PP": "pp"}  # that decide how large products are
_TENSOR: Final = ("overlap_tensor", "cast_gathers")  # of how a step is run, what tensor parallelism alone asks for
_RUN: Final = (
    "matrix_type", "parameter_bytes", "gradient_bytes", "attention", "frozen", "loss", "fuse", "overlap_gradients",
    "overlap_parameters", "overlap_pipeline", "optimizer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """Cases that did the same work; `kinds`: what rows of their framework use, of any job."""

    name: str
    model: str
    cases: tuple[Case, ...]
    kinds: Kinds

    @property
    def dataset(self) -> str:
        return self.cases[0].dataset

    @property
    def framework(self) -> Framework:
        return next((f for f in FRAMEWORKS if f.name == self.cases[0].framework), GENERIC)


@dataclass(frozen=True, slots=True)
class Published:
    """A configuration of a job with the mean of its measured steps, and what is predicted of it."""

    configuration: Configuration
    measured_s: float
    prediction: Prediction

    @property
    def step_s(self) -> float:
        return self.prediction.step_time_s

    @property
    def bytes(self) -> int:
        return round(self.prediction.allocated_bytes)


def jobs_of(path: Path) -> list[Job]:
    """Of all complete rows, data set by data set as they stand in the file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = document["rows"] if isinstance(document, dict) else document
    models = {(str(r.get("dataset", "rows")), str(r["id"])): str(r["model"]) for r in rows}
    groups: dict[object, list[Case]] = defaultdict(list)
    used: dict[str, list[Configuration]] = defaultdict(list)
    for case in read_rows(path, frozenset(profile_names())).cases:
        if case.complete:
            how = tuple(getattr(case.configuration, name) for name in _RUN)
            groups[case.comparable, case.seq, case.server_network_gbps, how].append(case)
            used[case.framework].append(case.configuration)
    kinds = {name: Kinds.of(configurations) for name, configurations in used.items()}
    jobs: list[Job] = []
    names: dict[str, int] = defaultdict(int)
    for cases in groups.values():
        model = models[cases[0].dataset, cases[0].row]
        name = _name(cases[0], model)
        names[name] += 1
        name += "" if names[name] == 1 else f"/{names[name]}"
        jobs.append(Job(name, model, tuple(cases), kinds[cases[0].framework]))
    return jobs


def _name(case: Case, model: str) -> str:
    c = case.configuration
    return f"{case.dataset}/{model}/{c.devices}x{case.hardware}/b{c.global_batch}/s{case.seq}/{c.matrix}"


def sample_of(cases: Sequence[Case], profile: HardwareProfile) -> Sample:
    """The model as rows are predicted, of the whole batch; its vocabulary as the most tensor-parallel ranks pad it."""
    c = cases[0].configuration
    models: list[Model] = sorted((case.model for case in cases), key=lambda m: int(dict(m.sizes).get("vocab", 0)))
    return Sample(graph_of(models[-1], "unfused" if c.attention == "unfused" else "fused", c.global_batch), profile)


def published_of(cases: Sequence[Case], sample: Sample) -> list[Published]:
    """Each configuration of the cases once."""
    steps: dict[Configuration, list[float]] = defaultdict(list)
    for case in cases:
        steps[case.configuration].append(case.step_s)
    return [Published(c, sum(s) / len(s), predict(sample.workload(c), c, sample.profile)) for c, s in steps.items()]


def limit_of(usable: int | None, published: Iterable[Published]) -> int | None:
    """Bytes of a device, but no less than is predicted of what ran, and so did fit: a limit below would compare with
    something else."""
    return None if usable is None else max([usable, *(p.bytes for p in published)])


def space_of(configurations: Sequence[Configuration], sample: Sample, framework: Framework) -> Space:
    """All that the search varies, with everything else as published."""
    c, tensor = configurations[0], [p for p in configurations if p.tp > 1]
    told = {k: any(getattr(p, k) for p in tensor) for k in _TENSOR} if tensor else _with_tensor(framework, c)
    return Space(
        c.devices,
        c.global_batch,
        sample.layers,
        experts=sample.has_experts,
        copies=(1, 2, 4) if framework.name == "MindFormers" else (1,),
        offload=framework.offloads,
        usual=c.with_(**told),
    )


def _with_tensor(framework: Framework, c: Configuration) -> Mapping[str, Any]:
    """How the framework would run tensor parallelism, where no row of the job has it."""
    told = {k: v for k, v in framework.tensor.items() if k in _TENSOR}
    return told | ({"overlap_tensor": False} if c.matrix == "fp4" else {})  # as notes on NVFP4 say


def searched(sample: Sample, space: Space, limit: int | None, count: int = _BEGUN) -> tuple[Scored, list[Scored], int]:
    """The fastest as `planner search` finds it, the `count` fastest before single changes, and how many there are."""
    found = best_of(sample, space, limit, count)
    if not found.best:
        raise ValueError(f"none of {found.considered} configurations fits")
    changed = [
        refined(sample, space, limit, scored, layouts=n < _LAID_OUT) for n, scored in enumerate(found.best[:_BEGUN])
    ]
    return min(changed, key=lambda s: s.prediction.step_time_s), list(found.best), found.considered


def compared(job: Job, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """A row of the table."""
    begun = time.process_time()
    predictor = Predictor()
    outcomes, refused = predictor.completed(job.cases, say)
    if not outcomes:
        return {"job": job.name, "dataset": job.dataset, "left_out": refused[0].reason}
    cases = [o.case for o in outcomes]
    profile = predictor.profile(cases[0])
    sample = sample_of(cases, profile)
    published = published_of(cases, sample)
    job = replace(job, kinds=job.kinds.with_(p.configuration for p in published))  # with gaps that are filled by now
    usable = usable_memory_bytes(profile)
    limit = limit_of(usable, published)
    space = space_of([p.configuration for p in published], sample, job.framework)
    ours, fastest, considered = searched(sample, space, limit, COUNTED + 1)
    alike = _alike(job, sample, space, limit, published)
    within = ours if limit == usable else searched(sample, space, usable)[0]
    best = min(published, key=lambda p: p.measured_s)
    return {
        **_said(job, cases, best.configuration),
        **_measured(published, best),
        **_against(best, published, ours, fastest),
        "considered": considered,
        "usable_bytes": usable,
        "over": sum(usable is not None and p.bytes > usable for p in published),
        "within_s": within.prediction.step_time_s,
        "alike": in_words(alike[0]),
        "alike_s": alike[1],
        "beyond": job.kinds.beyond(ours.configuration),
        "cpu_s": round(time.process_time() - begun, 1),
    }


def _alike(
    job: Job, sample: Sample, space: Space, limit: int | None, published: Iterable[Published]
) -> tuple[Configuration, float]:
    """The fastest of those that use what rows of the framework use, the published ones among them."""
    found = [(p.configuration, p.step_s) for p in published if limit is None or p.bytes <= limit]
    narrow = replace(space, unsupported=lambda c: ", ".join(job.kinds.beyond(c)))
    try:
        scored = searched(sample, narrow, limit)[0]
    except ValueError:
        pass
    else:
        found.append((scored.configuration, scored.prediction.step_time_s))
    return min(found, key=lambda f: f[1])


def _said(job: Job, cases: Sequence[Case], c: Configuration) -> dict[str, Any]:
    return {
        "job": job.name,
        "dataset": job.dataset,
        "model": job.model,
        "machine": cases[0].hardware,
        "devices": c.devices,
        "batch": c.global_batch,
        "seq": cases[0].seq,
        "matrix": c.matrix,
        "frozen": c.frozen,
        "rows": len(cases),
    }


def _measured(published: Sequence[Published], best: Published) -> dict[str, Any]:
    """Whether the clock ranks first what was measured best; the regret is that of the one it ranks first."""
    first = min(published, key=lambda p: p.step_s)
    return {
        "configurations": len(published),
        "published": in_words(best.configuration),
        "text": best.configuration.text(),
        "measured_s": best.measured_s,
        "first": in_words(first.configuration),
        "first_s": first.step_s,
        "regret": first.measured_s / best.measured_s - 1,
        "consistent": first.measured_s == best.measured_s,
    }


def _against(
    best: Published, published: Sequence[Published], ours: Scored, fastest: Sequence[Scored]
) -> dict[str, Any]:
    step = ours.prediction.step_time_s
    faster = sum(s.prediction.step_time_s < best.step_s * (1 - 1e-9) for s in fastest)
    return {
        "published_s": best.step_s,
        "published_bytes": best.bytes,
        "published_breakdown": dict(best.prediction.breakdown),
        "ours": in_words(ours.configuration),
        "ours_text": ours.configuration.text(),
        "ours_s": step,
        "ours_bytes": round(ours.prediction.allocated_bytes),
        "ours_breakdown": dict(ours.prediction.breakdown),
        "distance": best.step_s / step - 1,
        "changed": {w: [getattr(c, f) for c in (best.configuration, ours.configuration)] for w, f in _SIZES.items()},
        "ratio": step / min(p.step_s for p in published),  # never above one
        "faster": None if faster > COUNTED else faster,
    }
