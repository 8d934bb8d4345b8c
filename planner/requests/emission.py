"""The files that a runtime loads, written to a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.files import write_whole

if TYPE_CHECKING:
    from planner.emit.emission import Emission
    from planner.planning import PlanDocument
    from planner.requests.search import SearchRequest

__all__ = ["check_emitted", "emitted_beside", "other_files", "write_emission"]


def check_emitted(targets: Iterable[str], request: SearchRequest, counts: Iterable[int]) -> None:
    """UsageError where the plan of a search could not be written for a target, whatever it is."""
    from planner.emit import check_devices
    from planner.planning.planner import on_nodes
    from planner.requests.values import profile_of

    profile = profile_of(request.hardware)
    for devices in counts:
        server = on_nodes(profile, devices, request.nodes).devices_per_server
        for target in targets:
            try:
                check_devices(target, devices, server, profile.name)
            except InputError as e:
                why = str(e).removeprefix("plan: ").removesuffix(", or give --hosts")
                raise UsageError(f"--devices {devices} --emit {target}: {why}; or leave --emit out") from e


def emitted_beside(plan: PlanDocument, target: str, model: Path) -> Emission:
    """The files of a plan that was just made, with the model's own names."""
    from planner.emit import TARGETS, Given, emit

    return emit(target, Given(plan, model_file=model if "model" in TARGETS[target].needs else None))


def write_emission(emission: Emission, out: Path) -> list[Path]:
    """Where the files are, in their order.  UsageError, InputError where one cannot be written."""
    return [_write(out / name, content) for name, content in emission.files.items()]


def other_files(folder: Path, written: Iterable[Path]) -> list[str]:
    """Files of the folder that were there before: of another plan, perhaps, which a runtime would load with these."""
    own = set(written)
    return sorted(p.name for p in folder.iterdir() if p.is_file() and p not in own)


def _write(path: Path, content: bytes) -> Path:
    try:
        write_whole(path, content, executable=path.suffix == ".sh")
    except (FileExistsError, NotADirectoryError) as e:
        raise UsageError(f"--out {path.parent}: is not a directory ({e.strerror}); name another") from e
    except OSError as e:
        raise InputError(f"--out {path}: cannot be written ({e.strerror}); name another directory") from e
    return path
