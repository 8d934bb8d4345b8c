"""Seconds of the passes of a micro-batch through the units of the model, on one rank.

Copies (`Configuration.copies`) pass together: while one computes products, collectives of another run.  So of all that
they send only what is longer than all these products adds to the pass, beside what computing loses to it, and the last
collective, which nothing is left to compute beside.  What runs again for the backward pass hides nothing: it is on the
way of its own copy's gradients.  A copy's gradients of weights are added to those of the copies before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

from planner.clock.configuration import Configuration
from planner.clock.links import Links
from planner.cost_models import HardwareProfile
from planner.cost_models.kernels import CAST_BYTES, MATRIX_KINDS, NARROW_BYTES, Kernel, KernelArrays, kernel_seconds
from planner.trace import TracedCollective, Unit, Workload

__all__ = ["Part", "Passes", "UnitTimes", "passes_of"]

# Kernels that transfers run beside.  In attention's backward pass gradients travel round the ring with the keys and are
# added to at every stop: measured steps of long sequences show it hiding next to nothing.
_HIDING = frozenset({"product", "convolution", "attention"})


# What cross-entropy moves per score, beyond the 8 bytes of one kernel.
# softmax: cast to single precision (read 2, write 4), log-softmax (4, 4); its gradient (8, 4), cast back (4, 2).
# operators: cast, largest (4), difference (4, 4), exponential (4, 4), sum (4), quotient (4, 4); times the gradient
# (4, 4), cast back.
# one_hot: cast, copy (8), largest, difference, exponential, sum, difference (28, and 4 for labels spread out), product
# with them (12), negative (8), sum (4); exponential, difference (12), two products (16), zeros (4), cast back
# (mindformers/core/loss/loss.py).
LOSS_BYTES: Final[Mapping[str, int]] = {"fused": 0, "softmax": 24, "operators": 44, "one_hot": 112}


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one pass: of kernels, of waiting for the host that starts them, of transfers in its way."""

    compute: float = 0.0
    host: float = 0.0
    sent: float = 0.0

    @property
    def seconds(self) -> float:
        return self.compute + self.host + self.sent

    def __add__(self, other: Part) -> Part:
        return Part(self.compute + other.compute, self.host + other.host, self.sent + other.sent)

    def scaled(self, factor: float) -> Part:
        return Part(self.compute * factor, self.host * factor, self.sent * factor)


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Of all copies together.  `again` is what recomputation adds to the backward pass, `of_weights` the part of
    `backward` (kernels only) that makes gradients of weights; `last`: the longest single collective of each pass, where
    copies interleave."""

    forward: Part
    backward: Part
    again: Part
    of_weights: float
    last: tuple[float, float] = (0.0, 0.0)

    @property
    def weight_seconds(self) -> float:
        """The share of the backward pass that makes gradients of weights, with its share of the host's delay."""
        compute = self.backward.compute
        return self.of_weights * (1 + self.backward.host / compute) if compute else 0.0

    @property
    def back(self) -> float:
        """Seconds of the backward pass with what is computed again."""
        return self.backward.seconds + self.again.seconds


@dataclass(frozen=True, slots=True)
class _Prices:
    """Seconds of kernels; `gathered`: what tensor-parallel ranks gather, as a fraction of its bytes as activations."""

    kernel: Mapping[Kernel, float]
    gathered: float


_Shared = dict[tuple[int, bool], UnitTimes]


