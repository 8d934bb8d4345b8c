"""The functions of `planner.checkpoint`: what `planner checkpoint` does, for Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from planner.checkpoint.comparing import compared, unsound
from planner.checkpoint.families import Mapped, mapped
from planner.checkpoint.layouts import Layouts, layouts_of_plan, read_layouts
from planner.checkpoint.moving import OPTIMIZERS, TransferPlan
from planner.checkpoint.moving import transfer_plan as moves
from planner.checkpoint.needs import ranks_needed
from planner.checkpoint.renaming import rules_of
from planner.checkpoint.source import Checkpoint, open_checkpoint
from planner.checkpoint.transforming import Options, Transformed, planned_by_rank, transform_all
from planner.errors import OptionError
from planner.planning.document import PlanDocument
from planner.stored.elements import weight_type

__all__ = ["TransferPlan", "Transformed", "merge", "ranks", "split", "transfer_plan", "transform", "verify"]

PathLike = str | os.PathLike[str]


class HasPlan(Protocol):
    """A `planner.Plan`."""

    @property
    def document(self) -> PlanDocument: ...


Plan = PathLike | HasPlan


def transform(
    src: PathLike,
    dst: PathLike,
    *,
    source: Plan | None = None,
    target: Plan | None = None,
    format: str = "",
    ranks: Sequence[int] = (),
    map: Mapping[str, Any] | PathLike | None = None,
    config: PathLike | None = None,
    skip: Sequence[str] = (),
    dtype: str | None = None,
    partial: bool = False,
    memory: int = 256 << 20,
    workers: int = 2,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Transformed:
    """Writes a checkpoint anew, for another plan or in another format.

    Args:
        src: a checkpoint: a folder with a file of each rank, one of Hugging Face or of torch.distributed.checkpoint, or
            a file of whole tensors.
        dst: where the new one will be; it is there whole or not at all.
        source: how the ranks of `src` hold it: a plan, its file, or a strategy file of MindSpore.
        target: how the ranks of `dst` will hold it; whole tensors without it.
        format: safetensors, mindspore, npz, torch, huggingface, dcp, megatron, deepspeed (a universal checkpoint) or
            deepspeed-zero3 (one for ZeRO 3 of DeepSpeed up to 0.19.0); by default what the ending of `dst` says, or a
            known mapping, or as `src`.
        ranks: the ranks of `target` to write, each whole or not at all, beside those that other calls write; all by
            default.
        map: other names, turned, joined, cut and stacked tensors, a JSON file of them, or the name of a known mapping
            such as "hf-llama:megatron" (docs/checkpoints.md).
        config: a config.json of Hugging Face, with the sizes that a known mapping needs; by default that in `src`.
        skip: patterns of names that are left out.
        dtype: the type that weights become, such as "bf16"; an optimizer's state stays as it is.
        partial: whether parameters that one side alone has are left out.
        memory: bytes that are held at once, beside Python's own.
        workers: threads that copy.
        resume: whether to go on with what an earlier call has left.
        force: whether to replace what is at `dst`.
        progress: is called with the bytes that are done and those of all.

    Returns:
        What was read and written.

    Raises:
        InputError: files cannot be read, do not fit the layouts, or lack a part.
        UsageError: something is at `dst`, its disk is full, or options do not go together.
    """
    for word, value in (("memory", memory), ("workers", workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{word}={value!r}: expected a whole number from 1 on")
    after = _layouts(target)
    chosen = _ranks(ranks, after) if after is not None else tuple(ranks)
    opened = open_checkpoint(Path(src), _layouts(source), skip)
    found = _mapped(map, config, opened, skip)
    options = Options(
        format=format or found.format_of(Path(dst), after is not None), ranks=chosen, memory=memory,
        workers=workers, dtype=_dtype(dtype), rules=found.rules, skip=tuple(skip), partial=partial, force=force,
        resume=resume, beside=found.beside,
    )  # fmt: skip
    plans = planned_by_rank(opened, Path(dst), after, options)
    return Transformed.together(str(dst), transform_all(plans, progress))


def merge(src: PathLike, file: PathLike, *, source: Plan, **options: Any) -> Transformed:
    """Writes the ranks' files of a checkpoint as one file of whole tensors; options are those of `transform`."""
    return transform(src, file, source=source, **options)


