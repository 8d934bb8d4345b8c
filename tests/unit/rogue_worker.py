"""Stands in for the worker of `planner solve` where a test needs one that misbehaves; the instance's name says how."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    request = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(kind="facts", facts={"nodes": 2})
    say(kind="choice", choice=[1, 0], cost=12)
    say(kind="report", incumbent=12, bound=7, gap=5 / 12, solver="rogue", seconds=0.1)
    match Path(request["instance"]).stem:
        case "overrun":
            time.sleep(60)
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            raise SystemExit(3)
        case "cut":
            os.write(1, b'{"kind": "choice", "choice": [0')
            os._exit(0)


if __name__ == "__main__":
    main()
