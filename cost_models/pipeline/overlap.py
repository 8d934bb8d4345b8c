"""Collectives beside computing: gradient sums behind the backward pass, ZeRO 3 gathering ahead of it.

A device has one stream that computes and one that communicates (`streams`): collectives run one after the other, as
they share the links. Layers are numbered in the order they run, so in a backward pass the last layer comes first.

- Gradient buckets (Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.3): a bucket is summed when the
  backward pass has made the last of its gradients.
- ZeRO 3 (Rajbhandari et al., SC 2020; PyTorch FSDP, Zhao et al., VLDB 16(12), 2023, section 3.3): a layer's
  parameters are gathered before it runs. With prefetch d the gathering for the layer d ahead may begin when a layer
  begins, so d + 1 layers' parameters are held; d = 0 overlaps nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .streams import StreamTask, run_streams

__all__ = ["GradientBucket", "OverlapRun", "gradient_buckets", "gradient_sync", "zero3_backward", "zero3_forward"]


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Gradients summed by one collective: `layers` run before it may begin; `size_bytes` in all."""

    layers: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class OverlapRun:
    """Seconds of two streams: until both end, and of each alone.

    `exposed_s` is what communication adds to computing, be it by waiting or by contention.
    """

    total_s: float
    compute_s: float
    communication_s: float

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.total_s - self.compute_s)


def gradient_buckets(
    gradient_bytes: Sequence[float], bucket_bytes: float, first_bucket_bytes: float | None = None
) -> tuple[GradientBucket, ...]:
    """Buckets of the layers' gradients in the order the backward pass makes them.

    A bucket closes once it holds `bucket_bytes` (the first, `first_bucket_bytes` where given), as
    DistributedDataParallel does with `bucket_cap_mb`; an infinite size makes one bucket. Layers without gradients
    delay no bucket.

    Raises:
        ValueError: a negative size, or a layer's that is not finite.
    """
    sizes = _figures("gradient_bytes", gradient_bytes)
    limit = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    for name, value in (("bucket_bytes", bucket_bytes), ("first_bucket_bytes", limit)):
        if not value >= 0:
            raise ValueError(f"{name}: expected at least 0 bytes, found {value}")
    buckets: list[GradientBucket] = []
    held, layers = 0.0, 0
    for number, size in enumerate(sizes, start=1):
        if not size:
            continue
        held, layers = held + size, number
        if held >= limit:
            buckets.append(GradientBucket(layers, held))
            held, limit = 0.0, bucket_bytes
    if held:
        buckets.append(GradientBucket(layers, held))
    return tuple(buckets)


def gradient_sync(
    backward_s: Sequence[float],
    buckets: Sequence[GradientBucket],
    bucket_s: Sequence[float],
    *,
    overlapped: bool = True,
    contention: float = 1.0,
) -> OverlapRun:
    """The last micro-batch's backward pass and the sums of its gradients.

    Args:
        backward_s: seconds of each layer's backward pass, in the order they run.
        buckets: as `gradient_buckets` gives them; bucket_s: seconds of each bucket's collective.
        overlapped: whether sums run beside the backward pass, or after it.
        contention: factor by which computing slows while a sum runs.

    Raises:
        ValueError: a figure out of range, or not one time for each bucket.
    """
    layers, seconds = _figures("backward_s", backward_s), _figures("bucket_s", bucket_s)
    _same("bucket_s", seconds, "buckets", len(buckets))
    for bucket in buckets:
        if bucket.layers > len(layers):
            raise ValueError(
                f"{bucket}: expected at most the {len(layers)} layers of backward_s, found {bucket.layers}"
            )
    compute = [StreamTask(s) for s in layers]
    sums = [StreamTask(s, b.layers if overlapped else len(layers)) for b, s in zip(buckets, seconds, strict=True)]
    return _run(compute, sums, contention)


def zero3_forward(
    compute_s: Sequence[float], gather_s: Sequence[float], *, prefetch: int = 1, contention: float = 1.0
) -> OverlapRun:
    """A forward pass whose layers' parameters are gathered just ahead of them.

    Args:
        compute_s, gather_s: seconds of each layer and of gathering its parameters, in the order layers run.
        prefetch: layers gathered ahead; 0 gathers between layers.
        contention: factor by which computing slows while a collective runs.

    Raises:
        ValueError: a figure out of range, or lengths that differ.
    """
    compute, gathers = _gathered(compute_s, gather_s, prefetch)
    return _run(compute, gathers, contention)


def zero3_backward(
    compute_s: Sequence[float],
    gather_s: Sequence[float],
    scatter_s: Sequence[float],
    *,
    prefetch: int = 1,
    contention: float = 1.0,
) -> OverlapRun:
    """A backward pass that gathers each layer's parameters ahead and reduce-scatters its gradients after it.

    As `zero3_forward`, in the order the backward pass runs (last layer first); `scatter_s`: seconds of each layer's
    reduce-scatter, which takes its turn after the gathering that was asked for while the layer ran.

    Raises:
        ValueError: a figure out of range, or lengths that differ.
    """
    compute, gathers = _gathered(compute_s, gather_s, prefetch)
    scatters = _figures("scatter_s", scatter_s)
    _same("scatter_s", scatters, "compute_s", len(compute))
    # Where each layer's gathering ends up among the collectives is what the layer needs done.
    stream, ready = [], []
    for k in range(-prefetch - 1, len(compute)):
        if k >= 0:
            stream.append(StreamTask(scatters[k], k + 1))
        if k + prefetch + 1 < len(gathers):
            stream.append(gathers[k + prefetch + 1])
            ready.append(len(stream))
    return _run([StreamTask(w.seconds, n) for w, n in zip(compute, ready, strict=True)], stream, contention)


def _gathered(
    compute_s: Sequence[float], gather_s: Sequence[float], prefetch: int
) -> tuple[list[StreamTask], list[StreamTask]]:
    layers, gathers = _figures("compute_s", compute_s), _figures("gather_s", gather_s)
    _same("gather_s", gathers, "compute_s", len(layers))
    if prefetch < 0:
        raise ValueError(f"prefetch: expected at least 0 layers, found {prefetch}")
    compute = [StreamTask(s, k + 1) for k, s in enumerate(layers)]
    return compute, [StreamTask(s, max(0, k - prefetch)) for k, s in enumerate(gathers)]


def _run(compute: list[StreamTask], communication: list[StreamTask], contention: float) -> OverlapRun:
    ends = run_streams(compute, communication, contention)
    return OverlapRun(
        total_s=max((stream[-1] for stream in ends if stream), default=0.0),
        compute_s=sum(w.seconds for w in compute),
        communication_s=sum(w.seconds for w in communication),
    )


def _figures(name: str, values: Sequence[float]) -> list[float]:
    found = [float(v) for v in values]
    if math.isfinite(sum(found)) and min(found, default=0.0) >= 0:
        return found
    for index, value in enumerate(found):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}[{index}]: expected a finite figure of at least 0, found {value}")
    return found


def _same(name: str, values: Sequence[float], other: str, length: int) -> None:
    if len(values) != length:
        raise ValueError(f"{name}: expected {length} figures, as many as {other}, found {len(values)}")
