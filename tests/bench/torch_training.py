"""Models of `tests.torch.models` trained under every kind of plan on four processes, beside one process.

    python -m tests.bench.torch_training [--steps 20] [--models mlp,gpt] [--kinds ddp,zero3] [--bits]

Per run: the largest relative difference of a step's loss, of the first step's gradients, and of running statistics.
With `--bits`: whether two steps of the traced program give the bits of the interpreted one instead.
"""

from __future__ import annotations

import argparse
from functools import cache
from importlib.util import find_spec

import numpy as np

from planner.runtime.workers import Workers
from tests.torch.models import HUGGING_FACE, OWN
from tests.torch.training import KINDS, Trained, alone, train, worst


def same_bits(one: Trained, other: Trained) -> bool:
    """Whether losses, gradients and state are equal to the last bit."""
    return one.losses == other.losses and all(
        a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)
        for a, b in ((one.gradients, other.gradients), (one.state, other.state))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", default=",".join([*OWN, *(HUGGING_FACE if find_spec("transformers") else ())]))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--mode", default="eager")
    parser.add_argument("--bits", action="store_true")
    o = parser.parse_args()

    @cache
    def truth(name: str) -> Trained:
        return alone(name, o.steps)

    with Workers(4) as workers:
        for name in o.models.split(","):
            for kind in o.kinds.split(","):
                if o.bits:
                    eager, traced = (workers.call(train, name, KINDS[kind], 2, m)[0] for m in ("eager", "traced"))
                    print(f"{name:11} {kind:9} traced gives the bits of eager: {same_bits(eager, traced)}", flush=True)
                    continue
                found = workers.call(train, name, KINDS[kind], o.steps, o.mode)[0]
                one = truth(name)
                losses = max(abs(a - b) / abs(b) for a, b in zip(found.losses, one.losses, strict=True))
                gradients = worst(found.gradients, {n: one.gradients[n] for n in found.gradients})
                statistics = max(
                    (float(np.abs(found.state[n] - v).max()) for n, v in one.state.items() if "running" in n),
                    default=0.0,
                )
                print(
                    f"{name:11} {kind:9} {found.parallelism:60.60} loss {losses:.1e} gradient {gradients:.1e} "
                    f"statistics {statistics:.1e} executed as planned {found.executed == found.planned} "
                    f"on the host {sorted(found.fallbacks)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
