"""Operators that stay whole on every rank, with the reason."""

from __future__ import annotations

from planner.rules.registry import opaque

__all__: list[str] = []

opaque("it holds a sub-graph, which is executed whole on every rank", ["If", "Loop", "Scan", "SequenceMap"])
opaque(
    "it deals with sequences of tensors, maps, strings or optional values, which are not sharded",
    [
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
        "StringConcat",
        "StringNormalizer",
        "RegexFullMatch",
        "ImageDecoder",
        "ai.onnx.ml::ZipMap",
    ],
)
opaque(
    "its value is the same on every rank",
    ["Constant"],
)
opaque("the shape of its result depends on data", ["Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"])