class Passes:
    """Times of every unit; units that do the same are priced once.  `shared`: what passes of the same workload that
    differ in what runs again have found."""

    def __init__(
        self,
        workload: Workload,
        c: Configuration,
        profile: HardwareProfile,
        links: Links,
        *,
        overlapped: bool = True,
        shared: _Shared | None = None,
    ) -> None:
        self.c, self.profile, self.links, self.overlapped = c, profile, links, overlapped
        self.recomputed = workload.recomputed
        self._shared: _Shared = {} if shared is None else shared
        self._exchanging: WeakKeyDictionary[Workload, Links] = WeakKeyDictionary()
        units = {(id(u), r): (u, r) for u, r in zip(workload.units, workload.repeated, strict=True)}

        def priced(matrix_type: str, gathered: float = 1.0) -> _Prices:
            return _Prices(_kernel_prices(workload, c, profile, matrix_type), gathered)

        # Recipes of 8 and 4 bits leave the embedding and the output layer out (Transformer Engine, torchao's filters).
        narrow = c.matrix in NARROW_BYTES and any(workload.repeated)
        inside = priced(c.matrix, NARROW_BYTES[c.matrix] / c.activation_bytes if narrow and c.cast_gathers else 1.0)
        outside = priced(c.precision) if narrow else inside
        times = {key: self._unit(u, repeated, inside if repeated else outside) for key, (u, repeated) in units.items()}
        self.units = [times[id(u), r] for u, r in zip(workload.units, workload.repeated, strict=True)]

    def exchanging(self, workload: Workload) -> Links:
        """Prices of what ranks exchange for the weights of a workload that passes so."""
        if workload.exchanged_over is None:
            return self.links
        if workload not in self._exchanging:
            self._exchanging[workload] = Links(workload.exchanged_over, self.links.stages, self.profile)
        return self._exchanging[workload]

    def again_by_unit(self, shares: Sequence[float]) -> Passes:
        """The same where of what unit i computes again only `shares[i]` is."""
        found = copy(self)
        found.units = [
            t if share == 1 else replace(t, again=t.again.scaled(share))
            for t, share in zip(self.units, shares, strict=True)
        ]
        return found

    def _unit(self, u: Unit, repeated: bool, prices: _Prices) -> UnitTimes:
        c, key = self.c, (id(u), repeated)
        if key not in self._shared:
            self._shared[key] = self._without_again(u, prices)
        once = self._shared[key]
        again = Part()
        if c.recompute == "full" and self.recomputed:
            again = self._part(u.again, u.sent_again, prices)
        elif c.recompute == "full" and repeated:
            again = once.again.scaled(c.recompute_blocks)
        elif c.recompute == "selective":
            again = self._part(u.core, u.sent_core, prices)
        elif c.recompute == "products" and repeated:
            products = {k: n for k, n in u.forward.items() if k.kind in ("product", "convolution")}
            others = {k: n for k, n in u.forward.items() if k.kind not in MATRIX_KINDS}
            again = self._part(others, {}, prices) + self._part(products, u.sent_forward, prices).scaled(0.5)
        return replace(once, again=again.scaled(c.copies))

    def _without_again(self, u: Unit, prices: _Prices) -> UnitTimes:
        """Whatever runs again: `again` is the forward pass of one copy alone."""
        c = self.c
        back = u.backward
        if c.frozen:
            back = {k: n - u.of_weights.get(k, 0) for k, n in back.items() if n > u.of_weights.get(k, 0)}
        sent = u.sent_backward
        if c.frozen:  # inputs are gathered again for gradients of weights alone
            sent = {t: n for t, n in sent.items() if not (t.hidden and t.kind == "all_gather")}
        forward = self._part(u.forward, u.sent_forward, prices, beside_copies=self._interleaved)
        backward = self._part(back, sent, prices, beside_copies=self._interleaved)
        alone = self._part(u.forward, u.sent_forward, prices) if self._interleaved else forward
        if c.weight_bytes > c.activation_bytes:
            cast = Part(self._streamed(u.weights * (c.weight_bytes + c.activation_bytes)))
            forward, backward = forward + cast, backward + (Part() if c.frozen else cast)
            alone = alone + cast
        scored = Part(self._streamed(LOSS_BYTES[c.loss] * u.score_bytes / c.activation_bytes / 2))
        forward, backward = forward + scored, backward + scored
        weights = 0.0 if c.frozen else sum(prices.kernel[k] * n for k, n in u.of_weights.items())
        n = c.copies
        if n > 1 and not c.frozen:  # read two, write one
            added = self._streamed(3 * c.gradient_bytes * u.weights * (n - 1))
            backward = backward + Part(added / n)
        last = (self._longest(u.sent_forward), self._longest(sent)) if self._interleaved else (0.0, 0.0)
        return UnitTimes(forward.scaled(n), backward.scaled(n), alone, weights * n, last)

    @property
    def _interleaved(self) -> bool:
        return self.c.copies > 1 and self.overlapped

    def _longest(self, sent: Mapping[TracedCollective, int]) -> float:
        """Seconds of the longest collective that is in the way of computing."""
        return max((self.links.seconds(t.kind, t.axes, t.bytes) for t in sent if not t.hidden), default=0.0)

    def _streamed(self, size: float) -> float:
        """Seconds in which device memory moves so many bytes."""
        device = self.profile.device
        return 0.0 if device is None else size / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)

    def _part(
        self,
        kernels: Mapping[Kernel, int],
        sent: Mapping[TracedCollective, int],
        prices: _Prices,
        *,
        beside_copies: bool = False,
    ) -> Part:
        """One copy's part of a pass; `beside_copies`: whether its collectives run beside products of the others."""
        copied = sum(prices.kernel[k] * n for k, n in kernels.items() if k.kind == "copy")
        busy = sum(prices.kernel[k] * n for k, n in kernels.items()) - copied
        compute = max(0.0, busy - self._cast_before(sent, prices))
        beside = sum(prices.kernel[k] * n for k, n in kernels.items() if k.kind in _HIDING)
        held = hidden = 0.0
        for t, n in sent.items():
            cost = n * self.links.seconds(t.kind, t.axes, t.bytes * (prices.gathered if t.of_products else 1.0))
            if t.hidden and self.overlapped:
                hidden += cost
            else:
                held += cost
        if self.c.overlap_tensor and self.c.tp > 1 and not beside_copies:
            # Cut into as many pieces as ranks, of which the first cannot hide behind the product it feeds or follows.
            first = held / self.c.tp
            held = first + self._beside(held - first, beside)
        # Ranks meet in collectives that hold them up, so no host runs ahead of one: its delay adds to them.
        started = sum(n * k.launches for k, n in kernels.items()) * self.profile.host.dispatch_interval_s
        host = max(0.0, started - compute)
        if beside_copies:
            return Part(compute, host, copied + self._beside(held + hidden, beside))
        return Part(compute, host, copied + held + self._beside(hidden, beside))

    def _cast_before(self, sent: Mapping[TracedCollective, int], prices: _Prices) -> float:
        """Seconds saved where a rank casts its part and gathers that: what is left to do is the other layout of it."""
        if prices.gathered == 1.0:
            return 0.0
        gathered = sum(n * t.bytes for t, n in sent.items() if t.of_products and not t.hidden)
        once = CAST_BYTES[self.c.matrix] - 2 * NARROW_BYTES[self.c.matrix]
        return self._streamed(gathered / self.c.activation_bytes * (1 - 1 / self.c.tp) * once)

    def _beside(self, sent: float, computing: float) -> float:
        """Seconds that transfers add while products run beside them, slowed by them."""
        return max(0.0, sent - computing) + min(sent, computing) * self.profile.framework.collective_interference


