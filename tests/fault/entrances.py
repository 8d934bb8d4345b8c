"""What takes content from outside: models, plans, strategies of other systems, profiles, constraints.

Each entrance has valid content to begin with, a way to change it, and what the planner does with it.  `read` raises a
PlannerError where the content is refused and returns one word for what became of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx

from planner.api.errors import Problem
from planner.api.jobs.requests import search_options
from planner.emit import FORMATS, Given, emit
from planner.errors import PlannerError, UsageError
from planner.planning import PlanDocument, read_plan
from planner.requests.cancel import Cancellation
from planner.requests.searcher import Searcher
from planner.requests.watch import Silent
from tests.fault.entrances_models import changed_model, changed_wire, models, names_in, options_of_search, search, use
from tests.fault.mutating import changed_bytes, changed_json, changed_message, changed_text, json_bytes

__all__ = ["ENTRANCES", "ROOT", "Case", "Entrance", "case_of", "warm"]

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    entrance: str
    content: bytes
    suffix: str
    number: int
    seed: int

    def rng(self) -> random.Random:
        """For what is done with the content, which is the same each time."""
        return random.Random(f"{self.seed}/{self.number}/read")

    @property
    def name(self) -> str:
        return f"{self.entrance}-{self.seed}-{self.number}{self.suffix}"


@dataclass(frozen=True)
class Entrance:
    weight: int
    make: Callable[[random.Random], tuple[bytes, str]]
    read: Callable[[Path, random.Random], str]


def case_of(seed: int, number: int, only: Sequence[str]) -> Case:
    """The input of that number: the same in every process."""
    rng = random.Random(f"{seed}/{number}")
    names = [n for n in ENTRANCES if n in only] if only else list(ENTRANCES)
    (name,) = rng.choices(names, [ENTRANCES[n].weight for n in names])
    content, suffix = ENTRANCES[name].make(rng)
    return Case(name, content, suffix, number, seed)


def warm() -> None:
    """All seeds are made, before the processes that share them begin."""
    models()
    _written()
    _solved()


# What is read beside a model


@cache
def _written() -> Mapping[str, tuple[tuple[bytes, str], ...]]:
    """Plans, and the files of other systems that can be read back, each with the model's name in its suffix."""
    out: dict[str, list[tuple[bytes, str]]] = {}
    for name in ("mlp", "gpt_tiny", "llama_tiny"):
        model = ROOT / "sample_graphs" / f"{name}.onnx"
        for pins in (["rest=data_parallel"], []):
            options = search_options({"devices": 4, "pin": pins, "mesh": "2x2", "hardware": "ascend-910b"})
            options.model = model
            found = Searcher(options, None, None, Cancellation(), watch=Silent()).search(4).plans[0]
            out.setdefault("plan", []).append((found.encode(), f".{name}.json"))
            plan = PlanDocument.model_validate_json(found)
            for form, target, suffixes in (
                ("mindspore", "mindspore", (".ckpt", "strategy.json")), ("onnx", "onnx", (".onnx",)),
                ("huggingface", "huggingface", ("config.json",)), ("dtensor", "dtensor", ("plan.json",)),
                ("layout", "hyper-parallel", (".layout",)),
            ):  # fmt: skip
                try:
                    files = emit(target, Given(plan, model_file=model if target == "onnx" else None)).files
                except PlannerError:
                    continue
                for file, content in files.items():
                    if file.endswith(suffixes):
                        out.setdefault(form, []).append((content, f".{name}{Path(file).suffix}"))
    for path in sorted((ROOT / "tests" / "golden" / "emit" / "plans").glob("mlp-*.json")):
        out["plan"].append((path.read_bytes(), ".mlp.json"))
    return {name: tuple(found) for name, found in out.items()}


def _changed(content: bytes, suffix: str, rng: random.Random) -> bytes:
    """By what it is: JSON as a tree, texts by words, others by bytes."""
    if rng.random() < 0.1 or suffix.endswith(".ckpt"):
        return changed_bytes(content, rng)
    if suffix.endswith(".onnx"):
        model = onnx.ModelProto.FromString(content)
        changed_message(model, rng, names_in(model))
        return model.SerializeToString()
    try:
        return json_bytes(changed_json(json.loads(content), rng))
    except ValueError:
        return changed_text(content.decode(), rng).encode("utf-8", "replace")


