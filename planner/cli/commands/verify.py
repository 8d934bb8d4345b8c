"""`planner verify PLAN [MODEL]`: proof of a plan by derivation and by execution on virtual devices."""

from __future__ import annotations

import argparse
import json
import os

from planner.cli.options import add_json_option, add_model_options
from planner.errors import InputError
from planner.requests.model import ModelSource
from planner.requests.plan_model import model_of_plan
from planner.requests.values import bindings, not_negative, plan_file, progress_to

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan", type=plan_file, metavar="PLAN", help="the plan: plan.json of `planner search`, or its folder"
    )
    add_model_options(parser, optional=True)
    parser.add_argument(
        "--whole", action="store_true", help="execute the whole graph and the file, however long that takes"
    )
    parser.add_argument("--seed", type=not_negative, default=0, help="seed of the random weights and inputs")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    # Products of shards are small, and a second BLAS thread is waited for at full speed, which beside other processes
    # takes ten times as long as the products.  Read as numpy is first imported; ONNX Runtime has threads of its own.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")

    from planner.planning import read_plan, write_plan
    from planner.requests.verification import recorded_in, said_by_children, verification_document, verified
    from planner.requests.verification_text import verification_text

    plan = read_plan(options.plan)
    bind = bindings(options.bind)
    source = ModelSource(model_of_plan(options.plan, options.model, "the argument MODEL"))
    with said_by_children() as say:
        found = verified(plan, source, bind=bind, batch=options.batch, seed=options.seed, whole=options.whole, say=say)
    document = verification_document(found)
    print(json.dumps(document, indent=1) if options.json else verification_text(document))
    record = recorded_in(plan, found, options.seed)
    if record is not None:
        try:
            write_plan(record, options.plan)
        except InputError as e:
            progress_to(quiet=False)(f"the plan's record of this verification stays as it was: {e}")
    return 0 if found.ok else 1
