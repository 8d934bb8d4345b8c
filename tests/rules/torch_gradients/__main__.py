"""Writes what torch finds: `python -m tests.rules.torch_gradients --write`."""

from __future__ import annotations

import argparse

from tests.rules.torch_gradients.autograd import records
from tests.rules.torch_gradients.golden import GOLDEN, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {GOLDEN.name}")
    found = tuple(records())
    if parser.parse_args().write:
        write(found)
    print(f"{len(found)} operators of {len({r.op.type for r in found})} types")


if __name__ == "__main__":
    main()
