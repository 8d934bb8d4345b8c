"""Children that misbehave, for the worker to deal with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from planner.api.jobs.child import main
from planner.api.jobs.execute import Tell
from planner.api.jobs.work import JobInput, JobResult
from planner.frontends.file.sandbox import Limits as ImportLimits
from planner.frontends.file.sandbox import run_limited
from planner.requests.cancel import cancelled_by_signals

__all__ = ["misbehaving"]


def misbehaving(sender: Connection, work: JobInput) -> None:
    """Does what `options["do"]` names."""
    main(sender, work, _do)


def _do(work: JobInput, tell: Tell) -> JobResult:
    match work.options["do"]:
        case "nothing":
            pass
        case "look":
            return JobResult({}, _look(work))
        case "spin":
            while True:
                pass
        case "spin until asked":
            with cancelled_by_signals() as cancellation:
                cancellation.searching = True
                while not cancellation.requested.is_set():
                    pass
            return JobResult({"best": (b"so far", "text/plain")}, plan=b"so far", cancelled=True)
        case "sleep":
            time.sleep(60)
        case "sleep deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        case "sleep with a child":
            pid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid
            tell.say(str(pid))
            time.sleep(60)
        case "import for long":
            run_limited(lambda: time.sleep(60), limits=ImportLimits(), what="importing m.onnx")
        case "import too much":
            run_limited(lambda: bytearray(8 << 30), limits=ImportLimits(memory_bytes=1 << 28), what="importing m.onnx")
        case "grow":
            held = []
            while True:
                held.append(bytearray(64 << 20))
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "die once":
            assert work.cache is not None
            mark = work.cache / "mark"
            if not mark.exists():
                mark.touch()
                os._exit(7)
        case "fill the disk":
            Path("big").write_bytes(bytes(work.limits.file_bytes + 1))
        case "write much":
            for k in range(20):
                Path(str(k)).write_bytes(bytes(1 << 20))
            time.sleep(60)
        case "write many":
            for k in range(200):
                Path(str(k)).mkdir()
            time.sleep(60)
        case "start many":
            for _ in range(40):
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
            time.sleep(60)
        case "hand in too much":
            return JobResult({"big": (bytes(work.limits.result_bytes + 1), "")})
        case "babble":
            for k in range(2000):
                tell.say(f"line {k} " + "x" * 5000)
                tell.progress(2.0, 1.0, 0.5, k / 100)
        case "tell without end":
            beneath: Any = tell
            while True:
                beneath._sender.send_bytes(b'{"kind": "message", "text": "%s"}' % (b"x" * 500_000))
        case "speak no sense":
            raw: Any = tell  # beneath what a child may say
            raw._sender.send_bytes(work.options["words"].encode())
            time.sleep(60)
        case "fault":
            raise ZeroDivisionError("a fault of ours")
    return JobResult({"result": (b"done", "text/plain")}, {"pid": os.getpid()})


def _look(work: JobInput) -> dict[str, object]:
    """What a child finds around it."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "cwd": os.getcwd(),
        "files": os.listdir(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "group": os.getpgid(0) == os.getpid(),
        "threads": int(status["Threads"]),
        "stdin": os.readlink("/proc/self/fd/0"),
        "handles": len(os.listdir("/proc/self/fd")),
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
        "loaded": sorted({m.partition(".")[0] for m in sys.modules} & {"planner", "numpy", "onnx", "ortools"}),
    }
