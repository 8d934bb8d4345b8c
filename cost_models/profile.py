"""Reading hardware profiles: one TOML file per machine.

Every key carries its unit, and every value has a note in the table `[sources]`, keyed by the value's
dotted key or by that of a table above it.  A note begins with `assumed:` where no source backs the
value and with `derived:` where it is computed from sourced ones.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from .accelerator import AllocatorSpec, DeviceSpec, Flag, FrameworkSpec, HostSpec, PredictionSpec
from .machine import (
    AxesSpec,
    HardwareProfile,
    LinkSpec,
    MeasuredSpec,
    NcclSpec,
    NetworkSpec,
    OffsetSpec,
    ProtocolSpec,
)

__all__ = [
    "HardwareProfile",
    "ProfileError",
    "UnknownProfileError",
    "alpha_beta_profile",
    "load_profile",
    "moved",
    "packaged_text",
    "parse_profile",
    "profile_names",
]


class ProfileError(ValueError):
    """A hardware profile cannot be used; the message names the key, what was expected and what was found."""


class UnknownProfileError(ProfileError):
    """No profile has this name; the message lists those that exist."""


@dataclass(frozen=True, slots=True)
class _File:
    """The tables of a profile file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    description: str
    sources: Mapping[str, Annotated[str, Field(min_length=1)]]
    device: DeviceSpec | None = None
    server: LinkSpec | None = None
    island: LinkSpec | None = None
    supernode: LinkSpec | None = None
    network: NetworkSpec | None = None
    nccl: NcclSpec | None = None
    measured: MeasuredSpec = field(default_factory=MeasuredSpec)
    framework: FrameworkSpec = field(default_factory=FrameworkSpec)
    host: HostSpec = field(default_factory=HostSpec)
    allocator: AllocatorSpec = field(default_factory=AllocatorSpec)
    prediction: PredictionSpec = field(default_factory=PredictionSpec)
    protocols: tuple[ProtocolSpec, ...] = ()
    axes: AxesSpec | None = None
    heavy_operators_must_split: Flag = field(default=False)


_READER = TypeAdapter(_File)
_UNPRICED = ("name", "description", "sources")
# Where values stood before they had tables of their own.
_MOVED: Final = {
    "device.reserve_bytes": "allocator.reserve_bytes",
    "device.allocator_slack": "allocator.slack",
    "device.collective_interference": "framework.collective_interference",
    "device.dispatch_interval_s": "host.dispatch_interval_s",
    "device.handover_s": "host.handover_s",
    "device.host_link_bytes_per_s": "host.link_bytes_per_s",
    "device.prediction_spread": "prediction.spread",
    "device.step_overhead_s": "host.step_overhead_s",
}


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package, sorted."""
    return tuple(sorted(p.name[:-5] for p in _profiles().iterdir() if p.name.endswith(".toml")))


def packaged_text(name: str) -> str:
    """The TOML of a profile that comes with the package."""
    return (_profiles() / f"{name}.toml").read_text(encoding="utf-8")


def _profiles() -> Traversable:
    return files(__package__) / "profiles"


def load_profile(name_or_path: str | PathLike[str]) -> HardwareProfile:
    """The profile of this name, or of the TOML file at this path.

    A name that is not packaged is taken for a path when it ends in `.toml` or contains a separator.

    Raises:
        UnknownProfileError: no such name.
        ProfileError: the file cannot be read, is not TOML, or a value is missing, malformed or unsourced.
    """
    text = str(name_or_path)
    if text in profile_names():
        return _packaged(text)
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) < 2:
        raise UnknownProfileError(
            f"hardware profile {text!r}: expected one of {', '.join(profile_names())}, or the path of a .toml file"
        )
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the path
        raise ProfileError(
            f"hardware profile {text!r}: expected a readable TOML file, found {error}; "
            f"packaged profiles are {', '.join(profile_names())}"
        ) from error
    return parse_profile(content, origin=text)


@lru_cache(maxsize=64)
def _packaged(name: str) -> HardwareProfile:
    return parse_profile(packaged_text(name), origin=name)


def parse_profile(text: str, *, origin: str = "<text>") -> HardwareProfile:
    """The profile written as TOML in `text`; `origin` is how errors call it.

    Raises:
        ProfileError: naming the key, what was expected and what was found.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProfileError(f"hardware profile {origin!r}: expected TOML, found {error}") from error
    return _build(moved(document), origin)


