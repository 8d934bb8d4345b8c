"""Operators that stay whole on every rank, with the reason."""

from __future__ import annotations

from planner.rules.registry import opaque

__all__: list[str] = []

opaque("it holds a sub-graph, which is executed whole on every rank", ["If", "Loop", "Scan", "SequenceMap"])
opaque(
    "it draws random numbers, which must be the same on ranks that hold replicas",
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"],
)
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
        "TfIdfVectorizer",
        "RegexFullMatch",
        "ImageDecoder",
        "ai.onnx.ml::ZipMap",
    ],
)
opaque(
    "its result is made from a shape or a range and every rank needs all of it",
    ["Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size"],
)
opaque("the shape of its result depends on data", ["Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"])
opaque("its scale is taken over the whole tensor", ["DynamicQuantizeLinear"])
