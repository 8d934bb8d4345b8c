"""`planner checkpoint transform|merge|split|ranks|verify|inspect`: checkpoints that follow the plan."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import not_negative, positive, ranks, size_with_unit

if TYPE_CHECKING:
    from planner.checkpoint.source import Checkpoint
    from planner.checkpoint.transforming import Options, Transformed

__all__ = ["configure", "run"]

_LAYOUT = "a plan.json or its folder, or a strategy file of MindSpore"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, line: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")

    p = action("transform", "write a checkpoint anew, for another plan or in another format")
    p.add_argument("source", type=Path, metavar="SRC", help="checkpoint to read: a folder, or a file")
    p.add_argument("target", type=Path, metavar="DST", help="folder or file that is written")
    p.add_argument("--from", dest="before", type=Path, metavar="PLAN", help=f"how SRC's ranks hold it: {_LAYOUT}")
    p.add_argument(
        "--to", dest="after", type=Path, metavar="PLAN", help=f"how the ranks of DST will hold it: {_LAYOUT}"
    )
    p.add_argument(
        "--rank",
        type=not_negative,
        action="append",
        default=[],
        metavar="R",
        help="write this rank alone; may be repeated",
    )
    _add_writing(p)

    p = action("merge", "write the ranks' files of a checkpoint as one file of whole tensors")
    p.add_argument("source", type=Path, metavar="SRC", help="a checkpoint of ranks")
    p.add_argument("target", type=Path, metavar="FILE", help="file to write: .safetensors, .ckpt, .npz or .pt")
    p.add_argument(
        "--from",
        dest="before",
        type=Path,
        required=True,
        metavar="PLAN",
        help=f"how the ranks of SRC hold it: {_LAYOUT}",
    )
    p.set_defaults(after=None, rank=[])
    _add_writing(p)

    p = action("split", "write a file of whole tensors as one file for each rank")
    p.add_argument("source", type=Path, metavar="FILE", help="a file or folder of whole tensors")
    p.add_argument("target", type=Path, metavar="DST", help="the folder, in which rank_N/ will be")
    p.add_argument(
        "--to", dest="after", type=Path, required=True, metavar="PLAN", help=f"how ranks will hold it: {_LAYOUT}"
    )
    p.add_argument(
        "--rank",
        type=not_negative,
        action="append",
        default=[],
        metavar="R",
        help="write this rank alone; may be repeated",
    )
    p.set_defaults(before=None)
    _add_writing(p)

    p = action("ranks", "say which ranks' files are needed to make those of another plan")
    p.add_argument("--from", dest="before", type=Path, required=True, metavar="PLAN", help=_LAYOUT)
    p.add_argument("--to", dest="after", type=Path, required=True, metavar="PLAN", help=_LAYOUT)
    p.add_argument(
        "--rank",
        type=not_negative,
        action="append",
        default=[],
        metavar="R",
        help="name the files for this rank of --to alone; may be repeated",
    )
    add_json_option(p)

    p = action("plan", "say who sends which part to whom when running devices change from a plan to another")
    p.add_argument(
        "--from", dest="before", type=Path, required=True, metavar="PLAN", help="plan that the devices run now"
    )
    p.add_argument(
        "--to", dest="after", type=Path, required=True, metavar="PLAN", help="plan that the devices are to run"
    )
    p.add_argument(
        "--optimizer",
        choices=("adam", "momentum", "sgd"),
        default="adam",
        help="optimizer whose state moves with the parameters; default: adam",
    )
    p.add_argument(
        "--dtype",
        default="fp32",
        metavar="TYPE",
        help="number format of parameters, while the optimizer's state is in fp32; default: fp32",
    )
    p.add_argument("--lost", type=ranks, default=(), metavar="R,R,…", help="ranks of --from that are lost")
    p.add_argument("--out", type=Path, metavar="FILE", help="write all messages there, as JSON")
    add_json_option(p)

    p = action("verify", "compare a checkpoint with its checksums, the one that it was made of, or copies among ranks")
    p.add_argument("source", type=Path, metavar="CHECKPOINT", help="checkpoint to look at: a folder, or a file")
    p.add_argument(
        "--against", type=Path, metavar="SRC", help="the checkpoint that it was made of: compare every element"
    )
    p.add_argument("--from", dest="before", type=Path, metavar="PLAN", help="how SRC's ranks hold it")
    p.add_argument("--to", dest="after", type=Path, metavar="PLAN", help="how CHECKPOINT's ranks hold it")
    p.add_argument(
        "--replicas", action="store_true", help="compare the replicas that several ranks of CHECKPOINT hold under --to"
    )
    add_json_option(p)

    p = action("inspect", "show the tensors of a checkpoint and their layouts")
    p.add_argument("source", type=Path, metavar="CHECKPOINT", help="checkpoint to look at: a folder, or a file")
    p.add_argument("--from", dest="before", type=Path, metavar="PLAN", help=f"how its ranks hold it: {_LAYOUT}")
    add_json_option(p)


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
    return {"ranks": _ranks, "plan": _plan, "verify": _verify, "inspect": _inspect}.get(options.action, _transform)(
        options
    )


def _transform(options: argparse.Namespace) -> int:
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
        show_progress(f"{_size(done)} of {_size(total)}", done / total if total else 1.0)

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
    ranks = f" from ranks {_some(done.read_ranks)}" if done.read_ranks else ""
    what = f"{done.tensors} tensors, {_size(done.target_bytes)} in {len(done.files)} files ({done.format}){ranks}"
    if options.dry_run:
        print(f"{done.place}: would be written: {what}, in about {seconds:.1f} s, as its first 64 MiB went")
    else:
        again = f", {_size(done.found_bytes)} of them by an earlier run" if done.found_bytes else ""
        rate = f" ({_size(done.written_bytes / seconds)}/s)" if seconds > 0 else ""
        print(f"{done.place}: {what}{again}, in {seconds:.1f} s{rate}")
    if done.everywhere:
        print(f"whole on every rank, since no layout says how they lie: {_some(done.everywhere)}")
    if done.skipped:
        print(f"left out: {_some(done.skipped)}")
    if done.values:
        print(f"left out, since {done.format} has no place for it: {_some(_grouped(done.values))}")
    if done.carried:
        print(f"goes along: {_some(_grouped(done.carried))}")


def _grouped(names: Sequence[str]) -> list[str]:
    """Several keys of one dictionary as `dictionary.* (count)`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return [text for prefix, found in groups.items()
            for text in ([f"{prefix}.* ({len(found)})"] if prefix and len(found) > 2 else found)]  # fmt: skip


