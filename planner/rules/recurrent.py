"""Recurrent layers: the batch is split; time, directions and hidden units stay whole."""

from __future__ import annotations

from planner.rules.operator import Operator, sharded
from planner.rules.registry import opaque, rule
from planner.rules.rule import Rule

__all__: list[str] = []

opaque("it holds a sub-graph, which is executed whole on every rank", ["If", "Loop", "Scan", "SequenceMap"])
opaque(
    "it draws random numbers, which must be the same on ranks that hold replicas",
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"],
)
opaque(
    "it deals with sequences of tensors, maps, strings or optional values, which are not sharded",
    [
        "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
        "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence", "StringConcat",
        "StringNormalizer", "TfIdfVectorizer", "RegexFullMatch", "ImageDecoder", "ai.onnx.ml::ZipMap",
    ],
)  # fmt: skip


def _recurrent(o: Operator, parameters: int) -> Rule:
    """X (t b i), weights, sequence lengths and initial states to all states and the last ones.

    `layout` 1 puts the batch first.  Operands: X, W, R, B, lengths, h, c, peepholes, then scales.
    """
    batch_first = bool(o.attribute("layout", 0))
    x = "b t! i!" if batch_first else "t! b i!"
    state = "b d! h!" if batch_first else "d! b h!"
    states = "b t! d! h!" if batch_first else "t! d! b h!"
    weights = "*..., *..., *..."
    rest = ", *..." * max(parameters, 0)
    steps = float(o.shape(0)[0] * o.shape(0)[1])
    work = sum(float(_size(o, i)) for i in (1, 2))
    return sharded(
        o,
        f"{x}, {weights}, b, {state}, {state}, *...{rest} -> {states}, {state}, {state}",
        kind="matmul",
        differentiable=(0, 1, 2, 3, 5, 6, 7),
        saved=range(8),
        saved_results=(0, 1, 2),
        flops=2.0 * steps * work,
    )


def _size(o: Operator, i: int) -> int:
    size = 1
    for s in o.shape(i):
        size *= s
    return size


@rule("LSTM", "GRU", "RNN")
def _plain(o: Operator) -> Rule:
    return _recurrent(o, 0)


@rule("com.microsoft::DynamicQuantizeLSTM")
def _quantized(o: Operator) -> Rule:
    """Each call quantises its input over the whole batch, so that even the batch stays whole."""
    whole = "*..."
    return sharded(
        o,
        ", ".join([whole] * len(o.inputs)) + " -> " + ", ".join([whole] * len(o.outputs)),
        kind="matmul",
        flops=2.0 * o.shape(0)[0] * o.shape(0)[1] * (_size(o, 1) + _size(o, 2)),
    )
