"""Pickles as data: read without executing anything, and written for classes that are not installed here.

A pickle names functions and classes, and says to call them.  Here a name becomes a `Name` and a call a `Call`, which
hold what was said and do nothing: no module is imported, no code of a file runs.  What is read is at most the file's
own size: a pickle cannot make a buffer longer than what follows it.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final

__all__ = ["Call", "Made", "Name", "Persistent", "read_pickle", "write_pickle"]

_LONGEST: Final = 1 << 29  # bytes of a pickle


class Name:
    """A function or class, by module and name."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *arguments: Any) -> Call:
        return Call(self, arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and (self.module, self.name) == (other.module, other.name)

    def __hash__(self) -> int:
        return hash((self.module, self.name))

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


class Call:
    """What a name would be called with, and the state that would be given to the result.

    A call is a dictionary and a list as well: pickles fill subclasses of either.
    """

    __slots__ = ("arguments", "entries", "items", "name", "state")

    def __init__(self, name: Name, arguments: tuple[Any, ...], state: Any = None) -> None:
        self.name, self.arguments, self.state = name, arguments, state
        self.entries: dict[Any, Any] = {}
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __repr__(self) -> str:
        return f"{self.name}{self.arguments}"


class Made(Call):
    """An object that is made without a call of its class's `__init__`, and given a state: what dataclasses become."""

    __slots__ = ()

    def __init__(self, name: Name, state: Any) -> None:
        super().__init__(name, (), state)


# Those written in Python: their tables can be changed, and a memo is a dictionary, whatever index a file names.
_Unpickler: Any = pickle._Unpickler
_Pickler: Any = pickle._Pickler


class _Reader(_Unpickler):
    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def __init__(self, data: bytes, persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._persistent, self._size = persistent, len(data)

    def find_class(self, module: str, name: str) -> Any:
        return Name(str(module), str(name))

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("a reference to what lies outside of it")
        return self._persistent(pid)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"extension {code}")

    def _made(self) -> None:
        arguments = self.stack.pop()
        name = self.stack.pop()
        self._put(name, arguments)

    def _made_with_words(self) -> None:
        words = self.stack.pop()
        arguments = self.stack.pop()
        self._put(self.stack.pop(), (*arguments, words))

    def _put(self, name: Any, arguments: Any) -> None:
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise pickle.UnpicklingError(f"a call of {type(name).__name__}")
        self.append(Call(name, arguments))

    def _instance(self) -> None:
        arguments = self.pop_mark()
        self._put(arguments[0], tuple(arguments[1:]))

    def _named_instance(self) -> None:
        module, name = (self.readline()[:-1].decode("ascii") for _ in range(2))
        self._put(Name(module, name), tuple(self.pop_mark()))

    def _buffer(self) -> None:
        length = int.from_bytes(self.read(8), "little")
        if length > self._size:
            raise pickle.UnpicklingError(f"a buffer of {length} bytes")
        self.append(bytearray(self.read(length)))

    dispatch[pickle.REDUCE[0]] = _made
    dispatch[pickle.NEWOBJ[0]] = _made
    dispatch[pickle.NEWOBJ_EX[0]] = _made_with_words
    dispatch[pickle.OBJ[0]] = _instance
    dispatch[pickle.INST[0]] = _named_instance
    dispatch[pickle.BYTEARRAY8[0]] = _buffer


def read_pickle(data: bytes, persistent: Callable[[Any], Any] | None = None) -> Any:
    """What a pickle says; `persistent`: what becomes of references to the outside.  ValueError where it is none."""
    if len(data) > _LONGEST:
        raise ValueError(f"a pickle of {len(data):,} bytes; at most {_LONGEST:,} are read")
    try:
        return _Reader(data, persistent).load()
    except (
        pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError,
        UnicodeError, OverflowError, MemoryError, AssertionError, struct.error,
    ) as e:  # fmt: skip
        raise ValueError(f"a pickle that cannot be read ({type(e).__name__}: {e!s:.80})") from None


class Persistent:
    """What is written as a reference to the outside."""

    __slots__ = ("pid",)

    def __init__(self, pid: Any) -> None:
        self.pid = pid


class _Writer(_Pickler):
    dispatch: ClassVar[dict[Any, Any]] = dict(_Pickler.dispatch)

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Persistent) else None

    def _name(self, obj: Name) -> None:
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        self.memoize(obj)

    def _call(self, obj: Call) -> None:
        self.save(obj.name)
        self.save(obj.arguments)
        self.write(pickle.NEWOBJ if isinstance(obj, Made) else pickle.REDUCE)
        self.memoize(obj)
        if obj.entries:
            self._batch_setitems(list(obj.entries.items()))
        if obj.state is not None:
            self.save(obj.state)
            self.write(pickle.BUILD)

    dispatch[Name] = _name
    dispatch[Call] = _call
    dispatch[Made] = _call


def write_pickle(value: Any, protocol: int = 2) -> bytes:
    """A pickle of plain values, names and calls."""
    out = io.BytesIO()
    _Writer(out, protocol).dump(value)
    return out.getvalue()
