"""Arithmetic element by element, casts and choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__ = ["Number", "as_tensor", "binary", "choice", "dropped", "once", "promoted"]

_UNARY = {
    "abs": "Abs", "cos": "Cos", "erf": "Erf", "exp": "Exp", "log": "Log", "neg": "Neg", "reciprocal": "Reciprocal",
    "relu": "Relu", "sigmoid": "Sigmoid", "sin": "Sin", "sqrt": "Sqrt", "tanh": "Tanh", "floor": "Floor",
    "ceil": "Ceil", "sign": "Sign", "hardswish": "HardSwish", "mish": "Mish", "tan": "Tan", "sinh": "Sinh",
    "cosh": "Cosh", "asin": "Asin", "acos": "Acos", "atan": "Atan", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "round": "Round",
}  # fmt: skip
_KEEPING = ("Abs", "Neg", "Relu", "Sign", "Floor", "Ceil", "Round")  # the type of whole numbers
_ARITHMETIC = {"mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_COMPARISONS = {"eq": "Equal", "gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual"}
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor"}
_OF_BOOLEANS = {"Mul": "And", "Min": "And", "Add": "Or", "Max": "Or"}  # of which ONNX has no arithmetic

Number = Value | float | int | bool


def promoted(*operands: Number) -> torch.dtype:
    """The type in which torch computes with these: numbers do not widen tensors of their kind."""
    kinds = [torch.empty((0,) * min(x.rank, 1) or (), dtype=x.dtype) if isinstance(x, Value) else x for x in operands]
    found = kinds[0]
    dtype = torch.result_type(found, kinds[1]) if len(kinds) > 1 else torch.result_type(found, found)
    for more in kinds[2:]:
        dtype = torch.promote_types(dtype, torch.result_type(more, more))
    return dtype


def as_tensor(w: Writer, x: Number, dtype: torch.dtype) -> Value:
    """A number or a tensor as a tensor of a type."""
    return w.cast(x, dtype) if isinstance(x, Value) else w.scalar(x, dtype)


def binary(w: Writer, type_: str, a: Number, b: Number, *, dtype: torch.dtype | None = None) -> Value:
    """An operator of two operands, of one type, which repeat where they must; `dtype`: of the result, if another."""
    kind = promoted(a, b)
    type_ = _OF_BOOLEANS.get(type_, type_) if kind is torch.bool else type_
    x, y = as_tensor(w, a, kind), as_tensor(w, b, kind)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    x, y = once(w, x, y, shape)
    return w.op(type_, x, y, shape=shape, dtype=dtype or kind)


def once(w: Writer, x: Value, y: Value, shape: Any) -> tuple[Value, Value]:
    """Known operands without what they repeat, where the other one still gives the result its shape."""
    for a, b in ((x, y), (y, x)):
        if a.held is not None and not a.name:
            small = tuple(a.held.shape)
            if torch.broadcast_shapes(small, b.shape) == tuple(shape):
                a = w.broadcast(a)
                return (a, b) if b is y else (b, a)
    return x, y


def _unary(type_: str) -> Any:
    def write(w: Writer, x: Value) -> Value:
        x = w.cast(x, promoted(x, 1.0)) if type_ not in _KEEPING else x
        return w.op(type_, x, shape=x.shape)

    return write


def _arithmetic(type_: str) -> Any:
    def write(w: Writer, a: Number, b: Number) -> Value:
        if type_ == "Div" and not promoted(a, b).is_floating_point:
            a = w.cast(a, torch.get_default_dtype()) if isinstance(a, Value) else float(a)
        return binary(w, type_, a, b)

    return write


def _logical(type_: str) -> Any:
    def write(w: Writer, a: Value, b: Value) -> Value:
        return binary(w, type_, w.cast(a, torch.bool), w.cast(b, torch.bool))

    return write


def _bitwise(type_: str) -> Any:
    def write(w: Writer, a: Number, b: Number) -> Value:
        return binary(w, type_ if promoted(a, b) == torch.bool else f"Bitwise{type_}", a, b)

    return write


def _comparison(type_: str) -> Any:
    def write(w: Writer, a: Number, b: Number) -> Value:
        return binary(w, type_, a, b, dtype=torch.bool)

    return write


for _name, _type in _UNARY.items():
    aten(f"{_name}.default")(_unary(_type))
for _name, _type in _ARITHMETIC.items():
    _forms = ("Tensor", "Scalar") if _type in ("Mul", "Div") else ("default",)
    aten(*(f"{_name}.{form}" for form in _forms))(_arithmetic(_type))
for _name, _type in _COMPARISONS.items():
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_type))
for _name, _type in _LOGIC.items():
    aten(f"logical_{_name}.default")(_logical(_type))
    aten(*(f"{full}.{form}" for full in (f"bitwise_{_name}", f"__{_name}__") for form in ("Tensor", "Scalar")))(
        _bitwise(_type)
    )


@aten("add.Tensor", "add.Scalar")
def _add(w: Writer, a: Number, b: Number, alpha: float = 1) -> Value:
    return binary(w, "Add", a, b if alpha == 1 else binary(w, "Mul", b, alpha))


@aten("sub.Tensor", "sub.Scalar")
def _sub(w: Writer, a: Number, b: Number, alpha: float = 1) -> Value:
    return binary(w, "Sub", a, b if alpha == 1 else binary(w, "Mul", b, alpha))


@aten("rsub.Scalar", "rsub.Tensor")
def _rsub(w: Writer, a: Number, b: Number, alpha: float = 1) -> Value:
    return _sub(w, b, a, alpha)


@aten("ne.Tensor", "ne.Scalar")
def _differs(w: Writer, a: Number, b: Number) -> Value:
    same = binary(w, "Equal", a, b, dtype=torch.bool)
    return w.op("Not", same, shape=same.shape)


@aten("logical_not.default")
def _not(w: Writer, x: Value) -> Value:
    return w.op("Not", w.cast(x, torch.bool), shape=x.shape)


@aten("bitwise_not.default")
def _bitwise_not(w: Writer, x: Value) -> Value:
    return w.op("Not" if x.dtype == torch.bool else "BitwiseNot", x, shape=x.shape)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def _pow(w: Writer, a: Number, exponent: Number) -> Value:
    return binary(w, "Pow", a, exponent)


@aten("square.default")
def _square(w: Writer, x: Value) -> Value:
    return binary(w, "Mul", x, x)


@aten("rsqrt.default")
def _rsqrt(w: Writer, x: Value) -> Value:
    return w.op("Reciprocal", w.op("Sqrt", x, shape=x.shape), shape=x.shape)


@aten("silu.default")
def _silu(w: Writer, x: Value) -> Value:
    return w.op("QuickGelu", x, shape=x.shape, domain="com.microsoft", alpha=1.0)  # ONNX's Swish is of opset 24


@aten("gelu.default")
def _gelu(w: Writer, x: Value, approximate: str = "none") -> Value:
    return w.op("Gelu", x, shape=x.shape, approximate=approximate)


@aten("leaky_relu.default")
def _leaky_relu(w: Writer, x: Value, slope: float = 0.01) -> Value:
    return w.op("LeakyRelu", x, shape=x.shape, alpha=slope)


@aten("elu.default")
def _elu(w: Writer, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """Only what is negative is scaled before it is read."""
    if input_scale == 1:
        y = w.op("Elu", x, shape=x.shape, alpha=alpha)
    else:
        below = w.op("Elu", binary(w, "Mul", x, input_scale), shape=x.shape, alpha=alpha)
        y = choice(w, binary(w, "Greater", x, 0.0, dtype=torch.bool), x, below)
    return y if scale == 1 else binary(w, "Mul", y, scale)


@aten("clamp.default", "clamp_min.default")
def _clamp(w: Writer, x: Value, min: float | None = None, max: float | None = None) -> Value:
    x = w.cast(x, promoted(x, *(b for b in (min, max) if b is not None)))
    bounds = [None if b is None else w.scalar(b, x.dtype) for b in (min, max)]
    return w.op("Clip", x, *bounds, shape=x.shape)


@aten("clamp_max.default")
def _clamp_max(w: Writer, x: Value, max: float) -> Value:
    return _clamp(w, x, None, max)


@aten("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def _clamp_by(w: Writer, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """Bounds that are tensors, the upper one the stronger.  Where an element is its bound the gradient is the element's
    alone, of which ONNX's Max and Min would give the bound a half."""
    if "clamp_max" in w.operator:
        min, max = None, min
    y = x
    for bound, beyond in ((min, "Less"), (max, "Greater")):
        if bound is not None:
            y = choice(w, binary(w, beyond, y, bound, dtype=torch.bool), bound, y)
    return y


