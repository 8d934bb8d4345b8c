"""Sizes of an architecture: frozen dataclasses whose fields are the options of `planner build`.

A field is a number (`option`), one of a few words (`choice`) or a yes or no (`switch`).
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from planner.errors import UsageError

__all__ = [
    "MAX_LAYERS",
    "DecoderSizes",
    "SequenceSizes",
    "Sizes",
    "choice",
    "flag",
    "option",
    "position_rows",
    "require_even_depth",
    "require_multiple",
    "switch",
]

MAX_LAYERS = 2000  # some 70,000 operators; the importer refuses above 200,000
MAX_SIZE = 10**9


def option(default: int | None, help: str, most: int = MAX_SIZE, *, least: int = 1) -> Any:
    """A size: an integer from `least` to `most`, or None for one that follows from the others."""
    return field(default=default, metadata={"help": help, "least": least, "most": most})


def choice(default: str, help: str, *others: str) -> Any:
    """One of several words, the default first."""
    return field(default=default, metadata={"help": help, "choices": (default, *others)})


def switch(default: bool, help: str) -> Any:
    """Yes or no: `--name` where the default is no, `--no-name` where it is yes."""
    return field(default=default, metadata={"help": help})


def flag(name: str) -> str:
    """`kv_heads` → `--kv-heads`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all architectures have.  UsageError naming the option for sizes that cannot be."""

    layers: int = option(12, "number of layers", most=MAX_LAYERS)
    batch: int = option(8, "global batch: samples per step")
    inference: bool = switch(False, "end in the logits, without labels and loss")

    def __post_init__(self) -> None:
        for f in fields(self):
            expected = _expected(f, getattr(self, f.name))
            if expected:
                raise UsageError(f"{flag(f.name)} {getattr(self, f.name)}: expected {expected}")
        self.check()

    def check(self) -> None:
        """What architectures demand of their sizes together."""

    def command(self, architecture: str) -> str:
        """The options that give these sizes, those at their defaults left out."""
        words = [architecture]
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, bool):
                words += [flag(f.name) if value else flag(f"no_{f.name}")] if value != f.default else []
            elif value != f.default:
                words += [flag(f.name), str(value)]
        return " ".join(words)


def _expected(f: Field[Any], value: object) -> str:
    """What the field would have allowed; empty if it allows the value."""
    if isinstance(f.default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if "choices" in f.metadata:
        return "" if value in f.metadata["choices"] else " or ".join(f.metadata["choices"])
    least, most = f.metadata["least"], f.metadata["most"]
    if value is None and f.default is None:
        return ""
    fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    return "" if fits else f"{least} to {most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSizes(Sizes):
    """A transformer over tokens."""

    hidden: int = option(768, "width of the residual stream")
    heads: int = option(12, "number of attention heads")
    ffn: int | None = option(None, "width of the feed-forward layers; default: four times --hidden")
    vocab: int = option(50257, "size of the vocabulary")
    seq: int = option(1024, "number of tokens per sample")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes(SequenceSizes):
    """A decoder of blocks that attend to what lies before a token, queries in groups that share a key head."""

    kv_heads: int | None = option(None, "number of heads of keys and values; default: --heads")
    attention: str = choice(
        "unfused",
        "write attention as operators for scores, softmax and weighted sum, or as one Attention operator",
        "fused",
    )

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def check(self) -> None:
        SequenceSizes.check(self)
        require_multiple("heads", self.heads, "kv_heads", self.key_heads)


def position_rows(context: int | None, seq: int) -> int:
    """Rows of a table of learned positions; UsageError for fewer than there are tokens."""
    rows = seq if context is None else context
    if rows < seq:
        raise UsageError(
            f"{flag('context')} {rows} is shorter than {flag('seq')} {seq}; "
            "every token needs a row of the position table"
        )
    return rows


def require_multiple(whole: str, size: int, part: str, count: int) -> None:
    """UsageError unless the size `whole` is a multiple of `part`."""
    if size % count:
        near = max(1, round(size / count)) * count
        raise UsageError(
            f"{flag(whole)} {size} is no multiple of {flag(part)} {count}; the nearest that is: {flag(whole)} {near}"
        )


def require_even_depth(sizes: SequenceSizes) -> None:
    """UsageError unless rotary positions, which turn pairs, fit the width of a head."""
    if sizes.depth % 2:
        given = f"{flag('hidden')} {sizes.hidden} over {flag('heads')} {sizes.heads}"
        raise UsageError(
            f"{given} makes heads of odd width {sizes.depth}; rotary positions turn pairs, so it must be even"
        )
