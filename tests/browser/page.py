"""The page of the service, driven in headless Chromium.

    python -m tests.browser.page [--shots DIR]

starts a service, drops a model, watches, opens the report, compares two plans, meets errors, logs in with a key, and
prints what it measured as JSON; with `--shots` it writes pictures of every step.  Needs playwright and a Chromium
(`PLANNER_CHROMIUM`, or one on the path).
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.frontends.file.strip import strip_model
from tests.browser.chromium import launched
from tests.service.process import served
from tests.unit.test_frontends_strip import inside

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
}"""
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => {
  window.violations.push(`${e.violatedDirective} ${e.blockedURI}`);
});
"""
SECOND = 1000.0


class Visit:
    """One window.  What goes wrong in it is kept: script errors, blocked content, requests to other places."""

    def __init__(self, running: Any, url: str, shots: Path | None, **options: Any) -> None:
        self.url, self.shots = url, shots
        self.context = running.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20 * SECOND)
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("dialog", lambda d: (self.errors.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        # An answer that is a problem is logged by the browser itself; the page shows it.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, place: str = "") -> None:
        self.page.goto(f"{self.url}/{place}")
        self.page.wait_for_selector("body[data-ready]")

    def shot(self, name: str) -> None:
        if self.shots is not None:
            self.page.wait_for_timeout(300)
            self.page.screenshot(path=self.shots / f"{name}.png")

    def drop(self, name: str, data: bytes) -> None:
        self.page.evaluate(DROP, [name, base64.b64encode(data).decode()])
        self.page.wait_for_selector(".drop.taken")

    def plan(self, devices: int) -> bytes:
        """Presses the button; the body that was sent."""
        self.page.fill("#devices", str(devices))
        with self.page.expect_request(lambda r: r.method == "POST" and "/v1/plans" in r.url) as sent:
            self.page.click("#send")
        return bytes(sent.value.post_data_buffer)

    def ended(self, status: str = "succeeded") -> None:
        self.page.wait_for_selector(f".pill.{status}", timeout=300 * SECOND)

    def frame(self, part: str = "/report.html") -> Any:
        """The page inside whose address has this part, once it shows something."""
        handle = self.page.wait_for_selector(f"main iframe[src*='{part}']", timeout=60 * SECOND)
        frame = handle.content_frame()
        frame.wait_for_selector("h1")
        return frame

    def to(self, selector: str) -> None:
        self.page.locator(selector).evaluate("(e) => e.scrollIntoView({ block: 'start' })")

    def wide(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def done(self) -> None:
        """AssertionError where anything went wrong in this window."""
        found = [v for f in self.page.frames for v in f.evaluate("window.violations || []")]
        self.context.close()
        assert not self.errors, self.errors
        assert not found, found
        assert not self.foreign, self.foreign


def first_plan(visit: Visit) -> dict[str, Any]:
    """Drop, plan, watch, report, files."""
    visit.open("#/")
    page = visit.page
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    visit.shot("welcome")
    model = inside((SAMPLES / "gpt2_small.onnx").read_bytes())
    visit.drop("gpt2_small.onnx", model)
    sent = visit.plan(16)
    assert sent == strip_model(model), "the browser strips as the planner does"
    visit.ended()
    assert page.inner_text("main h1") == "gpt2_small"
    assert "gpt2_small" in visit.frame().inner_text("body")
    visit.shot("plan")
    visit.to("[role=tablist]")
    visit.shot("report")
    page.focus("#tab-report")
    for tab in ("explain", "files"):
        page.keyboard.press("ArrowRight")
        assert page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"
    with page.expect_download() as download:
        page.click("text=torch.zip")
    assert Path(download.value.path()).read_bytes()[:2] == b"PK"
    visit.shot("files")
    page.click("#tab-request")
    assert "--devices 16" in page.inner_text("main pre")
    return {"load_ms": loaded, "model_bytes": len(model), "sent_bytes": len(sent)}


def second_plan_and_comparison(visit: Visit) -> None:
    visit.open("#/")
    page = visit.page
    page.click("text=GPT-2 small")
    page.wait_for_selector(".drop.taken")
    page.click("aside summary")
    page.fill("#pin", "rest=data_parallel")
    page.click("aside summary")
    visit.plan(16)
    visit.ended()
    visit.frame()
    page.click("text=Compare two plans")
    a, b = page.input_value("#from"), page.input_value("#to")
    assert "gpt2_small" in visit.frame(f"{a}/{b}").inner_text("body")
    visit.shot("compare")
    page.click("[title='Swap A and B']")
    visit.frame(f"{b}/{a}")
    assert (page.input_value("#from"), page.input_value("#to")) == (b, a)
    assert page.url.endswith(f"#/compare/{b}/{a}")


def explanation(visit: Visit) -> None:
    """Of one operator, with alternatives that are searched anew."""
    visit.open()
    page = visit.page
    page.click("#tab-explain")
    page.wait_for_selector("#operators option", state="attached")
    name = page.evaluate("document.querySelector('#operators option:nth-child(40)').value")
    page.fill("#operator", name)
    page.click(".ask-row button")
    page.wait_for_selector(".answer h3, .answer .problem", timeout=120 * SECOND)
    assert "The choice" in page.inner_text(".answer")
    visit.shot("explain")


def _within(visit: Visit, memory: str, devices: int) -> Any:
    """The page after a search of GPT-2 under a memory limit was asked for."""
    visit.open("#/")
    page = visit.page
    page.click("text=GPT-2 small")
    page.wait_for_selector(".drop.taken")
    page.fill("#memory_limit", memory)
    visit.plan(devices)
    return page


def stopped(visit: Visit) -> None:
    """A search that takes long, ended early."""
    page = _within(visit, "560MB", 16)
    page.wait_for_selector(".pill.running")
    page.wait_for_selector("main .chart", timeout=60 * SECOND)
    visit.shot("running")
    page.click("text=Stop and take the best so far")
    visit.ended("cancelled")
    page.wait_for_selector("main .figures")
    visit.shot("stopped")


def closing(visit: Visit) -> None:
    """A gap that closes in several steps, for the pictures."""
    page = _within(visit, "250MB", 64)
    page.wait_for_selector(".pill.succeeded", timeout=200 * SECOND)
    visit.frame()
    visit.shot("closing")


def refusals(visit: Visit) -> None:
    visit.open("#/")
    page = visit.page
    page.click("#send")
    assert "no model yet" in page.inner_text("#ask-problem")
    page.evaluate(DROP, ["not.onnx", base64.b64encode(b"\xff" * 40).decode()])
    page.wait_for_selector("#ask-problem:has-text('cannot be read')")
    visit.drop("moe_tiny.onnx", (SAMPLES / "moe_tiny.onnx").read_bytes())
    for text in (b"", b"hello, I am no model"):  # what stood there before is no longer what is sent
        page.evaluate(DROP, ["notes.onnx", base64.b64encode(text).decode()])
        page.wait_for_selector(".drop.refused:not(.taken)")
        page.click("#send")
        assert "no model yet" in page.inner_text("#ask-problem")
    visit.drop("<img src=x onerror=alert(1)>.onnx", (SAMPLES / "moe_tiny.onnx").read_bytes())
    page.click("aside summary")
    page.fill("#stages", "3")
    visit.plan(16)
    page.wait_for_selector("#ask-problem:not([hidden])")
    assert "urn:planner:problem:" in page.inner_text("#ask-problem")
    visit.shot("refused")
    page.fill("#stages", "")
    page.fill("#memory_limit", "100KB")
    visit.plan(2)
    visit.ended("failed")
    assert "urn:planner:problem:cannot-fit" in page.inner_text("main .problem")
    visit.shot("failed")


def keys(visit: Visit, data: Path) -> None:
    """With the first key the page asks for one."""
    command = [sys.executable, "-m", "planner", "keys", "create", "--tenant", "team", "--data", str(data)]
    secret = max(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(), key=len)
    page = visit.page
    page.goto(f"{visit.url}/")
    page.wait_for_selector("#login[open]")
    visit.shot("login")
    page.fill("#key", "wrong")
    page.click("#login-form button")
    page.wait_for_selector("#login-problem:not([hidden])")
    page.fill("#key", secret)
    page.click("#login-form button")
    page.wait_for_selector("body[data-ready]")
    assert page.inner_text("#whose") == "team"
    assert page.is_visible("#no-jobs"), "another tenant's jobs are not shown"
    page.click("text=BERT tiny")
    page.wait_for_selector(".drop.taken")
    visit.plan(4)
    visit.ended()
    visit.frame()
    page.click("#leave")
    page.wait_for_selector("#login[open]")


def drive(running: Any, url: str, data: Path, shots: Path | None, *, long: bool = True) -> dict[str, Any]:
    """All of it; `long`: explanations and a search that is stopped, too."""

    def visit(what: Any, **options: Any) -> Any:
        one = Visit(running, url, shots, **options)
        told = what(one)
        one.done()
        return told

    told: dict[str, Any] = visit(first_plan)
    visit(second_plan_and_comparison)
    if long:
        visit(explanation)
        visit(stopped)
    if shots is not None:
        visit(closing)
    visit(refusals)
    for name, options in {
        "dark": {"color_scheme": "dark"},
        "narrow": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    }.items():
        one = Visit(running, url, shots, **options)
        one.open()
        one.page.click("#jobs a:has(.dot.succeeded)")
        one.frame()
        one.to("main")
        one.shot(name)
        assert one.wide() <= 0, f"{name}: the page is {one.wide()} pixels too wide"
        one.done()
    visit(lambda one: keys(one, data))
    return told


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shots", type=Path, metavar="DIR")
    parser.add_argument("--short", action="store_true", help="neither explanations nor a search that is stopped")
    options = parser.parse_args()
    if options.shots is not None:
        options.shots.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        launched() as running,
        served(Path(folder), "--workers", "1") as service,
    ):
        told = drive(running, service.url, Path(folder), options.shots, long=not options.short)
        print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