@aten("hardtanh.default")
def _hardtanh(w: Writer, x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    return _clamp(w, x, min_val, max_val)


@aten("relu6.default")
def _relu6(w: Writer, x: Value) -> Value:
    return _clamp(w, x, 0.0, 6.0)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def choice(w: Writer, condition: Value, a: Number, b: Number) -> Value:
    """`a` where the condition holds, else `b`."""
    kind = promoted(a, b)
    x, y = as_tensor(w, a, kind), as_tensor(w, b, kind)
    shape = torch.broadcast_shapes(condition.shape, x.shape, y.shape)
    return w.op("Where", condition, x, y, shape=shape, dtype=kind)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(w: Writer, x: Value, mask: Value, value: Number) -> Value:
    filled = as_tensor(w, value, x.dtype)
    if mask.held is not None and torch.broadcast_shapes(tuple(mask.held.shape), x.shape) == x.shape:
        mask = w.broadcast(mask)
    return w.op("Where", mask, filled, x, shape=torch.broadcast_shapes(x.shape, mask.shape), dtype=x.dtype)


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "type_as.default")
def _to(w: Writer, x: Value, dtype: Any = None, **_: Any) -> Value:
    return w.cast(x, dtype.dtype if isinstance(dtype, Value) else dtype or x.dtype)


