"""Case → prediction: the model built, traced and priced, each once for all rows that share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

from planner.accuracy.fit import Term, Values, adjusted, fitted_values, machines_of, shrunk, spread_of, terms_of
from planner.accuracy.metrics import PredictedCase
from planner.accuracy.models import Model
from planner.accuracy.rows import Case, LeftOut, filled_in
from planner.builder import build
from planner.clock import Configuration, seconds_in_sequence
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.device import resolve_rate
from planner.errors import InfeasibleError, UsageError
from planner.evaluate import Prediction, layout_of, predict, program_of_configuration, traced_as
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.trace import Workload

__all__ = ["Fitter", "Parameters", "Predictor", "graph_of"]

Parameters = Mapping[str, Values]  # profile → values that replace its own

_FEW = 45  # rows below which a machine borrows from the others
_TELLING = 12  # rows from which on others borrow from it
_MEMORY_ERROR = 1.1  # a run that is priced a little above the device's memory may well have fitted
_LEAST_USE = 0.05  # of the peak
_CONTRADICTED = (
    "under 5 % of the peak was measured, and the source says that the configuration file may not be that of the run"
)
_PER_RAIL = 8  # devices of a server that share the network a row states


@lru_cache(maxsize=512)
def graph_of(model: Model, attention: str, batch: int) -> Graph:
    """The training graph of `batch` samples."""
    sizes = {**dict(model.sizes), "attention": attention, "batch": batch}
    return import_bytes(build(model.architecture, sizes).SerializeToString(), name=model.architecture)


@lru_cache(maxsize=64)
def _machine(name: str, server_network_gbps: int | None) -> HardwareProfile:
    """The profile, with the network that a row states.  NCCL's share of a 100 Gb/s rail is 12 GB/s (topo.h)."""
    profile = load_profile(name)
    if server_network_gbps is None or profile.network is None:
        return profile
    network = replace(profile.network, bandwidth_bytes_per_s=server_network_gbps / _PER_RAIL * 0.12e9)
    return replace(profile, network=network, digest=f"{profile.digest}/{server_network_gbps}")


@lru_cache(maxsize=1024)
def _workload(
    model: Model, attention: Literal["fused", "unfused"], fuse: bool, c: Configuration, machine: HardwareProfile
) -> Workload:
    """Of one rank; what is left open of the plan (how tensors travel) is chosen for the machine as it is."""
    graph = graph_of(model, attention, c.micro_batch * c.dp)
    return traced_as(
        c.with_(attention=attention, fuse=fuse),
        program_of_configuration(graph, c, machine),
        machine.framework.joins_kernels,
    )


class Predictor:
    """Predicts cases on the machines as they are, or with `parameters` in place of their own values."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self._parameters = parameters or {}
        self._profiles: dict[tuple[str, int | None], HardwareProfile] = {}

    def profile(self, case: Case) -> HardwareProfile:
        key = (case.hardware, case.server_network_gbps)
        if key not in self._profiles:
            self._profiles[key] = adjusted(_machine(*key), self._parameters.get(case.hardware, {}))
        return self._profiles[key]

    def prediction(self, case: Case) -> Prediction:
        """UsageError where the evaluator refuses the configuration."""
        return predict(self._workload(case), case.configuration, self.profile(case))

    @staticmethod
    def _workload(case: Case) -> Workload:
        c = case.configuration
        # Ranks that share experts exchange the tokens of all their samples.
        machine = _machine(case.hardware, case.server_network_gbps)
        attention = "unfused" if c.attention == "unfused" else "fused"
        return _workload(case.model, attention, c.fuse, layout_of(c), machine)

    def fits(self, case: Case) -> bool:
        """Whether the predicted peak lies within the device's memory, as nearly as a prediction can tell."""
        memory = self.profile(case).memory_bytes
        return memory is None or self.prediction(case).allocated_bytes <= _MEMORY_ERROR * memory

    def outcome(self, case: Case) -> PredictedCase:
        p = self.prediction(case)
        objective = seconds_in_sequence(self._workload(case), case.configuration, self.profile(case))
        return PredictedCase(
            case, p.step_time_s, p.time_low_s, p.time_high_s, p.allocated_bytes, p.reserved_bytes, objective
        )

    def _too_slow(self, case: Case) -> bool:
        """Whether the measured step reaches less than a twentieth of the peak although the row warns of itself."""
        device = self.profile(case).device
        if device is None or not case.doubtful:
            return False
        peak = resolve_rate(device.matmul_flops_per_s, case.configuration.matrix) * case.configuration.devices
        return self.prediction(case).flops / case.step_s < _LEAST_USE * peak

    def completed(
        self, cases: Sequence[Case], progress: Callable[[str], None]
    ) -> tuple[list[PredictedCase], list[LeftOut]]:
        """Outcomes of all cases with their gaps filled in; what the evaluator refuses is left out in its words."""
        done: list[PredictedCase] = []
        left: list[LeftOut] = []
        for number, case in enumerate(cases, 1):
            try:
                whole = filled_in(case, self.fits)
                if self._too_slow(whole):
                    left.append(LeftOut(case.row, case.dataset, _CONTRADICTED))
                else:
                    done.append(self.outcome(whole))
            except (UsageError, InfeasibleError) as e:
                left.append(LeftOut(case.row, case.dataset, f"refused ({case.configuration.text()}): {e}"))
            if number % 100 == 0:
                progress(f"{number} of {len(cases)} rows predicted")
        return done, left


class Fitter:
    """Fits profiles to cases whose gaps are filled in; a fit starts from the one before, which differs little."""

    def __init__(self) -> None:
        self._before: dict[str, Values] = {}

    def __call__(self, cases: Sequence[Case], progress: Callable[[str], None] = lambda line: None) -> dict[str, Values]:
        """Values of every profile that the cases name; only complete cases are fitted to."""
        machines = machines_of(c for c in cases if c.complete)
        terms = {name: terms_of(mine) for name, mine in machines.items()}
        out: dict[str, Values] = {}
        for name, mine in machines.items():
            progress(f"fitting {name} to {len(mine)} rows")
            out[name] = self._fitted(name, mine, terms[name])
        known = {name: v for name, v in out.items() if len(machines[name]) >= _TELLING}
        for name, mine in machines.items():
            others = [v for other, v in known.items() if other != name]
            if len(mine) < _FEW and others:
                out[name] = fitted_values(mine, shrunk(terms[name], others), _seconds, out[name])
        for name, mine in machines.items():
            self._before[name] = out[name]
            fitted = out[name]
            spread = spread_of(mine, partial(_seconds, values=fitted), len(terms[name]))
            out[name] = {**fitted, "prediction.spread": spread}
        spreads = [out[name]["prediction.spread"] for name in known]
        for name, mine in machines.items():
            if len(mine) < _TELLING and spreads:
                typical = sum(spreads) / len(spreads)
                out[name] = {**out[name], "prediction.spread": max(typical, out[name]["prediction.spread"])}
        return out

    def _fitted(self, name: str, cases: Sequence[Case], terms: Sequence[Term]) -> dict[str, float]:
        start = self._before.get(name)
        if start is not None and any(t.name not in start for t in terms):
            start = None
        return fitted_values(cases, terms, _seconds, start)


def _seconds(case: Case, values: Values) -> float:
    return Predictor({case.hardware: values}).prediction(case).step_time_s
