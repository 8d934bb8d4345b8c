"""`planner search MODEL --devices N`: the main job."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, get_args

from planner.cache import Store, default_folder
from planner.cli.answer import Answer, finished, write_plans
from planner.cli.cache import add_cache_options, size_limit
from planner.cli.cancel import cancelled_by_signals
from planner.cli.kept import keep_model
from planner.cli.kinds import names_kinds
from planner.cli.options import add_model_options, add_pin_options, byte_size, plan_file, positive, settle_target
from planner.emit import TARGETS
from planner.errors import InputError, UsageError
from planner.targets import Target

__all__ = ["MOST_DEVICES", "add_request_options", "checked", "configure", "run"]

MOST_DEVICES = 16384  # ranks are listed in the plan, group by group


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--devices", required=True, metavar="N[,N...]", help="number of devices, or several")
    add_request_options(parser)
    parser.add_argument(
        "--front", action="store_true", help="also list the fastest configurations for ever less memory per device"
    )
    parser.add_argument("--warm-start", type=plan_file, metavar="PLAN", help="begin with a plan.json made before")
    parser.add_argument(
        "--save-problem",
        type=Path,
        metavar="DIR",
        help="also write problem.json.gz and certificate.json, with which `planner check` proves objective and bound; "
        "they speak of the chosen mesh only, and the cache is not asked",
    )
    parser.add_argument(
        "--save-all-meshes", action="store_true", help="with --save-problem: one pair of files per other mesh as well"
    )
    add_cache_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for plan.json; default: MODEL.plan")
    parser.add_argument(
        "--emit",
        action="append",
        default=[],
        choices=tuple(TARGETS),
        metavar="TARGET",
        help=f"also write the plan for a runtime, to DIR/TARGET: {', '.join(TARGETS)}; may be repeated",
    )
    parser.add_argument("--details", action="store_true", help="also print how every operator is split")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """What is asked for, beside the model and the devices."""
    parser.add_argument(
        "--hardware",
        default="a100-80",
        metavar="NAME|FILE",
        help="profile (see `planner hardware`); of several kinds of devices NAME:COUNT+NAME:COUNT",
    )
    parser.add_argument("--nodes", type=positive, metavar="K", help="servers; default: as many as full servers need")
    parser.add_argument("--mesh", metavar="AxB", help="only this logical mesh; default: all of one and two axes")
    parser.add_argument("--mode", choices=("training", "inference"), help="default: training where there is a loss")
    parser.add_argument(
        "--memory-limit", type=byte_size, metavar="SIZE", help="per device; default: what the profile leaves"
    )
    parser.add_argument("--optimizer", choices=("adam", "momentum", "sgd"), default="adam")
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument(
        "--recompute",
        choices=("auto", "none", "blocks"),
        default="auto",
        help="run equal layers again in the backward pass; auto: on meshes where nothing fits without",
    )
    parser.add_argument(
        "--stages", type=positive, default=1, metavar="S", help="pipeline stages, each on an S-th of the devices"
    )
    parser.add_argument(
        "--micro-batches",
        type=positive,
        metavar="M",
        help="parts of the batch, one after the other; default: 1, up to 4 a stage",
    )
    add_pin_options(parser)
    parser.add_argument(
        "--strategy",
        metavar="SCHEME[:KEY=VALUE,…]",
        help="pin a known configuration, as `planner evaluate` has it: megatron:tp=4,pp=2,micro_batch=1, fsdp, …",
    )
    parser.add_argument(
        "--risk",
        choices=("expected", "upper"),
        default="expected",
        help="upper: of uniform configurations, the one whose step most likely stays below the least: the upper end of "
        "the interval counts, which is wider where no published step was measured with the like",
    )
    parser.add_argument(
        "--space",
        choices=("whole", "operators"),
        help="whole: stages, micro-batches, ZeRO and recomputation as well, the same for all layers; default: whole "
        "where the batch at once hardly fits, else operators; operators with --strategy: these are laid out one by "
        "one inside of the strategy's micro-batches and stages, as far as the step gets shorter",
    )
    parser.add_argument("--solver", choices=("auto", "dp", "ilp"), default="auto")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds for the whole search")
    parser.add_argument(
        "--target",
        choices=get_args(Target),
        help="only plans that it can be told; default: the one of --emit, else any",
    )
    parser.add_argument("--reproducible", action="store_true", help="no limits in seconds: the same bytes every time")
    parser.add_argument(
        "--top-k", type=positive, default=1, metavar="K", help="the best plan of each of the K best meshes"
    )


def run(options: argparse.Namespace) -> int:
    # The search multiplies many small matrices: a second BLAS thread would spin more than it computes.  Read when
    # numpy is first imported, which is below.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if names_kinds(options.hardware):
        from planner.cli.mixed import run_mixed

        return run_mixed(options)
    counts = checked(options)
    from planner.cli.request_key import request_key

    store = None if options.no_cache else Store(options.cache or default_folder(), size_limit(), note=_say)
    key = None if store is None else request_key(options)
    several = len(counts) > 1
    later: Any = None  # what searches is loaded only where a search is due
    documents: list[dict[str, Any]] = []
    with cancelled_by_signals() as cancellation:
        for devices in counts:
            answer = None
            if store is not None and key is not None and options.save_problem is None:
                answer = Answer.recall(store, key.of(devices))
            if answer is None:
                if later is None:
                    from planner.cli.search_run import Searcher

                    later = Searcher(options, store, key, cancellation)
                answer = later.search(devices)
            documents.append(_deliver(options, answer, devices, several))
            if cancellation.asked.is_set() and len(documents) < len(counts):
                _say(f"cancelled: {', '.join(map(str, counts[len(documents) :]))} devices are not planned for")
                break
    if options.json:
        print(json.dumps(documents if several else documents[0], indent=1))
    elif several:
        from planner.cli.sizing import sizing

        print(f"\n{sizing(documents)}")
    refused = any("refused" in told for d in documents for told in d.get("emitted", {}).values())
    return InputError.exit_status if refused else 0


def checked(options: argparse.Namespace) -> list[int]:
    """The counts of devices that are asked for.  UsageError where options contradict each other."""
    counts = _counts(options.devices)
    settle_target(options)
    if options.mesh and len(counts) > 1:
        raise UsageError("--mesh fits one number of devices; give one --devices with it")
    if options.time_limit is not None and not 0 < options.time_limit < 10**7:
        raise UsageError(f"--time-limit {options.time_limit:g}: expected a positive number of seconds")
    if options.reproducible and options.time_limit is not None:
        raise UsageError("--reproducible forbids --time-limit: a limit in seconds gives other plans on other days")
    if options.strategy is not None and (options.stages > 1 or options.micro_batches or options.mesh):
        raise UsageError(
            "--strategy says stages, micro-batches and mesh itself (pp, micro_batch); leave the others out"
        )
    if options.strategy is not None and len(counts) > 1:
        raise UsageError("--strategy fits one number of devices; give one --devices with it")
    for devices in counts:
        if devices % options.stages:
            raise UsageError(f"--stages {options.stages}: expected a divisor of --devices {devices}")
    if options.save_all_meshes and options.save_problem is None:
        raise UsageError("--save-all-meshes says what --save-problem writes; give --save-problem DIR with it")
    return counts


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _deliver(options: argparse.Namespace, answer: Answer, devices: int, several: bool) -> dict[str, Any]:
    """Writes the plans and says so; the document for `--json`."""
    for message in answer.messages:
        _say(message)
    folder = options.out or Path(f"{options.model.stem}.plan")
    stem = f"plan-{devices}" if several else "plan"
    paths = [folder / (f"{stem}.json" if k == 1 else f"{stem}-{k}.json") for k in range(1, len(answer.plans) + 1)]
    try:
        write_plans(dict(zip(paths, answer.plans, strict=True)))
    except OSError as e:
        raise InputError(f"plan {paths[0]}: cannot be written ({e}); give another directory with --out") from e
    note = keep_model(answer.model, folder, options.model)
    if note:
        _say(f"note: {note}")
    if not options.json:
        print(answer.summary)
        if options.details:
            print(f"\n{answer.details}\n")
        if answer.cached:
            print(
                f"cached      found again, not searched; the search took {answer.documents[0]['search_seconds']:.2f} s"
            )
        if answer.cancelled:
            print("cancelled   this is the best plan found until then")
        for path in paths:
            print(f"plan written to {path}")
    document = finished(answer, [str(p) for p in paths])
    if options.emit:
        from planner.cli.emit import emit_beside

        suffix = f"-{devices}" if several else ""
        document["emitted"] = {}
        for target in options.emit:
            at = folder / f"{target}{suffix}"
            try:
                files, lost = emit_beside(paths[0], target, options.model, at)
            except InputError as e:
                document["emitted"][target] = {"files": [], "lost": [], "refused": str(e)}
                _say(f"not emitted {target}: {e}")
                continue
            document["emitted"][target] = {"files": files, "lost": lost}
            if not options.json:
                print(f"emitted     {target}: {len(files)} files in {at}")
                print("\n".join(f"  not in them: {line}" for line in lost))
    return document


def _counts(text: str) -> list[int]:
    try:
        counts = [positive(part) for part in text.split(",")]
    except argparse.ArgumentTypeError as e:
        raise UsageError(f"--devices {text}: {e}") from e
    if max(counts) > MOST_DEVICES:
        raise UsageError(f"--devices {max(counts)}: expected at most {MOST_DEVICES}; plan one replica of the job")
    return counts
