"""Pictures of every page, faults of accessibility, and frames a second of a large report, in headless Chromium.

    python -m tests.browser.pictures DIR [--plans DIR] [--only NAME,NAME] [--axe FILE] [--frames]

Reports are made of the plans of `PLANS` (searched into `--plans`, default DIR/plans, where they are not there yet);
the service is started and driven.  Each page is drawn 1440 and 390 pixels wide, light and dark, and its complaints are
counted.  `--axe`: axe.min.js, else that of the package axe-playwright-python where it is installed; without either,
pages are only drawn.  `--frames` measures the report of `LARGE` too.  Exit status 1 where a page complains, is wider
than its window, or has a serious or critical fault.  Needs playwright and a Chromium (tests/browser/chromium.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.planning import read_plan
from planner.report import report_html
from planner.requests.headline import words
from planner.requests.record_file import record_beside
from tests.browser.chromium import launched
from tests.service.process import served

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
# Options of `planner build`.
LLAMA_7B = "llama --hidden 4096 --heads 32 --kv-heads 32 --ffn 11008 --vocab 32000 --layers 32"
LLAMA_70B = "llama --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --vocab 128256 --layers"
MOE = "moe --layers 4 --hidden 1024 --heads 16 --kv-heads 8 --ffn 3584 --experts 8 --top-k 2 --vocab 32000"
# Name → what builds the graph, or a sample; and how it is searched.
PLANS = {
    "mlp": ("mlp.onnx", "--devices 8"),
    "gpt2": ("gpt2_small.onnx", "--devices 16 --batch 64"),
    "llama7b": (LLAMA_7B, "--devices 64 --hardware h100 --batch 256 --front"),
    "llama70b": (f"{LLAMA_70B} 80", "--devices 64 --hardware h100 --batch 128"),
    "moe": (MOE, "--devices 16 --hardware h100 --batch 64"),
    "resnet": ("resnet50.onnx", "--devices 16 --batch 256"),
}
LARGE = (f"{LLAMA_70B} 192", "--devices 1024 --hardware h100 --batch 2048")  # 9,996 operators
WIDTHS, SCHEMES = (1440, 390), ("light", "dark")
# What is out of sight is not laid out (style.css): the whole page is to be drawn, and looked through.
UNFOLDED = """() => {
  for (const s of document.querySelectorAll("section")) s.style.setProperty("content-visibility", "visible");
}"""
FRAMES = """async ([dx, dy, ms]) => {
  const paper = document.querySelector(".paper"), times = [], begin = performance.now();
  await new Promise((done) => {
    const step = (now) => {
      times.push(now);
      paper.scrollTop += dy;
      paper.scrollLeft += dx;
      if (now - begin < ms) requestAnimationFrame(step);
      else done();
    };
    requestAnimationFrame(step);
  });
  const apart = times.slice(1).map((t, k) => t - times[k]).sort((a, b) => a - b);
  const whole = times[times.length - 1] - times[0];
  return { per_s: (1000 * apart.length) / whole, p95_ms: apart[Math.floor(apart.length * 0.95)] };
}"""


def planned(name: str, folder: Path) -> Path:
    """plan.json of one of `PLANS`, or of `LARGE`; searched where it is not there yet."""
    graph, options = {**PLANS, "large": LARGE}[name]
    out = folder / name / "plan.json"
    if not out.exists():
        sample = graph.endswith(".onnx")
        model = str(SAMPLES / graph if sample else folder / f"{name}.onnx")
        if not sample:
            _planner("build", *graph.split(), "--out", model, "--force")
        _planner("search", model, *options.split(), "--out", str(out.parent), "--force")
    return out


def _planner(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "planner", *arguments], check=True, capture_output=True)


class Camera:
    """Draws pages and notes what is wrong with them."""

    def __init__(self, running: Any, out: Path, axe: str | None) -> None:
        self.running, self.out, self.axe = running, out, axe
        self.faults: list[str] = []

    def visits(self, name: str, url: str, ready: str, act: Callable[[Any], None] = lambda page: None) -> None:
        """Every width and scheme of a page; `act`: what is done in it before it is drawn."""
        for width in WIDTHS:
            for scheme in SCHEMES:
                self.visit(f"{name}-{width}-{scheme}", url, ready, act, width, scheme)

    def visit(self, name: str, url: str, ready: str, act: Callable[[Any], None], width: int, scheme: str) -> None:
        # Policies of the pages forbid scripts of others, as axe is.
        options = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": bool(self.axe)}
        context = self.running.new_context(**options)
        page = context.new_page()
        for event in ("console", "pageerror"):
            page.on(event, lambda m: self.faults.append(f"{name}: {getattr(m, 'text', m)}"))
        page.goto(url)
        page.wait_for_selector(ready, timeout=60_000)
        act(page)
        page.evaluate(UNFOLDED)
        page.wait_for_timeout(400)
        # A window that grows for the picture would catch frames before they are drawn again.
        page.screenshot(path=self.out / f"{name}.png", full_page=not page.query_selector("iframe"))
        beyond = page.evaluate("document.documentElement.scrollWidth") - width
        if beyond > 0:
            self.faults.append(f"{name}: {beyond} pixels wider than the window")
        if self.axe:
            page.evaluate(self.axe)
            for fault in page.evaluate("axe.run()")["violations"]:
                line = f"{name}: {fault['impact']} {fault['id']}, {len(fault['nodes'])} times: {_where(fault)}"
                print(line)
                if fault["impact"] in ("serious", "critical"):
                    self.faults.append(line)
        context.close()


def _where(fault: Any) -> str:
    return str(fault["nodes"][0]["html"])[:160]


def _report(path: Path) -> str:
    """As `planner report` makes it."""
    plan = read_plan(path)
    return report_html(plan, record_beside(path, plan), words(plan))


def reports(camera: Camera, names: Sequence[str], plans: Path) -> None:
    for name in names:
        text = _report(planned(name, plans))
        page = camera.out / f"{name}.html"
        page.write_text(text, encoding="utf-8", errors="surrogatepass")
        camera.visits(name, page.absolute().as_uri(), "body[data-ready]")
        print(f"{name}: {len(text.encode()):,} bytes")


def service(camera: Camera) -> None:
    """The form, a file that is none, a job with its plan, two plans beside each other, and the interface."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "--workers", "1") as found:
        ready = "body[data-ready]"
        page = camera.running.new_page()
        for pin in ("", "rest=data_parallel"):
            page.goto(f"{found.url}/#/")
            page.wait_for_selector(ready)
            page.click("text=GPT-2 small")
            page.wait_for_selector(".drop.taken")
            page.fill("#devices", "16")
            page.fill("#batch", "64")
            if pin:
                page.click("aside summary")
                page.fill("#pin", pin)
            page.click("#send")
            page.wait_for_selector(".pill.succeeded", timeout=600_000)
            page.wait_for_selector("main iframe", timeout=60_000)
        page.close()
        plans = [p["id"] for p in _json(camera, f"{found.url}/v1/plans")["items"]]
        (job, *_) = [j["id"] for j in _json(camera, f"{found.url}/v1/jobs")["items"]]
        camera.visits("page-form", f"{found.url}/#/new", ready)
        camera.visits("page-refused", f"{found.url}/#/new", ready, _refused)
        framed = "main iframe"
        camera.visits("page-job", f"{found.url}/#/job/{job}", framed, _framed)
        for tab in ("explain", "files", "request"):
            camera.visits(f"page-{tab}", f"{found.url}/#/job/{job}/{tab}", "#panel > *")
        compared = f"{found.url}/#/compare/{plans[1]}/{plans[0]}"
        camera.visits("page-compare", compared, framed, _framed)
        camera.visits("page-docs", f"{found.url}/docs", "main h1, main h2")


