"""What a pipeline stage holds of a chunk, and what chunks send each other."""

from __future__ import annotations

from dataclasses import dataclass

from planner.ir import Layout, Op
from planner.kernels.shards import Array, Shards
from planner.lowering import Free, Host, Program
from planner.lowering.program import StageInstruction
from planner.lowering.touched import Key
from planner.verify.proof import Proof
from planner.verify.terms import summed
from planner.verify.whole import Whole

__all__ = ["Message", "Part"]


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What one chunk sends another: the shards, and of a gradient the value and the contributions that they stand for.
    `shards` is None where there is no gradient."""

    micro_batch: int
    shards: Shards | None
    whole: Array | None = None
    added: tuple[str, ...] = ()


class Part(Proof):
    """What a stage holds of a chunk: of one micro-batch, or of all of them.  Whether operators respond to their
    operands is judged once, by `responses`, on the first micro-batch's data."""

    def __init__(
        self, program: Program, whole: Whole, seed: int, micro_batch: int = 0, *, responses: bool = True
    ) -> None:
        super().__init__(program, whole, seed)
        self.micro_batch, self.responses = micro_batch, responses
        self.host: dict[Key, Shards] = {}

    def step(self, instruction: StageInstruction) -> None:
        """Also lets go what is made again, and has values wait elsewhere."""
        match instruction:
            case Free(tensor, layout):
                self.devices.values.pop((tensor, layout), None)
            case Host():
                self._host(instruction)
            case _:
                super().step(instruction)

    def _host(self, move: Host) -> None:
        """To the host's memory, or back, where it has to be what it was."""
        key, what = (move.tensor, move.layout), f"{move.tensor} as {move.layout}"
        source = self.host if move.back else self.devices.values
        if key not in source:
            where = "from the host's memory, where" if move.back else "to the host's memory from where"
            self.report.failures.append(f"{what} goes {where} it is not")
            return
        shards = source.pop(key)
        if not move.back:
            self.host[key] = shards
            return
        whole = self.whole.value(move.tensor)
        good = self._compare(f"{what} from the host's memory", shards, move.layout, whole, summed(shards))
        self.devices.values[key] = self._next(shards, good, whole, move.layout)

    def give(self, key: Key, to: Part, who: tuple[str, ...]) -> None:
        """Adds a gradient, to which `who` contributed, to the other's, and has it no more."""
        del self.added[key]
        to._contribute(key, self.devices.gradients.pop(key), self.sums.pop(key), who)

    def received(self, what: str, key: Key, shards: Shards) -> None:
        """Compares a value that another chunk has sent, and puts it into its place."""
        name, layout = key
        whole = self.whole.value(name)
        good = self._compare(what, shards, layout, whole, summed(shards))
        self.devices.values[key] = self._next(shards, good, whole, layout)

    def leftovers(self) -> None:
        """Gradients that nothing has used."""
        self.report.failures += [
            f"gradient of {name} as {layout}: nothing uses it" for name, layout in self.devices.gradients
        ]
        self.report.failures += [
            f"{name} as {layout} stays in the host's memory: nothing fetches it" for name, layout in self.host
        ]

    def _silence(self, op: Op, place: int, whole: Array, layout: Layout) -> str:
        return super()._silence(op, place, whole, layout) if self.responses else ""
