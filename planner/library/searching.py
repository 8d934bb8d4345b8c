"""`planner.search`: the best plan for a model and a machine."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from planner.errors import NoPlanError, OptionError
from planner.library.machine import Machine, settled_machine
from planner.library.model import Model, Proto, model_of
from planner.library.options import SearchOptions, documented, given_options
from planner.library.plan import Plan
from planner.library.progress import Listener, ListenerWatch, watch_of
from planner.library.wording import in_keywords, worded
from planner.requests.cancel import Cancellation, cancelled_by_interrupt
from planner.requests.search import SearchRequest

if TYPE_CHECKING:
    from planner.requests.answer import Answer
    from planner.requests.searcher import Searcher

__all__ = ["search"]


@worded
@documented(SearchRequest, SearchOptions)
def search(
    model: Model | str | os.PathLike[str] | bytes | Proto,
    machine: Machine | None = None,
    *,
    devices: int | None = None,
    hardware: str | Machine | None = None,
    progress: Listener | bool | None = None,
    cancellation: Cancellation | None = None,
    cache: bool | str | os.PathLike[str] = True,
    **options: Unpack[SearchOptions],
) -> Plan:
    """Searches the best parallel strategy for a model: the plan that `planner search` writes, byte for byte.

    Args:
        model: a model of `planner.load` or `planner.build`, or a file, its bytes, or an onnx.ModelProto.
        machine: the machine to plan for, as `planner.Machine("h100", devices=64)`; or give the next two instead.
        devices: the number of devices.
        hardware: the name or file of a hardware profile; `planner.machines()` lists them; default: a100-80.
        progress: a function that is called with a `planner.Progress` now and then, perhaps from another thread; True
            prints progress to standard error.  An exception that the function raises ends the search.
        cancellation: a `planner.Cancellation`; when another thread calls its `cancel()`, the search ends with the best
            plan so far, whose `cancelled` is True.  Ctrl-C does the same, and a second one is KeyboardInterrupt.
        cache: whether an equal request is answered from the cache, and this answer is cached; or the cache's folder.

    Returns:
        The plan; with `top_k`, the plans of the next best meshes are its `others`.

    Raises:
        UsageError: options contradict each other; OptionError where there is no such option.
        InputError: the model, the profile or a file cannot be understood.
        InfeasibleError: no plan fits in the memory; the message names a limit that suffices.
        NoPlanError: no plan was found before the time was over or the search was cancelled.
    """
    model = model_of(model)
    settled = settled_machine(machine, devices, hardware, options.get("nodes"))
    given = given_options("search()", SearchRequest, {**options, "nodes": settled.nodes})
    if options.get("bind") is None:
        given["bind"] = [f"{name}={size}" for name, size in model.bind.items()]
    if options.get("batch") is None:
        given["batch"] = model.batch
    count = _count(settled.devices)
    request = SearchRequest(model=model.source.path, devices=str(count), **(given | {"hardware": settled.hardware}))
    request.check()
    return _searched(model, request, count, progress, cancellation or Cancellation(), cache)


def _count(devices: Any) -> int:
    if devices is None:
        raise OptionError("devices: expected a number of devices, found none; give devices=… or a Machine with them")
    try:
        return operator.index(devices)
    except TypeError as e:
        raise OptionError(f"devices: expected a number, found {devices!r:.60}; search for each count by itself") from e


def _searched(
    model: Model,
    request: SearchRequest,
    devices: int,
    progress: Listener | bool | None,
    cancellation: Cancellation,
    cache: bool | str | os.PathLike[str],
) -> Plan:
    from planner.cache import Store, default_folder
    from planner.requests.answer import Answer
    from planner.requests.key import request_key
    from planner.requests.values import bindings, cache_size

    watch = watch_of(progress, cancellation)
    store = None
    if cache is not False:
        store = Store(default_folder() if cache is True else Path(cache), cache_size(), note=watch.say)
    key = None if store is None else request_key(request, model.source)
    answer = None
    if store is not None and key is not None and request.save_problem is None:
        answer = Answer.recall(store, key.of(devices))
    if answer is None:
        from planner.requests.searcher import Searcher

        same = bindings(request.bind) == dict(model.bind)
        graphs = model.graphs if same else {}
        begun = partial(Searcher, request, store, key, cancellation, watch, graphs=graphs, source=model.source)
        answer = _answer(begun, devices, cancellation, watch)
    watch.raise_failure()
    return _best_of(answer, Model(model.source, bindings(request.bind), request.batch), timed=not request.reproducible)


def _answer(begun: Callable[[], Searcher], devices: int, cancellation: Cancellation, watch: ListenerWatch) -> Answer:
    """By a search, which the first Ctrl-C ends with the best plan so far."""
    with cancelled_by_interrupt(cancellation):
        try:
            searcher = begun()
            _ = searcher.prepared.graph
            if cancellation.cancelled:
                raise NoPlanError("cancelled before the search began: there is no plan yet")
            return searcher.search(devices)
        except BaseException:
            watch.raise_failure()  # of the listener, which is why the search ended
            raise
        finally:
            cancellation.searching = False


def _best_of(answer: Answer, model: Model, *, timed: bool) -> Plan:
    """The best plan, with the others of the answer."""
    from planner.requests.record_file import read_record, record_text

    record = read_record(record_text(answer.record, answer.plans, timed=timed))
    plans = [
        Plan(
            text,
            model,
            figures=document | {"cached": answer.cached, "cancelled": answer.cancelled},
            stripped=answer.model,
            record=record,
        )
        for text, document in zip(answer.plans, answer.documents, strict=True)
    ]
    return replace(
        plans[0],
        summary=in_keywords(answer.summary),
        messages=tuple(in_keywords(m) for m in answer.messages),
        others=tuple(plans[1:]),
    )