def moved(document: dict[str, Any]) -> dict[str, Any]:
    """The tables of a profile with every value where it belongs: files of before had those of the host, the framework,
    its allocator and the prediction among the device's.  A value that stands in both places stays, to be refused."""
    sources = document.get("sources")
    for old, new in _MOVED.items():
        (table, key), (place, name) = old.split("."), new.split(".")
        here, there = document.get(table), document.setdefault(place, {}) if _stands(document, old) else None
        if isinstance(here, dict) and isinstance(there, dict) and name not in there:
            there[name] = here.pop(key)
            if isinstance(sources, dict) and (old in sources or table in sources):
                sources[new] = sources.pop(old, sources.get(table))
    return document


def _stands(document: Mapping[str, Any], key: str) -> bool:
    table, _, name = key.partition(".")
    here = document.get(table)
    return isinstance(here, dict) and name in here


def alpha_beta_profile(
    alpha: Sequence[float],
    beta: Sequence[float],
    *,
    offset: OffsetSpec | None = None,
    all_to_all_penalty: float | None = None,
    heavy_operators_must_split: bool = True,
    source: str = "given by the caller",
) -> HardwareProfile:
    """A profile that knows only latency `alpha[i]` (s) and inverse bandwidth `beta[i]` (s/byte) per mesh axis.

    Without `offset` those of the packaged profile `alpha-beta` hold.  Computing is free.

    Raises:
        ProfileError: negative or missing values.
    """
    offset = offset if offset is not None else _packaged_offset()
    axes: dict[str, Any] = {"alpha": list(alpha), "beta": list(beta), "offset": _plain(offset)}
    if all_to_all_penalty is not None:
        axes["all_to_all_penalty"] = all_to_all_penalty
    document = {
        "name": "alpha-beta",
        "description": "alpha and beta per mesh axis",
        "heavy_operators_must_split": heavy_operators_must_split,
        "axes": axes,
        "sources": {"axes": source, "heavy_operators_must_split": source},
    }
    return _build(document, "alpha-beta")


def _packaged_offset() -> OffsetSpec:
    axes = _packaged("alpha-beta").axes
    return OffsetSpec() if axes is None else axes.offset


def _build(document: dict[str, Any], origin: str) -> HardwareProfile:
    try:
        read = _READER.validate_python(document)
    except ValidationError as error:
        raise ProfileError(_explain(error, origin)) from error
    _check_parts(read, origin)
    if read.device is not None and not _stands(document, "allocator.reserve_bytes"):
        raise ProfileError(
            f"hardware profile {origin!r}: key 'allocator.reserve_bytes': expected: field required; found nothing"
        )
    _check_sources(document, read.sources, origin)
    values = {k: v for k, v in asdict(read).items() if k not in _UNPRICED}
    if values["device"] is not None and not values["device"]["product_efficiency_by_alignment"]:
        del values["device"]["product_efficiency_by_alignment"]  # prices as profiles did that could not state it
    canonical = json.dumps(_numbers_as_floats(values), sort_keys=True, separators=(",", ":"))
    return HardwareProfile(
        name=read.name,
        description=read.description,
        device=read.device,
        server=read.server,
        island=read.island,
        network=read.network,
        protocols=read.protocols,
        axes=read.axes,
        heavy_operators_must_split=read.heavy_operators_must_split,
        sources=read.sources,
        digest=hashlib.sha256(canonical.encode()).hexdigest(),
        supernode=read.supernode,
        nccl=read.nccl,
        measured=read.measured,
        framework=read.framework,
        host=read.host,
        allocator=read.allocator,
        prediction=read.prediction,
    )


