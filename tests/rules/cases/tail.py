"""Small operators that few models have: optimizer steps, signals, and the classical models of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.rules.cases.values import f, i, n, p
from tests.rules.prover import Case, case

__all__ = ["long_tail"]

_ML = "ai.onnx.ml::"
_TRAINING = "ai.onnx.preview.training::"


def long_tail() -> Iterator[Case]:
    yield from _optimizers()
    yield from _signals()
    yield from _classical()


def _optimizers() -> Iterator[Case]:
    rate, count = np.float32(0.1), np.int64(3)
    momentum: dict[str, Any] = {"alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.01, "mode": "nesterov", "opset": 1}
    for shapes in ([(4, 6)], [(4, 6), (12, 2, 3), (6,)]):
        x, g, h, v = ([draw(*s) for s in shapes] for draw in (f, f, p, p))
        many = len(shapes)
        decay = {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-3, "opset": 1}
        yield case(f"{_TRAINING}Adagrad", [rate, count, *x, *g, *h], results=2 * many, **decay)
        adam = {"norm_coefficient": 0.01, "norm_coefficient_post": 0.02, "epsilon": 1e-3, "opset": 1}
        yield case(f"{_TRAINING}Adam", [rate, count, *x, *g, *v, *h], results=3 * many, **adam)
        yield case(f"{_TRAINING}Momentum", [rate, count, *x, *g, *v], results=2 * many, **momentum)
        yield case(
            f"{_TRAINING}Momentum", [rate, count, *x, *g, *v], results=2 * many, **momentum | {"mode": "standard"}
        )


def _signals() -> Iterator[Case]:
    for inverse in (0, 1):
        yield case("DFT", [f(4, 6, 2, 2)], opset=17, axis=1, inverse=inverse)
        yield case("DFT", [f(4, 6, 2, 2), None, np.int64(2)], constants=[2], inverse=inverse)
    yield case("DFT", [f(4, 6, 1)], onesided=1)
    yield case("DFT", [f(4, 6, 3, 1), np.int64(8), np.int64(-3)], constants=[1, 2], onesided=1)
    step, length = np.int64(2), np.int64(4)
    yield case("STFT", [f(4, 14, 1), step, p(4), length], onesided=1)
    yield case("STFT", [f(2, 26, 1), step, p(4), None], onesided=1)
    yield case("STFT", [f(6, 14, 2), step, p(4), length], onesided=0)
    yield case("STFT", [f(2, 14, 1), step, None, length], onesided=0)


def _classical() -> Iterator[Case]:
    linear = {"coefficients": tuple(f(12)), "intercepts": (0.1, 0.2, 0.3), "opset": 1}
    yield case(f"{_ML}LinearRegressor", [f(6, 4)], targets=3, **linear)
    yield case(f"{_ML}LinearClassifier", [f(6, 4)], classlabels_ints=(3, 5, 7), results=2, **linear)
    yield case(f"{_ML}Normalizer", [f(6, 4)], norm="L2", opset=1)
    yield case(f"{_ML}Scaler", [f(6, 4)], offset=(0.1, 0.2, 0.3, 0.4), scale=(1.0, 2.0, 3.0, 4.0), opset=1)
    yield case(f"{_ML}Imputer", [f(6, 4)], imputed_value_floats=(9.0,), replaced_value_float=0.0, opset=1)
    yield case(f"{_ML}FeatureVectorizer", [f(6, 4), f(6, 2)], inputdimensions=(4, 2), opset=1)
    yield case(f"{_ML}Binarizer", [f(4, 6)], threshold=0.2, opset=1)
    yield case(f"{_ML}LabelEncoder", [n(4, 4, 6)], keys_int64s=(0, 1, 2), values_floats=(0.5, 1.5, 2.5), opset=2)
    yield case(f"{_ML}OneHotEncoder", [n(4, 4, 6)], cats_int64s=(0, 1, 2, 3), opset=1)
    yield case(f"{_ML}ArrayFeatureExtractor", [f(4, 6), i(5, 0, 2, 2)], opset=1)
    yield case(f"{_ML}ArrayFeatureExtractor", [f(2, 4, 6), i(1, 3)], opset=1)
    support = tuple(f(12))
    kernel = {
        "kernel_type": "RBF",
        "kernel_params": (0.5, 0.0, 3.0),
        "rho": (0.1,),
        "support_vectors": support,
        "opset": 1,
    }
    yield case(f"{_ML}SVMRegressor", [f(6, 4)], n_supports=3, coefficients=(0.5, -0.5, 1.0), **kernel)
    tree = {
        "nodes_treeids": (0, 0, 0),
        "nodes_nodeids": (0, 1, 2),
        "nodes_featureids": (1, 0, 0),
        "nodes_values": (0.1, 0.0, 0.0),
        "nodes_modes": ("BRANCH_LEQ", "LEAF", "LEAF"),
        "nodes_truenodeids": (1, 0, 0),
        "nodes_falsenodeids": (2, 0, 0),
        "opset": 1,
    }
    leaves = {"treeids": (0, 0), "nodeids": (1, 2), "ids": (0, 1), "weights": (0.7, 0.9)}
    targets = {f"target_{k}": v for k, v in leaves.items()}
    yield case(f"{_ML}TreeEnsembleRegressor", [f(6, 4)], n_targets=2, **targets, **tree)
    classes = {f"class_{k}": v for k, v in leaves.items()}
    yield case(f"{_ML}TreeEnsembleClassifier", [f(6, 4)], results=2, classlabels_int64s=(0, 1), **classes, **tree)
    grams = {"max_gram_length": 2, "min_gram_length": 1, "max_skip_count": 0, "mode": "TF"}
    grams |= {"ngram_counts": (0, 2), "ngram_indexes": (0, 1, 2, 3), "pool_int64s": (1, 3, 1, 2, 2, 3)}
    yield case("TfIdfVectorizer", [n(4, 6, 8)], opset=9, **grams)
    words = {"cats_int64s": (1, 2, 3), "cats_strings": ("one", "two", "three"), "opset": 1}
    yield case(f"{_ML}CategoryMapper", [n(4, 4, 6)], **words)
    linear = {"kernel_type": "LINEAR", "coefficients": tuple(f(12)), "rho": (0.1, -0.2, 0.3), "opset": 1}
    yield case(f"{_ML}SVMClassifier", [f(6, 4)], results=2, classlabels_ints=(0, 1, 2), **linear)
