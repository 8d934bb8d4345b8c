"""What torch found, as a small file: operators as JSON, floats end to end in one vector, integers in another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.shards import Array
from tests.rules.prover import Case, from_values, is_floating

__all__ = ["GOLDEN", "Record", "read", "write"]

GOLDEN = Path(__file__).parents[2] / "golden" / "torch_gradients.npz"

Row = tuple["Array | None", ...]


@dataclass(frozen=True, eq=False)
class Record:
    """An operator on its operands; results, their gradients and those of the operands as torch has them.

    A result is None where torch's function does not give it, a gradient where there is none.
    """

    name: str
    op: Op
    constants: tuple[int, ...]
    inputs: Row
    results: Row
    result_gradients: Row
    gradients: Row

    @property
    def case(self) -> Case:
        """With our own results."""
        return from_values(self.op, self.inputs, tuple(run_local(self.op, self.inputs)), set(self.constants), self.name)


def write(records: Iterable[Record], path: Path = GOLDEN) -> None:
    """In float32, whatever torch computed in."""
    floats: list[Array] = []
    integers: list[Array] = []

    def put(row: Row) -> list[Any]:
        for v in row:
            if v is not None:
                (floats if is_floating(v) else integers).append(v.reshape(-1))
        return [None if v is None else [str(v.dtype), *v.shape] for v in row]

    index = [
        {
            "name": r.name,
            "type": r.op.type,
            "inputs": r.op.inputs,
            "outputs": r.op.outputs,
            "attributes": dict(r.op.attributes),
            "opset": r.op.opset,
            "constants": r.constants,
            "values": [put(row) for row in (r.inputs, r.results, r.result_gradients, r.gradients)],
        }
        for r in records
    ]
    np.savez_compressed(
        path,
        index=np.frombuffer(json.dumps(index, separators=(",", ":")).encode(), dtype=np.uint8),
        floats=np.concatenate(floats).astype(np.float32),
        integers=np.concatenate(integers).astype(np.int64),
    )


def read(path: Path = GOLDEN) -> tuple[Record, ...]:
    with np.load(path) as stored:
        index = json.loads(stored["index"].tobytes())
        cursors = {True: _Cursor(stored["floats"]), False: _Cursor(stored["integers"])}

    def row(described: list[Any]) -> Row:
        return tuple(
            None if d is None else cursors[d[0].startswith("float")].take(tuple(d[1:])).astype(d[0]) for d in described
        )

    def records() -> Iterator[Record]:
        for r in index:
            attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in r["attributes"].items()}
            outputs = tuple(r["outputs"])
            op = Op(next(filter(None, outputs)), r["type"], tuple(r["inputs"]), outputs, attributes, r["opset"])
            yield Record(r["name"], op, tuple(r["constants"]), *(row(d) for d in r["values"]))

    return tuple(records())


class _Cursor:
    """Hands out a vector piece by piece."""

    def __init__(self, values: Array) -> None:
        self.values = values
        self.at = 0

    def take(self, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        self.at += size
        return self.values[self.at - size : self.at].reshape(shape)
