"""Options in messages, as keywords."""

from __future__ import annotations

import pytest

from planner.requests.wording import in_keywords

CASES = {
    "--batch 8 was given, but": "batch=8 was given, but",
    "bind the batch by --batch, not by --bind": "bind the batch by batch, not by bind",
    "--memory-limit 64GiB: too small": "memory_limit=64GiB: too small",
    "Raise --memory-limit, use more --devices, a smaller --batch, or an --optimizer with less": (
        "Raise memory_limit, use more devices, a smaller batch, or an optimizer with less"
    ),
    "--reproducible forbids --time-limit: a limit": "reproducible forbids time_limit: a limit",
    "links are those of the --hardware profile": "links are those of the hardware profile",
    "--time-limit -1: expected": "time_limit=-1: expected",
    "search with --recompute none": "search with recompute=none",
    "search with --mode training": "search with mode=training",
    "--target megatron takes degrees": "target=megatron takes degrees",
    "search without --stages and --micro-batches": "search without stages and micro_batches",
    "--pin '*.fc1.* m=x': wrong": "pin='*.fc1.* m=x': wrong",
    "--bind batch=8: the model": "bind={'batch': 8}: the model",
    "give --bind seq=SIZE": "give bind={'seq': SIZE}",
    "--hardware nosuch: expected": "hardware=nosuch: expected",
    "choose another --hardware": "choose another hardware",
    "--strategy megatron:tp=8,pp=4: tp": "strategy=megatron:tp=8,pp=4: tp",
    "argument --top-k: expected": "top_k: expected",
    "--hidden 100 is no multiple of --heads 12": "hidden=100 is no multiple of heads=12",
    "wte is laid out differently (--details)": "wte is laid out differently",
    "of 8 devices repeat: --devices 4 is as fast": "of 8 devices repeat: devices=4 is as fast",
    # Of launchers of other systems.
    "--tensor-model-parallel-size 4 and --use-distributed-optimizer": (
        "--tensor-model-parallel-size 4 and --use-distributed-optimizer"
    ),
    "A -- B, a--b, and 3--4": "A -- B, a--b, and 3--4",
}


@pytest.mark.parametrize("text", CASES)
def test_options_become_keywords(text: str) -> None:
    assert in_keywords(text) == CASES[text]
    assert in_keywords(CASES[text]) == CASES[text]
