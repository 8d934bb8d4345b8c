"""The backward of operators equals torch's automatic differentiation, whole and on every mesh, strategy by strategy.

What torch finds is recorded (see `torch_gradients`); where torch is installed, the record is checked against it.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from planner.ir import DeviceMesh
from planner.kernels.gradients import differentiable_types, vjp
from planner.kernels.shards import Array
from planner.rules import rule_for
from tests.rules.cases import FAMILIES
from tests.rules.prover import prove
from tests.rules.torch_gradients.golden import GOLDEN, Record, read

MESHES = (DeviceMesh.of(2), DeviceMesh.of(3), DeviceMesh.of(2, 2))

# Operator types that receive gradients and are not compared with torch, and why.
_NO_PRODUCT = "no vector-Jacobian product: plans that train through it are refused a proof of their backward"
_ROUNDS = "rounds: what training makes of that is a matter of convention, and nothing to differentiate"
WITHOUT = {
    "DFT": _NO_PRODUCT,
    "DequantizeLinear": _ROUNDS,
    "MaxRoiPool": _NO_PRODUCT,
    "QuantizeLinear": _ROUNDS,
    "STFT": _NO_PRODUCT,
    "com.microsoft::Attention": _NO_PRODUCT,
    "com.microsoft::DequantizeLinear": _ROUNDS,
    "com.microsoft::EmbedLayerNormalization": _NO_PRODUCT,
    "com.microsoft::FusedGemm": _NO_PRODUCT,
    "com.microsoft::FusedMatMulActivation": _NO_PRODUCT,
    "com.microsoft::GemmFastGelu": _NO_PRODUCT,
    "com.microsoft::GroupQueryAttention": _NO_PRODUCT,
    "com.microsoft::LinearAttentionGate": _NO_PRODUCT,
    "com.microsoft::MatMulNBits": _NO_PRODUCT,
    "com.microsoft::QAttention": _NO_PRODUCT,
    "com.microsoft::QuantizeLinear": _ROUNDS,
    "com.microsoft::Scale": "exported training graphs alone hold it, in a backward that nothing differentiates",
    "com.microsoft::SimplifiedLayerNormalization": "the runtime registers it without its domain, and so it is compared",
}


@cache
def records() -> dict[str, tuple[Record, ...]]:
    """By operator type."""
    found: dict[str, list[Record]] = defaultdict(list)
    for r in read():
        found[r.op.type].append(r)
    return {t: tuple(rs) for t, rs in sorted(found.items())}


def close(found: Array | None, truth: Array, what: str) -> None:
    assert found is not None, f"{what}: there is none"
    scale = float(np.max(np.abs(truth), initial=0.0))
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=2e-5 * scale + 1e-6, err_msg=what)


@pytest.mark.parametrize("type_", records())
def test_whole_operators_agree_with_torch(type_: str) -> None:
    """Results, and the gradients of all operands that the rule says receive one."""
    for r in records()[type_]:
        made = r.case
        for j, (found, truth) in enumerate(zip(made.results, r.results, strict=True)):
            if truth is not None:
                close(found, truth, f"{r.name}: result {j}")
        wanted = [g is not None for g in r.gradients]
        assert {i for i, w in enumerate(wanted) if w} >= made.rule.differentiable, r.name
        gradients = vjp(r.op, r.inputs, made.results, r.result_gradients, wanted)
        for i, truth in enumerate(r.gradients):
            if truth is not None:
                close(gradients[i], truth, f"{r.name}: gradient {i}")


@pytest.mark.parametrize("type_", records())
def test_every_strategy_assembles_the_gradients_of_torch(type_: str) -> None:
    """Operators without a gradient are those whose gradient is zero wherever it exists."""
    backward, wrong = 0, []
    for r in records()[type_]:
        differentiable = r.case.rule.differentiable
        if not differentiable:
            assert not any(np.any(g) for g in r.gradients if g is not None), r.name
            continue
        expected = [g if i in differentiable else None for i, g in enumerate(r.gradients)]
        _, runs, found = prove(r.case, MESHES, gradients=(list(r.result_gradients), expected))
        backward += runs
        wrong += found
    print(f"{type_}: {len(records()[type_])} cases, {backward} strategies")
    assert not wrong, "\n".join(map(str, wrong[:10]))


def test_operators_that_receive_gradients_are_compared_or_named() -> None:
    rules = [(c.op.type, rule_for(c.op, c.graph)) for family in FAMILIES for c in family()]
    receiving = {t for t, rule in rules if rule is not None and rule.differentiable}
    for type_, reason in WITHOUT.items():
        print(f"{type_}: {reason}")
    missing = (receiving | differentiable_types()) - records().keys()
    unnamed, settled = sorted(missing - WITHOUT.keys()), sorted(WITHOUT.keys() - missing)
    assert not unnamed, f"compare them with torch, or say why not: {unnamed}"
    assert not settled, f"they are compared, or receive none: {settled}"
    assert not {t for t, reason in WITHOUT.items() if reason == _NO_PRODUCT} & differentiable_types()


def test_the_record_is_small_and_wide() -> None:
    assert GOLDEN.stat().st_size < 1_000_000
    assert len(records()) >= 110


@pytest.mark.peer
def test_the_record_is_what_torch_finds() -> None:
    """`python -m tests.rules.torch_gradients --write` writes it anew."""
    pytest.importorskip("torch")
    from tests.rules.torch_gradients import autograd  # it imports torch

    stored = [r for rs in records().values() for r in rs]
    fresh = sorted(autograd.records(), key=lambda r: r.op.type)
    assert [r.name for r in stored] == [r.name for r in fresh]
    for ours, theirs in zip(stored, fresh, strict=True):
        assert (ours.op.type, ours.op.opset, ours.constants) == (theirs.op.type, theirs.op.opset, theirs.constants)
        assert dict(ours.op.attributes) == dict(theirs.op.attributes)
        for row in ("inputs", "results", "result_gradients", "gradients"):
            for a, b in zip(getattr(ours, row), getattr(theirs, row), strict=True):
                assert (a is None) == (b is None)
                if a is not None and b is not None:
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=ours.name)