def _of(kind: str) -> Callable[[random.Random], tuple[bytes, str]]:
    def make(rng: random.Random) -> tuple[bytes, str]:
        content, suffix = rng.choice(_written()[kind])
        return _changed(content, suffix, rng), suffix

    return make


def _model_of(path: Path) -> Path:
    return ROOT / "sample_graphs" / f"{path.suffixes[-2][1:]}.onnx"


def _plan(path: Path, rng: random.Random) -> str:
    from planner.api.jobs.requests import evaluation_options
    from planner.checkpoint.layouts import layouts_of_plan
    from planner.checkpoint.moving import transfer_plan
    from planner.requests.evaluation import evaluated

    plan = read_plan(path)
    match rng.randrange(4):
        case 0:
            evaluated(replace(evaluation_options({}, plan=True), model=_model_of(path), plan=path))
        case 1:
            layouts = layouts_of_plan(plan, "plan")
            transfer_plan(layouts, layouts, optimizer="adam", lost=[0])
        case _:
            use(plan, path, _model_of(path) if rng.random() < 0.3 else None, rng)
    return "used"


def _strategy(form: str) -> Callable[[Path, random.Random], str]:
    def read(path: Path, rng: random.Random) -> str:
        from planner.requests.model import ModelSource
        from planner.requests.reading import strategy_file

        assert form in FORMATS
        found = strategy_file(path, form, ModelSource(_model_of(path)))
        if rng.random() < 0.3:
            found.plan()
            return "planned"
        return "read"

    return read


def _hardware(path: Path, rng: random.Random) -> str:
    from planner.requests.values import profile_of

    profile = profile_of(str(path))
    if rng.random() < 0.1:
        options = search_options({"devices": 2, "time_limit": 2.0})
        options.model, options.hardware = ROOT / "sample_graphs" / "mlp.onnx", str(path)
        Searcher(options, None, None, Cancellation(), watch=Silent()).search(2)
        return "planned"
    assert profile.name
    return "read"


def _profile(rng: random.Random) -> tuple[bytes, str]:
    from planner.cost_models.profile import packaged_text, profile_names

    return changed_text(packaged_text(rng.choice(profile_names())), rng).encode("utf-8", "replace"), ".toml"


CONSTRAINTS: Final = """schema: planner.constraints/1
mesh: [2x2, 4]
operators:
  - match: 'layers.[01].matmul'
    strategy: {m: x}
  - match: ['*relu_1*', '*.matmul']
    type: [Relu, MatMul]
    roles: {x: 'split:m'}
  - match: 'layers.3.matmul'
    reads: '*weight'
    shard: [[2, 1], [1, 1]]
tensors:
  - match: features
    layout: '[x,_]'
parameters:
  - match: '*weight'
    stored: '[x,_]'
    compute: replicated
rest: {data_parallel: [x]}
batch: {features: 0}
"""
PINS: Final = ("rest=data_parallel", "layers.0.matmul m=x n=y", "*.weight stored=[x,_]", "mesh=2x2", "rest=zero",
               "relu layout=[x,_]", "layers.*.matmul shard=[[2,1],[1,2]]", "*.bias compute=replicated")  # fmt: skip


def _constraints(rng: random.Random) -> tuple[bytes, str]:
    if rng.random() < 0.2:
        content, suffix = rng.choice(_written()["plan"])
        return _changed(content, suffix, rng), ".json"
    return changed_text(CONSTRAINTS, rng).encode("utf-8", "replace"), ".yaml"


def _constrain(path: Path, rng: random.Random) -> str:
    options = search_options({"devices": 4, "time_limit": 2.0}, constraints=True)
    options.model, options.constraints = ROOT / "sample_graphs" / "mlp.onnx", path
    Searcher(options, None, None, Cancellation(), watch=Silent()).search(4)
    return "planned"


NAMES: Final = {
    "parameters": {"layers.0.weight": "fc1", "layers.1.weight": {"name": "b", "transposed": True}},
    "prefixes": {"layers": "net.layers"},
}
HOSTS: Final = ("10.0.0.1 192.168.0.1 192.168.0.2 # first\n10.0.0.2 192.168.1.1 192.168.1.2\n",
                "a slots=2\nb slots=2\n",
                "10.0.0.1 4:192.168.1.1 5:192.168.1.2 6:192.168.1.3 7:192.168.1.4\n")  # fmt: skip
