"""What a constraints file says of the job, as options of `planner search`, or held against those that were given."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import InputError
from planner.planning.constraints import JobDescription
from planner.requests.search import SearchRequest

__all__ = ["check_devices", "take_job"]


def take_job(options: SearchRequest, job: JobDescription) -> None:
    """Sets what was left to its default.

    InputError where an option says otherwise, or the file leaves a choice that has to be made.
    """
    options.stages = _one_of(job, "stages", "--stages", job.stages, options.stages, 1) or 1
    options.micro_batches = _one_of(
        job, "micro-batches", "--micro-batches", job.micro_batches, options.micro_batches, None
    )
    if job.uniform_stages and options.stages > 1:
        raise InputError(
            f"constraints {job.where}: stage_partition_mode is uniform; stages are cut where they take the same time: "
            "leave it out"
        )
    if job.batch is not None:
        if options.batch not in (None, job.batch):
            raise InputError(
                f"constraints {job.where}: the batch is {job.batch}, and --batch {options.batch}; keep one"
            )
        options.batch = job.batch
    if job.memory_limit is not None:
        options.memory_limit = min(job.memory_limit, options.memory_limit or job.memory_limit)
    if job.recompute is not None:
        if options.recompute not in ("auto", job.recompute):
            raise InputError(
                f"constraints {job.where}: recomputation is {job.recompute}, and --recompute {options.recompute}; keep "
                "one"
            )
        options.recompute = job.recompute


def check_devices(job: JobDescription, devices: int, hardware: str) -> None:
    """InputError where the command is for other devices than the file."""
    if job.devices not in (None, devices):
        raise InputError(f"constraints {job.where}: is for {job.devices} devices, and --devices says {devices}")
    if job.hardware not in (None, hardware):
        raise InputError(
            f"constraints {job.where}: is for {job.hardware}; give --hardware {job.hardware}, not {hardware}"
        )


def _one_of(
    job: JobDescription, what: str, option: str, allowed: Sequence[int], given: int | None, default: int | None
) -> int | None:
    if not allowed or given in allowed:
        return given
    if given in (None, default) and len(allowed) == 1:
        return allowed[0]
    raise InputError(
        f"constraints {job.where}: allows {', '.join(map(str, allowed))} {what}, "
        f"{'which are searched one at a time' if given in (None, default) else f'not {given}'}: give {option} with one"
    )
