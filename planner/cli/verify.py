"""`planner verify PLAN [MODEL]`: proof of a plan by derivation and by execution on virtual devices."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_model_options
from planner.errors import InputError, VerificationError
from planner.requests.kept import kept_model
from planner.requests.values import bindings, not_negative, plan_file, progress_to
from planner.status import CLEAR, is_shown, told
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.verify.verification import Verification

__all__ = ["configure", "run"]

_LISTED = 20  # lines of what is wrong, in text
_PAUSE = 5.0  # seconds between two lines of progress


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=plan_file, metavar="PLAN", help="plan.json of `planner search`, or its folder")
    add_model_options(parser, optional=True)
    parser.add_argument("--whole", action="store_true", help="execute the whole graph, and the file, at any cost")
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the random weights and inputs")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    # Products of shards are small, and a second BLAS thread is waited for at full speed, which beside other processes
    # takes ten times as long as the products.  Read as numpy is first imported; ONNX Runtime has threads of its own.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")

    from planner.frontends import load_model
    from planner.planning import read_plan, write_plan
    from planner.verify.label import unlabelled

    plan = read_plan(options.plan)
    bind = bindings(options.bind) or plan.model.bind
    batch = options.batch if options.batch is not None else plan.model.batch
    model = kept_model(options.plan, options.model, "the argument MODEL")
    graph = load_model(model, bind=bind, batch=batch)

    with _progress() as say:

        def work() -> Verification:
            from planner.verify.verification import verify

            return verify(plan, graph, model, seed=options.seed, whole=options.whole, say=say, meter=_meter(say))

        found = _in_child(work)
    document = _document(found)
    print(json.dumps(document, indent=1) if options.json else _text(document))
    try:
        if found.ok:
            write_plan(found.label(plan, options.seed), options.plan)
        elif found.failures and plan.verification != "none":  # an earlier record does not outlive this
            write_plan(unlabelled(plan), options.plan)
    except InputError as e:
        progress_to(quiet=False)(f"the plan's record of this verification stays as it was: {e}")
    return 0 if found.ok else 1


def _document(v: Verification) -> dict[str, Any]:
    e, i = v.execution, v.imported
    return {
        "ok": v.ok,
        "verdict": v.verdict,
        "max_error": 0.0 if e is None else e.max_error,
        "worst": "" if e is None else e.worst,
        "devices": v.devices,
        "checked": list(v.checked),
        "scope": "sibling" if v.sibling else "whole",
        "executed": v.sibling or "the whole graph",
        "stands_for": list(v.stands_for),
        "operators": v.operators,
        "stages": v.stages,
        "micro_batches": v.micro_batches,
        "values": 0 if e is None else e.values,
        "gradients": 0 if e is None else e.gradients,
        "redistributions": 0 if e is None else e.redistributions,
        "parameters": 0 if e is None else e.parameters,
        "witnessed": 0 if e is None else e.witnessed,
        "unwitnessed": [] if e is None else list(e.unwitnessed),
        "fields": [{"path": d.path, "expected": d.expected, "found": d.found} for d in v.fields],
        "import": None
        if i is None
        else {"ok": i.ok, "max_error": i.max_error, "compared": list(i.compared), "reason": i.reason},
        "failures": list(v.failures),
        "unproved": list(v.unproved),
    }


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Writes progress to the standard error of this process, from its children, too, whose own goes nowhere."""
    if "onnxruntime" in sys.modules:  # no child will be started
        yield progress_to(quiet=False)
        return
    try:
        error = os.dup(2)
    except OSError:  # closed by whoever started us
        yield progress_to(quiet=True)
        return

    def say(line: str) -> None:
        with suppress(OSError):
            told(line)
            os.write(error, f"{CLEAR if is_shown() else ''}{plain(line, chr(10))}\n".encode())

    try:
        yield say
    finally:
        os.close(error)


