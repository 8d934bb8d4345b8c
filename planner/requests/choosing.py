"""Which search answers: that of operators one by one, or that of configurations which treat all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from planner.errors import InfeasibleError, InputError, NoPlanError, NotFasterError, UsageError
from planner.planning import PlanDocument, Planned, Recall, Request
from planner.planning.planner import gap_of
from planner.planning.schemes import spelled
from planner.report.words import time_text
from planner.requests.answer import Answer
from planner.requests.prepared import Prepared
from planner.search.control import Control
from planner.targets import BY_DEGREES, TO_THE_LETTER

if TYPE_CHECKING:
    from planner.planning.constraints import Constraints
    from planner.requests.uniform import Uniforms
    from planner.requests.uniform_found import Uniform
    from planner.uniform.found import Scored

__all__ = ["Choosing", "Chosen"]

_LARGE: Final = 1_000  # operators: searching them one by one takes seconds, also where nothing comes of it
_PASSED_OVER: Final = 4  # configurations of which no plan could be made, before the search goes on without


@dataclass(frozen=True, slots=True)
class Chosen:
    """`planned`: where operators were searched and their plan is the answer; `untouched`: whether no part of the
    search was cut short."""

    answer: Answer
    planned: Planned | None
    untouched: bool


@dataclass
class Choosing:
    """Of one request, with a limit and cancellation in `control`."""

    prepared: Prepared
    devices: int
    request: Request
    control: Control
    recall: Recall | None
    one_by_one_s: float | None = None  # that no plan of operators one by one takes less than, where it is known

    def run(self) -> Chosen:
        """The faster plan, which the target takes.

        InfeasibleError, NoPlanError where there is none; other errors as of the searches.
        """
        uniforms = self._uniforms()
        uniform = None if uniforms is None else uniforms.best()
        try:
            planned, answer = self._of_operators(uniform)
        except InfeasibleError as e:
            if uniforms is None or uniforms.none_of is None:
                raise
            raise uniforms.nothing(e) from e
        if answer is not None and self._refused(answer):
            if uniform is None:
                uniforms = self._uniforms(always=True)
                uniform = None if uniforms is None else uniforms.best()
            if uniform is not None:
                planned = answer = None
            else:
                answer = self._warned(answer)
        untouched = self.prepared.untouched(self.control)
        if uniforms is not None and uniform is not None:
            answer = self._faster(answer, uniforms, uniform)
        if answer is None and uniforms is not None and not uniforms.by_degrees:  # no plan of a configuration will do
            planned, answer = self._of_operators(None)
            answer = answer if answer is None else self._warned(answer)
        if answer is None:
            assert uniforms is not None
            raise uniforms.nothing()
        return Chosen(answer, planned, untouched)

    @property
    def front(self) -> bool:
        """Whether what less memory costs is asked for."""
        return self.prepared.options.front

    def _uniforms(self, *, always: bool = False) -> Uniforms | None:
        """Uniform configurations, where these are in question."""
        prepared = self.prepared
        options = prepared.options
        if self.front and (options.strategy is not None or not prepared.training):
            raise UsageError("--front: configurations of training are searched for it; leave it out")
        if options.strategy is not None or not (prepared.training or options.target in BY_DEGREES):
            return None
        from planner.requests.uniform import uniforms

        whole = prepared.load(options.batch)
        always = always or self.front
        found = uniforms(
            options, whole, self.devices, self.request.profile, self.control, always=always, history=prepared.history
        )
        if self.front and found is None:
            raise UsageError(
                "--front: uniform configurations are not searched here (--space operators, pins, --mesh, --solver, a "
                "graph without loss); leave that, or --front, out"
            )
        return found

    def _of_operators(self, uniform: Uniform | None) -> tuple[Planned | None, Answer | None]:
        """What the search finds that decides on every operator; nothing where that is not faster than the uniform
        configuration, or the target takes degrees alone."""
        from planner.uniform.found import ONE_BY_ONE

        prepared, request, control = self.prepared, self.request, self.control
        if prepared.options.target in BY_DEGREES and prepared.options.strategy is None:
            return None, None
        if uniform is not None and len(uniform.found.best) >= request.top_k:
            at_once_s = uniform.found.at_once_s
            unknown = not (at_once_s or uniform.found.ended) and self._worth_the_rest
            if (unknown or at_once_s * (1 - ONE_BY_ONE) > uniform.step_time_s) and not prepared.parted:
                why = "what is left of the time is for those inside of the fastest configuration"
                why = why if unknown else "the whole batch at once takes longer, or does not fit"
                control.say(f"operators are not searched one by one: {why}")
                return None, None
            if request.top_k == 1:
                request = replace(request, known_step_s=uniform.step_time_s)
        try:
            planned, pipeline = prepared.plan(request, control, self.recall)
        except (InfeasibleError, NoPlanError) as e:
            if uniform is None:
                raise
            if isinstance(e, NotFasterError):
                self.one_by_one_s = e.bound_s
            elif isinstance(e, InfeasibleError):
                self.one_by_one_s = float("inf")
            return None, None
        self.one_by_one_s = planned.step_bound_s if pipeline is None else pipeline.step_bound_s
        prepared.history.step(planned.step_time_s if pipeline is None else pipeline.step_time_s)
        untouched = prepared.untouched(control)
        alone = untouched and self.recall is None and not control.cancel.is_set()
        said = prepared.recorded_request(self.devices, untouched, alone)
        return planned, prepared.answer(planned, control, pipeline, said)

    @property
    def _worth_the_rest(self) -> bool:
        """Whether operators inside of a configuration are worth the rest of a limit more than those of the whole batch
        at once, of which nothing is known yet."""
        return self.prepared.options.target in TO_THE_LETTER and len(self.prepared.graph.ops) > _LARGE

    def _faster(self, answer: Answer | None, uniforms: Uniforms, uniform: Uniform) -> Answer | None:
        """The answer, or the plan of the fastest uniform configuration where its step is shorter and the target takes
        it; both say what was tried.  None where there is neither."""
        say = self.prepared.watch.say
        chosen = within = False
        best: Uniform | None = uniform
        while best is not None and (answer is None or answer.documents[0]["step_time_s"] > best.step_time_s):
            try:
                own = self._inside(uniforms, best) or self._of_configuration(best.strategy)
            except (InfeasibleError, NoPlanError, UsageError) as e:
                say(f"no plan is made of {best.strategy}: {e}")
                if answer is not None or uniforms.passed_over == _PASSED_OVER:
                    break
                uniforms.pass_over(best)
                best = uniforms.best()
                continue
            except InputError as e:  # a parameter that the target keeps in one layout, and operators read in two
                if self.prepared.options.target == "any":
                    raise
                say(f"{self.prepared.options.target} refuses {best.strategy}: {e}")
                uniforms.leave_out(best, str(e))
                best = uniforms.best()
                continue
            refusal = self._refusal(own)
            if refusal is None:
                if answer is None or own.documents[0]["step_time_s"] < answer.documents[0]["step_time_s"]:
                    within = own.documents[0]["step_time_s"] < best.step_time_s
                    answer, uniform, chosen = self._before(own, best.found.best[1:], answer), best, True
                break
            say(f"{self.prepared.options.target} refuses {best.strategy}: {refusal}")
            uniforms.leave_out(best, refusal)
            best = uniforms.best()
        if answer is None:
            return None
        if not chosen and len(answer.plans) < self.request.top_k:
            own, further = (
                replace(answer, plans=answer.plans[part], documents=answer.documents[part])
                for part in (slice(1), slice(1, None))
            )
            answer = self._before(own, uniform.found.best, further)
        if self.front:
            self.prepared.history.stop()
            uniform = uniforms.with_front(uniform)
        first = {**answer.documents[0], "uniform": uniform.document}
        bound, line = self._bound(first["step_time_s"], uniform)
        lines = answer.summary.split("\n")
        at = next(i for i, line in enumerate(lines) if line.startswith("optimality"))
        if bound is not None:
            gap = gap_of(first["step_time_s"], bound)
            closed = not gap and not within  # what is searched inside of configurations is not bounded
            first |= {"step_time_lower_bound_s": bound, "gap": gap, "status": "optimal" if closed else "feasible"}
            lines[at] = line
        proof_lines = uniform.lines(chosen=chosen, count=self.request.top_k, answer_s=first["step_time_s"])
        summary = "\n".join([*lines[:at], *proof_lines, *lines[at:]])
        return replace(answer, documents=(first, *answer.documents[1:]), summary=summary)

    def _bound(self, step: float, uniform: Uniform) -> tuple[float | None, str]:
        """Seconds that a step takes at least, of all that was searched, and what the summary says of it; None where it
        is not known."""
        if uniform.bound_s is None:
            return None, ""
        bounds = [uniform.bound_s] if self.one_by_one_s is None else [uniform.bound_s, self.one_by_one_s]
        bound = min(step, *bounds)
        which = "configurations that treat layers alike"
        which += "" if self.one_by_one_s is None else ", and of plans of operators one by one"
        if step < min(bounds):  # operators are laid out otherwise inside of it, which is not bounded
            return bound, f"optimality  faster than all {which}: these take at least {time_text(min(bounds))}"
        gap = gap_of(step, bound)
        return bound, f"optimality  a step takes at least {time_text(bound)}: gap {gap:.2%} (of {which})"

    def _before(self, best: Answer, samples: Sequence[Scored], others: Answer | None) -> Answer:
        """With further plans, where these were asked for: of configurations and of operators, the fastest first."""
        count = self.request.top_k
        if count == 1:
            return replace(best, plans=best.plans[:1], documents=best.documents[:1])
        further = [] if others is None else list(zip(others.plans, others.documents, strict=True))
        known = [_done(p) for p in (best.plans[0], *(p for p, _ in further))]
        for s in samples[:count]:
            if self.control.stopped:
                break
            try:
                own = self._of_configuration(spelled(s.configuration))
            except (InfeasibleError, NoPlanError, UsageError, InputError):
                continue
            if self._refusal(own) is None and (done := _done(own.plans[0])) not in known:
                known.append(done)
                further.append((own.plans[0], own.documents[0]))
        further.sort(key=lambda f: f[1]["step_time_s"])
        plans, documents = [p for p, _ in further[: count - 1]], [d for _, d in further[: count - 1]]
        return replace(best, plans=(*best.plans, *plans), documents=(*best.documents, *documents))

    def _refused(self, answer: Answer) -> bool:
        """Whether the target refuses a plan of operators, which is said; not where a configuration is prescribed."""
        options = self.prepared.options
        refusal = None if options.strategy is not None else self._refusal(answer)
        if refusal is not None:
            self.prepared.history.refused()
            self.prepared.watch.say(f"{options.target} refuses the plan of operators one by one: {refusal}")
        return refusal is not None

    def _warned(self, answer: Answer) -> Answer:
        """The answer with what its target refuses of it, if anything."""
        refusal = self._refusal(answer)
        if refusal is None:
            return answer
        line = f"warning: {self.prepared.options.target} cannot be given this plan: {refusal}"
        return replace(answer, messages=(*answer.messages, line))

    def _refusal(self, answer: Answer) -> str | None:
        """Why the target refuses the plan, whatever the network calls its parameters; None where it takes it."""
        from planner.emit import TARGETS, Given, emit

        target = self.prepared.options.target
        if target == "any" or TARGETS[target].needs:
            return None
        try:
            emit(target, Given(PlanDocument.model_validate_json(answer.plans[0]), named=False))
        except InputError as e:
            return str(e)
        return None

    def _inside(self, uniforms: Uniforms, uniform: Uniform) -> Answer | None:
        """The plan with operators laid out one by one inside of the configuration, where that is faster."""
        if self.prepared.options.target not in TO_THE_LETTER or self.control.stopped:
            return None
        try:
            pins = uniforms.inside(uniform)
            own = None if pins is None else self._of_configuration(uniform.strategy, pins)
        except (InfeasibleError, NoPlanError, UsageError, InputError) as e:
            self.prepared.watch.say(f"operators inside of {uniform.strategy}: {e}")
            return None
        return own if own is not None and own.documents[0]["step_time_s"] < uniform.step_time_s else None

    def _of_configuration(self, strategy: str, inside: Constraints | None = None) -> Answer:
        """What `--strategy` gives; `inside`: with `--space operators`, its pins."""
        prepared = self.prepared
        options = copy(prepared.options)
        options.strategy, options.stages, options.micro_batches = strategy, 1, None
        options.front = False
        options.recompute, options.top_k, options.devices, options.space = "auto", 1, str(self.devices), None
        if inside is not None:
            options.space = "operators"
        own = Prepared(options, prepared.cancellation, prepared.watch, prepared.graphs, inside, prepared.source)
        own.check_job(self.devices)
        request = own.request(self.devices)
        if inside is None:  # nothing is searched: without its plan, what was found in time would be lost
            request = replace(request, time_limit=None)
        return Choosing(own, self.devices, request, own.begin(request), own.recall).run().answer


def _done(plan: str) -> tuple[object, ...]:
    """What a plan does: two of the same are one, whatever they are called."""
    p = PlanDocument.model_validate_json(plan)
    schedule = p.schedule
    passes = schedule.micro_batches, schedule.copies, schedule.stages, schedule.order
    stored = {n: x.stored for n, x in p.parameters.items()}
    return passes, p.mesh, {n: (o.strategy, o.chunk, len(o.runs)) for n, o in p.operators.items()}, stored