def _some(items: Any, most: int = 12) -> str:
    found = list(map(str, items))
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"


def _ranks(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.needs import ranks_needed

    before, after = read_layouts(options.before), read_layouts(options.after)
    chosen = options.rank or list(range(after.ranks))
    if max(chosen) >= after.ranks:
        raise UsageError(f"--rank {max(chosen)}: {after.said} is for ranks 0 to {after.ranks - 1}")
    found = {r: ranks_needed(before, after, [r]) for r in chosen}
    together = ranks_needed(before, after, chosen)
    if options.json:
        print(json.dumps({"ranks": {str(r): list(v) for r, v in found.items()}, "together": list(together)}, indent=1))
        return 0
    for r, needed in found.items():
        print(f"rank {r}: needs the files of {_some(needed)}")
    if len(found) > 1:
        print(f"all together: {len(together)} of {before.ranks} ranks: {_some(together)}")
    return 0


def _plan(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.moving import transfer_plan
    from planner.files import write_whole
    from planner.stored.elements import element_type

    try:
        itemsize = element_type(options.dtype).itemsize
    except ValueError as e:
        raise UsageError(f"--dtype: {e}") from e
    before, after = read_layouts(options.before), read_layouts(options.after)
    outside = [r for r in options.lost if r >= before.ranks]
    if outside:
        raise UsageError(f"--lost {outside[0]}: {before.said} is for ranks 0 to {before.ranks - 1}")
    found = transfer_plan(before, after, optimizer=options.optimizer, itemsize=itemsize, lost=options.lost)
    document = found.document()
    if options.out is not None:
        try:
            write_whole(options.out, json.dumps(document).encode())
        except OSError as e:
            raise UsageError(f"--out {options.out}: cannot be written: {e.strerror}") from e
    if options.json:
        print(json.dumps(document, indent=1))
        return 0
    moved, state = found.schedule.moved_bytes, found.state_bytes
    of_state = f" ({moved / state:.2f} of parameters and state)" if state else ""
    kept = f"{_size(found.schedule.kept_bytes)} stay in place"
    print(f"{_size(moved)} move between {found.devices} devices{of_state}; {kept}")
    print(f"a device sends at most {_size(document['most_sent_bytes'])}, receives at most "
          f"{_size(document['most_received_bytes'])}")  # fmt: skip
    elsewhere = [f"rank {r} on device {d}" for r, d in enumerate(document["placement"]) if r != d]
    if elsewhere:
        print(f"ranks of {after.said} that are not on the device of their number: {_some(elsewhere)}")
    fresh = [d for d in document["placement"] if d >= before.ranks]
    if fresh:
        print(f"devices that hold nothing yet: {_some(fresh)}")
    if found.lost:
        print(f"some parts are lost, to be read from a checkpoint: {_some(found.lost)}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from planner.checkpoint.comparing import compared, unlike, unsound
    from planner.checkpoint.layouts import read_layouts

    layouts = [None if p is None else read_layouts(p) for p in (options.before, options.after)]
    if options.replicas:
        after = layouts[1] or layouts[0]
        if after is None or options.against is not None:
            raise UsageError("--replicas: give --to, how the ranks hold CHECKPOINT, and no --against")
        found, checked = unlike(options.source, after)
    elif options.against is None:
        found, checked = unsound(options.source)
    else:
        found, checked = compared(options.against, options.source, *layouts)
    if options.json:
        print(json.dumps({"ok": not found, "faults": found, "checked": checked}, indent=1))
    else:
        for line in found[:50]:
            print(line)
        if len(found) > 50:
            print(f"and {len(found) - 50} more")
        against = "its checksums" if options.against is None else str(options.against)
        against = "their copies on other ranks" if options.replicas else against
        print(f"{'FAILED' if found else 'ok'}: {options.source}: {checked} tensors compared with {against}")
    return 1 if found else 0


def _inspect(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.source import open_checkpoint

    found = open_checkpoint(options.source, None if options.before is None else read_layouts(options.before))
    rows: list[dict[str, Any]] = []
    for name, held in found.tensors.items():
        said = found.said[name]
        lays = found.layouts
        spread = None
        if lays is not None and said.parameter:
            spread = lays.of_slot(said.parameter) if said.slot else lays.parameters[said.parameter]
        rows.append({
            "name": name, "shape": list(held.shape), "dtype": held.dtype.name, "bytes": held.nbytes,
            "parameter": said.parameter, "slot": said.slot, "pieces": len(held.pieces.distinct()[0]),
            "layout": None if spread is None else f"{spread.layout} on {spread.mesh}",
        })  # fmt: skip
    if options.json:
        values = {k: v for k, v in found.values.items() if isinstance(v, (str, int, float, bool, type(None)))}
        print(json.dumps({"kind": found.kind, "format": found.format, "files": [str(f) for f in found.files],
                          "ranks": list(found.ranks), "tensors": rows, "values": values}, indent=1))  # fmt: skip
        return 0
    total = sum(int(r["bytes"]) for r in rows)
    files = f"{len(found.files)} files"
    print(f"{options.source}: {found.kind}, {found.format}: {len(rows)} tensors, {_size(total)} in {files}")
    width = min(60, max((len(r["name"]) for r in rows), default=4))
    for r in rows:
        lies = f"  {r['layout']}" if r["layout"] else (f"  {r['pieces']} pieces" if r["pieces"] != 1 else "")
        slot = f"  {r['slot']} of {r['parameter']}" if r["slot"] else ""
        print(f"  {r['name']:<{width}}  {r['dtype']:<9} {list(r['shape'])!s}{lies}{slot}")
    return 0
