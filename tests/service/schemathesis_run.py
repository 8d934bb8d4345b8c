"""Schemathesis against `planner serve`: `python -m tests.service.schemathesis_run --calls 10000`.

All phases (examples, coverage, fuzzing, stateful by the links of the OpenAPI document) and all checks, again and again
with other seeds until the service has answered so many calls.  Calls are counted by the service's own metrics.  Needs
Schemathesis in this interpreter; --python names one that has the service, where that is another.

Exit status 1 where a check failed or an answer was a 5xx.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

from tests.service.process import served

ROOT = Path(__file__).parents[2]
LIMITS = ("--upload-limit", "1MiB", "--child-memory", "2GiB", "--child-cpu", "10", "--child-wall", "15")
PATIENCE = ("--most-wait", "1.5", "--longest-stream", "0.5", "--heartbeat", "0.2", "--queue", "1000000", "--rate", "0")
# What a well-formed request may be answered or refused with (304: If-None-Match: *); the hooks check that it is not
# refused for its form.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "400", "401", "404", "412", "422", "431"]
"""


def counted(url: str) -> Counter[str]:
    """Answers by status, as the service counts them."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    out: Counter[str] = Counter()
    for status, number in re.findall(r'^planner_requests_total\{.*status="(\d+)"\} (\S+)$', text, re.MULTILINE):
        out[status] += int(float(number))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=60, help="of each operation and phase in one round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--log", type=Path, help="the service's log")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = [options.python, "-m", "planner", "keys", "create", "--tenant", "test", "--data", str(folder), "--json"]
        key = json.loads(subprocess.run(made, capture_output=True, check=True, text=True).stdout)["secret"]
        (folder / "config.toml").write_text(CONFIG)
        failed = rounds = 0
        log = options.log or folder / "log"
        with served(folder, *LIMITS, *PATIENCE, log=log, python=options.python) as service:
            environment = os.environ | {
                "PLANNER_TEST_URL": service.url,
                "PLANNER_TEST_KEY": key,
                "SCHEMATHESIS_HOOKS": "tests.service.schemathesis_hooks",
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            }
            while (answers := counted(service.url)).total() < options.calls:
                command = [
                    *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(folder / "config.toml"), "run"),
                    *(f"{service.url}/openapi.json", "--header", f"Authorization: Bearer {key}", "--checks", "all"),
                    *("--max-examples", str(options.examples), "--seed", str(options.seed + rounds)),
                    *("--continue-on-failure", "--generation-database", "none", "--request-timeout", "60"),
                    *("--suppress-health-check", "all", "--no-color", "--warnings", "off"),
                ]
                done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
                rounds += 1
                if done.returncode:
                    failed += 1
                    print(done.stdout[-20_000:], done.stderr[-5_000:], flush=True)
                if counted(service.url).total() == answers.total():
                    print("the round made no call", file=sys.stderr)
                    return 1
        errors = sum(n for status, n in answers.items() if status.startswith("5"))
        report = {
            "calls": answers.total(),
            "rounds": rounds,
            "rounds_with_failures": failed,
            "answers_by_status": dict(sorted(answers.items())),
            "server_errors": errors,
            "seconds": round(time.monotonic() - began),
        }
    print(json.dumps(report, indent=1))
    return 1 if failed or errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
