"""The operators between ranks, as schemas of an operator domain (docs/onnx-collectives.md).

Every rank's graph has its own copy of a collective, with the ranks of its group in order.  `register()` makes the
schemas known to ONNX's checker and shape inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import onnx
from onnx import defs

__all__ = ["DOMAIN", "REDUCTIONS", "VERSION", "register", "schemas"]

DOMAIN: Final = "planner.collective"
VERSION: Final = 1
REDUCTIONS: Final = ("sum", "max", "min")

_T: Final = "T"
_COUNTS: Final = "tensor(int64)"
_TYPES = tuple(
    f"tensor({t})"
    for t in (
        "float", "double", "float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4", "bool",
    )
)  # fmt: skip
_Infer = Callable[[Any], None]
_RANKS = "ranks of the group in order, each once; the rank whose graph this is stands among them"


def _attribute(name: str, kind: str, text: str, *, required: bool = True) -> defs.OpSchema.Attribute:
    return defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), text, required=required)


def _parameter(name: str, text: str, *, kind: str = _T, optional: bool = False) -> defs.OpSchema.FormalParameter:
    options = defs.OpSchema.FormalParameterOption
    return defs.OpSchema.FormalParameter(
        name, kind, text, param_option=options.Optional if optional else options.Single
    )


def _schema(
    name: str,
    text: str,
    attributes: Sequence[defs.OpSchema.Attribute],
    infer: _Infer,
    further: Sequence[defs.OpSchema.FormalParameter] = (),
) -> defs.OpSchema:
    schema = defs.OpSchema(
        name,
        DOMAIN,
        VERSION,
        text,
        inputs=[_parameter("X", "what this rank brings"), *further],
        outputs=[_parameter("Y", "what this rank holds afterwards")],
        type_constraints=[(_T, _TYPES, "any tensor")],
        attributes=list(attributes),
    )
    schema.set_type_and_shape_inference_function(infer)
    return schema


def schemas() -> tuple[defs.OpSchema, ...]:
    """The schemas of the domain's operators."""
    ranks = _attribute("ranks", "INTS", _RANKS)
    reduction = _attribute("op", "STRING", f"how values combine: {', '.join(REDUCTIONS)}")
    axis = _attribute("axis", "INT", "the dimension, counted from the front")
    return (
        _schema("AllReduce", "The values of the group, combined element by element.", [ranks, reduction], _same),
        _schema("AllGather", "The values of the group, joined along an axis in their order.", [ranks, axis], _gathered),
        _schema(
            "ReduceScatter",
            "The values of the group are combined and cut along an axis into equal parts: rank i of the group holds "
            "part i.",
            [ranks, axis, reduction],
            _scattered,
        ),
        _schema(
            "AllToAll",
            "Every value is cut along split_axis into equal parts, of which part i goes to rank i of the group; what "
            "arrives is joined along concat_axis in the order of its senders.",
            [
                ranks,
                _attribute("split_axis", "INT", "the dimension cut before, counted from the front"),
                _attribute("concat_axis", "INT", "the dimension joined after, counted from the front"),
            ],
            _exchanged,
        ),
        _schema(
            "AllToAllV",
            "Every value is cut along an axis into one part per rank of the group, of send_sizes elements, which go to "
            "these ranks; what arrives, receive_sizes from each, is joined in the order of its senders. Sizes that are "
            "known beforehand are attributes, others operands.",
            [
                ranks,
                axis,
                _attribute("send_sizes", "INTS", "elements for each rank of the group", required=False),
                _attribute("receive_sizes", "INTS", "elements from each rank of the group", required=False),
            ],
            _exchanged_unevenly,
            (
                _parameter("send", "[ranks]: instead of send_sizes", kind=_COUNTS, optional=True),
                _parameter("receive", "[ranks]: instead of receive_sizes", kind=_COUNTS, optional=True),
            ),
        ),
        _schema(
            "Permute",
            "The whole value goes to the ranks `targets`, and that of rank `source` comes instead. A rank may be its "
            "own source; one that nobody reads from has no targets.",
            [
                _attribute("source", "INT", "the rank whose value this rank receives"),
                _attribute("targets", "INTS", "the ranks that this rank's value goes to", required=False),
            ],
            _same,
        ),
    )


def register() -> None:
    """Makes the operators known to ONNX, once."""
    for schema in schemas():
        if not defs.has(schema.name, DOMAIN):
            defs.register_schema(schema)


# Shapes


def _operand(context: Any) -> onnx.TypeProto | None:
    given = context.get_input_type(0)
    return given if given is not None and given.WhichOneof("value") == "tensor_type" else None


def _number(context: Any, name: str) -> int:
    found = context.get_attribute(name)
    return int(found.i) if found is not None else 0


def _group(context: Any) -> int:
    found = context.get_attribute("ranks")
    return len(found.ints) if found is not None else 1


def _resized(context: Any, sizes: Callable[[list[int | None]], None]) -> None:
    """The operand's type, with the dimensions that `sizes` changes in place; None stands for an unknown one."""
    given = _operand(context)
    if given is None:
        return
    out = onnx.TypeProto()
    out.tensor_type.elem_type = given.tensor_type.elem_type
    if given.tensor_type.HasField("shape"):
        dims = [d.dim_value if d.HasField("dim_value") else None for d in given.tensor_type.shape.dim]
        sizes(dims)
        out.tensor_type.shape.SetInParent()
        for size in dims:
            dim = out.tensor_type.shape.dim.add()
            if size is not None:
                dim.dim_value = size
    context.set_output_type(0, out)


def _same(context: Any) -> None:
    _resized(context, lambda dims: None)


def _times(dims: list[int | None], axis: int, factor: int) -> None:
    size = dims[axis] if 0 <= axis < len(dims) else None
    if size is not None:
        dims[axis] = size * factor


def _divided(dims: list[int | None], axis: int, parts: int) -> None:
    size = dims[axis] if 0 <= axis < len(dims) else None
    if size is not None:
        if not parts or size % parts:
            raise onnx.shape_inference.InferenceError(f"axis {axis} of size {size} does not divide into {parts} parts")
        dims[axis] = size // parts


def _gathered(context: Any) -> None:
    _resized(context, lambda dims: _times(dims, _number(context, "axis"), _group(context)))


def _scattered(context: Any) -> None:
    _resized(context, lambda dims: _divided(dims, _number(context, "axis"), _group(context)))


def _exchanged(context: Any) -> None:
    def sizes(dims: list[int | None]) -> None:
        _divided(dims, _number(context, "split_axis"), _group(context))
        _times(dims, _number(context, "concat_axis"), _group(context))

    _resized(context, sizes)


def _exchanged_unevenly(context: Any) -> None:
    def sizes(dims: list[int | None]) -> None:
        axis, sizes = _number(context, "axis"), context.get_attribute("receive_sizes")
        if 0 <= axis < len(dims):
            dims[axis] = sum(sizes.ints) if sizes is not None else None

    _resized(context, sizes)
