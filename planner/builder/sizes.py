"""Sizes of an architecture: frozen dataclasses whose fields are the options of `planner build`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from planner.errors import UsageError

__all__ = ["MAX_LAYERS", "SequenceSizes", "Sizes", "flag", "option", "require_multiple"]

MAX_LAYERS = 2000  # some 70,000 operators; the importer refuses above 200,000
MAX_SIZE = 10**9


def option(default: int | None, help: str, most: int = MAX_SIZE) -> Any:
    """A size: a positive integer of at most `most`, or None for one that follows from the others."""
    return field(default=default, metadata={"help": help, "most": most})


def flag(name: str) -> str:
    """`kv_heads` → `--kv-heads`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all architectures have.  UsageError naming the option for sizes that cannot be."""

    layers: int = option(12, "layers", most=MAX_LAYERS)
    batch: int = option(8, "global batch: samples per step")
    inference: bool = field(default=False, metadata={"help": "end in the logits, without labels and loss"})

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "most" not in f.metadata or value is None:
                continue
            if not 1 <= value <= f.metadata["most"]:
                raise UsageError(f"{flag(f.name)} {value}: expected 1 to {f.metadata['most']}")
        self.check()

    def check(self) -> None:
        """What architectures demand of their sizes together."""

    def command(self, architecture: str) -> str:
        """The options that give these sizes, those at their defaults left out."""
        words = [architecture]
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                words += [flag(f.name)] if value is True else [flag(f.name), str(value)]
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSizes(Sizes):
    """A transformer over tokens."""

    hidden: int = option(768, "width of the residual stream")
    heads: int = option(12, "attention heads")
    ffn: int | None = option(None, "width of the feed-forward layers; default: four times --hidden")
    vocab: int = option(50257, "size of the vocabulary")
    seq: int = option(1024, "tokens per sample")

    @property
    def depth(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def inner(self) -> int:
        """Width of the feed-forward layers."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    def check(self) -> None:
        require_multiple("hidden", self.hidden, "heads", self.heads)


def require_multiple(whole: str, size: int, part: str, count: int) -> None:
    """UsageError unless the size `whole` is a multiple of `part`."""
    if size % count:
        near = max(1, round(size / count)) * count
        raise UsageError(
            f"{flag(whole)} {size} is no multiple of {flag(part)} {count}; the nearest that is: {flag(whole)} {near}"
        )