@aten("alias.default", "clone.default", "contiguous.default", "detach_copy.default", "lift_fresh_copy.default",
      "dropout.default")  # fmt: skip
def _same(w: Writer, x: Value, *arguments: Any, **_: Any) -> Value:
    """What is handed on as it is; a dropout only where it drops nothing."""
    if len(arguments) == 2 and arguments[0] and arguments[1]:
        return dropped(w, x, arguments[0])
    return x


def dropped(w: Writer, x: Value, share: float) -> Value:
    """Elements of which this share is dropped."""
    ratio, training = w.scalar(share, torch.float32), w.scalar(True, torch.bool)
    return w.op("Dropout", x, ratio, training, shape=x.shape)


@aten("bernoulli.p")
def _bernoulli(w: Writer, x: Value, p: float, generator: Any = None) -> Value:
    """Stochastic depth draws so."""
    return chosen_with(w, x.shape, x.dtype, p)


def chosen_with(w: Writer, shape: Sequence[int], dtype: torch.dtype, p: float) -> Value:
    """Ones with a probability, else zeros: ones of which the others are dropped, without what a dropout makes up for
    them by."""
    ones = w.op("Expand", w.scalar(1.0 if p > 0 else 0.0, dtype), w.integers(shape), shape=shape)
    return ones if p >= 1 or p <= 0 else binary(w, "Mul", dropped(w, ones, 1.0 - p), p)


@aten("native_dropout.default")
def _native_dropout(w: Writer, x: Value, p: float, train: bool | None) -> tuple[Value, None]:
    return (dropped(w, x, p) if train is not False and p else x), None


@aten("detach.default")
def _detach(w: Writer, x: Value) -> Value:
    """No gradient passes: a cast to a type without gradients and back would lose digits, so it is said by an operator
    of ours."""
    return w.op("Detach", x, shape=x.shape, domain="planner")


@aten("zeros_like.default", "ones_like.default", "full_like.default", "new_ones.default", "new_zeros.default",
      "new_full.default", "empty_like.default")  # fmt: skip
def _filled(w: Writer, x: Value, *arguments: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """One number throughout, of which only type and shape are read from `x`."""
    name = w.operator
    of_shape = name.startswith("new_")
    shape = tuple(arguments[0]) if of_shape else x.shape
    given = arguments[1 if of_shape else 0] if "full" in name else 1 if "ones" in name else 0
    dtype = dtype or x.dtype
    return Value("", shape, dtype, torch.full((1,) * len(shape), given, dtype=dtype))


@aten("full.default", "zeros.default", "ones.default")
def _filled_anew(
    w: Writer, size: Sequence[int], value: Any = None, *, dtype: torch.dtype | None = None, **_: Any
) -> Value:
    """One number throughout, of more elements than are computed when a module is captured."""
    given = value if w.operator.startswith("full") else int(w.operator.startswith("ones"))
    dtype = dtype or w.results[0].dtype
    return Value("", tuple(size), dtype, torch.full((1,) * len(size), given, dtype=dtype))
