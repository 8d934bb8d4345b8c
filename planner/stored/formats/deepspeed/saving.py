"""Files of a universal checkpoint, each a value that torch.save writes with tensors in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.stored.formats.archive import Zipped
from planner.stored.formats.crc import patches
from planner.stored.formats.layout import Arranged, Content, Entry
from planner.stored.formats.nested import is_plain
from planner.stored.formats.pickled import Call, Made, Name
from planner.stored.formats.torch_file import TorchFile, saved

__all__ = ["VERSION", "SavedFile", "bytes_of_saved", "loss_scaler"]

VERSION: Final = "0.19.8"  # of DeepSpeed, as which files are written
_SCALERS: Final = tuple(
    Name("deepspeed.runtime.fp16.loss_scaler", name) for name in ("LossScaler", "DynamicLossScaler")
)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file in which tensors stand in a value that `build` makes of them, by name."""

    build: Callable[[Mapping[str, Entry]], Any]
    name: str = "deepspeed"
    suffixes: tuple[str, ...] = (".pt",)

    def read(self, file: Path) -> Content:
        return TorchFile().read(file)

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        made = self._made(entries)
        offsets = {e.name: made.begins[f"archive/data/{i}"] for i, e in enumerate(entries)}
        return Arranged(made.size, made.fixed, offsets, summed=True)

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        made = self._made(entries)
        found: list[tuple[int, bytes]] = []
        for i, e in enumerate(entries):
            found += patches(made.sums[f"archive/data/{i}"], b"", sums[e.name], e.nbytes)
        return found

    def _made(self, entries: Sequence[Entry]) -> Zipped:
        return saved(entries, self.build({e.name: e for e in entries}))


def bytes_of_saved(value: Any) -> bytes:
    """The file of a value without tensors."""
    made = saved([], value)
    out = bytearray(made.size)
    for offset, data in made.fixed:
        out[offset : offset + len(data)] = data
    return bytes(out)


def loss_scaler(value: Any) -> Made | None:
    """DeepSpeed's own loss scaler, to be written again: no other class, which a reader of the file would make."""
    if not isinstance(value, Call) or value.name not in _SCALERS or value.arguments:
        return None
    if not isinstance(value.state, dict) or not all(map(is_plain, value.state.values())):
        return None
    return Made(value.name, dict(value.state))
