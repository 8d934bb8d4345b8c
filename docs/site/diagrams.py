"""Draws the diagrams of the documents: `python docs/site/diagrams.py MERMAID`, where MERMAID is mermaid.min.js.

Documents hold diagrams as Mermaid, which forges draw.  The site loads no script, so each diagram is kept as a picture
in docs/images/diagrams, whose name is the digest of its source: a diagram that was changed has none until this is run
again, and the site is not built without.  Drawn with mermaid 11.17.2 (MIT; `npm install mermaid@11.17.2`, then
node_modules/mermaid/dist/mermaid.min.js) in Chromium through playwright.  Colours are those of the page around it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build import DIAGRAMS, DOCS, FENCE, picture_of

# Colours that mermaid computes with, and what stands for them on a page.
COLOURS: Final = {
    "#fefdfc": "var(--color-background-secondary, #f8f9fb)",
    "#fcfdfe": "var(--color-background-primary, #fff)",
    "#010203": "var(--color-foreground-primary, #000)",
    "#040506": "var(--color-foreground-border, #878787)",
}
DRAW: Final = """async ([source, name]) => {
  const paper = "#fefdfc", ground = "#fcfdfe", ink = "#010203", line = "#040506";
  mermaid.initialize({
    startOnLoad: false, securityLevel: "strict", deterministicIds: true, theme: "base", htmlLabels: false,
    fontFamily: "system-ui, sans-serif",
    flowchart: {
      htmlLabels: false, useMaxWidth: false, nodeSpacing: 16, rankSpacing: 34, padding: 8, wrappingWidth: 140,
    },
    themeVariables: {
      fontSize: "14px", background: ground, primaryColor: paper, primaryTextColor: ink, primaryBorderColor: line,
      secondaryColor: paper, tertiaryColor: ground, lineColor: line, textColor: ink, mainBkg: paper, nodeBorder: line,
      clusterBkg: ground, clusterBorder: line, titleColor: ink, edgeLabelBackground: ground, nodeTextColor: ink,
    },
  });
  return (await mermaid.render(name, source)).svg;
}"""


def drawn(page: Any, source: str, name: str) -> str:
    """The picture, in the colours of the page that it will stand in."""
    svg = str(page.evaluate(DRAW, [source, name]))
    for colour, of in COLOURS.items():
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        svg = svg.replace(colour, of).replace(f"rgb({red}, {green}, {blue})", of)
    svg = re.sub(r"\s*(?:text-)?shadow[^;}]*;|filter:[^;}]*;", "", svg)
    return svg.replace("<br>", "<br/>") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mermaid", type=Path, metavar="MERMAID", help="mermaid.min.js of the version above")
    script = parser.parse_args().mermaid.read_text(encoding="utf-8")
    from playwright.sync_api import sync_playwright

    wanted = {}
    for file in sorted(DOCS.rglob("*.md")):
        for found in FENCE.finditer(file.read_text(encoding="utf-8")):
            wanted[picture_of(found["source"])] = found["source"]
    shutil.rmtree(DIAGRAMS, ignore_errors=True)
    DIAGRAMS.mkdir(parents=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=script)
        for path, source in wanted.items():
            path.write_text(drawn(page, source, f"diagram-{path.stem}"), encoding="utf-8")
            print(path.relative_to(DOCS))
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
