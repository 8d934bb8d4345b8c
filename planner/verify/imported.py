"""Proof of the import: the graph as understood, run whole, against ONNX Runtime on the file itself.

Both sides get the same inputs and the same weights.  Where the file holds a weight both use it; one that it does not
hold (external data, a stripped file, a fill in place of a weight) is drawn by `random_tensors`, under the name that the
*file* has for it: parameters that the import un-merged carry the name of what they came from (`Graph.origins`).  What
the import folded, un-merged, inlined or rewrote is thereby compared with what the file computes.

Of a batch that was carried through a static graph the file runs slice by slice, at its own batch, and its results are
joined; a constant without values is repeated from slice to slice.

Compared are the outputs and, where the batch is the file's own and memory allows, every tensor inside that has the same
name on both sides, by the rule of `planner.verify.agreement`.  Each operator reads the file's own values where there
are any, so that an error is found where it arises; operator by operator the graph then computes what the file does.

An output says nothing where it is not finite anywhere, where rounding moves it too far, or where other inputs and
weights move it by less than `RESPONSE` times its error: then there is no verdict.  One that is no tensor, or that joins
the samples of a carried batch in a way that slices cannot show, is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from planner.errors import PlannerError
from planner.frontends.facts.chance import is_drawn
from planner.ir import Graph, Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.shards import Array
from planner.pricing import bind_rules
from planner.verify.agreement import TensorAgreement, error_of, moved_by_rounding
from planner.verify.calibrate import calibrate
from planner.verify.data import Drawn, numpy_dtype, random_tensors
from planner.verify.double import in_double
from planner.verify.model_file import ModelFile, Session
from planner.verify.reference import run_ops
from planner.verify.stated import contradiction_with, folded_samples
from planner.verify.whole import Whole
from planner.verify.work import most_held

__all__ = ["BUDGET", "ImportVerdict", "check_import"]

RESPONSE = 10.0
BUDGET = 4 << 30  # bytes
_FITTING = 16  # further bytes for every element, where weights are fitted: in double precision, and as they were


@dataclass(frozen=True, slots=True)
class ImportVerdict:
    """`ok` is None where there is no verdict; `reason` then says why, and names what differs where it is False.

    `max_error` is the largest error of any tensor: of the outputs that were `compared`, and of those inside that the
    file computes under the same names, `tensors` in all.
    """

    ok: bool | None
    max_error: float = 0.0
    compared: tuple[str, ...] = ()
    tensors: int = 0
    reason: str = ""


def check_import(
    model: str | Path | bytes,
    graph: Graph,
    *,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    seed: int = 0,
    budget: int = BUDGET,
    keep: Drawn | None = None,
) -> ImportVerdict:
    """Whether `graph`, imported from this file with these sizes, computes what the file computes.

    `budget` bounds the bytes of all tensors that are held at once.  What is drawn goes into `keep`, too.
    """
    file = ModelFile(model)
    contradiction = contradiction_with(file, graph, bind or {}, batch)
    if contradiction:
        return ImportVerdict(False, float("inf"), reason=contradiction)
    if folded := folded_samples(file, graph, batch):
        return ImportVerdict(None, reason=f"{folded}; the file cannot be run on slices of it")
    sources = file.size + sum(t.bytes for t in graph.tensors.values() if t.name not in graph.producers)
    everything = 2 * sum(graph.tensors[t].bytes for t in graph.producers)  # before and after rounding
    need = sources + min(everything, 2 * most_held(graph, lambda t: t.bytes))
    if need > budget:
        about, granted = (f"{n / 2**30:.1f} GiB" for n in (need, budget))
        why = f"it takes about {about} to run whole, and {granted} are allowed (--whole: any)"
        return ImportVerdict(None, reason=why)
    unclear = file.ambiguous & file.missing.keys()
    if unclear or file.functions_lack_data:
        where = f"several tensors are called {min(unclear)}" if unclear else "a function body lacks data"
        return ImportVerdict(None, reason=f"the file does not hold its weights, and {where}")
    try:
        inside = sources + everything <= min(budget, BUDGET)
        fits = need + _FITTING * sum(t.elements for t in graph.tensors.values()) <= budget
        return _Comparison(file, graph, seed, inside=inside, fits=fits, keep=keep).verdict()
    except (NoKernelError, _NoVerdictError) as error:
        return ImportVerdict(None, reason=str(error))


class _NoVerdictError(PlannerError):
    """The file cannot be compared with the graph."""


@dataclass(slots=True)
class _Values:
    """What both sides run on: `ours` by the graph's names, `given` by the file's, for what it does not hold."""

    ours: dict[str, Array]
    given: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Carried:
    """The size that a batch has in the file, and in the graph."""

    own: int
    new: int

    def samples(self, k: int) -> Array:
        """Of the k-th slice; the last one begins again where there are not enough."""
        return np.arange(k * self.own, (k + 1) * self.own) % self.new

    @property
    def slices(self) -> int:
        return -(-self.new // self.own)


class _Comparison:
    def __init__(
        self, file: ModelFile, graph: Graph, seed: int, *, inside: bool, fits: bool, keep: Drawn | None
    ) -> None:
        self.file, self.graph, self.seed, self.inside, self.fits = file, graph, seed, inside, fits
        self.keep = keep
        found = {pair for name in file.inputs for pair in self._carried_in(name).values()}
        if len(found) > 1:
            raise _NoVerdictError(f"sizes were carried in {len(found)} ways; the file can be sliced in one")
        self.carried = _Carried(*found.pop()) if found else None
        self.silent = False  # whether some output did not respond
        self.drawn = False  # whether weights were drawn that the file does not hold

    def _carried_in(self, name: str) -> dict[int, tuple[int, int]]:
        """(size in the file, in the graph) by dimension of an input, where they differ."""
        sizes = zip(self.file.inputs[name].dims or (), self.graph.tensors[name].shape or (), strict=True)
        return {k: (own, new) for k, (own, new) in enumerate(sizes) if isinstance(own, int) and own != new}

    @property
    def _repeats(self) -> bool:
        return self.carried is not None and self.carried.own > self.carried.new

    def verdict(self) -> ImportVerdict:
        """On weights as they are drawn; where an output does not respond to these, on weights that were fitted to what
        they read."""
        found = self._on()
        if found.ok is not None or not self.silent or not self.fits or not self.drawn:
            return found
        try:
            return self._on(fitted=True)
        except (PlannerError, ArithmeticError, LookupError, TypeError, ValueError):  # on operands that nobody expected
            return found

    def _on(self, *, fitted: bool = False) -> ImportVerdict:
        values = self._values(self.seed, fitted=fitted)
        self.drawn = any(x.dtype.kind == "f" for x in values.given.values())
        session = self.file.session(values.given, self._inner())
        theirs = self._run(session, values)
        errors, misfit, unproved = self._errors(values.ours, theirs)
        if misfit:
            return ImportVerdict(False, float("inf"), reason=misfit)
        weights = values.ours if self._repeats else {}
        values.ours = {n: values.ours[n] for n in self.file.inputs}
        results = {n: theirs[n] for n in self.graph.outputs if n in errors}
        other = _Values(weights | random_tensors(self.graph, self.seed + 1, only=self.file.inputs), values.given)
        del weights
        response = self._response(session, other, results)
        found = {n: TensorAgreement(n, theirs[n].dtype, e, 0.0) for n, e in errors.items()}
        if any(o.error > o.close for o in found.values()):  # else nobody asks what rounding does
            for some in (values.ours, values.given):  # in place: two copies of all weights may be too many
                for k, name in enumerate(sorted(some)):
                    some[name] = moved_by_rounding(some[name], np.random.default_rng(k))
            again = self._run(session, values)
            found = {
                n: TensorAgreement(n, theirs[n].dtype, e, error_of(again[n], theirs[n])) for n, e in errors.items()
            }
            del again
        del theirs
        if any(response[n] < RESPONSE * found[n].error or not response[n] for n in results):  # to weights, too?
            del session
            values.given.clear()
            values = self._values(self.seed + 1, fitted=fitted)
            response = self._response(self.file.session(values.given), values, results)
        return self._judged(found, results, response, unproved)

    def _response(self, session: Session, values: _Values, results: Mapping[str, Array]) -> dict[str, float]:
        """How far the results are from those of other values: of the file, or, where it takes more samples than the
        graph and would run some of them again, of the graph, which has been compared with it."""
        other: dict[str, Array] = {}
        if self._repeats:
            with suppress(NoKernelError):
                other = run_ops(self.graph, values.ours, results)
        if results.keys() - other.keys():
            other = self._run(session, values, list(results))
        return {n: error_of(other[n], x) for n, x in results.items()}

    def _errors(self, values: dict[str, Array], theirs: Mapping[str, Array]) -> tuple[dict[str, float], str, list[str]]:
        """Errors of all tensors that the file computes, too; what does not fit; operators that nothing here can run.

        Every operator reads what the file has for its operands, and our own results only of those that the file has
        not: an error is its own, and what follows is not blamed for it.
        """
        errors: dict[str, float] = {}
        unproved: list[str] = []
        known = {t.name: np.asarray(t.value) for t in self.graph.tensors.values() if t.value is not None} | values
        last = {t: op.name for op in self.graph.ops for t in op.inputs}
        for name in known.keys() & theirs.keys():  # folded by the import
            misfit = self._misfit(name, known[name], theirs[name])
            if misfit:
                return errors, misfit, unproved
            errors[name] = error_of(known[name], theirs[name])
        for op in self.graph.ops:
            shapes = [self.graph.tensors[t].shape if t else None for t in op.outputs]
            results: Sequence[Array | None]
            try:
                results = run_local(op, [known[t] if t else None for t in op.inputs], output_shapes=shapes)
            except (ValueError, TypeError, IndexError) as error:  # of numpy: operands that do not fit each other
                return errors, f"{op.type} {op.name} of the graph as understood does not run: {error}", unproved
            except NoKernelError as error:
                unproved.append(str(error)[:300])
                results = [None] * len(op.outputs)
                if any(t and t not in theirs and t in last for t in op.outputs):
                    raise
            drawn = self._draws(op, known)
            if drawn:
                unproved.append(f"{op.type} {op.name} draws at random")
            for t, result in zip(op.outputs, results, strict=True):
                if not t:
                    continue
                if t in theirs:
                    known[t] = theirs[t]
                    if result is not None and not drawn:
                        misfit = self._misfit(t, result, theirs[t])
                        if misfit:
                            return errors, misfit, unproved
                        errors[t] = error_of(result, theirs[t])
                elif result is not None:
                    known[t] = result
            for t in op.inputs:
                if t in self.graph.producers and last[t] == op.name:
                    known.pop(t, None)
        return errors, "", unproved

    def _inner(self) -> list[str]:
        """Tensors inside the graph that the file computes under the same name; a carried batch shows only in results,
        as nothing says where a dimension inside has it."""
        if self.carried is not None or not self.inside:
            return []
        ours = self.graph.tensors
        return [
            n for n in self.file.computed if n in ours and n not in self.graph.outputs and ours[n].shape is not None
        ]

    def _draws(self, op: Op, known: Mapping[str, Array]) -> bool:
        """Whether the results are other ones every time."""
        training = len(op.inputs) > 2 and bool(op.inputs[2]) and bool(np.any(known[op.inputs[2]]))
        return is_drawn(op.type) or (op.type == "Dropout" and training)

    def _misfit(self, name: str, ours: Array, theirs: Array) -> str:
        """Where shapes or kinds of elements differ, from the file's or from what the graph says."""
        stated = self.graph.tensors[name].shape
        if ours.shape == theirs.shape and ours.dtype.kind == theirs.dtype.kind and stated in (None, theirs.shape):
            return ""
        shape = ours.shape if stated is None or ours.shape != theirs.shape else stated
        return f"{name} is {ours.dtype}{list(shape)}, in the file {theirs.dtype}{list(theirs.shape)}"

    def _judged(
        self,
        found: Mapping[str, TensorAgreement],
        results: Mapping[str, Array],
        response: Mapping[str, float],
        unproved: list[str],
    ) -> ImportVerdict:
        """The first tensor that is wrong names the place."""
        at = {t: k for k, op in enumerate(self.graph.ops) for t in op.outputs}
        ordered = sorted(found.values(), key=lambda o: at.get(o.name, -1))
        for o in ordered:
            if o.wrong:
                producer = self.graph.producers.get(o.name)
                kind = "a constant" if producer is None else f"{producer.type} of {', '.join(producer.inputs)}"
                reason = f"{o.name} ({kind}) differs by {o.error:.3g}, allowed {o.allowed:.2g}"
                return ImportVerdict(False, o.error, tuple(results), len(found), reason)
        compared: list[str] = []
        left: list[str] = []
        undecided = list(unproved)
        for name in dict.fromkeys(self.graph.outputs):
            if name not in results:
                left.append(f"{name} is no tensor, or joins samples")
            elif results[name].dtype.kind == "f" and not np.isfinite(results[name]).any():
                undecided.append(f"{name} has no finite value")
            elif found[name].chaotic:
                undecided.append(f"rounding alone moves {name} by {found[name].noise:.2g}")
            elif response[name] < RESPONSE * found[name].error or not response[name]:
                self.silent = True
                undecided.append(f"{name} does not respond to its inputs (moves by {response[name]:.2g})")
            else:
                compared.append(name)
        settled = [o for o in ordered if not o.chaotic and (o.name in compared or o.name not in results)]
        worst = max((o.error for o in settled), default=0.0)
        left = undecided + left
        ok = True if compared and not undecided else None
        return ImportVerdict(ok, worst, tuple(compared), len(settled), "; ".join(left) or ("" if ok else "no outputs"))

    def _values(self, seed: int, *, fitted: bool = False) -> _Values:
        """Drawn by the graph, which knows how tensors are read; one value for all that the file has as one.  `fitted`:
        weights and biases to what they read, as `calibrate` does it."""
        drawn = random_tensors(self.graph, seed, keep=self.keep if seed == self.seed and not fitted else None)
        if fitted:
            drawn |= self._fitted_weights(seed)
        values = _Values(drawn)
        given = values.given
        for t in self.graph.tensors.values():
            if t.name in self.graph.producers or t.value is not None or t.name in self.file.inputs:
                continue
            origin = self.graph.origins.get(t.name, t.name)
            stored = given.get(origin)
            if stored is None:
                stored = self.file.value(origin)
            if stored is None:
                source = drawn.get(origin, drawn[t.name])
                dims, dtype = self.file.stored(origin) or (source.shape, source.dtype)
                if dims != t.shape and not t.is_float:
                    raise _NoVerdictError(f"{t.name} counts samples, and the file does not hold its values")
                stored = given[origin] = _fitted(source, dims).astype(dtype, copy=False)
            drawn[t.name] = _fitted(stored, t.shape or ()).astype(numpy_dtype(t.dtype), copy=False)
        for name, (dims, dtype) in self.file.missing.items():
            if name not in given:  # the graph as understood does not read it
                given[name] = np.ones(dims, dtype)
        return values

    def _fitted_weights(self, seed: int) -> dict[str, Array]:
        graph = in_double(self.graph)
        rules, _ = bind_rules(graph)
        values = random_tensors(graph, seed)
        stored = {n: self.file.value(self.graph.origins.get(n, n)) for n in values}
        values |= {n: _fitted(x, values[n].shape).astype(values[n].dtype) for n, x in stored.items() if x is not None}
        whole = Whole(graph, values, rules, frozenset(), witnesses=False)
        whole.drawn = frozenset(n for n in whole.drawn if stored.get(n) is None and n not in self.file.inputs)
        del values
        with np.errstate(all="ignore"):
            calibrate(whole)
        weights = (self.graph.tensors[n] for n in whole.drawn)
        return {t.name: whole.value(t.name).astype(numpy_dtype(t.dtype)) for t in weights if t.is_float}

    def _run(self, session: Session, values: _Values, requested: Sequence[str] | None = None) -> dict[str, Array]:
        """Results by name, all of them or those that are `requested` for."""
        fed = {n: values.ours[n] for n in self.file.inputs}
        if self.carried is None:
            return session.run(fed, values.given, requested)
        parts = []
        for k in range(self.carried.slices):
            samples = self.carried.samples(k)
            feed = dict(fed)
            for name in feed:
                for axis in self._carried_in(name):
                    feed[name] = feed[name].take(samples, axis)
            parts.append(session.run(feed, values.given, requested))
        joined = {n: self._joined(n, [p[n] for p in parts], self.carried) for n in parts[0]}
        return {n: x for n, x in joined.items() if x is not None}

    def _joined(self, name: str, parts: list[Array], carried: _Carried) -> Array | None:
        """The whole batch's result from those of its slices; None for what joins samples in no known way."""
        shape, own = self.graph.tensors[name].shape, parts[0].shape
        if shape is None or len(shape) != len(own):
            return None
        axes = [k for k in range(len(own)) if own[k] != shape[k]]
        if len(axes) == 1 and shape[axes[0]] * carried.own == own[axes[0]] * carried.new:
            return np.concatenate(parts, axes[0]).take(range(shape[axes[0]]), axes[0])
        if name == self.graph.loss and 0 in (carried.new % carried.own, carried.own % carried.new):
            # Every sample is there equally often: a mean of means, a sum of sums less what was repeated.
            mean = np.mean(parts, axis=0)
            times = carried.new / carried.own if _adds_up(self.graph.op(name)) else 1
            return np.asarray(mean * times, dtype=parts[0].dtype)
        return None


def _adds_up(op: Op) -> bool:
    return op.type == "ReduceSum" or op.attributes.get("reduction") == "sum"


def _fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """The value shortened, or repeated, along dimensions of another size."""
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = value.take(np.arange(size) % value.shape[axis], axis)
    return value