def split(file: PathLike, dst: PathLike, *, target: Plan, **options: Any) -> Transformed:
    """Writes a file of whole tensors as one file for each rank; options are those of `transform`."""
    return transform(file, dst, target=target, **options)


def ranks(source: Plan, target: Plan, ranks: Sequence[int] = ()) -> tuple[int, ...]:
    """The fewest ranks of `source` whose files hold what these ranks of `target` need; all of them by default.

    Raises:
        InputError: the plans are of different models.
        OptionError: `target` has no such rank.
    """
    before, after = _known(source), _known(target)
    return ranks_needed(before, after, _ranks(ranks, after) or range(after.ranks))


def transfer_plan(source: Plan, target: Plan, *, lost: Sequence[int] = (), optimizer: str = "adam") -> TransferPlan:
    """Who sends which part of which tensor to whom, when running devices change from a plan to another.

    Args:
        source: the plan that they run.
        target: the plan that they shall run.
        lost: ranks of `source` that are gone.
        optimizer: adam, momentum or sgd, whose state moves with the parameters.

    Returns:
        The messages, the device of each rank, and what is lost; `planner.torch.exchange` carries out its `schedule`.
    """
    if optimizer not in OPTIMIZERS:
        raise OptionError(f"optimizer={optimizer!r}: expected one of {', '.join(OPTIMIZERS)}")
    return moves(_known(source), _known(target), lost=lost, optimizer=optimizer)


def verify(
    checkpoint: PathLike, *, against: PathLike | None = None, source: Plan | None = None, target: Plan | None = None
) -> list[str]:
    """What of a checkpoint is not as it was written, a line each; with `against`, what differs from that checkpoint.

    Args:
        checkpoint: one that was written here.
        against: the one that it was made of.
        source: how the ranks of `against` hold it.
        target: how the ranks of `checkpoint` hold it.

    Raises:
        InputError: it has no checksums and `against` is not given, or files cannot be read.
    """
    if against is None:
        return unsound(Path(checkpoint))[0]
    return compared(Path(against), Path(checkpoint), _layouts(source), _layouts(target))[0]


def _layouts(plan: Plan | None) -> Layouts | None:
    return None if plan is None else _known(plan)


def _known(plan: Plan) -> Layouts:
    if isinstance(plan, (str, os.PathLike)):
        return read_layouts(Path(plan))
    document = getattr(plan, "document", None)
    if not isinstance(document, PlanDocument):
        raise OptionError(f"expected a plan, or the path of a file that says how tensors lie, found {plan!r:.80}")
    return layouts_of_plan(document, "the plan")


def _ranks(given: Sequence[int], layouts: Layouts) -> tuple[int, ...]:
    """Each once, in their order.  OptionError where the layouts have no such rank."""
    for rank in given:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < layouts.ranks:
            raise OptionError(f"ranks: {layouts.said} is for ranks 0 to {layouts.ranks - 1}, found {rank!r}")
    return tuple(dict.fromkeys(given))


def _dtype(name: str | None) -> Any:
    try:
        return None if name is None else weight_type(name)
    except ValueError as e:
        raise OptionError(f"dtype: {e}") from e


def _mapped(
    given: Mapping[str, Any] | PathLike | None, config: PathLike | None, source: Checkpoint, skip: Sequence[str]
) -> Mapped:
    if isinstance(given, Mapping):
        if config is not None:
            raise OptionError("config: goes with the name of a known mapping, found map of names")
        return Mapped(rules_of(given, "map"))
    return mapped(None if given is None else os.fspath(given), None if config is None else Path(config), source, skip)
