"""`planner run PLAN MODEL`: a plan executed by PyTorch, one process per device, once or in a training; also under
torchrun and mpirun."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from planner.cli.surviving import surviving
from planner.cli.tuned import other_plans, telling, tuned
from planner.errors import UsageError
from planner.requests.values import not_negative, plan_file, positive

if TYPE_CHECKING:
    from planner.cost_models.memory import Precision
    from planner.planning import PlanDocument
    from planner.runtime.launch import RunResult

__all__ = ["configure", "run"]

# Element type of each precision that is planned for, and bytes of those that models are in.
_TYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SPEAKS_S: Final = 10.0  # in which a rank says what is wrong for all
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
# Options that make a run a training.
_TRAINING: Final = (
    "optimizer", "lr", "weight_decay", "momentum", "clip", "weights", "data", "save", "save_every", "load",
    "profile", "resume",
)  # fmt: skip
_ALSO: Final = ("min_devices",)  # and no number of a training itself


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", type=plan_file, metavar="PLAN", help="the plan: plan.json of `planner search`, or its folder"
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="the model that was planned")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="run on processors with gloo (cpu), or on GPUs with NCCL (cuda)",
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="CPU threads of each process; default: 1"
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N",
        help="train so many steps; with --check the steps that are timed, without updates (default: 3)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=not_negative, metavar="S",
        help="draw weights from this seed, and, without --data, the batch; default: 0, and the model's own weights",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=("model", "plan"), default="model",
        help="compute in the model's own types, or in the plan's precision; default: model",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="compare the results with the whole model on one process")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document on standard output, and of a training one line for each step",
    )
    parser.add_argument(
        "--autotune", type=_several, metavar="K",
        help="try the plans of `planner search --space whole --top-k K` for some steps each, and run the fastest",
    )  # fmt: skip
    group = parser.add_argument_group("training (any of these trains)")
    group.add_argument(
        "--optimizer",
        choices=("adamw", "sgd"),
        help="optimizer that updates the weights; adam is AdamW, momentum is sgd with 0.9; default: the plan's",
    )
    group.add_argument("--lr", type=_not_negative_number, metavar="X", help="learning rate; default: 0.001")
    group.add_argument(
        "--weight-decay",
        type=_not_negative_number,
        metavar="X",
        help="factor of weight decay; default: 0.01 for AdamW, 0 for sgd",
    )
    group.add_argument(
        "--momentum", type=_not_negative_number, metavar="X", help="momentum of sgd; default: the plan's, or 0"
    )
    group.add_argument("--clip", type=_positive_number, metavar="NORM", help="largest norm of all gradients together")
    group.add_argument(
        "--weights", type=Path, metavar="FILE",
        help="weights to begin with: an ONNX file, a .safetensors file or a folder of such; "
        "default: the model's own, where it holds any",
    )  # fmt: skip
    group.add_argument(
        "--data", type=Path, metavar="FOLDER",
        help="folder of samples: INPUT.npy for each input, with samples along the first dimension, or a .npz or "
        ".safetensors file for each step",
    )  # fmt: skip
    group.add_argument(
        "--save",
        type=Path,
        metavar="FOLDER",
        help="folder for checkpoints, step-N; one is written after the last step",
    )
    group.add_argument("--save-every", type=positive, metavar="K", help="write a checkpoint every K steps, too")
    group.add_argument(
        "--profile", type=Path, metavar="FOLDER",
        help="measure every operator and collective after the last step; writes profile.json and trace.json there",
    )  # fmt: skip
    group.add_argument(
        "--resume", action="store_true", default=None,
        help="go on from the newest checkpoint under --save, if there is one, up to --steps steps in all",
    )  # fmt: skip
    group.add_argument(
        "--min-devices", type=positive, metavar="N",
        help="go on when processes die, as long as N devices are left, with a plan for those",
    )  # fmt: skip
    group.add_argument("--load", type=Path, metavar="FOLDER", help="go on from a checkpoint, or the newest in a folder")


def _several(text: str) -> int:
    """argparse type: a whole number from two on."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"expected a number of plans from 2 on, found {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _not_negative_number(text: str) -> float:
    """argparse type: a finite number of at least zero."""
    if not 0 <= (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, such as 3e-4, found {text!r}")
    return value


def _positive_number(text: str) -> float:
    """argparse type: a finite number above zero."""
    if not 0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, such as 1.0, found {text!r}")
    return value


def run(options: argparse.Namespace) -> int:
    from planner.planning import read_plan

    options.plan = _for_those_started(options.plan)
    plan = read_plan(options.plan)
    as_planned = options.precision == "plan"
    if as_planned and options.check and plan.schedule.precision != "fp32":
        raise UsageError(
            f"--check --precision plan: results in {plan.schedule.precision} differ from the whole model's by rounding;"
            " leave one of the two out"
        )
    given = [name for name in (*_TRAINING, *_ALSO) if getattr(options, name) is not None]
    if options.check and given:
        raise UsageError(
            f"--check and --{given[0].replace('_', '-')}: the check compares one step on random weights, and trains "
            "nothing; leave one of the two out"
        )
    if options.save_every is not None and options.save is None:
        raise UsageError("--save-every: no --save says where to; add it")
    if options.resume and options.save is None:
        raise UsageError("--resume: no --save says where checkpoints lie; add it")
    if options.resume and options.load is not None:
        raise UsageError("--resume and --load: both say where to go on from; leave one of the two out")
    if options.weights is not None and options.load is not None:
        raise UsageError("--weights and --load: both say what the weights are; leave one of the two out")
    plans = {options.plan: plan, **other_plans(options.plan, plan, options.autotune or 1)}
    _require_torch()
    from planner.runtime.started import Elsewhere

    try:
        trains = bool(given) or (options.steps is not None and not options.check and plan.schedule.mode == "training")
        return (_train if trains else _compare)(options, plans, as_planned)
    except Elsewhere as error:
        # Another rank says it.  A launcher ends all ranks as soon as one is gone: it is not to end that one before.
        time.sleep(_SPEAKS_S)
        return error.exit_status


def _require_torch() -> None:
    from planner.runtime.extra import require_torch

    require_torch("planner run")


def _for_those_started(path: Path) -> Path:
    """Of a folder with plans for several numbers of devices (`planner search --devices 2,4`) that for as many processes
    as a launcher has started.  UsageError where there is none."""
    plans = {int(p.stem[5:]): p for p in path.parent.glob("plan-*.json") if p.stem[5:].isdecimal()}
    if path.name != "plan.json" or path.is_file() or not plans:
        return path
    _require_torch()
    from planner.runtime.started import started

    here = started()
    if here is not None and here.world in plans:
        return plans[here.world]
    counts = ", ".join(map(str, sorted(plans)))
    if here is None:
        raise UsageError(f"{path.parent} holds plans for {counts} devices; name one, such as {min(plans.items())[1]}")
    raise UsageError(
        f"{path.parent} holds plans for {counts} devices, and {here.by} started {here.world}; start one of these "
        f"numbers, or search a plan for {here.world}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _compare(options: argparse.Namespace, plans: dict[Path, PlanDocument], as_planned: bool) -> int:
    from planner.runtime.launch import run_plan

    plan, *others = plans.values()
    outcome = run_plan(
        options.model,
        plan,
        device=options.device,
        threads=options.threads,
        steps=options.steps or 3,
        seed=options.seed or 0,
        check=options.check,
        as_planned=as_planned,
        say=_say,
        others=others,
        tell=telling(list(plans), _say),
    )
    if outcome is None:  # another rank reports
        return 0
    plan = list(plans.values())[outcome.chosen]
    document = {**_document(outcome, plan, as_planned=as_planned), **tuned(list(plans), outcome.chosen, outcome.tried)}
    print(json.dumps(document, indent=1) if options.json else _text(document))
    return 0 if outcome.passed else 1


def _train(options: argparse.Namespace, plans: dict[Path, PlanDocument], as_planned: bool) -> int:
    from planner.frontends import load_model
    from planner.planning.programs import program_of
    from planner.report.profiled import profiled
    from planner.runtime.launch import RunResult
    from planner.runtime.training.driver import Step, train
    from planner.runtime.training.options import TrainingOptions

    def tell(s: Step) -> None:
        saved = None if s.saved is None else str(s.saved)
        text = (
            f"step {s.step:6}  loss {s.loss:.6g}  gradient norm {s.gradient_norm:.4g}  {s.seconds:.4g} s  "
            f"{s.samples_per_second:.4g} samples/s{'' if saved is None else f'  saved {saved}'}"
        )
        print(json.dumps({**asdict(s), "saved": saved}) if options.json else text, flush=True)

    plan, *others = plans.values()
    steps = options.steps or (1 if options.profile is None else 3)
    asked = TrainingOptions(steps=steps, seed=options.seed, **{name: getattr(options, name) for name in _TRAINING})
    found = train(
        options.model, plan, asked,
        device=options.device, threads=options.threads, as_planned=as_planned, say=_say, tell=tell,
        others=others, tried=telling(list(plans), _say),
        surviving=None if options.min_devices is None else
        surviving(options.min_devices, plan, options.model, as_json=options.json),
    )  # fmt: skip
    if found is None:  # another rank reports
        return 0
    plan = found.plan
    if not found.steps:
        done = {"step": found.begun, "weights": found.weights}
        print(json.dumps(done) if options.json else f"{found.weights} has made all {steps} steps; none is left")
        return 0
    seconds = tuple(s.seconds for s in found.steps)
    outcome = RunResult(seconds, found.traffic, found.fallbacks, found.steps[-1].loss, None, True)
    document = {
        **_document(outcome, plan, as_planned=as_planned),
        "step": found.steps[-1].step,
        "weights": found.weights,
        "optimizer": asdict(found.numbers),
        **tuned(list(plans), found.chosen, found.tried),
    }
    lines = [_text(document), f"  weights: {found.weights}"]
    if found.watched is not None:
        watched = found.watched
        program = program_of(plan, load_model(options.model, bind=plan.model.bind, batch=plan.model.batch))
        profile = profiled(
            plan, watched.ranks, watched.step_s, watched.held_bytes,
            program=program, precision=None if as_planned else _precision(_executed(plan)),
        )  # fmt: skip
        profile.save(options.profile)
        document["profile"] = str(options.profile)
        lines += ["", str(profile), "", f"profile.json and trace.json (for Perfetto) lie in {options.profile}"]
    print(json.dumps(document) if options.json else "\n".join(lines))
    return 0


def _document(o: RunResult, plan: PlanDocument, *, as_planned: bool) -> dict[str, Any]:
    def table(traffic: Any) -> dict[str, Any]:
        return {kind: {"count": n, "bytes": size} for kind, (n, size) in traffic.items()}

    return {
        "devices": plan.devices,
        "precision": {
            "planned": plan.schedule.precision,
            "executed": _TYPES[plan.schedule.precision] if as_planned else _executed(plan),
        },
        "step_seconds": list(o.seconds),
        "loss": o.loss,
        "collectives": table(o.traffic.executed),
        "planned": table(o.traffic.planned),
        "inside_operators": table(o.traffic.inside),
        "fallbacks": sorted(o.fallbacks),
        "errors": o.errors,
        "ok": o.passed,
    }


def _executed(plan: PlanDocument) -> str:
    """The element type that a run computes in: that of the model, whatever precision was planned for.  The plan says
    types of inputs and of tensors that move; of several the widest."""
    found = {t.dtype for t in plan.tensors.values()} | {x.dtype for x in plan.inputs.values()}
    return max(found & _BYTES.keys(), key=lambda t: (_BYTES[t], t), default="float32")


def _precision(executed: str) -> Precision:
    """What plans call an element type."""
    names: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16"}
    return names.get(executed, "fp32")


def _text(d: dict[str, Any]) -> str:
    steps = d["step_seconds"]
    lines = [f"the fastest of {len(d['autotune'])} plans is {d['plan']}"] if "autotune" in d else []
    lines += [f"{len(steps)} steps on {d['devices']} processes, median {median(steps):.4g} s"]
    planned, executed = _TYPES[d["precision"]["planned"]], d["precision"]["executed"]
    as_planned = "as planned"
    if planned != executed:
        times = _BYTES[executed] / _BYTES[planned]
        size = {2.0: "twice the plan's", 0.5: "half the plan's", 1.0: "the plan's"}.get(
            times, f"{times:g} times the plan's"
        )
        as_planned = f"as many as planned, in {executed}"
        lines.append(
            f"  computed in {executed}, as the model is, and planned for {d['precision']['planned']}: bytes of floats "
            f"are {size}, and times are those of {executed}"
        )
    if d["loss"] is not None:
        lines.append(f"  loss {d['loss']:.6g}")
    lines += [
        f"  {k:16} {v['count']:5} x  {v['bytes'] / 1e6:12.3f} MB, {as_planned}" for k, v in d["collectives"].items()
    ]
    lines += [f"  {k:16} {v['count']:5} x  {v['bytes'] / 1e6:12.3f} MB, inside operators"
              for k, v in d["inside_operators"].items()]  # fmt: skip
    if d["fallbacks"]:
        lines.append(f"  by numpy, for want of a torch function: {', '.join(d['fallbacks'])}")
    if d["errors"] is not None:
        errors = ", ".join(f"{k} {v:.2g}" for k, v in d["errors"].items())
        lines.append(
            f"  {'equal to' if d['ok'] else 'DIFFERENT from'} the whole model: largest relative error of {errors}"
        )
    return "\n".join(lines)
