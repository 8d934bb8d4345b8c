"""Small operators of one family: quantised products and elementwise operators beside convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.ir import Op
from planner.kernels import run_local
from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case, from_values

__all__ = ["quantized_arithmetic"]

_MS = "com.microsoft::"


def _u(*shape: int) -> np.ndarray:
    return n(200, *shape).astype(np.uint8)


def _s(*shape: int) -> np.ndarray:
    # Seven bits: on CPUs without VNNI, ONNX Runtime adds two products with unsigned bytes in 16 bits, which saturate.
    return (n(128, *shape) - 64).astype(np.int8)


_SCALE, _ZERO = np.float32(0.1), np.uint8(3)


def quantized_arithmetic() -> Iterator[Case]:
    yield from _products()
    yield from _by_blocks()
    yield from _conversions()
    yield from _elementwise()


def _products() -> Iterator[Case]:
    rows, columns = n(9, 6, 1).astype(np.uint8), n(9, 12).astype(np.uint8)
    yield case("MatMulInteger", [_u(6, 4), _u(4, 12), rows.reshape(6), columns])
    yield case("MatMulInteger", [_u(2, 6, 4), _u(2, 4, 12), np.uint8(2), n(9, 2, 1, 12).astype(np.uint8)])
    yield case(f"{_MS}MatMulInteger16", [n(90, 2, 6, 4).astype(np.int16), n(90, 4, 12).astype(np.int16)], opset=1)
    a, b = _u(2, 6, 4), _s(4, 12)
    for b_scale, b_zero in ((_SCALE, np.int8(2)), (p(12), n(9, 12).astype(np.int8)), (p(12), None)):
        for bias in (f(12), None):
            inputs = [a, b, _SCALE, b_scale, _ZERO, b_zero, bias]
            yield case(f"{_MS}MatMulIntegerToFloat", inputs, opset=1)
            yield case(f"{_MS}DynamicQuantizeMatMul", [f(2, 6, 4), b, b_scale, b_zero, bias], opset=1)
    yield case(f"{_MS}DynamicQuantizeMatMul", [p(12, 6), _s(6, 4), _SCALE], opset=1)
    s, z = _SCALE, _ZERO
    per_column = [p(12), np.zeros(12, np.int8)]
    yield case("QLinearMatMul", [_u(2, 6, 4), s, z, _u(4, 12), s, z, np.float32(4.0), z])
    yield case("QLinearMatMul", [_u(6, 4), s, z, _s(4, 12), *per_column, np.float32(4.0), z])
    for ta in (0, 1):
        for tb in (0, 1):
            x, w = _u(*((4, 6) if ta else (6, 4))), _s(*((12, 4) if tb else (4, 12)))
            flags = {"transA": ta, "transB": tb, "alpha": 0.5, "opset": 1}
            c = n(50, 12).astype(np.int32)
            yield case(f"{_MS}QGemm", [x, s, z, w, *per_column], **flags)
            yield case(f"{_MS}QGemm", [x, s, z, w, s, np.int8(1), c, np.float32(4.0), z], **flags)
    yield case(f"{_MS}QGemm", [_u(6, 4), s, z, _s(4, 12), s, np.int8(0), c], opset=1)


def _by_blocks() -> Iterator[Case]:
    for bits, zeros in ((4, "packed"), (4, "float"), (4, None), (8, "packed"), (2, "packed")):
        for blocks in (4, 6):
            yield from _nbits(bits, zeros, blocks, 16 * blocks)
    yield from _nbits(4, "packed", 3, 48)  # the last byte of zero points is half full
    yield from _nbits(4, "packed", 4, 60)  # the last block is not full
    yield from _nbits(4, "packed", 4, 64, flat=True)


def _nbits(bits: int, zeros: str | None, blocks: int, k: int, *, flat: bool = False) -> Iterator[Case]:
    columns, block = 12, 16
    weight = n(256, columns, blocks, block * bits // 8).astype(np.uint8)
    scales = p(columns, blocks) / 10
    packed = n(256, columns, -(-blocks * bits // 8)).astype(np.uint8)
    zero = None if zeros is None else packed if zeros == "packed" else p(columns, blocks)
    if flat:
        scales, zero = scales.reshape(-1), None if zero is None else zero.reshape(-1)
    for bias in (None, f(columns)):
        inputs = [f(2, 6, k), weight, scales, zero, None, bias]
        options = {"K": k, "N": columns, "bits": bits, "block_size": block, "opset": 1}
        yield case(f"{_MS}MatMulNBits", inputs, **options)


def _conversions() -> Iterator[Case]:
    x = f(4, 6, 2)
    for domain, opset in (("", 21), (_MS, 1)):
        yield case(f"{domain}QuantizeLinear", [x, _SCALE, _ZERO], opset=opset)
        yield case(f"{domain}DequantizeLinear", [_u(4, 6), _SCALE, _ZERO], opset=opset)
        for axis in (0, 1, -1):
            parameters = [p(x.shape[axis]), n(9, x.shape[axis]).astype(np.uint8)]
            yield case(f"{domain}QuantizeLinear", [x, *parameters], axis=axis, opset=opset)
            yield case(f"{domain}DequantizeLinear", [_u(4, 6, 2), *parameters], axis=axis, opset=opset)
    yield case("QuantizeLinear", [f(4, 6), np.float32(0.1)], opset=19)
    for block, blocks in ((2, 6), (3, 4), (6, 2), (5, 3)):
        scale, zero = p(4, blocks, 2), n(9, 4, blocks, 2).astype(np.uint8)
        yield case("QuantizeLinear", [f(4, 12, 2), scale, zero], opset=21, axis=1, block_size=block)
        yield case("DequantizeLinear", [_u(4, 12, 2), scale, zero], opset=21, axis=-2, block_size=block)


def _elementwise() -> Iterator[Case]:
    s, z = _SCALE, _ZERO
    for t in ("QLinearAdd", "QLinearMul"):
        for shapes in (((4, 6), (4, 6)), ((2, 4, 6), (6,)), ((4, 1, 6), (2, 1))):
            a, b = (_u(*shape) for shape in shapes)
            yield case(f"{_MS}{t}", [a, s, z, b, np.float32(0.2), z, np.float32(0.4), z], opset=1)
        yield case(f"{_MS}{t}", [_s(4, 6), s, np.int8(0), _s(6), s, np.int8(1), s, np.int8(2)], opset=1)
    yield case(f"{_MS}QLinearSigmoid", [_u(4, 6), s, z, np.float32(0.004), z], opset=1)
    yield case(f"{_MS}QLinearLeakyRelu", [_s(2, 4, 6), s, np.int8(1), s, np.int8(-3)], alpha=0.1, opset=1)
    yield case(f"{_MS}QLinearWhere", [f(4, 1) > 0, _u(4, 6), s, z, _u(6), s, z, np.float32(0.2), z], opset=1)
    for version, axis in ((12, 1), (12, 2), (13, -1), (13, 1)):
        yield _softmax(version, axis)
    parts = [_u(4, 6), s, z, _u(4, 2), np.float32(0.3), np.uint8(5)]
    yield case(f"{_MS}QLinearConcat", [np.float32(0.2), z, *parts], axis=1, opset=1)
    yield case(f"{_MS}QLinearConcat", [np.float32(0.2), z, *parts[:3], *parts[:3]], axis=-2, opset=1)


def _softmax(version: int, axis: int) -> Case:
    """The operator has an attribute `opset`."""
    inputs = (_u(4, 6, 2), np.asarray(_SCALE), np.asarray(_ZERO), np.float32(1 / 256), np.uint8(0))
    values = tuple(np.asarray(x) for x in inputs)
    names = tuple(f"x{i}" for i in range(len(values)))
    op = Op("y0", f"{_MS}QLinearSoftmax", names, ("y0",), {"axis": axis, "opset": version}, 1)
    return from_values(op, values, tuple(run_local(op, values)), set())
