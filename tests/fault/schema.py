"""The service held against its OpenAPI document: `python -m tests.fault.schema --calls 5000 [--postgres]`.

A server and its workers begin on a fresh store, of files or, with `--postgres`, of a database.  Two things take turns
until the service has answered so many calls, which its own metrics count:

- Schemathesis, with all phases (examples, coverage, fuzzing, stateful by the links of the document) and all checks,
  with the key of one tenant, that of another, and none;
- what clients do, from the upload by way of events, artifacts, comparisons and batches to the webhook (`schema_chain`).

No answer may be a 5xx, each has to be one that the document promises, and errors are problem documents.  Schemathesis
(`pip install schemathesis`) is in this interpreter or in that of `--schemathesis`.  The exit status is 1 where
something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

from tests.fault.schema_chain import Chain, receiving
from tests.service.postgres import serving_postgres
from tests.service.process import served

ROOT = Path(__file__).parents[2]
LIMITS = ("--upload-limit", "1MiB", "--child-memory", "2GiB", "--child-cpu", "20", "--child-wall", "60")
PATIENCE = ("--most-wait", "5", "--longest-stream", "1", "--heartbeat", "0.2", "--queue", "1000000", "--rate", "0")
# What a well-formed request may be answered or refused with (304: If-None-Match: *, 409: the job has not ended); the
# hooks check that it is not refused for its form.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "400", "401", "404", "409", "412", "422", "431"]
"""
SHOWN = 20_000  # characters of what Schemathesis says of a round that failed


def counted(url: str, key: str) -> Counter[str]:
    """Answers by status, as the service counts them."""
    asked = urllib.request.Request(f"{url}/metrics", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    out: Counter[str] = Counter()
    for status, number in re.findall(r'^planner_requests_total\{.*status="(\d+)"\} (\S+)$', text, re.MULTILINE):
        out[status] += int(float(number))
    return out


def made_key(folder: Path, store: tuple[str, ...], *kind: str) -> str:
    place = store[:2]  # keys need no blobs
    command = [sys.executable, "-m", "planner", "keys", "create", *kind, "--data", str(folder), *place, "--json"]
    found = subprocess.run(command, capture_output=True, check=True, text=True)
    return str(json.loads(found.stdout)["secret"])


def schemathesis(python: str, url: str, key: str | None, folder: Path, examples: int, seed: int) -> str:
    """What it says of a round that failed; empty where all is well."""
    environment = os.environ | {
        "PLANNER_TEST_URL": url,
        "PLANNER_TEST_KEY": key or "",
        "SCHEMATHESIS_HOOKS": "tests.fault.schema_hooks",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        *(python, "-m", "schemathesis.cli", "--config-file", str(folder / "config.toml"), "run"),
        *(f"{url}/openapi.json", "--checks", "all", "--max-examples", str(examples), "--seed", str(seed)),
        *("--continue-on-failure", "--generation-database", "none", "--request-timeout", "120"),
        *("--suppress-health-check", "all", "--no-color", "--warnings", "off"),
        *(() if key is None else ("--header", f"Authorization: Bearer {key}")),
    ]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    return done.stdout[-SHOWN:] + done.stderr[-5_000:] if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further round after so many")
    parser.add_argument("--examples", type=int, default=60, help="of each operation and phase in one round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own")
    parser.add_argument("--schemathesis", default=sys.executable, metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--log", type=Path, help="the service's log")
    options = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    wrong: list[str] = []
    rounds = chained = 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store: tuple[str, ...] = ()
        if options.postgres:
            database = stack.enter_context(serving_postgres()).database()
            store = ("--store", database, "--blobs", str(folder / "blobs"))
        data = folder / "data"
        keys = [made_key(data, store, "--tenant", tenant) for tenant in ("one", "two")]
        metrics = made_key(data, store, "--metrics")
        (folder / "config.toml").write_text(CONFIG)
        receiver = stack.enter_context(receiving())
        command = (*store, *LIMITS, *PATIENCE, "--webhook-hosts", "127.0.0.1", "--workers", "2")
        service = stack.enter_context(served(data, *command, log=options.log or folder / "log"))
        chain = Chain(service.url, keys[0], keys[1], receiver)
        rng = random.Random(options.seed)
        answers = counted(service.url, metrics)
        while answers.total() < options.calls and time.monotonic() - began < 60 * options.minutes:
            chain.run(rng)
            key = (*keys, None)[rounds % 3]
            said = schemathesis(options.schemathesis, service.url, key, folder, options.examples, options.seed + rounds)
            rounds += 1
            wrong += [f"a round of Schemathesis: {said}"] if said else []
            for line in wrong[chained:] + chain.wrong:
                print(line, file=sys.stderr, flush=True)
            wrong, chain.wrong = wrong + chain.wrong, []
            chained = len(wrong)
            before, answers = answers, counted(service.url, metrics)
            print(f"{rounds} rounds, {answers.total():,} calls", file=sys.stderr, flush=True)
            if answers.total() == before.total():
                wrong.append("a round made no call")
                break
    errors = sum(n for status, n in answers.items() if status.startswith("5"))
    report = {
        "store": "postgresql" if options.postgres else "sqlite",
        "calls": answers.total(),
        "calls_of_clients": chain.calls,
        "webhooks_taken": len(receiver.taken),
        "rounds": rounds,
        "answers_by_status": dict(sorted(answers.items())),
        "server_errors": errors,
        "wrong": len(wrong),
        "seconds": round(time.monotonic() - began),
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print(json.dumps(report, indent=1))
    return 1 if wrong or errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
