"""`planner search MODEL --devices N`: the main job."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from planner.cache import Store, default_folder
from planner.cli.commands.cache import add_cache_options
from planner.cli.options import add_json_option, add_model_options
from planner.emit import TARGETS
from planner.errors import InputError, UsageError
from planner.requests.answer import Answer, finished, write_plans
from planner.requests.cancel import cancelled_by_signals
from planner.requests.kinds import names_kinds
from planner.requests.occupied import FORCE, refuse_other_model, refuse_other_request, refuse_unwritable
from planner.requests.options import add_options, options_of
from planner.requests.plan_model import keep_model
from planner.requests.record_file import keep_record, record_text
from planner.requests.search import SENT, SearchRequest
from planner.requests.values import cache_size

__all__ = ["add_request_options", "configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument(
        "--devices", required=True, metavar="N[,N...]", help="number of devices; of several numbers, each is searched"
    )
    add_request_options(parser)
    add_options(parser, SearchRequest, {f.name for f in options_of(SearchRequest)} - {*SENT, "constraints"})
    add_cache_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for plan.json; default: MODEL.plan")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument(
        "--emit",
        action="append",
        default=[],
        choices=tuple(TARGETS),
        metavar="TARGET",
        help=f"also write the plan for a runtime, to DIR/TARGET: {', '.join(TARGETS)}; one implies --target, of "
        "several each takes the same plan or refuses it",
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="PLAN|SCHEME",
        help="also say what the plan does otherwise than another plan, or than a known configuration (fsdp, "
        "megatron:tp=8,pp=4, …), as `planner diff` does; may be repeated",
    )
    parser.add_argument("--details", action="store_true", help="also print how every operator is split")
    add_json_option(parser)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """What is asked for, beside the model and the devices."""
    add_options(parser, SearchRequest, {*SENT, "constraints"} - {"bind", "batch"})
    parser.set_defaults(target=None)  # not given: `_request` settles it


def run(options: argparse.Namespace) -> int:
    # The search multiplies many small matrices: a second BLAS thread would spin more than it computes.  Read when
    # numpy is first imported, which is below.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if names_kinds(options.hardware):
        from planner.cli.mixed import run_mixed

        return run_mixed(options)
    request = _request(options)
    counts = request.counts
    several = len(counts) > 1
    if options.emit:
        from planner.requests.emission import check_emitted

        check_emitted(options.emit, request, counts)
    if several and options.against:
        raise UsageError("--against fits one number of devices; give one --devices with it")
    from planner.requests.key import request_key

    store = None if options.no_cache else Store(options.cache or default_folder(), cache_size(), note=_say)
    key = None if store is None else request_key(request)
    ask = store is not None and key is not None and request.save_problem is None
    known = {n: Answer.recall(store, key.of(n)) if ask and store and key else None for n in counts}
    refuse_unwritable(_folder(options))
    if not options.force:
        for devices, answer in known.items():
            _refuse_others(options, request, devices, several, answer)
    later: Any = None  # what searches is loaded only where a search is due
    documents: list[dict[str, Any]] = []
    columns: Any = []
    with cancelled_by_signals() as cancellation:
        if options.against:  # what is wrong with them is said before the search; a plan there may be written over
            from planner.requests.against import baselines

            columns = baselines(options.against, request, cancellation)
        for devices in counts:
            answer = known[devices]
            if answer is None:
                if later is None:
                    from planner.requests.searcher import Searcher

                    later = Searcher(request, store, key, cancellation)
                    if not options.force:
                        refuse_other_model(_folder(options), later.prepared.file, options.model)
                answer = later.search(devices)
            documents.append(_deliver(options, answer, devices, several))
            if cancellation.requested.is_set() and len(documents) < len(counts):
                _say(f"cancelled: {', '.join(map(str, counts[len(documents) :]))} devices are not planned for")
                break
    if columns:
        _compare(options, columns, documents[0])
    if options.json:
        print(json.dumps(documents if several else documents[0], indent=1))
    elif several:
        from planner.cli.sizing import sizing

        print(f"\n{sizing(documents)}")
    refused = any("refused" in artifact for d in documents for artifact in d.get("emitted", {}).values())
    return InputError.exit_status if refused else 0


def _compare(options: argparse.Namespace, columns: Any, document: dict[str, Any]) -> None:
    """Prints what the plan does otherwise, or puts it into the document of `--json`."""
    from planner.planning import read_plan
    from planner.requests.against import beside

    found = beside(columns, read_plan(document["plan"]), document["plan"], options.model)
    if options.json:
        document["against"] = found.document()
    else:
        print(f"\n{found.text()}")


def _request(options: argparse.Namespace) -> SearchRequest:
    """What the options ask for.  Without --target, plans are for the one that they are emitted for, or for any.
    UsageError where options contradict each other."""
    request = SearchRequest.of(options)
    if options.target is None:
        request.target = options.emit[0] if len(options.emit) == 1 else "any"
    request.check()
    return request


def _folder(options: argparse.Namespace) -> Path:
    """Where plans are written."""
    return options.out or Path(f"{options.model.stem}.plan")


def _paths(options: argparse.Namespace, devices: int, several: bool, count: int) -> list[Path]:
    """Of so many plans for one count of devices, the best first."""
    stem = f"plan-{devices}" if several else "plan"
    return [_folder(options) / (f"{stem}.json" if k == 1 else f"{stem}-{k}.json") for k in range(1, count + 1)]


def _refuse_others(
    options: argparse.Namespace, request: SearchRequest, devices: int, several: bool, known: Answer | None
) -> None:
    """UsageError where plans would be written over those of another request; not where the very same are there."""
    paths = _paths(options, devices, several, request.top_k)
    if known is not None and all(p.is_file() and p.read_text() == t for p, t in zip(paths, known.plans, strict=False)):
        return
    for k, path in enumerate(paths):
        refuse_other_request(path, request, devices, further=k > 0)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _deliver(options: argparse.Namespace, answer: Answer, devices: int, several: bool) -> dict[str, Any]:
    """Writes the plans and says so; the document for `--json`."""
    for message in answer.messages:
        _say(message)
    folder = _folder(options)
    if not options.force:
        refuse_other_model(folder, answer.model, options.model)
    paths = _paths(options, devices, several, len(answer.plans))
    try:
        write_plans(dict(zip(paths, answer.plans, strict=True)))
    except OSError as e:
        raise InputError(f"plan {paths[0]}: cannot be written ({e}); give another directory with --out") from e
    record = record_text(answer.record, answer.plans, timed=not options.reproducible)
    for note in (keep_model(answer.model, folder, options.model), keep_record(record, paths[0])):
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
        from planner.planning import read_plan
        from planner.requests.emission import emitted_beside, write_emission

        suffix = f"-{devices}" if several else ""
        document["emitted"] = {}
        for target in options.emit:
            at = folder / f"{target}{suffix}"
            try:
                emission = emitted_beside(read_plan(paths[0]), target, options.model)
                files, lost = [str(p) for p in write_emission(emission, at)], list(emission.lost)
            except InputError as e:
                document["emitted"][target] = {"files": [], "lost": [], "refused": str(e)}
                _say(f"not emitted {target}: {e}")
                continue
            document["emitted"][target] = {"files": files, "lost": lost}
            if not options.json:
                print(f"emitted     {target}: {len(files)} files in {at}")
                print("\n".join(f"  not in them: {line}" for line in lost))
    return document