_Way = tuple[int, str, str, bool]
_PRICED: WeakKeyDictionary[Workload, dict[_Way, tuple[HardwareProfile, Mapping[Kernel, float]]]] = WeakKeyDictionary()


def _kernel_prices(
    workload: Workload, c: Configuration, profile: HardwareProfile, matrix_type: str
) -> Mapping[Kernel, float]:
    """Seconds of every kernel of the workload, found once; what is known holds on to the profile, so that its id stays
    its own."""
    while workload.like is not None:
        workload = workload.like
    known, native = _PRICED.setdefault(workload, {}), c.attention == "native"
    way = id(profile), matrix_type, c.precision, native
    if way not in known:
        units = {id(u): u for u in workload.units}.values()
        kernels = list({k: None for u in units for k in (*u.forward, *u.backward, *u.again)})
        columns = KernelArrays.of(kernels)
        seconds = kernel_seconds(
            profile, columns, matrix_type=matrix_type, type=c.precision, native_attention=native
        ).tolist()
        known[way] = profile, dict(zip(kernels, seconds, strict=True))
    return known[way][1]


# Fields that passes do not depend on, and what stands for all their values.
_INDIFFERENT: Final[Mapping[str, object]] = {
    "zero": 0, "shard_ranks": None, "schedule": "1f1b", "virtual_stages": 1, "stage_layers": None,
    "recompute_layers": None, "offload_layers": None, "offload": 0.0,
}  # fmt: skip
_PASSED_BY: Final = attrgetter(
    *(f.name for f in fields(Configuration) if f.name not in {"dp", "micro_batches", *_INDIFFERENT})
)


@dataclass(frozen=True, slots=True)
class _Known:
    """Of one workload: passes, and what those that differ in what runs again alone have in common."""

    passes: dict[object, Passes] = field(default_factory=dict)
    common: dict[object, tuple[Links, _Shared]] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[Workload, _Known] = WeakKeyDictionary()


def passes_of(workload: Workload, c: Configuration, profile: HardwareProfile, *, overlapped: bool = True) -> Passes:
    """The passes of `c`, which do not depend on its schedule and on who stores what: found once for all of these."""
    if workload.like is not None and workload.like.mesh == workload.mesh:
        workload = workload.like
    known = _KNOWN.setdefault(workload, _Known())
    key = _PASSED_BY(c), id(profile), overlapped
    if key not in known.passes:  # what is known holds on to the profile, so that its id stays its own
        one = c.with_(dp=c.ep, micro_batches=c.copies, **_INDIFFERENT)
        plain = _PASSED_BY(c.unchecked({"recompute": "none", "recompute_blocks": 1.0})), *key[1:]
        if plain not in known.common:
            known.common[plain] = Links(workload.mesh, c.pp, profile), {}
        links, shared = known.common[plain]
        known.passes[key] = Passes(workload, one, profile, links, overlapped=overlapped, shared=shared)
    return known.passes[key]
