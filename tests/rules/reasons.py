"""Why strategies that the prover finds right are not offered."""

from __future__ import annotations

import re
from fnmatch import fnmatch

__all__ = ["reason_for"]

_ACCIDENT = "right on the data of this case alone, which a second draw could not vary"
_PARAMETER = (
    "a weight, scale, table or mask arrives as a pending sum while the data is whole: parameters are never stored so, "
    "and each role more widens every search"
)
_TOLERANCE = "right within the tolerance of half precision only"
_SEVERAL = "some results are pending sums and others whole, of operands alike: no gradient arrives in such layouts"

# Operator types (shell patterns), what the assignment looks like (a regular expression), the reason.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "*Attention",
        r"^\[_,(_,)*_\] .* -> \[_,(_,)*x\]",
        "the depth of the values is split alone: the scores, half of the work, would be computed on every rank",
    ),
    ("*Normalization", r"\]\+x", _PARAMETER),
    ("com.microsoft::*Norm*", r"\]\+x", _PARAMETER),
    ("NegativeLogLikelihoodLoss", r"\]\+x ->", _PARAMETER),
    ("*SoftmaxCrossEntropyLoss*", r"\]\+x (\[\] )*->", _PARAMETER),
    ("Attention", r"\]\+x .*-> \[[_,]*\]\+x ", _SEVERAL),
    (
        "Attention",
        r"^(\[_,_,_,_\] ){3}\[_,x\]|^(\[_,x,_,_\] ){2}\[_,_,_,x\]|^\[_,_,x,_\] \[_,_,_,_\]\+x",
        _TOLERANCE,
    ),
    ("*LinearAttention", r"^\[[_,]*\]\+x", "queries arrive as pending sums and the state is whole: " + _SEVERAL),
    ("*RotaryEmbedding", r"\]\+x", _PARAMETER),
    ("*CausalConvWithState", r"\]\+x", _PARAMETER),
    ("*MatMul*", r"\]\+x", _PARAMETER),
    ("com.microsoft::QGemm", r"\]\+x", _PARAMETER),
    ("com.microsoft::*Attention*", r"\]\+x", _SEVERAL),
    ("com.microsoft::BatchNormInternal", r"\]\+x", _PARAMETER),
    ("com.microsoft::EmbedLayerNormalization", "", "the mask is split alone, and only the count of its rows follows"),
    ("*FlexAttention", "", "a body that the rule cannot read element by element; here it is"),
    ("*RotaryEmbedding", "", "the depth is split while the halves that rotate into each other happen to lie together"),
    ("Cast*", r"\]\+x", "a sum rounded to so few bits is not the sum of rounded terms; here nothing is rounded"),
    ("ai.onnx.preview.training::*", r"\[x\]", "one tensor of several is split and the others are whole"),
    ("com.microsoft::*MoE", r"\]\+x", _PARAMETER),
    ("com.microsoft::QLinear*", r"\]\+x", _PARAMETER),
    ("*QuantizeLinear", r"\]\+x", _PARAMETER),
    (
        "DequantizeLinear",
        r"^\[[_,]*\]\+x",
        "quantised values as a pending sum, in which no operator leaves them: rounding is no sum",
    ),
    ("STFT", r"\]\+x", _PARAMETER),
    ("CausalConvWithState", r"^\[_,_,x\]", "a window of one element, which is a product and exported as one"),
    ("CausalConvWithState", "", "a state of another length than the window, which ONNX leaves open"),
    ("LRN", r"\]\+x", "right within the tolerance only: the windows barely change the values here"),
    ("Resize", "", "the parts do not learn a size that keeps the aspect ratio"),
    ("ai.onnx.preview.training::*", r"\]\+x", "pending parameters, gradients and optimizer states all at once"),
    ("com.microsoft::ConvGrad", r"\]\+x", _SEVERAL),
    ("Scan", "", "a sub-graph decides what may be split; it is executed whole on every rank"),
    ("Optional*", "", "optional values are no tensors of a mesh"),
    ("Compress", "", "the shape of its result depends on data, and so do the shards'"),
    ("Unique", "", "the shape of its result depends on data, and so do the shards'"),
    ("*Dropout", r"\]\+x", "the mask is a second result, and no float: it is no pending sum"),
    ("com.microsoft::DropoutGrad", "", "the mask holds ones only in this case, so that any part of it serves"),
    ("Range", r"\]\+x", "scalars are whole everywhere"),
    ("Where", "", "the condition chooses one operand throughout"),
    ("Max", r"^\[_\]\+x -> \[_\]\+x$", "a maximum of one operand is the identity"),
    ("Min", r"^\[_\]\+x -> \[_\]\+x$", "a minimum of one operand is the identity"),
    ("Clip", r"\]\+x", "nothing is clipped here"),
    ("*Pool", r"\]\+x", _ACCIDENT),
    ("ai.onnx.ml::Imputer", "", "nothing is imputed here"),
    ("TfIdfVectorizer", "", "no n-gram lies across the cut in this case"),
    ("Add", r"\]\+x \[", "the other operand is zero throughout"),
    ("Concat", r"\]\+x", "one operand is empty, or zero throughout"),
    ("Split", r"\]\+x", "one result is empty, and any layout fits it"),
    ("Pad", r"\]\+x", "nothing is padded, or with zeros, by an operand that is not known"),
    ("Conv", r"\]\+x", "the bias is zero"),
)


def reason_for(type_: str, missing: str) -> str:
    """The reason, empty where none is stated."""
    assignment = missing.rpartition(": ")[2]
    for pattern, looks, reason in _REASONS:
        if fnmatch(type_, pattern) and re.search(looks, assignment):
            return reason
    return ""
