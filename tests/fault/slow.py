"""A worker whose tasks take longer than their work: `python -m tests.fault.slow SECONDS --data DIR …`.

What many workers gain together can then be measured on a machine of few processors: a task sleeps, and then is done as
any other.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from multiprocessing.connection import Connection

from planner.api.jobs import command
from planner.api.jobs.child import main
from planner.api.jobs.work import JobInput
from planner.api.jobs.worker import Worker

__all__ = ["sleep_first"]


def sleep_first(sender: Connection, work: JobInput, seconds: float) -> None:
    """The entry of a child."""
    time.sleep(seconds)
    main(sender, work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    command.configure(parser)
    options = parser.parse_args()
    from tests.fault.slow import sleep_first as entry  # by the name under which a child finds it

    setattr(command, "Worker", partial(Worker, entry=partial(entry, seconds=options.seconds)))  # noqa: B010  for mypy it is a class
    sys.exit(command.run(options))
