"""Everything hostile against `planner serve`: `python -m tests.service.hostile_run`.

Every file and request of `tests/hostile` is posted, several at once, and its job followed to the end; what succeeds is
looked at in every form that there is (pictures, emitted files, diffs).  Meanwhile another process asks `/healthz` 50
times a second, an open loop: a request is timed from when it was due.  What children use is read from /proc.

Printed is one JSON document.  Exit status 1 where something did not hold: an answer or problem of the 5xx class, no
answer in time, an answer that names nothing, memory or time beyond the limits, a worker or server that ended, something
left behind, or, with --p99-ms, /healthz slower than that.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.hostile import large
from tests.hostile.opened import Opened
from tests.hostile.outside import watched
from tests.hostile.parts import serialized
from tests.hostile.requests import REQUESTS, Asked
from tests.service.children_seen import Watching, descendants, gone
from tests.service.looked_at import defects_of
from tests.service.process import Served, served
from tests.service.pulse import pulse, quantiles

ROOT = Path(__file__).parents[2]
HOSTILE = ROOT / "tests" / "hostile"
MEMORY, CPU_S, WALL_S = 2 << 30, 60, 90
LIMITS = ("--child-memory", str(MEMORY), "--child-cpu", str(CPU_S), "--child-wall", str(WALL_S))
OTHERS = ("--workers", "2", "--queue", "100000", "--rate", "0")
CUTS = 40  # truncations of a real model
# Plans whose pictures and files are looked at, in every form.
LOOKED_AT = frozenset(
    (
        "branch_outside.onnx",
        "markup.onnx",
        "paths.onnx",
        "split_into_thousands.onnx.gz",
        "strange_domain.onnx",
        "watched",
    )
)
PROGRAM = 1 << 30  # bytes resident that all processes of a child have of the program itself


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Asking:
    """Requests by a connection each: nothing is mended or checked on the way."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).netloc

    def __call__(
        self, method: str, path: str, body: bytes | None = None, headers: Any = (), timeout: float = 180
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=timeout)
        try:
            try:
                connection.putrequest(method, path)
                for name, value in dict(headers).items():
                    connection.putheader(name, value.encode("utf-8", "surrogateescape"))
                if body is not None:
                    connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before all of it was sent; the answer is there
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def job(self, path: str, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while True:
            job: dict[str, Any] = self("GET", path).document
            if job["finished_at"] is not None or time.monotonic() > end:
                return job
            time.sleep(0.1)


def files(only: str, canary: str) -> dict[str, Callable[[], Asked]]:
    """Everything there is to be posted, made when it is needed."""

    def read(path: Path) -> Callable[[], Asked]:
        return lambda: Asked(large.unpacked(path) if path.suffix == ".gz" else path.read_bytes())

    out = {p.name: read(p) for p in sorted(HOSTILE.glob("*.onnx"))}
    out |= {p.name: read(p) for p in sorted(large.FOLDER.glob("*.onnx.gz"))}
    out["watched"] = lambda: Asked(serialized(watched(canary)))
    whole = (ROOT / "sample_graphs" / "gpt_tiny.onnx").read_bytes()
    for k in range(CUTS):
        cut = len(whole) * (k + 1) // (CUTS + 1)
        out[f"cut_{cut}"] = partial(Asked, whole[:cut])
    out |= {f"request {name}": partial(REQUESTS.__getitem__, name) for name in REQUESTS}
    return {name: make for name, make in out.items() if only in name}


def posted(ask: Asking, asked: Asked) -> dict[str, Any]:
    """How one was answered at once, and in the end."""
    began = time.monotonic()
    found: dict[str, Any] = {"bytes": len(asked.body)}
    try:
        told = {"content-type": asked.media, **asked.headers}
        answer = ask("POST", f"/v1/plans?{asked.query}", asked.body, told)
    except (OSError, http.client.HTTPException) as e:
        return found | {"defects": [f"no answer: {type(e).__name__}: {e}"]}
    found["answer"] = answer.status
    found["answer_s"] = round(time.monotonic() - began, 3)
    defects = found["defects"] = []
    if answer.status not in (*asked.statuses, 200):
        defects.append(f"answered {answer.status}")
    if answer.status not in (200, 202):
        if answer.headers.get("content-type") != "application/problem+json":
            defects.append(f"the answer is no problem document: {answer.body[:200]!r}")
            return found
        found["problem"], found["detail"] = _told(answer.document, defects)
        return found
    job = ask.job(answer.document["links"]["self"], 4 * WALL_S * 30)
    found |= {"job": job["id"], "status": job["status"], "seconds": round(time.monotonic() - began, 3)}
    if job["started_at"] and job["finished_at"]:
        begun, ended = (datetime.fromisoformat(job[k]) for k in ("started_at", "finished_at"))
        found["job_s"] = round((ended - begun).total_seconds(), 3)
    if job["finished_at"] is None:
        defects.append("the job did not end")
    if job["error"] is not None:
        if job["error"]["status"] >= 500:
            defects.append("a problem of the 5xx class")
        found["problem"], found["detail"] = _told(job["error"], defects)
    elif job["status"] != "succeeded":
        defects.append("neither a plan nor a problem")
    else:
        found["plan"] = job["plan"]
    return found


def _told(problem: Mapping[str, Any], defects: list[str]) -> tuple[str, str]:
    name, detail = problem["type"].removeprefix("urn:planner:problem:"), problem["detail"]
    if not 10 <= len(detail) <= 8000:
        defects.append(f"a detail of {len(detail)} characters")
    return name, detail[:400]


def look(ask: Asking, found: Mapping[str, Any], log: Callable[[str], None]) -> list[str]:
    """What is wrong with what is made of a plan."""
    out: list[str] = []
    listed = ask("GET", f"/v1/plans/{found['plan']}/artifacts").document
    for entry in listed if isinstance(listed, list) else listed["items"]:
        if entry["name"] == "explain.json":
            continue  # searches anew
        end = time.monotonic() + WALL_S + 30
        while True:
            answer = ask("GET", entry["href"], headers={"prefer": "wait=30", "accept-encoding": "identity"})
            if answer.status != 202 or time.monotonic() > end:
                break
        log(f"  {entry['name']}: {answer.status}, {len(answer.body)} bytes")
        out += defects_of(entry["name"], answer.status, answer.headers, answer.body)
    return out


def used(folder: Path, found: Mapping[str, Any], watching: Watching) -> dict[str, Any]:
    """Of a job: the most memory and processor time seen of its child."""
    with sqlite3.connect(folder / "store.sqlite") as db:
        row = db.execute("SELECT task FROM jobs WHERE id = ?", (found["job"],)).fetchone()
    seen = watching.tasks.get(row[0]) if row else None
    if seen is None:
        return {}
    return {"resident_bytes": seen.resident, "cpu_s": round(sum(seen.cpu.values()), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--p99-ms", type=float, help="the most that /healthz may take")
    parser.add_argument("--keep", type=Path, help="folder for the service's data and log")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        canary = folder / "canary"
        canary.write_bytes(b"not to be read" * 100)
        report = run(options, folder, canary)
    print(json.dumps(report, indent=1))
    return 1 if report["defects"] else 0


def run(options: argparse.Namespace, folder: Path, canary: Path) -> dict[str, Any]:
    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    to_post = files(options.only, str(canary))
    load_before = os.getloadavg()[0]
    began = time.monotonic()
    defects: list[str] = []
    results: dict[str, dict[str, Any]] = {}
    log_file = folder / "log"
    with (
        Opened(canary) as opened,
        served(folder / "data", *LIMITS, *OTHERS, log=log_file, python=options.python) as service,
    ):
        ask = Asking(service.url)
        ready(ask)
        processes = set(descendants(service.process.pid))
        watching = Watching(service.process.pid)
        watching.start()

        def one(item: tuple[str, Callable[[], Asked]]) -> None:
            results[item[0]] = found = posted(ask, item[1]())
            told = found.get("problem") or found.get("status")
            log(f"{item[0]}: {told} {found.get('seconds', '')} {found['defects'] or ''}")

        with pulse(service.url) as quiet:
            time.sleep(5)
        with pulse(service.url) as beat:
            with ThreadPoolExecutor(options.at_once) as pool:
                list(pool.map(one, to_post.items()))
            for label, found in results.items():
                if "plan" in found and label in LOOKED_AT:
                    found["defects"] += look(ask, found, log)
        watching.stop()
        for label, found in results.items():
            if "job" in found:
                found |= used(folder / "data", found, watching)
                if found.get("resident_bytes", 0) > MEMORY + PROGRAM:
                    found["defects"].append("memory beyond the limit")
                if found.get("cpu_s", 0) > 2 * (CPU_S + 15) or found.get("job_s", 0) > WALL_S + 15:
                    found["defects"].append("time beyond the limit")
            defects += [f"{label}: {d}" for d in found["defects"]]
        if busy := _busy(ask):
            defects.append(f"{busy} tasks do not end")
        defects += _afterwards(ask, service, folder / "data", processes)
        server_peak = _peak(service.process.pid)
        ran_s, waited_s = (int(n) / 1e9 for n in Path(f"/proc/{service.process.pid}/schedstat").read_text().split()[:2])
    end = time.monotonic() + 10  # those of the worker's own see that it has gone
    while (left := [p for p in processes if Path(f"/proc/{p}").exists()]) and time.monotonic() < end:
        time.sleep(0.1)
    if left:
        defects.append(f"processes {left} outlive the service")
    if opened.seen:
        defects.append(f"a file that a model named was opened: {opened.seen}")
    if not opened.works():
        defects.append("opening the watched file was not noticed")
    raw = [b for b in log_file.read_bytes() if (b < 32 and b != 10) or b == 127]
    if raw:
        defects.append("control characters stand in the log as they are")
    health = quantiles([w for _, w in beat["waits"]])
    if wrong := [*beat["failed"], *(["unanswered"] * beat["unanswered"])]:
        defects.append(f"/healthz: {len(wrong)} without an answer of 200: {sorted(set(wrong))}")
    if options.p99_ms is not None and health["p99_ms"] > options.p99_ms:
        defects.append(f"/healthz: p99 {health['p99_ms']} ms, and {options.p99_ms} was asked for")
    return {
        "limits": {"memory_bytes": MEMORY, "cpu_s": CPU_S, "wall_s": WALL_S, "workers": 2},
        "posted": len(results),
        "seconds": round(time.monotonic() - began),
        "load": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "cores": os.cpu_count(),
        "healthz": health,
        "healthz_own_delay_max_ms": round(1e3 * beat["own_delay_max_s"], 2),
        "healthz_idle": quantiles([w for _, w in quiet["waits"]]),
        "server_peak_bytes": server_peak,
        "server_main_thread": {"ran_s": round(ran_s, 1), "ready_but_waiting_for_a_core_s": round(waited_s, 1)},
        "defects": defects,
        "files": dict(sorted(results.items())),
    }


def ready(ask: Asking) -> None:
    end = time.monotonic() + 60
    while ask("GET", "/readyz").status != 200:
        if time.monotonic() > end:
            raise RuntimeError("no worker")
        time.sleep(0.1)


def _busy(ask: Asking) -> int:
    """Tasks that are at work, once none is or the limits have passed: nobody may have waited for their end."""
    end = time.monotonic() + WALL_S + 30
    while True:
        told = ask("GET", "/metrics").body.decode()
        counts = re.findall(r'^planner_store\{what="tasks_(?:queued|running)"\} (\S+)$', told, re.MULTILINE)
        busy = int(sum(map(float, counts)))
        if not busy or time.monotonic() > end:
            return busy
        time.sleep(0.2)


def _afterwards(ask: Asking, service: Served, data: Path, processes: set[int]) -> list[str]:
    """A normal job succeeds; the processes are those of before; nothing is left."""
    out = []
    model = (ROOT / "sample_graphs" / "mlp.onnx").read_bytes()
    answer = ask("POST", "/v1/plans?devices=4&name=afterwards", model, {"content-type": "application/octet-stream"})
    job = ask.job(answer.document["links"]["self"], 120)
    if job["status"] != "succeeded":
        out.append(f"a normal job afterwards: {job['status']} {job['error']}")
    if left := gone(service.process.pid):
        out.append(f"children {left} are left")
    if lost := [p for p in processes if not Path(f"/proc/{p}").exists()]:
        out.append(f"processes of the service ended meanwhile: {lost}")
    return out + [f"left behind: {p}" for p in left_behind(data)]


def left_behind(data: Path, seconds: float = 10.0) -> list[str]:
    """Folders of children, and files that were not written to the end, that are still there after a while."""
    end = time.monotonic() + seconds
    while True:
        left = [*(data / "scratch").glob("*/*"), *(data / "blobs").rglob(".tmp-*")]
        if not left or time.monotonic() > end:
            return [str(p.relative_to(data)) for p in left]
        time.sleep(0.1)


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    raise SystemExit(main())
