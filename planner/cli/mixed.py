"""`planner search --hardware NAME:COUNT+NAME:COUNT`: a pipeline over several kinds of devices."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from planner.cli.mixed_answer import MixedAnswer, document_of, lines_of
from planner.errors import InfeasibleError, InputError, NoPlanError, UsageError
from planner.files import write_whole
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning.pipeline import global_batch
from planner.requests.cancel import cancelled_by_signals
from planner.requests.cluster import cluster_of
from planner.requests.occupied import refuse_other_document
from planner.requests.values import bindings, progress_to
from planner.search.control import Control
from planner.uniform import Sample, Space
from planner.uniform.mixed import Cluster, FoundMixed, alone, assumed, best_mixed, changed, even_layers

__all__ = ["run_mixed"]

_SHARE: Final = 0.5  # of a time limit, for the pipeline; the rest is for what it is compared with
_SAME: Final = ("name", "hardware", "devices", "batch", "precision")  # of documents of one request
_BEGUN: Final = 2  # of the fastest configurations, from which moves of layers begin


def run_mixed(options: argparse.Namespace) -> int:
    """Prints what is found; writes it to configuration.json where --out names a folder.

    UsageError where another option has no meaning for several kinds; InfeasibleError, NoPlanError where nothing fits,
    or time is up.
    """
    _check(options)
    cluster = cluster_of(options.hardware, options.devices, options.memory_limit, options.precision)
    begun = time.monotonic()
    graph = load_model(options.model, bind=bindings(options.bind), batch=options.batch)
    if graph.loss is None:
        raise InputError(
            f"--hardware {options.hardware}: training steps are searched on several kinds of devices, and {graph.name} "
            "ends before its loss: give a graph with its loss, or one kind of devices"
        )
    with cancelled_by_signals() as cancellation:
        control = Control(options.time_limit, cancel=cancellation.requested, say=progress_to(False))
        if len({k.profile.name.startswith("ascend") for k in cluster.kinds}) > 1:
            control.say(
                "note: no library that we know of joins Ascend devices and others; the slower network is priced"
            )
        answer = _searched(options, cluster, graph, control, begun)
    document = document_of(answer, options.model)
    if options.out is not None:
        if not options.force:
            refuse_other_document(options.out / "configuration.json", document, _SAME)
        _write(options.out / "configuration.json", document)
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(lines_of(answer, document)))
        if options.out is not None:
            print(f"configuration written to {options.out / 'configuration.json'}")
    return 0


def _searched(
    options: argparse.Namespace, cluster: Cluster, graph: Graph, control: Control, begun: float
) -> MixedAnswer:
    samples = {id(k): Sample(graph, k.profile) for k in cluster.kinds}
    sample = samples[id(cluster.slowest(options.precision))]
    space = Space(
        cluster.devices,
        global_batch(graph),
        sample.layers,
        options.precision,
        options.optimizer,
        stages=options.stages if options.stages > 1 else None,
        micro_batches=options.micro_batches,
        recompute=None if options.recompute == "auto" else options.recompute,
        experts=sample.has_experts,
        contexts=sample.contexts,
    )
    until = None if control.left is None else control.left * (1 - _SHARE)

    def early() -> bool:
        return control.stopped or (until is not None and (control.left or 0.0) < until)

    control.say(f"pipelines over {cluster}: the fastest that fits")
    found = best_mixed(sample, space, cluster, max(_BEGUN, options.top_k), early)
    if not found.best:
        raise _nothing(options, cluster, space.batch, found, stopped=early())
    moved = {m.configuration: m for m in (changed(sample, b, early) for b in found.best)}
    best = tuple(sorted(moved.values(), key=lambda m: m.step_time_s))
    control.say(f"pipelines over {cluster}: {best[0].step_time_s:.6g} s, {found.simulated:,} simulated")
    kinds = tuple(alone(samples[id(k)], space, k, lambda: control.stopped) for k in cluster.kinds)
    taken = assumed(sample, space, cluster, lambda: control.stopped)
    return MixedAnswer(
        cluster,
        graph,
        found,
        best[: max(1, options.top_k)],
        kinds,
        taken,
        even_layers(sample, best[0]),
        time.monotonic() - begun,
        control.cancel.is_set(),
    )


def _nothing(
    options: argparse.Namespace, cluster: Cluster, batch: int, found: FoundMixed, *, stopped: bool
) -> InfeasibleError | NoPlanError:
    where = f"--hardware {options.hardware}"
    if stopped:
        return NoPlanError(f"{where}: no pipeline was found in the time given; give more (--time-limit)")
    most = cluster.most_per_stage
    if not found.considered:
        return NoPlanError(
            f"{where}: expected a pipeline whose stages have equally many devices of one kind each, at most {most} "
            "(the greatest common divisor of the counts), with no more stages than layers, or 64, and a batch that "
            f"divides; found none for batch {batch}: give other counts, another --batch, or leave --stages out"
        )
    words = {"memory": "are too large for a device", "model": "do not divide the model"}
    why = ", ".join(f"{n:,} {words[reason]}" for reason, n in found.refused.items() if reason in words and n)
    limits = ", ".join(f"{k.profile.name} {(k.memory_limit or 0) / 2**30:.2f} GiB" for k in cluster.kinds)
    return InfeasibleError(
        f"{where}: none of {found.considered:,} pipelines will do: {why} (memory of a device: {limits}); give more "
        "devices, or another --batch",
        lower_bound_bytes=0,
        sufficient_bytes=None,
    )


def _check(options: argparse.Namespace) -> None:
    """UsageError for options that say nothing of a pipeline over several kinds of devices."""
    given = {
        "--mesh": options.mesh is not None,
        "--constraints": options.constraints is not None,
        "--pin": bool(options.pin),
        "--strategy": options.strategy is not None,
        "--solver": options.solver != "auto",
        "--warm-start": options.warm_start is not None,
        "--save-problem": options.save_problem is not None,
        "--nodes": options.nodes is not None,
        "--emit": bool(options.emit),
        "--against": bool(options.against),
        "--target": options.target not in (None, "any"),
        "--mode inference": options.mode == "inference",
        "--space operators": options.space == "operators",
    }
    for name in (name for name, there in given.items() if there):
        raise UsageError(
            f"{name} with --hardware {options.hardware}: on several kinds of devices a uniform training configuration "
            f"is searched and printed; plans and files of it are not made yet: leave {name} out, or name one kind"
        )
    if options.time_limit is not None and not 0 < options.time_limit < 10**7:
        raise UsageError(f"--time-limit {options.time_limit:g}: expected a positive number of seconds")


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e}); give another directory with --out") from e
