"""What a stage of a pipeline sends to others and receives from them, rank by rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner.lowering import Staged, StageTransfer
from planner.lowering.touched import Key
from planner.runtime.workers import Context

__all__ = ["Transfers"]


class Transfers:
    """Of this process as a rank of stage `stage`; chunks of one stage hand over within it.

    shape_of, type_of  the local shape of a value, and the type in which a tensor is sent
    """

    def __init__(
        self,
        staged: Staged,
        stage: int,
        context: Context,
        shape_of: Callable[[Key], tuple[int, ...]],
        type_of: Callable[[str], torch.dtype],
    ) -> None:
        self.holder, self.ranks = staged.passes.holder, staged.program.mesh.devices
        self.stage, self.context = stage, context
        self.shape_of, self.type_of = shape_of, type_of
        self._under_way: list[tuple[dist.Work, Tensor]] = []
        self._within: dict[StageTransfer, deque[Tensor]] = {}

    def send(self, transfer: StageTransfer, value: Tensor | None) -> None:
        """Sends a value, zeros where there is none, and does not wait for it."""
        there = self.holder[transfer.target]
        if there == self.stage:
            if value is not None:
                self._within.setdefault(transfer, deque()).append(value)
            return
        if value is None:
            kind = self.type_of(transfer.tensor)
            value = torch.zeros(self.shape_of(transfer.key), dtype=kind, device=self.context.device)
        value = value.contiguous()
        peer = there * self.ranks + self.context.place
        work = dist.isend(value, peer, group=self._line(transfer, peer), tag=_tag(transfer))
        assert work is not None
        self._under_way.append((work, value))
        self.context.ledger.add(self.context.ledger.steps, "send", value.nbytes)

    def receive(self, transfer: StageTransfer) -> Tensor | None:
        """What has been sent, None within a stage where nothing was; waits for it."""
        there = self.holder[transfer.source]
        if there == self.stage:
            link = self._within.get(transfer)
            return link.popleft() if link else None
        value = torch.empty(
            self.shape_of(transfer.key), dtype=self.type_of(transfer.tensor), device=self.context.device
        )
        peer = there * self.ranks + self.context.place
        dist.recv(value, peer, group=self._line(transfer, peer), tag=_tag(transfer))
        return value

    def wait(self) -> None:
        """Until all that was sent has arrived."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def empty(self) -> None:
        """Forgets what chunks of the stage have not taken."""
        self._within = {}

    def _line(self, transfer: StageTransfer, peer: int) -> Any:
        """The process group that a transfer goes through.  Two stages may hold several neighbouring chunks, and take
        turns otherwise than they send: gloo tells messages apart by tags, NCCL by groups alone."""
        if self.context.device.type == "cpu":
            return None
        return self.context.group_of(tuple(sorted((self.context.rank, peer))), f"{_tag(transfer)}")


def _tag(transfer: StageTransfer) -> int:
    """A number for the boundary between chunks and the direction; what crosses it keeps its order."""
    return 1 + 2 * min(transfer.source, transfer.target) + transfer.gradient