def _in_child(work: Callable[[], Verification]) -> Verification:
    """`work()` in a child process: native code may abort on strange models, and nothing else can survive that."""
    from planner.frontends.sandbox import Limits, run_limited

    if "onnxruntime" in sys.modules:  # its threads do not survive a fork
        return work()

    def answer() -> Verification | InputError:
        from planner.verify.allocation import keep_freed_memory

        keep_freed_memory()
        try:
            return work()
        except InputError as e:  # of the plan or the model, and no death of the child
            return InputError(str(e))

    unlimited = Limits(memory_bytes=1 << 42, cpu_seconds=10**7, wall_seconds=1e7)
    try:
        found: Verification | InputError = run_limited(answer, limits=unlimited, what="executing the plan")
    except InputError as e:
        raise VerificationError(f"no verdict: {e}") from e
    if isinstance(found, InputError):
        raise found
    return found


def _meter(say: Callable[[str], None]) -> Callable[[int, int], None]:
    """Reports every few seconds how far the run has come and how long the rest takes at this pace."""
    begun: tuple[float, int] | None = None  # when the first instruction had run: what is prepared before is no pace
    last = time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal begun, last
        now = time.monotonic()
        if told("executing on every device", done / total):
            return
        if begun is None or done < begun[1]:  # the first, or the first of another run
            begun = now, done
        elif now - last > _PAUSE and done > begun[1]:
            last = now
            left = (now - begun[0]) * (total - done) / (done - begun[1])
            say(f"executed {done / total:.0%} of the work on every device, about {left:.0f} s left")

    return tick


def _text(d: dict[str, Any]) -> str:
    head = {"ok": "ok", "failed": "FAILED", "no verdict": "NO VERDICT"}[d["verdict"]]
    what = f"a sibling ({d['executed']})" if d["scope"] == "sibling" else d["executed"]
    ran = f"{' and '.join(d['checked'])} of {what}" if d["values"] else "nothing was executed"
    lines = [
        f"{head}: {ran} on {d['devices']} virtual devices{_parts(d)}",
        f"  document   fields that are not what follows from graph, choice and machine: {len(d['fields'])}"
        if d["fields"]
        else "  document   every field follows from graph, choice and machine",
        f"  compared   {d['values']} results, {d['redistributions']} redistributions, {d['gradients']} contributions "
        f"to gradients, {d['parameters']} gradients of parameters with the whole model in double precision",
        f"  error      {d['max_error']:.3g} at most" + (f" ({d['worst']})" if d["worst"] else ""),
        *([f"  witness    {_witness_line(d)}"] if d["witnessed"] or d["unwitnessed"] else []),
        f"  import     {_import_line(d['import'])}",
        *(f"  block      {line}" for line in d["stands_for"]),
    ]
    for title, found in (("wrong", d["failures"]), ("unproved", d["unproved"])):
        lines += [f"  {title:10} {line}" for line in found[:_LISTED]]
        lines += [f"  {title:10} and {len(found) - _LISTED} more" for _ in found[_LISTED : _LISTED + 1]]
    return "\n".join(lines)


def _parts(d: dict[str, Any]) -> str:
    if d["stages"] == d["micro_batches"] == 1:
        return ""
    stages = f"{d['stages']} stage{'s' if d['stages'] > 1 else ''}"
    return f", {stages} and {d['micro_batches']} micro-batch{'es' if d['micro_batches'] > 1 else ''}"


def _witness_line(d: dict[str, Any]) -> str:
    """Gradients are also compared with finite differences, which share no code with them."""
    silent = d["unwitnessed"]
    rest = f"; they say nothing of {', '.join(silent[:3])}{' and others' if len(silent) > 3 else ''}" if silent else ""
    return f"finite differences confirm the gradients of {d['witnessed']} operators, one of each kind{rest}"


def _import_line(found: dict[str, Any] | None) -> str:
    if found is None or found["ok"] is None:
        return "not compared with ONNX Runtime" + (f": {found['reason']}" if found else "")
    if not found["ok"]:
        return f"differs from ONNX Runtime: {found['reason']}"
    outputs = f"{len(found['compared'])} output{'s' if len(found['compared']) != 1 else ''}"
    return f"equal to ONNX Runtime on the file, {outputs}, error {found['max_error']:.3g}"
