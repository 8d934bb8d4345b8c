"""What a package needs to teach the planner its own operators (see `plugins` for how it is found).

    from planner.rules.extend import Operator, Rule, rule, sharded

    @rule("example::ScaledMatMul")
    def _scaled_matmul(o: Operator) -> Rule:
        return sharded(o, "b... m k, k n, n -> b... m n", kind="matmul", linear=[(0,), (1,), (2,)])

`planner verify` executes operators that no runtime knows with `planner.kernels.local_kernel`.
"""

from __future__ import annotations

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import opaque, rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["Combine", "InnerCollective", "KeepWholeError", "Operator", "Rule", "opaque", "rule", "sharded"]
