"""What the fork server imports once, so that a child begins with it."""

from __future__ import annotations

import gc
import importlib
import os

from planner.garbage import collect_seldom
from planner.processes import die_with

__all__ = ["PARENT", "SERVER"]

PARENT = "PLANNER_FORK_SERVER_OF"  # environment: the worker that starts the fork server
SERVER = os.getpid()  # in a child: the fork server

if os.environ.get(PARENT) == str(os.getppid()):  # not where someone else imports this module
    die_with(os.getppid())
    for _module in (
        "planner.api.jobs.execute",
        "planner.api.jobs.artifacts",
        "planner.api.jobs.evaluations",
        "planner.api.jobs.explanations",
        "planner.api.jobs.searches",
        "planner.cli.main",  # which a child runs again where `planner` is the script that began it all
        "planner.requests.searcher",
        "planner.emit.registry",
        "planner.evaluate.plan",
        "planner.frontends.importer",
        "planner.frontends.file.strip",
        "planner.explain",
        "planner.planning.schemes",
        "planner.report.diff",
        "planner.report.document",
        "planner.report.pages",
        "planner.report.trace",
        "planner.search.program.ilp",
        "planner.search.large.program",
        "planner.search.prices.master",
        "planner.native.library",
    ):
        importlib.import_module(_module)
    from planner.native.library import library

    library()  # compiled once, where that is still to do
    gc.collect()
    gc.freeze()  # what is here already is not looked at again, and its pages stay shared
    collect_seldom()  # in the children, each of which does one job