TABLE: Final = {
    "version": "1.0", "server_count": "1", "status": "completed",
    "server_list": [{"server_id": "10.0.0.1", "device": [
        {"device_id": str(k), "device_ip": f"192.1.0.{k}", "rank_id": str(k)} for k in range(4)]}],
}  # fmt: skip


@cache
def _network() -> dict[str, Any]:
    plan = PlanDocument.model_validate_json(_written()["plan"][0][0])
    listed = [{"name": f"net.{n}", "shape": list(p.shape)} for n, p in plan.parameters.items()]
    return {"prefixes": {"": "net."}, "network": listed}


def _lists(rng: random.Random) -> tuple[bytes, str]:
    match rng.randrange(3):
        case 0:
            return json_bytes(changed_json(rng.choice((NAMES, _network())), rng)), ".names"
        case 1:
            return changed_text(rng.choice(HOSTS), rng).encode("utf-8", "replace"), ".hosts"
        case _:
            return json_bytes(changed_json(TABLE, rng)), ".json"


def _list(path: Path, rng: random.Random) -> str:
    plan = PlanDocument.model_validate_json(_written()["plan"][0][0])
    if path.suffix == ".names":
        emit(rng.choice(("mindspore", "dtensor", "deepspeed")), Given(plan, names_file=path))
    else:
        emit(rng.choice(("mindspore", "megatron", "torchtitan")), Given(plan, hosts_file=path))
    return "emitted"


@cache
def _solved() -> tuple[bytes, bytes]:
    """A small problem, and the certificate of its answer."""
    import contextlib
    import io
    import tempfile

    from planner.cli.main import main
    from tests.hostile.make_instances import VALID

    with tempfile.TemporaryDirectory() as folder:
        problem, proof = Path(folder) / "p.json", Path(folder) / "c.json"
        problem.write_text(json.dumps(VALID))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(["solve", str(problem), "--certificate", str(proof)])
        return problem.read_bytes(), proof.read_bytes()


def _problem(rng: random.Random) -> tuple[bytes, str]:
    problem, proof = _solved()
    certificate = rng.random() < 0.4
    content = proof if certificate else problem
    suffix = ".certificate" if certificate else ".json"
    if rng.random() < 0.2:
        return changed_bytes(content, rng), suffix
    return json_bytes(changed_json(json.loads(content), rng)), suffix


def _check(path: Path, rng: random.Random) -> str:
    from planner.search.certificates.file import read_certificate
    from planner.search.checks.check import check
    from planner.search.saved.instance import read_instance

    whole = path.with_name("whole")
    whole.write_bytes(_solved()[0 if path.suffix == ".certificate" else 1])
    problem, proof = (whole, path) if path.suffix == ".certificate" else (path, whole)
    return "accepted" if check(read_instance(problem), read_certificate(proof)).accepted else "refused"


def _requests(rng: random.Random) -> tuple[bytes, str]:
    """The `requests` of a batch, options of every kind among them."""
    given = [
        {"bind": ["batch=8"], "nodes": 2, "micro_batches": 4, "top_k": 2, "risk": "upper"} | options_of_search(rng)
        for _ in range(rng.choice((1, 2)))
    ]
    for options in given:
        options["pin"] = rng.sample(PINS, rng.choice((0, 1, 2)))
    return json_bytes(changed_json(given, rng)), ".json"


def _request(path: Path, rng: random.Random) -> str:
    from planner.api.routes.batches import _queries
    from planner.requests.values import constraints_of

    try:
        found = _queries(path.read_bytes())
    except Problem as e:
        raise UsageError(str(e)) from e
    for _, options in found:
        constraints_of(None, options.get("pin", []))
        if options["devices"] > 8 or rng.random() < 0.7:
            continue
        search_for = search_options(options | {"time_limit": 2.0})
        search_for.model = ROOT / "sample_graphs" / "mlp.onnx"
        Searcher(search_for, None, None, Cancellation(), watch=Silent()).search(options["devices"])
    return "understood"


ENTRANCES: Final[Mapping[str, Entrance]] = {
    "model": Entrance(50, changed_model, search),
    "wire": Entrance(10, changed_wire, search),
    "plan": Entrance(8, _of("plan"), _plan),
    **{form: Entrance(3, _of(form), _strategy(form)) for form in FORMATS},
    "hardware": Entrance(4, _profile, _hardware),
    "constraints": Entrance(5, _constraints, _constrain),
    "lists": Entrance(4, _lists, _list),
    "problem": Entrance(5, _problem, _check),
    "requests": Entrance(5, _requests, _request),
}
