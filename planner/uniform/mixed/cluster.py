"""Devices of several kinds, and the ways to stand equal stages of a pipeline on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from planner.cost_models import HardwareProfile, usable_memory_bytes
from planner.cost_models.device import resolve_rate

__all__ = ["Cluster", "Kind", "stands"]


@dataclass(frozen=True, slots=True)
class Kind:
    """So many `devices` of one kind; `memory_limit`: bytes of each that a plan may use, None: any number."""

    profile: HardwareProfile
    devices: int
    memory_limit: int | None

    @classmethod
    def of(cls, profile: HardwareProfile, devices: int, limit: int | None = None) -> Kind:
        """With what the profile leaves of the memory, and no more than `limit` bytes of it."""
        limits = [m for m in (usable_memory_bytes(profile), limit) if m is not None]
        return cls(profile, devices, min(limits, default=None))

    def product_rate(self, precision: str) -> float:
        """Operations per second of large products on one device."""
        assert self.profile.device is not None
        return self.peak(precision) * self.profile.device.product_efficiency(precision)

    def peak(self, precision: str) -> float:
        """Operations per second of one device's matrix units at most."""
        assert self.profile.device is not None
        return float(resolve_rate(self.profile.device.matmul_flops_per_s, precision))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Kinds of devices, as they were named."""

    kinds: tuple[Kind, ...]

    def __str__(self) -> str:
        return "+".join(f"{k.profile.name}:{k.devices}" for k in self.kinds)

    @property
    def devices(self) -> int:
        return sum(k.devices for k in self.kinds)

    @property
    def most_per_stage(self) -> int:
        """Devices that a stage has at most: their number divides those of every kind."""
        return math.gcd(*(k.devices for k in self.kinds))

    def orders(self) -> Iterator[tuple[Kind, ...]]:
        """In which order the kinds may follow each other along the pipeline."""
        yield from permutations(self.kinds)

    def slowest(self, precision: str) -> Kind:
        """That whose devices compute large products at the lowest rate."""
        return min(self.kinds, key=lambda k: k.product_rate(precision))

    def peak(self, precision: str) -> float:
        """Operations per second of all matrix units together."""
        return sum(k.devices * k.peak(precision) for k in self.kinds)


def stands(order: tuple[Kind, ...], per_stage: int) -> tuple[Kind, ...]:
    """The kind of each stage of so many devices, in the order of the pipeline."""
    return tuple(k for k in order for _ in range(k.devices // per_stage))
