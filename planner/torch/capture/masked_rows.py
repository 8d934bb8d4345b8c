"""Rows that a mask chooses (`x[mask]`), all of which a program of fixed shapes computes.

How many rows `x[mask]` has depends on the values of the mask, which torch.export cannot follow beyond it.  Here it is
all rows, with a note of which count: what computes each row by itself does so of all, and what adds rows up, such as
the mean of a loss over the tokens that are to be predicted, leaves out those that do not count.  A call that is of
neither kind is refused, so that no row that does not count is seen by anything.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.torch.capture.followed import version_of
from planner.torch.capture.places import place_of_frames
from planner.torch.capture.rows_by_sample import RowsBySample

__all__ = ["MaskedRows"]

# Of one element, and of all operands' elements at its place.
_BY_ELEMENT: Final = frozenset({
    "abs", "acos", "add", "asin", "atan", "bfloat16", "celu", "clamp", "clamp_max", "clamp_min", "clip", "clone",
    "contiguous", "cos", "cosh", "detach", "div", "double", "dropout", "elu", "eq", "erf", "exp", "exp2", "expm1",
    "float", "floor", "ge", "gelu", "gt", "half", "int", "isfinite", "isinf", "isnan", "le", "leaky_relu", "log",
    "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logit", "logsigmoid", "long", "lt",
    "maximum", "minimum", "mish", "mul", "multiply", "ne", "neg", "negative", "ones_like", "pow", "reciprocal",
    "relu", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square", "sub",
    "subtract", "tan", "tanh", "to", "true_divide", "type", "type_as", "where", "zeros_like", "__abs__", "__add__",
    "__and__", "__eq__", "__ge__", "__gt__", "__invert__", "__le__", "__lt__", "__mul__", "__ne__", "__neg__",
    "__or__", "__pow__", "__radd__", "__rdiv__", "__rmul__", "__rpow__", "__rsub__", "__rtruediv__", "__sub__",
    "__truediv__",
})  # fmt: skip
# Along dimensions behind the rows, by the place of what names them.
_ALONG: Final = {
    "amax": 1, "amin": 1, "log_softmax": 1, "logsumexp": 1, "mean": 1, "softmax": 1, "squeeze": 1, "std": 1, "sum": 1,
    "var": 1,
}  # fmt: skip
_BY_ROW: Final = frozenset({"linear", "layer_norm", "rms_norm", "__matmul__", "matmul"})
_PRODUCTS: Final = frozenset({"__matmul__", "matmul"})
_LOSSES: Final = frozenset({
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "kl_div", "l1_loss", "mse_loss",
    "smooth_l1_loss",
})  # fmt: skip
_OPTIONS: Final = frozenset({"beta", "delta", "log_target", "pos_weight", "reduction"})
_OF_CLASSES: Final = frozenset({"ignore_index", "label_smoothing", "reduction", "weight"})
_OF_TYPE: Final = frozenset({"to", "type", "type_as"})
_WHOLE: Final = frozenset({torch.int16, torch.int32, torch.int64})
_PLACES: Final = frozenset({"argwhere", "nonzero", "where"})
_MAKES_MASKS: Final = frozenset({
    "bool", "eq", "flatten", "ge", "gt", "isfinite", "isnan", "le", "logical_and", "logical_not", "logical_or",
    "lt", "ne", "reshape", "view", "__and__", "__eq__", "__ge__", "__getitem__", "__gt__", "__invert__", "__le__",
    "__lt__", "__ne__", "__or__",
})  # fmt: skip
_VIEWS: Final = frozenset({"reshape", "view"})
_TOTALS: Final = frozenset({"mean", "sum"})
_SAID: Final = frozenset({"dim", "is_complex", "is_floating_point"})
_ATTRIBUTES: Final = frozenset({"device", "dtype", "is_cpu", "is_cuda", "is_sparse", "layout", "ndim", "requires_grad"})
_NEUTRAL: Final = 0.5  # in rows that do not count: what has a logarithm, a root and an inverse, and so has 1 minus it


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """All `rows`, of which those count where `mask` holds; `chosen` names the mask that chose them, which had a
    `shape`."""

    rows: Tensor
    mask: Tensor
    chosen: tuple[int, int]
    shape: tuple[int, ...]

    def counting(self, rows: Tensor) -> Tensor:
        """The mask beside other rows."""
        return self.mask.view(-1, *(1,) * (rows.ndim - 1))


class MaskedRows(TorchFunctionMode):
    """For the time of a module's call; errors name the module, as `name` says, and the line of its code."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.noted: dict[int, _Rows] = {}
        self.by_sample = RowsBySample()
        self.made: dict[Any, tuple[Tensor, Any]] = {}  # a mask, and what it is made of, by how it was made
        self.same: dict[int, tuple[Tensor, Tensor]] = {}  # a mask, and the first that was made like it
        self.held: list[Tensor] = []
        self.counts: dict[int, tuple[Tensor, tuple[int, int]]] = {}  # how many rows count, of which mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        leaves = pytree.tree_leaves((args, kwargs))
        if self.by_sample.among(leaves):
            if (found := self.by_sample.taken(name, *args)) is None:
                raise self._refused(name, "sorted by samples, the last or the first may be taken, [:, -1] or [:, 0]")
            return found
        noted = [n for x in leaves if (n := self._of(x)) is not None]
        if not noted:
            return self._chosen(func, name, args, kwargs)
        if len({n.chosen for n in noted}) > 1:
            raise self._refused(name, "they are chosen by two masks; compute the mask once")
        return self._computed(func, name, args, kwargs, noted[0])

    def check(self, result: Any) -> None:
        """InputError where the result of a step is rows, and not what was made of those that count."""
        leaves = pytree.tree_leaves(result)
        if self.by_sample.among(leaves) or any(self._of(x) is not None for x in leaves):
            raise self._refused("the result", "add them up to a loss")

    def _of(self, x: Any) -> _Rows | None:
        found = self.noted.get(id(x)) if isinstance(x, Tensor) else None
        return found if found is not None and found.rows is x else None

    def _note(self, rows: Tensor, like: _Rows) -> Tensor:
        self.noted[id(rows)] = _Rows(rows, like.mask, like.chosen, like.shape)
        return rows

    def _refused(self, name: str, why: str) -> InputError:
        return InputError(
            f"{self.name}: {name} of rows that a mask chooses, whose number depends on values"
            f"{place_of_frames(traceback.extract_stack())}: {why}; or compute all rows, and leave out those that do "
            "not count by torch.where or ignore_index"
        )

    # Where rows are chosen

    def _chosen(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if name == "__getitem__":
            mask, *rest = args[1] if isinstance(args[1], tuple) else (args[1],)
            whole = all(isinstance(i, slice | int) and not isinstance(i, bool) for i in rest)
            if _is_mask(mask) and whole and mask.shape == args[0].shape[: mask.ndim]:
                return self._rows_of(args[0].flatten(0, mask.ndim - 1)[(slice(None), *rest)], mask)
        elif name == "masked_select" and len(args) == 2 and not kwargs and args[0].shape == args[1].shape:
            return self._rows_of(args[0].flatten(), args[1])
        elif name in _PLACES and len(args) == 1 and _is_mask(args[0]):
            lines = [torch.arange(n, device=args[0].device) for n in args[0].shape]
            places = [g.flatten() for g in torch.meshgrid(*lines, indexing="ij")]
            if name == "where" or kwargs.get("as_tuple"):
                return tuple(self._rows_of(p, args[0]) for p in places)
            return self._rows_of(torch.stack(places, 1), args[0])
        found = func(*args, **kwargs)
        if name in _MAKES_MASKS and _is_mask(found):
            self._recognised(found, name, args, kwargs)
        return found

    def _rows_of(self, x: Tensor, mask: Tensor) -> Tensor:
        """All rows, as they are now, whatever is written into the tensor that they were chosen from."""
        rows = x.clone()
        self.noted[id(rows)] = _Rows(rows, mask.flatten().clone(), self._named(mask), tuple(mask.shape))
        return rows

    def _named(self, x: Tensor) -> tuple[int, int]:
        """Of masks that were made alike, the first, and how often a mask was written into."""
        self.held.append(x)  # so that no other takes its place
        version = version_of(x)
        if version or id(x) not in self.same:
            return id(x), version
        return id(self.same[id(x)][1]), 0

    def _recognised(self, mask: Tensor, name: str, args: Any, kwargs: Any) -> None:
        """Masks that are made alike of the same are one (`labels != -100` in both of logits[…] and labels[…])."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        of = [self._named(x) if isinstance(x, Tensor) else (type(x), repr(x)) for x in leaves]
        key = name, str(structure), *of
        first, _ = self.made.setdefault(key, (mask, leaves))
        self.same[id(mask)] = mask, first

    # What is made of them

    def _computed(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, like: _Rows) -> Any:
        first = self._of(args[0]) if args else None
        if name == "__get__" or name in _SAID:
            attribute = getattr(getattr(func, "__self__", None), "__name__", name)
            if name in _SAID or attribute in _ATTRIBUTES:
                return func(*args, **kwargs)
            if attribute == "shape":
                return self._size(like)
            raise self._refused(attribute, "nothing may depend on it")
        if name == "size" and not kwargs:
            return self._size(like) if len(args) == 1 else self._size(like)[args[1]]
        if name in ("numel", "nelement"):
            return math.prod(self._size(like))
        if name == "__setitem__":
            return self._written(args, like)
        if name in ("cross_entropy", "nll_loss") and first is not None:
            return self._cross_entropy(func, args, kwargs, like)
        if name in _LOSSES and first is not None:
            return self._loss(func, args, kwargs, like)
        if name in _TOTALS and first is not None and (dims := _added_up(first.rows, args, kwargs)) is not None:
            return self._total(name, first, dims, kwargs.get("dtype"))
        if name in _VIEWS and first is not None:
            found = self.by_sample.sorted(first.rows, first.mask.view(first.shape), args[1:])
            if found is not None:
                return found
        if name == "embedding" and first is not None:
            return self._note(func(self._filled(first, 0), *args[1:], **kwargs), like)
        if name in _BY_ELEMENT:
            if "out" in kwargs or kwargs.get("inplace") or any(a is True for a in args):
                raise self._refused(name, "it writes into its operand or into another tensor; use its result instead")
            if name in _OF_TYPE and first is None:  # x.to(rows), which is no row
                return func(*args, **kwargs)
            args, kwargs = self._all_beside(name, (tuple(args), dict(kwargs)))
            return self._note(func(*args, **kwargs), like)
        if first is None:
            found = self._looked_up(func, name, args)
        elif name in ("flatten", *_VIEWS):
            found = self._viewed(first.rows, name, args, kwargs)
        elif name in _ALONG and _behind(first.rows, args, kwargs, _ALONG[name]):
            found = func(self._filled(first), *args[1:], **kwargs)
        elif (name == "__getitem__" and _keeps_rows(args[1])) or (
            name == "unsqueeze" and len(args) == 2 and args[1] not in (0, -first.rows.ndim - 1)
        ):
            found = func(*args, **kwargs)
        elif name == "gather" and len(args) == 3 and not kwargs and self._along_rows(first.rows, args):
            found = func(first.rows, args[1], self._filled(self.noted[id(args[2])], 0))
        elif name in _BY_ROW and self._by_row(first.rows, name, args, kwargs):
            found = func(self._filled(first), *args[1:], **kwargs)
        else:
            found = None
        if found is None:
            raise self._refused(name, "it is none that computes each row by itself, or adds rows up")
        return self._note(found, like)

    def _size(self, x: _Rows) -> tuple[Any, ...]:
        """The shape of the rows that count: their number is a tensor."""
        count = x.mask.sum()
        self.counts[id(count)] = count, x.chosen
        return count, *x.rows.shape[1:]

    def _viewed(self, rows: Tensor, name: str, args: Any, kwargs: Any) -> Tensor | None:
        """In another shape behind the rows; None where that is not said."""
        if name == "flatten":
            first, last = args[1] if len(args) > 1 else 0, args[2] if len(args) > 2 else -1
            alone = first % rows.ndim == 0 and math.prod(rows.shape[1:]) == 1
            return None if kwargs or not (first % rows.ndim or alone) else rows.flatten(first, last)
        first, *rest = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
        if isinstance(first, Tensor):
            if self.counts.get(id(first), (None, None))[1] != self.noted[id(rows)].chosen:
                return None
        elif first != -1 or math.prod(rest) != math.prod(rows.shape[1:]):
            return None
        return None if kwargs else rows.reshape((rows.shape[0], *rest))

    def _along_rows(self, rows: Tensor, args: Any) -> bool:
        """Whether places behind the rows are looked up, of each row its own."""
        return args[1] % rows.ndim != 0 and self._of(args[2]) is not None

    def _by_row(self, rows: Tensor, name: str, args: Any, kwargs: Any) -> bool:
        others = pytree.tree_leaves((args[1:], kwargs))
        if rows.ndim < 2 or len(args) < 2 or any(self._of(x) is not None for x in others):
            return False
        if name in _PRODUCTS:
            return args[1].ndim <= 2
        return name == "linear" or len(args[1]) < rows.ndim  # as many dimensions as are normalised

    def _looked_up(self, func: Callable[..., Any], name: str, args: Any) -> Tensor | None:
        """`x[places]` of rows of places; None where it is another call."""
        index = args[1] if name == "__getitem__" else args[2] if name == "index_select" and args[1] == 0 else None
        places = index if isinstance(index, tuple) else (index,)
        if not all(self._of(i) is not None and i.ndim == 1 and i.dtype in _WHOLE for i in places):
            return None
        filled = tuple(self._filled(self.noted[id(i)], 0) for i in places)
        return func(args[0], filled) if name == "__getitem__" else func(args[0], 0, filled[0])

    def _filled(self, x: _Rows, whole: int = 1) -> Tensor:
        """With numbers that any function takes where rows do not count; `whole` in place of whole numbers."""
        if x.rows.dtype is torch.bool:
            return x.rows & x.counting(x.rows)
        neutral = _NEUTRAL if x.rows.is_floating_point() else whole
        return torch.where(x.counting(x.rows), x.rows, neutral)

    def _all_beside(self, name: str, operands: Any) -> Any:
        """Operands that lie beside each other: rows, what has none, or as many rows as count, each at its place."""
        noted = [n for x in pytree.tree_leaves(operands) if (n := self._of(x)) is not None]
        rank, mask = noted[0].rows.ndim, noted[0]

        def beside(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if (own := self._of(x)) is not None and x.ndim == rank:
                return self._filled(own)
            if x.ndim > rank or own is not None:
                raise self._refused(name, "rows lie beside what has another number of dimensions")
            if x.ndim < rank or x.shape[0] == 1:
                return x
            empty = x.new_zeros((mask.mask.shape[0], *x.shape[1:]))
            return empty.masked_scatter(mask.counting(empty).expand(empty.shape), x)

        return pytree.tree_map(beside, operands)

    def _total(self, name: str, x: _Rows, dims: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        rows = x.rows if dtype is None else x.rows.to(dtype)
        narrow = rows.dtype in (torch.bfloat16, torch.float16)
        total = torch.where(x.counting(rows), rows, 0).sum(dims, dtype=torch.float32 if narrow else None)
        if name == "mean":
            total = total / (x.mask.sum() * math.prod(rows.shape[d] for d in dims if d))
        return total.to(rows.dtype) if narrow else total

    def _loss(self, func: Callable[..., Any], args: Any, kwargs: Any, like: _Rows) -> Tensor:
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        reduction = kwargs.get("reduction", "mean")
        known = _OPTIONS | ({"weight"} if func.__name__.startswith("binary") else set())
        if reduction not in ("none", "mean", "sum") or len(args) != 2 or kwargs.keys() - known:
            raise self._refused(func.__name__, f"name its options, of which {', '.join(sorted(known))} are known here")
        a, b, named = self._all_beside(func.__name__, (*args, dict(kwargs)))
        found = self._note(func(a, b, **{**named, "reduction": "none"}), like)
        return found if reduction == "none" else self._total(reduction, self.noted[id(found)], tuple(range(found.ndim)))

    def _cross_entropy(self, func: Callable[..., Any], args: Any, kwargs: Any, like: _Rows) -> Tensor:
        """Rows that do not count have the label that is ignored."""
        named = dict(zip(("input", "target", "weight", "size_average", "ignore_index"), args, strict=False)) | kwargs
        named = {k: v for k, v in named.items() if v is not None}
        scores, labels, reduction = named.pop("input"), named.pop("target"), named.get("reduction", "mean")
        rows, of = self._of(labels), self._of(scores)
        if rows is None or of is None or scores.ndim != 2 or named.keys() - _OF_CLASSES:
            raise self._refused(func.__name__, "expected rows of scores and their labels, and no option of old")
        if labels.is_floating_point():
            if named.get("weight") is not None or named.get("label_smoothing"):
                raise self._refused(func.__name__, "its targets are shares, with weights or smoothed")
            return self._shares(func, scores, labels, reduction, like)
        ignored = named.get("ignore_index", -100)
        found = func(self._filled(of), torch.where(rows.mask, labels, ignored), **named)
        return self._note(found, like) if reduction == "none" else found

    def _shares(self, func: Callable[..., Any], scores: Tensor, shares: Tensor, reduction: str, like: _Rows) -> Tensor:
        """Of targets that are shares of the classes."""
        a, b = self._all_beside(func.__name__, (scores, shares))
        found = self._note(func(a, b, reduction="none"), like)
        return found if reduction == "none" else self._total(reduction, self.noted[id(found)], (0,))

    def _written(self, args: Any, like: _Rows) -> None:
        """`x[mask] = rows` of the mask that chose them."""
        x, index, value = args
        first, *rest = index if isinstance(index, tuple) else (index,)
        alike = isinstance(first, Tensor) and self._named(first) == like.chosen
        if self._of(x) is not None or not alike or any(i != slice(None) for i in rest):
            raise self._refused("__setitem__", "rows may be written where their mask holds, whole")
        own = self._of(value)
        assert own is not None
        rows = own.rows.expand(-1, *x.shape[first.ndim :]) if own.rows.ndim == x.ndim - first.ndim + 1 else None
        if rows is None:
            raise self._refused("__setitem__", "the rows have other dimensions than those that are written")
        x.copy_(torch.where(like.mask.view(*first.shape, *(1,) * (x.ndim - first.ndim)), rows.reshape(x.shape), x))


def _is_mask(i: Any) -> bool:
    return isinstance(i, Tensor) and i.dtype is torch.bool and i.ndim > 0


def _behind(rows: Tensor, args: Any, kwargs: Any, place: int) -> bool:
    """Whether the dimensions that a call names are behind the rows."""
    given = kwargs["dim"] if "dim" in kwargs else args[place] if len(args) > place else None
    if given is None or isinstance(given, bool):
        return False
    return all(d % rows.ndim != 0 for d in ([given] if isinstance(given, int) else given))


def _added_up(rows: Tensor, args: Any, kwargs: Any) -> tuple[int, ...] | None:
    """The dimensions that a sum or mean is over, where rows are among them; None where they are not."""
    given = kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None
    if len(args) > 2 or kwargs.keys() - {"dim", "dtype"} or isinstance(given, torch.dtype):
        return None
    dims = range(rows.ndim) if given is None else [given] if isinstance(given, int) else given
    found = tuple(d % rows.ndim for d in dims)
    return found if 0 in found else None


def _keeps_rows(index: Any) -> bool:
    """Whether an index is of the dimensions behind the rows."""
    places = index if isinstance(index, tuple) else (index,)
    whole = isinstance(places[0], slice) and places[0] == slice(None)
    return whole and all(i is None or isinstance(i, slice | int) for i in places[1:])
