"""The search over logical meshes and recomputation.

Every option is priced and glanced at, which bounds its objective from below; then they are searched best bound
first, each only as far as it could still beat the best plan known.  An option where nothing fits calls in the one
that recomputes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from planner.clock import step_bound
from planner.planning.constraints import Pins, Unfit, apply, contradiction, needed
from planner.planning.context import SearchContext
from planner.planning.fit import Fitted, fit, lowered
from planner.planning.interrupt import run_until_stopped
from planner.planning.options import Found, Option
from planner.planning.recall import plain_choice
from planner.planning.relaxed import closed_gap, least_step, least_step_that_fits
from planner.planning.shapes import shapes
from planner.planning.walk import CLOCKED, walk
from planner.pricing import Machine, PricedProblem, PriceTables, price
from planner.pricing.memory import recomputed_blocks
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.solve import Search

__all__ = ["search_options"]

MOST_AXES = 99
HARDLY = 1e-3  # relative gain up to which a further mesh is not searched under a limit
FAIR = 5e-2  # relative gap up to which no lower limits are tried after prices
EXACT_NODES = 100  # problems up to this size are searched to the end first
PLAIN_SECONDS = 0.8  # for a plan, any plan, after time is up
_WORTH = 5e-2  # of a known step, that a mesh whose memory binds, and which takes long to search, must be able to save
_WORTH_CLOSE = 1e-2  # the same, and of one that is too wide for elimination, by a bound that tells it more closely


def search_options(context: SearchContext, control: Control) -> Found:
    """Searches all meshes until `control` says stop, for plans that hold the pins."""
    outer = _Outer(context, control)
    if not run_until_stopped(outer.run, control):
        outer.settle()
    return outer.found()


class _Outer:
    def __init__(self, context: SearchContext, control: Control) -> None:
        self.context, self.request, self.control = context, context.request, control
        request = context.request
        self.unit_s = request.profile.price_resolution_s
        self.known_step = None if request.known_step_s is None else request.known_step_s / self.unit_s
        always = request.recompute == "blocks" and request.settings.training
        self.options = [Option(mesh, always) for mesh in context.meshes]
        blocks = request.recompute == "auto" and bool(context.active)
        self.can_recompute = blocks and bool(recomputed_blocks(context.graph))
        self.best: Option | None = None
        self.wide_from = MOST_AXES  # axes of a mesh from which on elimination has shown to be too wide

    def found(self) -> Found:
        return Found(tuple(self.options), self.best)

    def run(self) -> None:
        for option in self.options:  # grows where nothing fits
            if self._late(share=0.5) and option is not self.options[0]:
                break
            self._open(option, self.control)
        ready = [o for o in self.options if o.search is not None and not o.infeasible and self._in_question(o)]
        for number, option in enumerate(sorted(ready, key=lambda o: o.bound), 1):
            if self.control.stopped and self.best is not None:
                break
            self._finish(option, f"{number} of {len(ready)}")

    def _in_question(self, option: Option) -> bool:
        """Whether a plan on this mesh may be faster than the one that is known; where memory binds, so much faster that
        it is worth what finding it takes."""
        if self.known_step is None or option.priced is None:
            return True
        binds = self._binds(option)
        if step_bound(option.priced, option.bound) >= self.known_step * (1 - (_WORTH if binds else 0.0)):
            return False
        return option.step_bound < self.known_step * (1 - (_WORTH_CLOSE if binds else 0.0))

    def _worth_searching(self, option: Option, control: Control) -> bool:
        """Whether a plan on this mesh may be faster than the one that is known, by a bound on the step of all there
        are; true where none is known."""
        if self.known_step is None or self.context.pins is not None:
            return True
        assert option.priced is not None
        axes, inner = len(option.mesh.axes), Control(control.left, cancel=control.cancel)
        narrow, closed = axes < self.wide_from, self.known_step * (1 - closed_gap(option.priced))
        worth = min(closed, self.known_step * (1 - _WORTH_CLOSE))  # where elimination is too wide
        option.step_bound, narrow = least_step(option, inner, closed if narrow else worth, narrow=narrow)
        if not narrow:
            self.wide_from = min(self.wide_from, axes)
        if option.step_bound < (closed if narrow else worth):
            return True
        control.say(f"{option}: a step takes at least {option.step_bound * self.unit_s:.6g} s")
        return False

    def _worth_walking(self, option: Option) -> bool:
        """Whether a plan on this mesh that fits may be so much faster than the one that is known that looking for it is
        worth its time; true where none is known."""
        if self.known_step is None or self.context.pins is not None:
            return True
        closed = self.known_step * (1 - _WORTH_CLOSE)
        inner = Control(self.control.left, cancel=self.control.cancel)
        option.step_bound = max(option.step_bound, least_step_that_fits(option, inner, closed))
        if option.step_bound < closed:
            return True
        self.control.say(f"{option}: a step that fits takes at least {option.step_bound * self.unit_s:.6g} s")
        return False

    def settle(self) -> None:
        """Brings what an interrupted run left in order, and finds some plan where it had none."""
        for option in self.options:
            search = option.search
            if search is not None and search.choice is not None and not option.infeasible:
                search.cost = evaluate(search.problem, search.choice)
                self._compare(option)
        recomputed = {o.mesh for o in self.options if o.recompute}
        for option in tuple(self.options):  # a mesh is out of the question only with recomputation as well
            if option.infeasible and not option.unfit and self.can_recompute and option.mesh not in recomputed:
                self._recompute(option)
        hurry = Control(PLAIN_SECONDS)
        for option in self.options:
            if self.best is not None or hurry.stopped:
                return
            if option.search is not None and option.priced is not None and not option.infeasible:
                run_until_stopped(partial(self._plain, option, hurry), hurry)
        for option in self.options:
            if self.best is not None or hurry.stopped:
                return
            if option.search is None and not option.unfit:
                run_until_stopped(partial(self._open, option, hurry), hurry)

    def _plain(self, option: Option, hurry: Control) -> None:
        assert option.priced is not None
        assert option.search is not None
        choice = plain_choice(option.priced, hurry)
        if choice is not None:
            option.search.cost, option.search.choice = evaluate(option.priced.problem, choice), choice
            option.search.used = "plain"
            self._compare(option)

    def _recompute(self, option: Option) -> None:
        """Puts the mesh with recomputation next, where nothing fits without: a first plan should come early."""
        self.options.insert(self.options.index(option) + 1, Option(option.mesh, True))

    def _open(self, option: Option, control: Control) -> None:
        """Prices the option and looks at it once; while no plan is known, for some plan as well."""
        if self.context.pins is None:
            option.priced = self._priced(option)
        elif not self._pin(option, self.context.pins):
            return
        assert option.priced is not None
        first = self.best is None and self.known_step is None  # some plan is needed
        if first and any(self._binds(o) for o in self.options):
            self._shape(option, some=True)  # before what takes longer
        if not self._worth_searching(option, control):
            return
        inner = Control(control.left, cancel=control.cancel, say=self._say_of(option))
        start = None if self.context.recall is None else self.context.recall.choice(option.priced, control)
        option.search = Search(option.priced.problem, inner, solver=self.request.solver, start=start)
        axes = len(option.mesh.axes)
        option.search.glance(choose=first, narrow=axes < self.wide_from)
        if option.search.rounds is not None:
            self.wide_from = min(self.wide_from, axes)
        if option.infeasible:
            if self._contradicted(option):
                return
            self.control.say(f"{option}: infeasible")
            if self.can_recompute and not option.recompute:
                self._recompute(option)
            return
        if not self._in_question(option):
            return
        self._compare(option)
        if self.best is None and self.known_step is None and self._binds(option):
            self._shape(option, some=True)
            if self.best is None:
                self._walk(option, brief=True)

    def _priced(self, option: Option) -> PricedProblem:
        context = self.context
        tables = context.tables.setdefault(option.mesh, PriceTables())
        machine = self._machine(option)
        return price(context.graph, machine, context.rules, context.active, context.room, tables)

    def _machine(self, option: Option) -> Machine:
        settings = replace(self.request.settings, recompute=option.recompute)
        return Machine(self.request.profile, option.mesh, settings)

    def _pin(self, option: Option, pins: Pins) -> bool:
        """Prices the option with the pins; whether the mesh can hold each of them."""
        option.whole = cache(partial(self._priced, option))
        pinned: PricedProblem | Unfit | None = None
        if self.request.execution is not None:  # hardly anything is left open
            context, machine, way = self.context, self._machine(option), needed(pins)
            few = price(context.graph, machine, context.rules, context.active, context.room, allowed=way)
            pinned = apply(few, pins)
        if pinned is None or isinstance(pinned, Unfit):
            pinned = apply(option.whole(), pins)
        if isinstance(pinned, Unfit):
            option.unfit = pinned
            self.control.say(f"{option}: {pinned.status}")
            return False
        option.priced = pinned
        return True

    def _contradicted(self, option: Option) -> bool:
        """Whether it is the pins that leave nothing, and not memory."""
        if self.context.pins is not None and option.whole is not None and option.unfit is None:
            option.unfit = contradiction(option.whole(), self.context.pins)
            if option.unfit is not None:
                self.control.say(f"{option}: {option.unfit.status}")
        return option.unfit is not None

    def _finish(self, option: Option, place: str) -> None:
        search = option.search
        assert search is not None
        cutoff = self._cutoff(option)
        slower = False
        if self._binds(option) and self._open_below(search, self._close_below(cutoff)) and not option.settled:
            slower = not self._worth_walking(option)
            if not slower:
                self._walk(option)
                self._compare(option)
                option.overfull = option.fitted is None and not self.control.stopped
        elif not self._binds(option) and self._open_below(search, cutoff) and not option.good:
            if not search.closed:
                search.control.time_limit = None if self.control.left is None else self._until(search.control)
                search.run(cutoff=cutoff)
            if option.infeasible and self._contradicted(option):
                return
            self._compare(option, thorough=True)
        self.control.say(f"{option} ({place}): {self._outcome(option)}")
        nothing = option.infeasible or option.overfull or slower
        if nothing and self.can_recompute and not option.recompute:  # the glance had left that open
            self._recompute(option)
            again = self.options[self.options.index(option) + 1]
            self._open(again, self.control)
            if again.search is not None and not again.infeasible:  # else the plan that is known is faster
                self._finish(again, place)

    @staticmethod
    def _open_below(search: Search, cutoff: int | None) -> bool:
        return cutoff is None or search.bound < cutoff

    def _binds(self, option: Option) -> bool:
        """Whether memory rules out some choices, on a problem too large to be searched to the end under a limit."""
        reduced = None if option.search is None else option.search.reduced
        if self.context.room is None or reduced is None or len(reduced.nodes) <= EXACT_NODES:
            return False
        return len(reduced.limits) > 0 or option.over is not None

    @staticmethod
    def _close_below(cutoff: int | None) -> int | None:
        """From which bound on what is left to find under a limit is not worth its time."""
        return None if cutoff is None else int(cutoff * (1 - HARDLY))

    def _shape(self, option: Option, *, some: bool = False) -> None:
        """Weighs configurations as textbooks have them: a plan early, and one that no search does worse than.  `some`:
        only until one fits, or those that hold least are through."""
        assert option.priced is not None
        free = replace(option.priced, problem=replace(option.priced.problem, limit=None))
        if option.shapes is None:
            option.shapes = shapes(free, lambda: self.control.stopped, partial(self._of_use, option))
            self.control.say(f"{option}: memory binds; known configurations first")
        most = len(option.mesh.axes) + 1 if some else None  # one of each kind
        for choice in itertools.islice(option.shapes, most):
            cost = evaluate(free.problem, choice)
            found = None if cost is None or cost >= self._of_use(option) else fit(free, choice)
            if found is not None:
                option.known.append(found)
                self._take(option, found)
                if some and option.fitted is not None:
                    return

    def _walk(self, option: Option, *, brief: bool = False) -> None:
        """Looks for a plan that fits, and a bound, by prices on memory; `brief`: for a first plan alone."""
        assert option.priced is not None
        assert option.search is not None
        if not brief:
            option.walked = True
            if option.smallest is None:  # the first prices may settle it
                self._walk(option, brief=True)
                cutoff = self._close_below(self._cutoff(option))
                if option.within(HARDLY) or not self._open_below(option.search, cutoff):
                    return
            self._shape(option)
        self.control.say(f"{option}: prices on memory")
        known = [*option.known, *(f for f in (option.over, option.fitted, option.smallest) if f is not None)]
        cutoff = self._close_below(self._cutoff(option))
        take = partial(self._take, option)
        found = walk(option.priced, self.control, known, cutoff, take, brief=brief)
        option.search.learn(found.bound, found.prices)
        option.smallest = found.smallest

    def _take(self, option: Option, found: Fitted) -> None:
        """Takes a choice where it fits and is better than what was known of the option; it is in hand from here on."""
        assert self.context.room is not None
        if found.held <= self.context.room and (option.fitted is None or found.cost < option.fitted.cost):
            option.fitted = found
            self._compare(option)

    def _of_use(self, option: Option) -> float:
        """The cost from which on a known configuration is of no use: a cheaper plan fits on this mesh, or a plan
        on another mesh is cheaper by more than the clock is expected to make good."""
        cutoff, fitted = self._cutoff(option), option.fitted
        other = math.inf if cutoff is None else cutoff * CLOCKED
        return other if fitted is None else min(other, fitted.cost)

    def _cutoff(self, option: Option) -> int | None:
        """The cost from which on a plan on this mesh is not among those asked for."""
        count = self.request.top_k
        ranked = self.found().ranked(count)
        return ranked[-1].solution.cost if len(ranked) == count and option not in ranked else None

    def _until(self, inner: Control) -> float:
        """The inner control's limit, counted from its own start, that ends with the outer one."""
        assert self.control.deadline is not None or self.control.cancel.is_set()
        return time.monotonic() - inner.started + (self.control.left or 0.0)

    def _weigh(self, option: Option, *, thorough: bool) -> None:
        """Looks at what the program of the search's choice holds; where that is too much, and `thorough`, searches on
        under lower limits."""
        search, priced = option.search, option.priced
        if search is None or priced is None or search.choice is None:
            return
        if option.looked_at != search.choice:
            option.looked_at = search.choice
            found = fit(priced, search.choice)
            assert found is not None, "a search offers valid choices"
            if self.context.room is None or found.held <= self.context.room:
                if option.fitted is None or found.cost < option.fitted.cost:
                    option.fitted = found
                return
            option.over = found
        cutoff = self._cutoff(option)
        if not thorough or option.over is None or (cutoff is not None and option.over.cost >= cutoff):
            return  # under a lower limit it costs no less
        if option.fitted is None or option.over.cost < option.fitted.cost:
            if not option.walked:
                self._walk(option)
            if option.fitted is not None and option.within(FAIR):
                return
            self.control.say(f"{option}: its program holds more than its rows; lowering the limit")
            found = lowered(priced, option.over, self.control, self.request.solver)
            if found is not None and (option.fitted is None or found.cost < option.fitted.cost):
                option.fitted = found
            option.overfull = option.fitted is None and not self.control.stopped

    def _compare(self, option: Option, *, thorough: bool = False) -> None:
        self._weigh(option, thorough=thorough)
        cost = option.solution.cost
        known = None if self.best is None else self.best.solution.cost
        if cost is not None and (known is None or cost < known):
            self.best = option
        if cost is not None and self.best is option:
            self.control.offer(option.solution.choice, cost, str(option))
        if all(o.search is not None or o.unfit is not None for o in self.options):
            self.control.prove(min((o.bound for o in self.options if not o.infeasible), default=0), str(option))

    def _late(self, *, share: float) -> bool:
        """Whether that share of the time is over: what was priced so far must do."""
        limit = self.control.time_limit
        return self.control.stopped or (limit is not None and (self.control.left or 0.0) < (1 - share) * limit)

    def _say_of(self, option: Option) -> Callable[[str], None]:
        return lambda line: self.control.say(f"{option}: {line}")

    def _outcome(self, option: Option) -> str:
        c = option.candidate(self.unit_s)
        if c.objective_s is None:
            best = None if self.best is None else self.best.solution.cost
            closed = best is not None and option.bound >= best
            return f"bound {c.bound_s:.6g} s, {'no plan can be cheaper' if closed else 'no plan was found'}"
        return f"objective {c.objective_s:.6g} s, bound {c.bound_s:.6g} s ({c.status})"
