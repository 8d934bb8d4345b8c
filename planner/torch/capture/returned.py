"""How a module returns its own loss, so that its parallel step returns it in the same way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["NotReturned", "Returned", "StepOutput", "loss_of"]


class StepOutput(OrderedDict[str, Any]):
    """What a module that returns its own loss by name returns when it is parallel: the loss, by name, attribute or
    place."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"a parallel step returns its loss alone, and no {name!r}")

    def __missing__(self, key: Any) -> Any:
        raise KeyError(f"a parallel step returns its loss alone, and no {key!r}")

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class NotReturned:
    """Stands in a tuple for what the module itself returns there: a parallel step gathers no scores."""

    def __init__(self, place: int, size: int) -> None:
        self._place, self._size = place, size

    def __repr__(self) -> str:
        return f"<result {self._place + 1} of {self._size}: a parallel step returns its loss alone>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what `copy` and `pickle` look for, before there is a place
            raise AttributeError(name)
        raise AttributeError(f"{self!r}, and no {name!r} of this result")


@dataclass(frozen=True)
class Returned:
    """Where the loss is in what a module returns: `place` is None where the loss is all of it, "loss" where it has
    that name, a number where it is one of a tuple of `size`."""

    place: str | int | None = None
    size: int = 0

    @classmethod
    def of(cls, found: Any) -> Returned:
        """Of what a module returned.  Hugging Face's models name their loss; where they return a tuple, it is the
        first.  Others return (scores, loss)."""
        named = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
        if isinstance(named, Tensor):
            return cls("loss")
        if not isinstance(found, tuple):
            return cls()
        if found and isinstance(found[0], Tensor) and found[0].ndim == 0:
            return cls(0, len(found))
        # Further behind, numbers are of another kind, such as a temperature.
        scalars = [i for i, x in enumerate(found) if isinstance(x, Tensor) and x.ndim == 0 and x.is_floating_point()]
        return cls(1, len(found)) if scalars == [1] else cls()

    def taken(self, found: Any) -> Any:
        """The loss in what the module returned; all of that where it has none."""
        if self.place is None:
            return found
        if isinstance(self.place, str):
            return found[self.place] if isinstance(found, Mapping) else getattr(found, self.place)
        return found[self.place]

    def wrapped(self, loss: Tensor) -> Any:
        """What the parallel module returns."""
        if self.place is None:
            return loss
        if isinstance(self.place, str):
            return StepOutput({self.place: loss})
        return tuple(loss if i == self.place else NotReturned(i, self.size) for i in range(self.size))


def loss_of(found: Any) -> Any:
    """The loss in what a module returned, as Hugging Face's models return theirs; what they returned where there is
    none."""
    return Returned.of(found).taken(found)
