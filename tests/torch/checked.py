"""Functions of token ids and of what a module computes of them, which check values, or whose flow depends on them.

They lie apart from their tests, whose assertions are written anew when they are imported.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["CHECKS", "FLOWS"]

logger = logging.getLogger(__name__)
IN_ALL = 24  # a token that every batch of the tests has


def _asserts(ids: Tensor, h: Tensor) -> None:
    assert (h.abs() < 1e4).all()


def _asserts_a_number(ids: Tensor, h: Tensor) -> None:
    assert ids.min().item() >= 0 and ids.max().item() < 32, f"not a token: {ids.max().item()}"  # noqa: PT018


def _asserts_one_of_two(ids: Tensor, h: Tensor) -> None:
    assert (h < 1e4).all() or (h > -1e4).any(), f"too large: {h.max() if ids.ndim else 1}"


def _asserts_all_of_several(ids: Tensor, h: Tensor) -> None:
    assert all((row < 1e4).all() for row in h)


def _asserts_by_torch(ids: Tensor, h: Tensor) -> None:
    torch._assert(ids.max() < 32, "not a token")


def _asserts_that_two_are_equal(ids: Tensor, h: Tensor) -> None:
    assert torch.equal(ids, ids.clone()), "changed"
    assert torch.allclose(h, h.clone())


def _raises(ids: Tensor, h: Tensor) -> None:
    if ids.max() >= 32:
        raise IndexError(f"not a token: {ids.max()}")


def _raises_for_a_number(ids: Tensor, h: Tensor) -> None:
    largest = ids.max().item()
    if largest >= 32:
        raise IndexError(largest)


def _raises_in_one_of_three_cases(ids: Tensor, h: Tensor) -> None:
    with torch.no_grad():
        if (ids < 0).any() or ((ids >= 32).any() and (ids != -100).any()):
            message = f"not a token: {ids.max()} {'in' if h.ndim else 'of'} it"
            raise IndexError(message)
    h.sum()


def _raises_otherwise(ids: Tensor, h: Tensor) -> None:
    if bool((ids >= 0).all()):
        pass
    else:
        raise ValueError("not a token")


def _raises_behind_a_return(ids: Tensor, h: Tensor) -> None:
    if not h.isnan().any():
        return
    raise ValueError("no number")


def _raises_where_one_is_found(ids: Tensor, h: Tensor) -> None:
    if 99 in ids:
        raise ValueError("not a token")


def _raises_where_none_is_found(ids: Tensor, h: Tensor) -> None:
    if IN_ALL not in ids:
        raise ValueError("no such token")


def _raises_and_cleans_up(ids: Tensor, h: Tensor) -> None:
    try:
        assert (h < 1e4).all()
    finally:
        h.sum()


def _raises_far_away(ids: Tensor, h: Tensor) -> None:
    for n in range(1):
        if (h > 1e4).any():
            raise ValueError([
                n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11, n + 12, n + 13,
                n - 1, n - 2, n - 3, n - 4, n - 5, n - 6, n - 7, n - 8, n - 9, n - 10, n - 11, n - 12, n - 13, n - 14,
                n * 1, n * 2, n * 3, n * 4, n * 5, n * 6, n * 7, n * 8, n * 9, n * 10, n * 11, n * 12, n * 13, n * 14,
                n // 1, n // 2, n // 3, n // 4, n // 5, n // 6, n // 7, n // 8, n // 9, n // 10, n // 11, n // 12,
            ])  # fmt: skip
        if (ids < 0).any():
            raise ValueError


def _speaks(ids: Tensor, h: Tensor) -> None:
    for row in h:
        if (row > 1e4).any():
            print("large:", row.max())
            warnings.warn("large", stacklevel=2)
            logger.warning("large")


CHECKS = [
    _asserts, _asserts_a_number, _asserts_one_of_two, _asserts_all_of_several, _asserts_by_torch,
    _asserts_that_two_are_equal, _raises, _raises_for_a_number, _raises_in_one_of_three_cases, _raises_otherwise,
    _raises_behind_a_return, _raises_where_one_is_found, _raises_where_none_is_found,
    _raises_and_cleans_up, _raises_far_away, _speaks,
]  # fmt: skip


def _computes(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any():
        h = h / 2
    return h


def _chooses(ids: Tensor, h: Tensor) -> Tensor:
    return h / 2 if (h > 1.0).any() else h


def _computes_where_it_raises(ids: Tensor, h: Tensor) -> Tensor:
    try:
        assert (h < 1.0).all()
    except AssertionError:
        h = h / 2
    return h


def _speaks_and_computes(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any():
        print("large")
        h.mul_(0.5)
    return h


def _raises_either_way(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any():
        raise ValueError("large")
    raise ValueError("small")


def _large(h: Tensor) -> None:
    if (h > 1.0).any():
        raise ValueError("large")


def _a_caller_goes_on(ids: Tensor, h: Tensor) -> Tensor:
    try:
        _large(h)
    except (ValueError, KeyError):
        h = h / 2
    return h


def _goes_on_behind_what_ends_within(ids: Tensor, h: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            if (h > 1.0).any():
                raise ValueError("large")
    except ValueError:
        h = h / 2
    return h


def _suppresses(ids: Tensor, h: Tensor) -> Tensor:
    with contextlib.suppress(AssertionError):
        assert (h < 1.0).all()
        h = h / 2
    return h


def _goes_on_behind_torchs_own(ids: Tensor, h: Tensor) -> Tensor:
    try:
        torch._assert((h < 1.0).all(), "large")
    except AssertionError:
        h = h / 2
    return h


def _computes_before_it_raises(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any():
        h.mul_(0.5)
        if h.isnan().any():
            raise ValueError("no number")
    return h


def _computes_in_a_condition(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any() and h.mul_(0.5).isnan().any():
        raise ValueError("no number")
    return h


def _ends_an_iteration(ids: Tensor, h: Tensor) -> Tensor:
    class Until:
        def __iter__(self) -> Iterator[float]:
            return self  # type: ignore[return-value]

        def __next__(self) -> float:
            if (h > 1.0).any():
                raise StopIteration
            return 0.5

    for factor in Until():
        return h * factor
    return h


def _returns_another_number(ids: Tensor, h: Tensor) -> Tensor:
    if (h > 1.0).any():
        print("large")
        return h / 0.0
    return h / -0.0


class _Gate:
    def __init__(self, h: Tensor) -> None:
        self.h, self.scale = h, 1.0

    def __bool__(self) -> bool:
        if (self.h > 1.0).any():
            self.scale = 0.5
        return self.scale < 1


def _asks_an_object(ids: Tensor, h: Tensor) -> Tensor:
    gate = _Gate(h)
    if gate:
        print("large")
    return h * gate.scale


FLOWS = [
    _computes, _chooses, _computes_where_it_raises, _speaks_and_computes, _raises_either_way, _a_caller_goes_on,
    _goes_on_behind_what_ends_within, _suppresses, _goes_on_behind_torchs_own, _computes_before_it_raises,
    _computes_in_a_condition, _ends_an_iteration, _returns_another_number, _asks_an_object,
]  # fmt: skip
