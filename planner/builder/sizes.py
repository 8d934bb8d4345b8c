"""Sizes of a model to build."""

from __future__ import annotations

from dataclasses import dataclass, fields

from planner.errors import UsageError

__all__ = ["Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Fields that an architecture does not have are ignored by it.  `loss` False builds the inference graph."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 0  # 0: four times hidden (llama: 8/3, rounded up to 256)
    vocab: int = 50257
    seq: int = 128
    batch: int = 8
    experts: int = 8
    top_k: int = 2
    image: int = 224
    patch: int = 16
    classes: int = 1000
    loss: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in ("kv_heads", "ffn", "loss") else 1
            if getattr(self, field.name) < least:
                option = field.name.replace("_", "-")
                raise UsageError(f"--{option}: expected at least {least}, found {getattr(self, field.name)}")
        if self.hidden % self.heads:
            raise UsageError(f"--hidden {self.hidden} is not divisible by --heads {self.heads}")
        if self.heads % self.groups:
            raise UsageError(f"--heads {self.heads} is not divisible by --kv-heads {self.groups}")
        if self.top_k > self.experts:
            raise UsageError(f"--top-k {self.top_k} is more than --experts {self.experts}")

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    def wide(self, factor: float = 4.0, multiple: int = 1) -> int:
        """Width of the feed-forward layer."""
        return self.ffn or -(-int(self.hidden * factor) // multiple) * multiple
