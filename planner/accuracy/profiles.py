"""Fitted constants written into hardware profiles.

`fitted_profile` makes one profile from measured rows (`planner calibrate --rows`).  Run as a module with a file of
rows, this rewrites the packaged profiles: machines with rows get their own values, and what no row tells of a machine
the mean over those of its generation.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import planner.cost_models
from planner.accuracy.fit import BY_TYPE, Values
from planner.accuracy.predictor import Fitter, Predictor
from planner.accuracy.rows import Case, read_rows
from planner.cost_models import load_profile, profile_names
from planner.cost_models.calibrate import ComputeSample, base_document, calibrated_text, fit_device
from planner.errors import InputError

__all__ = ["FittedProfile", "fitted_profile", "is_of_run", "lent_values", "profile_of_run"]

_DIGITS: Final = 3
_NOT_FITTED: Final = ("alpha-beta", "cpu", "h200-one")  # nor are those of rows of their own (tests/bench/gpu/fit.py)


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """TOML of the profile, the values that were fitted, and how many rows and data sets they were fitted to."""

    text: str
    values: Values
    rows: int
    datasets: tuple[str, ...]


def fitted_profile(rows: Path, base: str, name: str, progress: Callable[[str], None]) -> FittedProfile:
    """`base` with its efficiencies fitted to the file's complete rows on that machine.

    InputError where the file is malformed or has no such row.
    """
    cases = [c for c in _cases(rows, progress) if c.hardware == base]
    if not cases:
        raise InputError(f"{rows}: no complete row on {base}; name the machine of the rows with --base")
    values = Fitter()(cases, progress)[base]
    datasets = tuple(sorted({c.dataset for c in cases}))
    return FittedProfile(_text(base, name, values, _source(cases)), values, len(cases), datasets)


def is_of_run(rows: Path) -> bool:
    """Whether a file is the profile.json of `planner run --profile` or of `planner.torch.profile`."""
    return isinstance(_json(rows), dict) and "samples" in _json(rows)


def profile_of_run(rows: Path, base: str, name: str) -> FittedProfile:
    """`base` with its device fitted to the operators that a run has measured.

    InputError where the file is malformed, or has too few kinds of operators to tell.
    """
    document = _json(rows)
    try:
        samples = [ComputeSample(**s) for s in document["samples"]]
        found = fit_device(load_profile(base), samples)
    except (TypeError, ValueError) as error:
        raise InputError(f"{rows}: its operators cannot be fitted to: {error}; profile another run") from None
    source = f"measured: {len(samples)} operators of {document.get('model', 'a step')}, by planner run --profile"
    values = {k: v if isinstance(v, int) else float(f"{v:.4g}") for k, v in found.values.items()}
    about = base_document(base)
    text = calibrated_text(about, values, name=name, description=about["description"], source=source)
    return FittedProfile(text, values, len(samples), (str(document.get("model", "a step")),))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # whoever reads rows says what is wrong with them


def _cases(rows: Path, progress: Callable[[str], None]) -> list[Case]:
    read = read_rows(rows, frozenset(profile_names()))
    outcomes, _ = Predictor().completed(read.cases, progress)
    return [o.case for o in outcomes if o.case.complete]


def _source(cases: Sequence[Case]) -> str:
    names = ", ".join(sorted({c.dataset for c in cases}))
    return f"fitted: {len(cases)} measured training steps ({names}), docs/cost-model.md"


def _rounded(values: Values) -> dict[str, float]:
    """Values rounded to what the rows can tell, with the efficiency of products whose type is not named."""
    out = {key: float(f"{value:.{_DIGITS}g}") for key, value in values.items()}
    products = {k.rpartition(".")[2]: v for k, v in out.items() if k.startswith(BY_TYPE)}
    if products:
        usual = next((products[t] for t in ("bf16", "fp16", "fp8") if t in products), next(iter(products.values())))
        out["device.matmul_efficiency"] = usual
    return out


def _text(base: str, name: str, values: Values, source: str) -> str:
    document = base_document(base)
    return calibrated_text(document, _rounded(values), name=name, description=document["description"], source=source)


def _patched(text: str, values: Mapping[str, float], source: str, whole: Mapping[str, float] | None = None) -> str:
    """The profile's text with these values and their source, everything else as it was written.

    `whole` has the values of tables that are written as one (by type), where `values` are some of them.
    """
    tables = re.split(r"(?m)^(?=\[)", text)
    entries: dict[str, dict[str, str]] = {}
    by_type = {k: v for k, v in (whole or {}).items() if k.startswith(BY_TYPE)}
    for key, value in {**values, **by_type}.items():
        table, _, field = key.rpartition(".")
        entries.setdefault(table, {})[field] = f"{value:g}"
    notes = set(values)
    entries["sources"] = {f'"{k}"': json.dumps(source) for k in sorted(notes)}
    out = []
    for table in tables:
        head = table.split("]", 1)[0].lstrip("[")
        if head == BY_TYPE:
            continue
        out.append(_with_lines(table, entries.pop(head, {})))
        if head == "device" and (products := entries.pop(BY_TYPE, None)):
            lines = "".join(f"{k} = {v}\n" for k, v in products.items())
            out.append(f"[device.matmul_efficiency_by_type]\n{lines}\n")
    new = "".join(_with_lines(f"[{head}]\n\n", lines) for head, lines in entries.items() if lines)
    return "".join([*out[:-1], new, *out[-1:]])  # the sources stand last


def _with_lines(table: str, values: Mapping[str, str]) -> str:
    body = table.rstrip("\n")
    gap = table[len(body) :]
    for key, value in values.items():
        line = f"{key} = {value}"
        lines = body.split("\n")
        at = next((i for i, old in enumerate(lines) if old.startswith(f"{key} = ")), len(lines))
        body = "\n".join([*lines[:at], line, *lines[at + 1 :]])
    return body + gap


def _generation(name: str) -> str:
    """Machines whose kernels are alike: of one maker, and for NVIDIA before Hopper or from it on."""
    profile = load_profile(name)
    for maker in ("Ascend", "AMD"):
        if maker in profile.description:
            return maker
    modern = profile.nccl is not None and profile.nccl.generation in ("hopper", "blackwell")
    return "Hopper and later" if modern else "before Hopper"


def lent_values(name: str, fits: Mapping[str, Values]) -> dict[str, float]:
    """What the machine's own rows do not tell: geometric means over the machines of its generation."""
    own = fits.get(name, {})
    peers = [v for other, v in fits.items() if other != name and _generation(other) == _generation(name)]
    keys = {k for v in peers for k in v if not k.startswith("host.")} - set(own)
    if name in fits or load_profile(name).sources.get("prediction.spread", "").startswith("assumed"):
        keys.discard("prediction.spread")  # where nothing was measured, others' errors say too little
    known = {k: [v[k] for v in peers if k in v] for k in sorted(keys)}
    return {k: math.exp(sum(map(math.log, v)) / len(v)) for k, v in known.items()}


def _rewrite(rows: Path, folder: Path) -> None:
    def say(line: str) -> None:
        print(line, file=sys.stderr)

    cases = _cases(rows, say)
    fits = Fitter()(cases, say)
    for name in profile_names():
        if name in _NOT_FITTED or load_profile(name).device is None:
            continue
        file = folder / f"{name}.toml"
        text = file.read_text(encoding="utf-8")
        own, lent = fits.get(name, {}), lent_values(name, fits)
        derived = f"derived: mean over the machines of its generation ({_generation(name)}) that were fitted"
        text = _patched(text, _rounded({**own, **lent}), f"{derived} to measured steps, docs/cost-model.md")
        if own:
            source = _source([c for c in cases if c.hardware == name])
            values = _rounded(own)
            if not {f"{BY_TYPE}.bf16", f"{BY_TYPE}.fp16"} & set(own):
                values.pop("device.matmul_efficiency", None)  # fitted in narrower types only
            text = _patched(text, values, source, whole=_rounded({**own, **lent}))
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _rewrite(Path(sys.argv[1]), Path(planner.cost_models.__file__).parent / "profiles")
