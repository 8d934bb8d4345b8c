"""`planner submit MODEL --devices N`: `planner search` by a service.

The weights stay here.  The plan is the one that `planner search` finds, byte for byte, and exit statuses are the same;
a service that cannot be reached, or has no time, gives no plan (5).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InfeasibleError, InputError, NoPlanError, PlannerError, UsageError, VerificationError
from planner.requests.occupied import FORCE, refuse_other_model, refuse_other_request, refuse_unwritable
from planner.requests.options import add_options
from planner.requests.search import MOST_DEVICES, SENT, SearchRequest
from planner.requests.values import positive

if TYPE_CHECKING:
    from planner.api.client import Client, Job, ServiceError

__all__ = ["configure", "run"]

SERVER = "http://127.0.0.1:8080"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="ONNX file (weights are not needed)")
    parser.add_argument("--devices", required=True, type=positive, metavar="N", help="number of devices")
    add_options(parser, SearchRequest, {*SENT, "constraints"})
    parser.add_argument(
        "--server",
        default=os.environ.get("PLANNER_SERVER") or SERVER,
        metavar="URL",
        help=f"address of the service (PLANNER_SERVER; default: {SERVER})",
    )
    parser.add_argument(
        "--key", metavar="SECRET", help="the secret that `planner keys create` printed; better given as PLANNER_KEY"
    )
    parser.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="NAME",
        help="also fetch this: report.html, trace.json, …, or a target of `planner emit`, unpacked to DIR/TARGET; "
        "may be repeated",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory for plan.json; default: MODEL.plan")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument("--detach", action="store_true", help="print the job's id and do not wait for it")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    try:
        from planner.api.client import Client, ServiceError
    except ModuleNotFoundError as e:
        raise UsageError(f"{e.name} is missing; install it with `pip install '.[client]'` in the repository") from e

    if options.devices > MOST_DEVICES:
        raise UsageError(f"--devices {options.devices}: expected at most {MOST_DEVICES}; plan one replica of the job")
    if Path(options.hardware).suffix or os.sep in options.hardware:
        raise UsageError(f"--hardware {options.hardware}: the service knows its profiles by name, not by file")
    if options.detach and options.artifact:
        raise UsageError("--detach does not wait for the plan that --artifact is made of; leave one out")
    if not options.detach:
        refuse_unwritable(_folder(options))
        if not options.force:
            _refuse_others(options)
    try:
        with Client(options.server, options.key or os.environ.get("PLANNER_KEY")) as client:
            job = _submit(client, options)
            if options.detach:
                print(json.dumps(dict(job.state.document), indent=1) if options.json else job.id)
                return 0
            return _deliver(client, options, _finished(job))
    except ServiceError as e:
        raise as_planner_error(e) from e


def _submit(client: Client, options: argparse.Namespace) -> Job:
    from planner.api.client.wire import name_of
    from planner.frontends.file.sandbox import Limits, run_limited
    from planner.frontends.file.strip import strip_file

    model: Path = options.model
    data = run_limited(lambda: strip_file(model), limits=Limits(), what=f"reading {model.name}")
    whole = model.stat().st_size
    if len(data) < 0.99 * whole:
        _say(f"model       {_size(whole)} -> {_size(len(data))}: weights stay here")
    # Defaults are left out: a service of another version may not know the latest options.
    given = SearchRequest.of(options).service_options
    constraints = options.constraints
    if constraints is not None and not constraints.is_file():
        raise InputError(f"constraints {constraints}: no such file")
    return client.submit(
        data, devices=options.devices, name=name_of(model), strip=False, constraints=constraints, **given
    )


def _finished(job: Job) -> Job:
    """The job at its end.  The first Ctrl-C or SIGTERM asks for the best plan so far, the second ends the program."""
    from planner.api.progress import Display, interrupts

    with Display(sys.stderr) as display, interrupts() as rest:
        display.begin(job)
        try:
            job.wait(display.show)
        except KeyboardInterrupt:
            rest()
            display.note("ending with the best plan so far")
            job.cancel()
            job.wait(display.show)
    if job.state.plan is None:
        message = "was cancelled without a plan: its search had found none, or goes on for another job that shares it"
        raise NoPlanError(f"job {job.id} {message}")
    return job


def _deliver(client: Client, options: argparse.Namespace, job: Job) -> int:
    """Writes and says what `planner search` does."""
    from planner.requests.plan_model import MODEL_FILE, keep_model
    from planner.requests.record_file import keep_record, record_of

    folder = _folder(options)
    model = client.artifact(job.plan_id, MODEL_FILE)
    if not options.force:
        refuse_other_model(folder, model, options.model)
    document = json.loads(client.artifact(job.plan_id, "search.json"))
    cancelled = job.status == "cancelled"
    names = [str(p["plan"]) for p in document["plans"]]  # the best of each mesh, as --top-k asks
    paths = [folder / Path(name).name for name in names]
    plans: list[bytes] = []
    for name, path in zip(names, paths, strict=True):
        content = job.plan() if path == paths[0] else client.artifact(job.plan_id, name)
        plans.append(_named(content, options.model.stem))
        _write(path, plans[-1])
    record = record_of(_record(client, job), [plan.decode() for plan in plans])
    for note in (keep_model(model, folder, options.model), keep_record(record, paths[0])):
        if note:
            _say(f"note: {note}")
    document |= {"plan": str(paths[0]), "cancelled": cancelled, "job": job.id, "plan_id": job.plan_id}
    document["plans"] = [{**p, "plan": str(path)} for p, path in zip(document["plans"], paths, strict=True)]
    messages, text = _messages_and_text(client.artifact(job.plan_id, "summary.txt").decode())
    for line in messages:
        _say(line)
    if not options.json:
        print(text.replace(job.state.name, options.model.stem, 1))
        if document["cached"]:
            print(f"cached      found again, not searched; the search took {document['search_seconds']:.2f} s")
        if cancelled:
            print("cancelled   this is the best plan found until then")
        for path in paths:
            print(f"plan written to {path}")
    document["artifacts"] = {}
    for name in options.artifact:
        document["artifacts"][name] = _fetch(client, options, job.plan_id, name, folder)
    if options.json:
        print(json.dumps(document, indent=1))
    refused = any("refused" in artifact for artifact in document["artifacts"].values())
    return InputError.exit_status if refused else 0


def _record(client: Client, job: Job) -> str:
    """How the search went; empty where nothing was recorded, as by a service of an earlier version."""
    from planner.api.client import NotFound
    from planner.requests.record_file import RECORD_FILE

    try:
        return client.artifact(job.plan_id, RECORD_FILE).decode()
    except NotFound:
        return ""


def _folder(options: argparse.Namespace) -> Path:
    return options.out or Path(f"{options.model.stem}.plan")


def _refuse_others(options: argparse.Namespace) -> None:
    request = SearchRequest.of(options)
    request.devices = str(options.devices)
    for k in range(1, request.top_k + 1):
        path = _folder(options) / ("plan.json" if k == 1 else f"plan-{k}.json")
        refuse_other_request(path, request, options.devices, further=k > 1)


def _messages_and_text(summary: str) -> tuple[list[str], str]:
    """Messages, for standard error, and what follows them."""
    lines = summary.rstrip("\n").split("\n")
    first = next((k for k, line in enumerate(lines) if not line.startswith(("warning: ", "note: "))), len(lines))
    return lines[:first], "\n".join(lines[first:])


def _fetch(client: Client, options: argparse.Namespace, plan: str, name: str, folder: Path) -> dict[str, Any]:
    """One artifact, or the files of a target."""
    from planner.api.client import NotFound, TargetRefuses
    from planner.api.unpack import unpacked
    from planner.emit import TARGETS

    target = name in TARGETS
    try:
        content = client.artifact(plan, f"{name}.zip" if target else name)
    except (TargetRefuses, NotFound) as e:
        _say(f"not fetched {name}: {e.detail or e}")
        return {"files": [], "refused": e.detail or str(e)}
    files = {folder / name / inner: data for inner, data in unpacked(content).items()} if target else {}
    for path, data in (files or {folder / Path(name).name: content}).items():
        _write(path, data)
    paths = [str(p) for p in files or [folder / Path(name).name]]
    if not options.json:
        where = f"{len(paths)} files in {folder / name}" if target else paths[0]
        print(f"fetched     {name}: {where}")
    return {"files": paths}


def _named(plan: bytes, name: str) -> bytes:
    """The plan of a model of this name: names of files have characters that those of requests have not."""
    if json.loads(plan)["model"]["name"] == name:
        return plan
    from planner.planning import PlanDocument, plan_text

    d = PlanDocument.model_validate_json(plan)
    return plan_text(d.model_copy(update={"model": d.model.model_copy(update={"name": name})})).encode()


def _write(path: Path, content: bytes) -> None:
    from planner.files import write_whole

    try:
        write_whole(path, content)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e}); give another directory with --out") from e


def as_planner_error(error: ServiceError) -> PlannerError:
    """The error with the exit status that `planner search` would have ended with; its own words where it has them."""
    from planner.api import client as c

    if not isinstance(error, c.ProblemError):
        return NoPlanError(str(error))
    own = error.name in ("usage", "input-invalid", "cannot-fit", "no-plan", "verification-failed")
    text = error.detail if own and error.detail else str(error)
    if isinstance(error, c.CannotFit):
        return InfeasibleError(
            text, lower_bound_bytes=error.lower_bound_bytes or 0, sufficient_bytes=error.sufficient_bytes
        )
    if error.name == "verification-failed":
        return VerificationError(text)
    if error.name in ("input-invalid", "target-refuses", "too-large"):
        return InputError(text)
    if isinstance(error, c.Unauthorised):
        return UsageError(f"{text}; give it by PLANNER_KEY, or --key")
    if isinstance(error, (c.Invalid, c.Forbidden, c.NotFound, c.Conflict)):
        return UsageError(text)
    return NoPlanError(text)


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB" if count >= 1e4 else f"{count} bytes"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
