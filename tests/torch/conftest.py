"""What tests of `planner.torch` share.  It is read where torch is not installed, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def process_alone() -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
