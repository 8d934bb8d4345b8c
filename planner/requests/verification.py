"""Proof of a plan: by derivation, and by execution on virtual devices in a child process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from planner.errors import EndedError, InputError, VerificationError
from planner.requests.values import progress_to
from planner.status import CLEAR, is_shown, show_progress
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.requests.model import ModelSource
    from planner.verify.verification import Verification

__all__ = ["recorded_in", "said_by_children", "verification_document", "verified"]

_PAUSE = 5.0  # seconds between two lines of progress


def verified(
    plan: PlanDocument,
    source: ModelSource,
    *,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    seed: int = 0,
    whole: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Verification:
    """The verdict on a plan of the model, read with the plan's own sizes unless `bind` and `batch` say otherwise.

    `seed`: of random weights and inputs; `whole`: the whole graph is executed, however long that takes;
    `say` is called in the child.  InputError where the plan is not of this model; VerificationError where the child
    died.
    """
    graph = source.load(bind=bind or plan.model.bind, batch=plan.model.batch if batch is None else batch)
    with source.file() as file:

        def work() -> Verification:
            from planner.verify.verification import verify

            return verify(plan, graph, file, seed=seed, whole=whole, say=say, meter=_meter(say))

        return _in_child(work)


def recorded_in(plan: PlanDocument, found: Verification, seed: int) -> PlanDocument | None:
    """The plan with the record of a verification; None where it stays as it is."""
    from planner.verify.label import unlabelled

    if found.ok:
        return found.label(plan, seed)
    if found.failures and plan.verification != "none":  # an earlier record does not outlive this
        return unlabelled(plan)
    return None


def verification_document(v: Verification) -> dict[str, Any]:
    """What `planner verify --json` prints."""
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
def said_by_children() -> Iterator[Callable[[str], None]]:
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
            show_progress(line)
            os.write(error, f"{CLEAR if is_shown() else ''}{plain(line, chr(10))}\n".encode())

    try:
        yield say
    finally:
        os.close(error)


def _in_child(work: Callable[[], Verification]) -> Verification:
    """`work()` in a child process: native code may abort on strange models, and nothing else can survive that."""
    from planner.frontends.file.sandbox import Limits, run_limited

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
    except EndedError as e:
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
        if show_progress("executing on every device", done / total):
            return
        if begun is None or done < begun[1]:  # the first, or the first of another run
            begun = now, done
        elif now - last > _PAUSE and done > begun[1]:
            last = now
            left = (now - begun[0]) * (total - done) / (done - begun[1])
            say(f"executed {done / total:.0%} of the work on every device, about {left:.0f} s left")

    return tick