def _check_parts(read: _File, origin: str) -> None:
    """A profile prices collectives by mesh axis or by links, not by a mixture."""
    links = {"server": read.server, "network": read.network, "protocols": read.protocols or read.nccl}
    given = [k for k, v in links.items() if v is not None]
    if read.axes is not None:
        given += [k for k, v in (("island", read.island), ("supernode", read.supernode)) if v is not None]
        if given or read.measured != MeasuredSpec():
            raise ProfileError(
                f"hardware profile {origin!r}: expected either the table 'axes' or the links of a machine, "
                f"found 'axes' and {', '.join(map(repr, given or ['measured']))}; remove one"
            )
        return
    if read.nccl is not None and read.protocols:
        raise ProfileError(
            f"hardware profile {origin!r}: expected 'nccl' or 'protocols', found both; remove one (they price the same)"
        )
    missing = [k for k, v in {"device": read.device, **links}.items() if v is None]
    if missing:
        raise ProfileError(
            f"hardware profile {origin!r}: expected the tables 'device', 'server', 'network' and 'protocols' "
            f"(or 'axes' alone), found no {', '.join(map(repr, missing))}; add them"
        )
    if read.nccl is None and not any(set(p.algorithms) - {"tree", "in_switch"} for p in read.protocols):
        raise ProfileError(
            f"hardware profile {origin!r}: key 'protocols.algorithms': expected 'ring' or 'mesh' or another that "
            "serves every collective in one protocol at least ('tree' and 'in_switch' serve all-reduce only), "
            "found none"
        )
    if read.island is not None and read.server is not None and read.server.devices % read.island.devices:
        raise ProfileError(
            f"hardware profile {origin!r}: key 'island.devices': expected a divisor of server.devices = "
            f"{read.server.devices}, found {read.island.devices}"
        )
    if read.supernode is not None and read.server is not None and read.supernode.devices % read.server.devices:
        raise ProfileError(
            f"hardware profile {origin!r}: key 'supernode.devices': expected a multiple of server.devices = "
            f"{read.server.devices}, found {read.supernode.devices}"
        )


def _check_sources(document: Mapping[str, Any], sources: Mapping[str, str], origin: str) -> None:
    keys = [k for top, v in document.items() if top not in _UNPRICED for k in _leaves(top, v)]
    for key in keys:
        if not any(above in sources for above in _prefixes(key)):
            raise ProfileError(
                f"hardware profile {origin!r}: key {key!r}: expected a note on its source under [sources], "
                f'found none; add "{key}" = "..." (begin with "assumed:" if nothing backs it)'
            )
    known = {above for key in keys for above in _prefixes(key)}
    for noted in sources:
        if noted not in known:
            raise ProfileError(
                f"hardware profile {origin!r}: key 'sources.{noted}': expected the key of a value, found none so named"
            )


def _leaves(key: str, value: Any) -> Iterator[str]:
    """Dotted keys of the values below `key`; tables of an array are told apart by their `name`."""
    if isinstance(value, dict):
        for k, v in value.items():
            if k != "name":
                yield from _leaves(f"{key}.{k}", v)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, item in enumerate(value):
            yield from _leaves(f"{key}.{item.get('name', i)}", item)
    else:
        yield key


def _prefixes(key: str) -> Iterator[str]:
    parts = key.split(".")
    return (".".join(parts[:i]) for i in range(len(parts), 0, -1))


def _plain(offset: OffsetSpec) -> dict[str, float]:
    return {name: getattr(offset, name) for name in OffsetSpec.__slots__}


def _numbers_as_floats(value: Any) -> Any:
    """80e9 and 80_000_000_000 are one value and must have one digest."""
    if isinstance(value, dict):
        return {k: _numbers_as_floats(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers_as_floats(v) for v in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _explain(error: ValidationError, origin: str) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"])) or "(top level)"
    found = "nothing" if first["type"] in ("missing", "missing_argument") else repr(first["input"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    expected = first["msg"][0].lower() + first["msg"][1:]
    return f"hardware profile {origin!r}: key {key!r}: expected: {expected}; found {found[:120]}{more}"
