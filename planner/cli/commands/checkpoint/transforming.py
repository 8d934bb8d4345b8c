"""`planner checkpoint transform`, `merge` and `split`: a checkpoint for another plan or in another format."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.commands.checkpoint.shared import LAYOUT, add_after, add_before, add_rank, size_text, some
from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import positive, size_with_unit

if TYPE_CHECKING:
    from planner.checkpoint.source import Checkpoint
    from planner.checkpoint.transforming import Options, Transformed

__all__ = ["add_arguments", "add_arguments_of_merge", "add_arguments_of_split", "run"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", type=Path, metavar="SRC", help="checkpoint to read: a folder, or a file")
    p.add_argument("target", type=Path, metavar="DST", help="folder or file that is written")
    add_before(p, f"how SRC's ranks hold it: {LAYOUT}")
    add_after(p, f"how the ranks of DST will hold it: {LAYOUT}")
    add_rank(p, "write this rank alone")
    _add_writing(p)


def add_arguments_of_merge(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", type=Path, metavar="SRC", help="a checkpoint of ranks")
    p.add_argument("target", type=Path, metavar="FILE", help="file to write: .safetensors, .ckpt, .npz or .pt")
    add_before(p, f"how the ranks of SRC hold it: {LAYOUT}", required=True)
    p.set_defaults(after=None, rank=[])
    _add_writing(p)


def add_arguments_of_split(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", type=Path, metavar="FILE", help="a file or folder of whole tensors")
    p.add_argument("target", type=Path, metavar="DST", help="the folder, in which rank_N/ will be")
    add_after(p, f"how ranks will hold it: {LAYOUT}", required=True)
    add_rank(p, "write this rank alone")
    p.set_defaults(before=None)
    _add_writing(p)


def _add_writing(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--format", default="", metavar="FORMAT",
        help="format of what is written: safetensors, mindspore, npz, torch, huggingface, dcp, megatron, deepspeed "
        "(a universal checkpoint) or deepspeed-zero3 (one for ZeRO 3 of DeepSpeed up to 0.19.0); default: what DST's "
        "ending says, or a known --map, or SRC's",
    )  # fmt: skip
    p.add_argument(
        "--dry-run", action="store_true", help="say what would be read and written, and about how long it takes"
    )
    p.add_argument(
        "--memory",
        type=size_with_unit,
        default=256 << 20,
        metavar="SIZE",
        help="memory that tensors take at once, such as 512MiB; default: 256MiB",
    )
    p.add_argument("--workers", type=positive, default=2, metavar="N", help="threads that copy; default: 2")
    p.add_argument(
        "--map",
        metavar="FILE|NAME",
        help="JSON file with other names in DST, and tensors that are transposed, joined, cut or stacked "
        "(docs/checkpoints.md); or a known mapping: hf-llama:megatron, megatron:hf-llama, and of "
        "hf-gpt2 and hf-mixtral alike",
    )
    p.add_argument(
        "--config", type=Path, metavar="FILE",
        help="the file config.json of Hugging Face with the sizes that a known mapping needs; default: that in SRC",
    )  # fmt: skip
    p.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="NAMES",
        help="leave these tensors out, such as 'adam_*'; may be repeated",
    )
    p.add_argument("--partial", action="store_true", help="leave out parameters that one side alone has")
    p.add_argument(
        "--dtype", metavar="TYPE", help="convert weights to bf16, fp16, fp32, …; an optimizer's state stays as it is"
    )
    p.add_argument("--resume", action="store_true", help="go on with what an earlier run of the same command has left")
    p.add_argument("--force", action="store_true", help="replace what is at DST")
    p.add_argument("--no-sync", action="store_true", help="do not wait until the disk has written everything")
    add_json_option(p)


def run(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.source import open_checkpoint
    from planner.checkpoint.transforming import Transformed, planned_by_rank, transform_all
    from planner.status import show_progress

    began = time.perf_counter()
    layouts = None if options.before is None else read_layouts(options.before)
    source = open_checkpoint(options.source, layouts, options.skip)
    target = None if options.after is None else read_layouts(options.after)
    plans = planned_by_rank(source, options.target, target, _options(options, source))
    if options.dry_run:
        from planner.checkpoint.trial import seconds_of

        done = Transformed.together(str(options.target), [p.done() for p in plans])
        _print(done, options, sum(map(seconds_of, plans)))
        return 0

    def progress(done: int, total: int) -> None:
        show_progress(f"{size_text(done)} of {size_text(total)}", done / total if total else 1.0)

    done = Transformed.together(str(options.target), transform_all(plans, progress))
    _print(done, options, time.perf_counter() - began)
    return 0


def _options(options: argparse.Namespace, source: Checkpoint) -> Options:
    from planner.checkpoint.families import mapped
    from planner.checkpoint.transforming import Options
    from planner.stored.elements import weight_type

    try:
        dtype = None if options.dtype is None else weight_type(options.dtype)
    except ValueError as e:
        raise UsageError(f"--dtype: {e}") from e
    found = mapped(options.map, options.config, source, options.skip)
    return Options(
        format=options.format or found.format_of(options.target, options.after is not None),
        ranks=tuple(dict.fromkeys(options.rank)), memory=options.memory, workers=options.workers, dtype=dtype,
        rules=found.rules, beside=found.beside, skip=tuple(options.skip), partial=options.partial, force=options.force,
        resume=options.resume, sync=not options.no_sync,
    )  # fmt: skip


def _print(done: Transformed, options: argparse.Namespace, seconds: float) -> None:
    if options.json:
        print(json.dumps({**done.document(), "seconds": seconds}, indent=1))
        return
    ranks = f" from ranks {some(done.read_ranks)}" if done.read_ranks else ""
    what = f"{done.tensors} tensors, {size_text(done.target_bytes)} in {len(done.files)} files ({done.format}){ranks}"
    if options.dry_run:
        print(f"{done.place}: would be written: {what}, in about {seconds:.1f} s, as its first 64 MiB went")
    else:
        again = f", {size_text(done.found_bytes)} of them by an earlier run" if done.found_bytes else ""
        rate = f" ({size_text(done.written_bytes / seconds)}/s)" if seconds > 0 else ""
        print(f"{done.place}: {what}{again}, in {seconds:.1f} s{rate}")
    if done.everywhere:
        print(f"whole on every rank, since no layout says how they lie: {some(done.everywhere)}")
    if done.skipped:
        print(f"left out: {some(done.skipped)}")
    if done.values:
        print(f"left out, since {done.format} has no place for it: {some(_grouped(done.values))}")
    if done.carried:
        print(f"goes along: {some(_grouped(done.carried))}")


def _grouped(names: Sequence[str]) -> list[str]:
    """Several keys of one dictionary as `dictionary.* (count)`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return [text for prefix, found in groups.items()
            for text in ([f"{prefix}.* ({len(found)})"] if prefix and len(found) > 2 else found)]  # fmt: skip
