"""The classical models of ai.onnx.ml, and their tables: every row (or element) is treated on its own.

The parameters of a model are attributes, not tensors: features, classes, trees and support vectors cannot be split.
"""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import opaque, rule
from planner.rules.rule import Rule

__all__: list[str] = []

opaque("its operand is a map, which is not sharded", ["ai.onnx.ml::CastMap", "ai.onnx.ml::DictVectorizer"])


@rule("ai.onnx.ml::LinearClassifier", "ai.onnx.ml::SVMClassifier", "ai.onnx.ml::TreeEnsembleClassifier")
def _classifier(o: Operator) -> Rule:
    """Labels and scores per row."""
    if o.rank(0) == 1:
        return sharded(o, "* -> *, *...", kind="matmul")
    return sharded(o, "n * -> n, n *", kind="matmul", flops=2.0 * math.prod(o.shape(0)))


@rule(
    "ai.onnx.ml::LinearRegressor",
    "ai.onnx.ml::SVMRegressor",
    "ai.onnx.ml::TreeEnsemble",
    "ai.onnx.ml::TreeEnsembleRegressor",
)
def _regressor(o: Operator) -> Rule:
    if o.rank(0) == 1:
        return sharded(o, "* -> *...", kind="matmul")
    return sharded(o, "n * -> n *", kind="matmul", flops=2.0 * math.prod(o.shape(0)))


@rule("ai.onnx.ml::Normalizer", "ai.onnx.ml::Scaler", "ai.onnx.ml::Imputer")
def _per_row(o: Operator) -> Rule:
    """Norms are of rows, and parameters listed per feature; one value for all of them leaves the features free."""
    if o.rank(0) != 2:
        return sharded(o, "*... -> *...")
    lists = ("imputed_value_floats", "imputed_value_int64s", "offset", "scale")
    free = o.type != "ai.onnx.ml::Normalizer" and all(len(o.attribute(a, ())) <= 1 for a in lists)
    return sharded(o, "n d -> n d" if free else "n * -> n *", flops=2.0 * math.prod(o.result()))


@rule("ai.onnx.ml::FeatureVectorizer")
def _vectorize(o: Operator) -> Rule:
    """Features of all operands, one after the other."""
    operands = range(len(o.inputs))
    if any(o.rank(i) != 2 for i in operands):
        return sharded(o, ", ".join(["*..."] * len(o.inputs)) + " -> *...", kind="layout")
    return sharded(o, ", ".join(["n *"] * len(o.inputs)) + " -> n *", kind="layout", linear=[operands])


@rule("ai.onnx.ml::Binarizer", "ai.onnx.ml::CategoryMapper", "ai.onnx.ml::LabelEncoder")
def _elementwise(o: Operator) -> Rule:
    return sharded(o, "d... -> d...")


@rule("ai.onnx.ml::OneHotEncoder")
def _one_hot(o: Operator) -> Rule:
    """Categories are appended as the last dimension."""
    return sharded(o, "d... -> d... *", kind="layout")


@rule("ai.onnx.ml::ArrayFeatureExtractor")
def _extract(o: Operator) -> Rule:
    """Elements of the last dimension at the indices of operand 1."""
    if o.rank(0) == 1:
        return sharded(o, "*, *... -> *...", kind="gather")
    return sharded(o, f"d... *, {'i' if o.rank(1) == 1 else '1 i'} -> d... i", kind="gather", linear=[(0,)])


@rule("TfIdfVectorizer")
def _tf_idf(o: Operator) -> Rule:
    """Counts the n-grams of every row."""
    if o.rank(0) == 1:
        return sharded(o, "* -> *", kind="gather")
    return sharded(o, "n * -> n *", kind="gather", flops=float(math.prod(o.shape(0)) + math.prod(o.result())))