def _json(camera: Camera, url: str) -> Any:
    context = camera.running.new_context()
    try:
        return context.request.get(url).json()
    finally:
        context.close()


def _framed(page: Any) -> None:
    page.set_viewport_size({"width": page.viewport_size["width"], "height": 1800})
    page.wait_for_selector("main iframe").content_frame().wait_for_selector("body[data-ready]", timeout=30_000)
    page.wait_for_timeout(700)


def _refused(page: Any) -> None:
    text = {"name": "notes.onnx", "mimeType": "text/plain", "buffer": b"no model, but a text"}
    page.set_input_files("#file", text)
    page.wait_for_selector("#ask-problem:not([hidden])")


def frames(running: Any, out: Path, plans: Path) -> dict[str, Any]:
    """The report of a plan of ten thousand operators on 1,024 devices: how soon it is there, and how it moves."""
    text = _report(planned("large", plans))
    file = out / "large.html"
    file.write_text(text, encoding="utf-8")
    page = running.new_page(viewport={"width": 1440, "height": 900})
    page.goto(file.absolute().as_uri())
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    found: dict[str, Any] = {
        "bytes": len(text.encode()),
        "ready_ms": page.evaluate("performance.getEntriesByName('ready')[0].startTime"),
    }
    page.locator("#graph").scroll_into_view_if_needed()
    height = "+document.querySelector('svg.graph').getAttribute('height')"
    for _ in range(20):
        before = page.evaluate(height)
        page.get_by_role("button", name="open the next level of boxes").click()
        if page.evaluate(height) == before:
            break
    for name, move in {"down": (0, 30), "up": (0, -30), "aslant": (10, 20), "far": (0, 150)}.items():
        found[name] = page.evaluate(FRAMES, [*move, 3000])
    page.get_by_role("button", name="fit the whole graph").click()
    for _ in range(9):
        page.locator("#graph").get_by_role("button", name="zoom in").click()
    found["small"] = page.evaluate(FRAMES, [0, 20, 3000])
    page.screenshot(path=out / "large.png")
    page.close()
    return found


def _axe(given: Path | None) -> str | None:
    if given is None and (spec := find_spec("axe_playwright_python")) is not None and spec.origin is not None:
        given = Path(spec.origin).parent / "axe.min.js"
    return None if given is None else given.read_text(encoding="utf-8")


def _names(only: str | None) -> Iterator[str]:
    yield from (n for n in (*PLANS, "service") if only is None or n in only.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--plans", type=Path, metavar="DIR")
    parser.add_argument("--only", metavar="NAME,NAME", help=f"of {', '.join([*PLANS, 'service'])}")
    parser.add_argument("--axe", type=Path, metavar="FILE")
    parser.add_argument("--frames", action="store_true")
    options = parser.parse_args()
    plans = options.plans or options.out / "plans"
    for folder in (options.out, plans):
        folder.mkdir(parents=True, exist_ok=True)
    with launched() as running:
        camera = Camera(running, options.out, _axe(options.axe))
        names = list(_names(options.only))
        began = time.monotonic()
        reports(camera, [n for n in names if n != "service"], plans)
        if "service" in names:
            service(camera)
        if options.frames:
            print(json.dumps(frames(running, options.out, plans), indent=1))
    print(f"{len(camera.faults)} faults in {time.monotonic() - began:.0f} s", *camera.faults, sep="\n")
    return 1 if camera.faults else 0


if __name__ == "__main__":
    sys.exit(main())
