"""What MindSpore's own functions make of checkpoints; runs under an interpreter that has MindSpore, without ours.

    python mindspore_checkpoints.py JOBS.json

A job is {"do": "load", "from": X.ckpt, "to": X.npz}, {"do": "save", "from": X.npz, "to": X.ckpt}, or {"do":
"transform", "from": DIR, "to": DIR, "source": STRATEGY, "target": STRATEGY}, of which the ranks' files become
rank_N.npz.  Prints a line for each that raised.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np


def load(source: str, target: str) -> None:
    found = mindspore.load_checkpoint(source)
    np.savez(target, **{n: v.asnumpy() for n, v in found.items()})


def save(source: str, target: str) -> None:
    held = np.load(source)
    mindspore.save_checkpoint([{"name": n, "data": mindspore.Tensor(held[n])} for n in held.files], target)


def transform(job: dict[str, Any]) -> None:
    mindspore.transform_checkpoints(job["from"], job["to"], "c", job["source"], job["target"])
    for folder in Path(job["to"]).glob("rank_*"):
        (file,) = folder.glob("*.ckpt")
        load(str(file), str(folder.with_suffix(".npz")))


def main() -> None:
    for number, job in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        try:
            if job["do"] == "transform":
                transform(job)
            else:
                {"load": load, "save": save}[job["do"]](job["from"], job["to"])
        except Exception as error:
            print(f"{number} {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
