"""The best uniform configuration for a request of `planner search`: a plan that any other has to be faster than."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from planner.clock import Configuration, extrapolated
from planner.cost_models import HardwareProfile, usable_memory_bytes
from planner.emit import unsupported
from planner.emit.uniform import Model
from planner.errors import InfeasibleError, InputError, NoPlanError, PlannerError, UsageError
from planner.ir import Graph
from planner.planning.constraints import Constraints
from planner.planning.pipeline import global_batch
from planner.planning.schemes import spelled
from planner.requests.history import History
from planner.requests.search import SearchRequest
from planner.requests.uniform_found import Uniform
from planner.search.control import Control
from planner.targets import BY_DEGREES, COPYING
from planner.uniform import (
    Found,
    Sample,
    Scored,
    Space,
    best_of,
    configurations,
    prove,
    refined,
    time_memory_front,
)

__all__ = ["Uniforms", "uniforms"]

# Shares of a time limit after which configurations are no longer searched, and no longer proven; the rest is for
# operators one by one inside of the best, which may save more.
_SEARCHED, _PROVEN = 0.75, 0.85
_UNSIMULATED = 0.95  # the first of these while nothing is simulated: a guess from bounds took 39 % longer
_SHORTEST = 1.0  # seconds of a time limit under which operators alone are searched, unless more is asked for
_WHY = {
    "memory": "are too large for a device",
    "target": "it cannot express",
    "model": "do not divide the model",
}
_BEGUN = 3  # of the fastest configurations, from which single changes begin
_LAID_OUT = 2  # of these, the ones of which other layouts are tried
_COPIES = (1, 2, 4)  # micro-batches that pass together
_PARAMETER_BYTES = 16  # of Adam in mixed precision: weight, gradient, master copy, two moments


# Whether there is tensor, context, pipeline, expert parallelism, and ZeRO; and how attention divides.
_Kinds = tuple[bool | str, ...]


class Uniforms:
    """The uniform configurations for a request; `graph`: of the whole batch.  Tensors are laid out once for all."""

    def __init__(
        self,
        options: SearchRequest,
        graph: Graph,
        devices: int,
        profile: HardwareProfile,
        control: Control,
        history: History,
    ) -> None:
        self.options, self.profile, self.control, self.history = options, profile, control, history
        self.limit = usable_memory_bytes(profile) if options.memory_limit is None else options.memory_limit
        self.left_out: set[_Kinds] = set()  # which the target turned out to refuse for this model
        self.sample = Sample(graph, profile)
        self.space = Space(
            devices,
            global_batch(graph),
            self.sample.layers,
            options.precision,
            options.optimizer,
            stages=options.stages if options.stages > 1 else None,
            micro_batches=options.micro_batches,
            recompute=None if options.recompute == "auto" else options.recompute,
            experts=self.sample.has_experts,
            contexts=self.sample.contexts,
            offload=self.target == "any" and options.space == "whole" and profile.host.link_bytes_per_s is not None,
            copies=_COPIES if self._interleaves() else (1,),
        )
        self.model = Model.of(graph)
        self._over: set[Configuration] = set()  # of which no plan could be made
        self.refusal = ""  # of the last that was left out
        self.safer_than: Scored | None = None  # what is faster, and less certain, where that is asked for
        self.none_of: Found | None = None  # of what the last search met, where nothing fits
        self._given = control.left
        self._searched = False  # the first time; later searches have what is left for bounds
        self._of_any: Found | None = None

    def _interleaves(self) -> bool:
        """Whether copies of a micro-batch are in question: for frameworks that interleave them, as that of Ascend."""
        usual = self.target == "any" and self.profile.name.startswith("ascend")
        return usual or self.target in COPYING

    @property
    def target(self) -> str:
        return self.options.target

    def best(self) -> Uniform | None:
        """The fastest that fits and that the target can express; None where there is none, or time is up."""
        self.control.say("uniform configurations: the fastest that fits")
        free = self.target == "any" and not self.left_out and not self._over
        found, bound = self._best(None if free else self._unsupported)
        found = self._safer(found)
        if not found.best:
            left = "no time is left for more" if self._stopped() else f"none of {found.considered:,} fits"
            self.control.say(f"uniform configurations: {left}")
            self.none_of = found
            return None
        step = found.best[0].prediction.step_time_s
        any_s = None if self.target == "any" else self._of_any_target(step)
        uniform = Uniform(found, self.target, any_s, bound, safer_than=self.safer_than)
        self.control.say(
            f"uniform configurations: {uniform.strategy} takes {uniform.step_time_s:.6g} s, "
            f"{found.simulated:,} simulated"
        )
        return uniform

    def _safer(self, found: Found) -> Found:
        """What is found among configurations like those that were measured, where `--risk upper` is asked for and the
        upper end of its interval is lower."""
        self.safer_than = None
        if self.options.risk == "expected" or not found.best:
            return found
        if not extrapolated(found.best[0].configuration):
            return found
        self.control.say("uniform configurations: the fastest like those that were measured")
        within, _ = self._best(
            lambda c: self._unsupported(c) or ("what was not measured" if extrapolated(c) else ""), aloud=False
        )
        if within.best and within.best[0].prediction.time_high_s < found.best[0].prediction.time_high_s:
            self.safer_than = found.best[0]
            return within
        return found

    def pass_over(self, uniform: Uniform) -> None:
        """No plan could be made of the configuration; nor of any in micro-batches, where --bind says the batch."""
        c = uniform.found.best[0].configuration
        self._over.add(c)
        self.history.refused()
        if c.micro_batches > 1 and self.options.bind and self.options.batch is None:
            self.space = replace(self.space, micro_batches=1)

    @property
    def passed_over(self) -> int:
        return len(self._over)

    def leave_out(self, uniform: Uniform, refusal: str) -> None:
        """All of the kind of the configuration: the target refused its plan."""
        self.left_out.add(_kinds(uniform.found.best[0].configuration))
        self.refusal = refusal
        self.history.refused()

    @property
    def _for(self) -> str:
        return "" if self.target == "any" else f"--target {self.target}: "

    @property
    def by_degrees(self) -> bool:
        return self.target in BY_DEGREES

    def nothing(self, besides: InfeasibleError | None = None) -> PlannerError:
        """The error where no configuration is left; `besides`: what a search of operators one by one said."""
        found = self.none_of
        if found is None or not found.ended or self.control.stopped:
            return NoPlanError(f"{self._for}no plan was found in the time given; give more (--time-limit)")
        why = [f"{n:,} {_WHY[reason]}" for reason, n in found.refused.items() if reason in _WHY and n]
        limit = "no limit" if self.limit is None else f"{self.limit / 2**30:.2f} GiB"
        text = (
            f"{self._for}none of {found.considered:,} uniform configurations of {self.space.devices} "
            f"device{'s' if self.space.devices != 1 else ''} will do: {', '.join(why)} (memory: {limit} a device)"
        )
        plain = next(configurations(self.space, self.profile), None)
        words = "" if plain is None else unsupported(self.target, plain, self.model)
        if words:
            text += f"; of plain data parallelism it cannot express {words}"
        if self.refusal:
            text += f"; of one that would fit, it says: {self.refusal}"
        if besides is not None:
            # What is proven there is of one pass of the whole batch, on one stage.
            one_by_one = str(besides).replace("nothing fits below", "no such plan fits below")
            text = f"{text}; with operators searched one by one: {one_by_one}"
            least, enough = (self.limit or 0) + 1, besides.sufficient_bytes
            return InfeasibleError(text, lower_bound_bytes=least, sufficient_bytes=enough)
        text = f"{text}; give more --devices, another --batch, or another --target"
        return InfeasibleError(text, lower_bound_bytes=0, sufficient_bytes=None)

    def _unsupported(self, c: Configuration) -> str:
        if c in self._over:
            return "what no plan could be made of"
        if _kinds(c) in self.left_out:
            return "what it refused of this model"
        return unsupported(self.target, c, self.model)

    def inside(self, uniform: Uniform) -> Constraints | None:
        """Pins of operators laid out one by one inside of the best configuration, where that is faster."""
        from planner.requests.strategy import operators_inside

        c = uniform.found.best[0].configuration
        self.control.say(f"uniform configurations: operators one by one inside of {uniform.strategy}")
        return operators_inside(self.options, lambda _: self.sample.whole, c, self.profile, self.control, self.sample)

    def with_front(self, uniform: Uniform) -> Uniform:
        """With what less memory costs."""
        self.control.say("uniform configurations: the fastest with less memory")
        space = replace(self.space, unsupported=None if self.target == "any" else self._unsupported)
        return replace(
            uniform, front=time_memory_front(self.sample, space, uniform.found.best[0], partial(self._stopped, 1.0))
        )

    def _of_any_target(self, step: float) -> float | None:
        """Seconds of the fastest for any target, where `step` is what the fastest for this one takes."""
        if self._of_any is None:
            self._of_any, _ = self._best(None, aloud=False, thorough=True)
        best = self._of_any.best
        return min(step, best[0].prediction.step_time_s) if best else None

    def _best(
        self, words: Callable[[Configuration], str] | None, *, aloud: bool = True, thorough: bool = False
    ) -> tuple[Found, float | None]:
        """What is found, and seconds that no configuration takes less than, where that is known.  `aloud`: with what is
        said of it, and recorded; else, unless it is to be `thorough`, families are not bounded, nor looked through for
        what is faster."""
        space, count = replace(self.space, unsupported=words), max(_BEGUN, self.options.top_k)
        tell = self._tell if aloud else lambda first: None
        begun: dict[Configuration, Scored] = {}  # what single changes to a configuration lead to
        anew: set[Configuration] = set()  # of these, also by changes after which tensors are laid out anew

        def improved(scored: Scored) -> float:
            c = scored.configuration
            if c not in begun:
                if aloud:
                    self.history.step(_step_of(scored))
                layouts = len(begun) < _LAID_OUT
                if layouts:
                    anew.add(c)
                begun[c] = refined(self.sample, space, self.limit, scored, self._stopped, layouts=layouts)
                if aloud:
                    self.history.step(_step_of(begun[c]))
            return _step_of(begun[c])

        def enough(scored: Scored) -> float:
            return improved(scored) if len(begun) < _BEGUN else float("inf")

        alone = self.options.top_k == 1  # else configurations are wanted that are slower than the best plan
        changes = enough if alone else None

        def over() -> bool:
            return self._stopped(None if begun or self._searched or not alone else _UNSIMULATED)

        found = best_of(self.sample, space, self.limit, count, stopped=over, first=tell, improved=changes)
        for n, scored in enumerate(found.best):
            if not n or not alone or len(begun) < _BEGUN:
                improved(scored)
            if not n and (c := scored.configuration) not in anew:
                begun[c] = refined(self.sample, space, self.limit, begun[c], self._stopped)
        self._searched = True
        changed = {better.configuration: better for better in begun.values()}
        bound: float | None = None
        if changed and (aloud or thorough):  # of a search that was stopped, a short look at the best of what was met
            best = min(changed.values(), key=_step_of)
            until = partial(self._stopped, _PROVEN)
            proven = prove(self.sample, space, self.limit, best, found.coarse, until, bounded=found.ended)
            changed.setdefault(proven.best.configuration, proven.best)
            bound = proven.bound_s or None
            if aloud:
                self.history.step(_step_of(proven.best), bound)
            if aloud and bound:
                self.control.say(
                    f"uniform configurations: none takes less than {bound:.6g} s; of {proven.families:,} families, and "
                    f"their ZeRO levels, {proven.opened:,} were opened"
                )
        return replace(found, best=tuple(sorted(changed.values(), key=_step_of))), bound

    def _tell(self, first: Scored) -> None:
        step = f"{first.prediction.step_time_s:.6g} s"
        self.control.say(f"uniform configurations: {spelled(first.configuration)} fits, and takes {step}")
        self.history.step(_step_of(first))

    def _stopped(self, share: float | None = None) -> bool:
        """Whether that share of the time is over; by default, the one for searching."""
        share = share if share is not None else _PROVEN if self._searched else _SEARCHED
        over = self._given is not None and (self.control.left or 0.0) < (1 - share) * self._given
        return self.control.stopped or over


def uniforms(
    options: SearchRequest,
    graph: Graph,
    devices: int,
    profile: HardwareProfile,
    control: Control,
    *,
    always: bool = False,
    history: History | None = None,
) -> Uniforms | None:
    """None where the options leave uniform configurations no room, or, unless they are `always` in question, operators
    are searched one by one instead.

    UsageError, InputError where that leaves nothing, since the target takes degrees of parallelism alone.
    """
    needed = options.target in BY_DEGREES and options.strategy is None
    if needed:
        _check_degrees(options, graph, profile)
    elif not _in_question(options) or graph.loss is None or profile.device is None or options.mode == "inference":
        return None
    try:
        found = Uniforms(options, graph, devices, profile, control, history or History())
    except (UsageError, InputError):  # a graph that holds its backward pass, or has no batch to divide
        if needed:
            raise
        return None
    if needed or always or options.space is not None:
        return found
    short = options.time_limit is not None and options.time_limit < _SHORTEST
    return found if _crowded(graph, devices, found.limit) and not short else None


def _check_degrees(options: SearchRequest, graph: Graph, profile: HardwareProfile) -> None:
    target = options.target
    given = [name for name, value in options.decided.items() if value]
    given += ["--space operators"] if options.space == "operators" else []
    if given:
        raise UsageError(
            f"--target {target}: takes degrees of parallelism, the same for all layers, and {given[0]} decides on "
            f"operators: leave {given[0]} out, give degrees with --strategy, or use --target any"
        )
    if graph.loss is None or options.mode == "inference":
        raise InputError(
            f"--target {target}: plans of training are searched for it, and "
            + (f"{graph.name} ends before its loss" if graph.loss is None else "--mode is inference")
            + ": give a graph with its loss, or use --target any"
        )
    if profile.device is None:
        raise InputError(
            f"--target {target}: hardware profile {profile.name} describes no device ([device]), so that no step can "
            "be predicted: give another --hardware, or use --target any"
        )


def _crowded(graph: Graph, devices: int, limit: int | None) -> bool:
    """Whether an even share of all tensors of the whole batch, and of weights with what belongs to them, is more than
    half of what a device may hold: what is fused, divided unevenly or held twice is not counted."""
    if limit is None:
        return False
    passed = sum(2 * t.elements for op in graph.ops for o in op.outputs if (t := graph.tensors.get(o)) and t.shape)
    stored = sum(_PARAMETER_BYTES * t.elements for t in graph.parameters if t.shape is not None)
    return (passed + stored) / devices > limit / 2


def _in_question(options: SearchRequest) -> bool:
    """Whether the options leave open what a uniform configuration says."""
    return options.strategy is None and options.space != "operators" and not any(options.decided.values())


def _step_of(scored: Scored) -> float:
    return scored.prediction.step_time_s


def _kinds(c: Configuration) -> _Kinds:
    return c.tp > 1, c.cp > 1, c.context, c.pp > 1, c.ep > 1, c.zero > 0
