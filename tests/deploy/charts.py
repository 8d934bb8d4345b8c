"""What Helm makes of the chart, stored in `tests/golden/helm`, so that tests look at it where there is no Helm.

`python -m tests.deploy.charts --write` renders it anew by `helm` on the path, or by what `pip install helm-python-sdk`
brings, which is Helm's own library.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["CASES", "CHART", "GOLDEN", "digest", "golden_text", "objects"]

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "docs" / "deploy" / "helm" / "planner"
GOLDEN: Final = ROOT / "tests" / "golden" / "helm"
CASES: Final = sorted(p.name.removesuffix(".values.yaml") for p in GOLDEN.glob("*.values.yaml"))
RELEASE: Final = "plans"


def digest(case: str) -> str:
    """Of all that the rendering depends on."""
    files = [p for p in sorted(CHART.rglob("*")) if p.is_file() and p.name != "README.md"]
    found = hashlib.sha256()
    for path in [*files, GOLDEN / f"{case}.values.yaml"]:
        content = path.read_bytes()
        found.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def golden_text(case: str) -> str:
    return (GOLDEN / f"{case}.yaml").read_text(encoding="utf-8")


def objects(case: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(golden_text(case)) if document]


def rendered(case: str) -> str:
    values = GOLDEN / f"{case}.values.yaml"
    if helm := shutil.which("helm"):
        command = [helm, "template", RELEASE, str(CHART), "--namespace", "planner", "--values", str(values)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    else:
        library = importlib.import_module("helm_python")
        with library.Chart.load(str(CHART)) as chart:
            given = yaml.safe_load(values.read_text(encoding="utf-8")) or {}
            chart.validate_schema(chart.merge_values(given))
            parts = chart.render(given, name=RELEASE, namespace="planner")
        text = "\n---\n".join(parts[name] for name in sorted(parts) if name.endswith(".yaml"))
    found = [document for document in yaml.safe_load_all(text) if document]
    found.sort(key=lambda o: (o["kind"], o["metadata"]["name"]))
    return yaml.safe_dump_all(json.loads(json.dumps(found)), sort_keys=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Render the chart anew.")
    parser.add_argument("--write", action="store_true", required=True, help="to tests/golden/helm")
    parser.parse_args()
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(f"# {digest(case)}\n{rendered(case)}", encoding="utf-8")


if __name__ == "__main__":
    main()
