"""Writes the sample graphs.  `python sample_graphs/make.py [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from planner.cli.main import main

SAMPLES = {
    "gpt2_small": "gpt --seq 128 --context 1024",
    "gpt_tiny": "gpt --layers 2 --hidden 64 --heads 4 --vocab 128 --seq 16",
    "bert_tiny": "bert --layers 2 --hidden 64 --heads 4 --vocab 128 --seq 16",
    "llama_tiny": "llama --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --vocab 128 --seq 16",
    "moe_tiny": "moe --layers 2 --hidden 32 --heads 4 --kv-heads 4 --ffn 128 --vocab 128 --seq 8 --experts 4",
    "vit_tiny": "vit --layers 2 --hidden 64 --heads 4 --image 32 --patch 8 --classes 16",
    "resnet18_tiny": "resnet --layers 18 --hidden 8 --image 32 --classes 16",
    "resnet50": "resnet --inference",
    "mlp": "mlp --layers 4 --features 64 --hidden 64 --classes 8",
}


def write(folder: Path) -> None:
    """All samples into `folder`."""
    for name, options in SAMPLES.items():
        main(["build", *options.split(), "--out", str(folder / f"{name}.onnx")])


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
