"""The link values that follow from collectives measured within one server.

Fitted are the bandwidth of a device's links, the base latency of a collective and that of a step.  A permute is priced
by the same links but decides nothing: libraries send a message between two ranks on another, faster path than a
collective, and plans that permute are rare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..group import GroupShape
from ..link import Collective, CollectiveModel
from ..machine import HardwareProfile, LinkSpec, MeasuredSpec, ProtocolSpec
from .least_squares import fit_positive
from .samples import CollectiveSample, Fitted, errors_by

__all__ = ["fit_links"]

FloatArray = NDArray[np.float64]


def fit_links(profile: HardwareProfile, samples: Sequence[CollectiveSample], *, protocol: str = "gloo") -> Fitted:
    """Fits the server's links of `profile`, with one ring protocol in the place of its own, to the samples.

    ValueError without samples or without a [server].
    """
    if profile.server is None:
        raise ValueError(f"profile {profile.name}: has no [server] to fit; start from another profile")
    if not samples:
        raise ValueError("samples: expected collectives, found none")
    devices = max(s.ranks for s in samples)
    deciding = [s for s in samples if s.kind != "permute"] or list(samples)
    guess = {
        "bandwidth": max(s.size_bytes / s.seconds for s in deciding),
        "base": min(s.seconds for s in deciding) / 2,
        "step": min(s.seconds for s in deciding) / 4,
    }

    def model(p: Mapping[str, float]) -> FloatArray:
        return _predict(_candidate(profile, p, devices, protocol), deciding)

    seconds = np.array([s.seconds for s in deciding])
    p = fit_positive(model, seconds, guess, {"base": (1e-9, 1.0), "step": (1e-9, 1.0)}).parameters
    measured = np.array([s.seconds for s in samples])
    fitted = _candidate(profile, p, devices, protocol)
    values = {
        "server.devices": devices,
        "server.bandwidth_bytes_per_s": p["bandwidth"],
        f"protocols.{protocol}.base_latency_s": p["base"],
        f"protocols.{protocol}.server_step_latency_s": p["step"],
        f"protocols.{protocol}.bandwidth_fraction": 1.0,
    }
    return Fitted(fitted, values, errors_by([s.kind for s in samples], _predict(fitted, samples), measured))


def _predict(profile: HardwareProfile, samples: Sequence[CollectiveSample]) -> FloatArray:
    model = CollectiveModel(profile)
    return np.array(
        [float(model.seconds(cast(Collective, s.kind), s.size_bytes, GroupShape(s.ranks))) for s in samples]
    )


def _candidate(profile: HardwareProfile, p: Mapping[str, float], devices: int, protocol: str) -> HardwareProfile:
    assert profile.server is not None
    ring = ProtocolSpec(protocol, ("ring",), p["base"], p["step"], p["step"], 1.0)
    links = LinkSpec(devices, "switch", p["bandwidth"])
    return replace(
        profile, server=links, island=None, supernode=None, nccl=None, measured=MeasuredSpec(), protocols=(ring,)
    )
