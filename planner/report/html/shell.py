"""The file around a page: head, content policy, data, script.

The policy stands in a <meta> element, so that it holds for a file as well: nothing is loaded, only the script and the
style of this module run.  `img-src data:` is for what browsers make of drawings when they print.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

__all__ = ["COMMON", "CONTENT_POLICY", "KINDS", "SCRIPT_HASHES", "STYLE_HASHES", "embedded", "page"]

_HERE = Path(__file__).parent
COMMON: Final = (
    "core.js",
    "plan.js",
    "bars.js",
    "mesh.js",
    "timeline.js",
    "panel.js",
    "place.js",
    "boxes.js",
    "graph.js",
)
# Kind of page → the scripts that it has besides.  A kind's page is built by the last of them.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "report": ("viewer.js", "chart.js", "held.js", "history.js", "front.js", "cluster.js", "report.js"),
    "diff": ("summary.js", "diff.js"),
    "several": ("several.js",),
}


def _script(kind: str) -> str:
    parts = [(_HERE / name).read_text(encoding="utf-8") for name in (*COMMON, *KINDS[kind])]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_SCRIPTS: Final = {kind: _script(kind) for kind in KINDS}
_STYLE: Final = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "diff.css"))
SCRIPT_HASHES: Final = {kind: _hash(text) for kind, text in _SCRIPTS.items()}
STYLE_HASHES: Final = (_hash(_STYLE),)
CONTENT_POLICY: Final = {
    kind: (
        f"default-src 'none'; script-src '{found}'; style-src '{STYLE_HASHES[0]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    for kind, found in SCRIPT_HASHES.items()
}


def embedded(data: Mapping[str, Any]) -> str:
    """Data for `load()` of core.js: JSON, deflated, in base64, which has no character that markup could begin with."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 9)).decode()


def page(kind: str, title: str, data: Mapping[str, Any], plain: str) -> str:
    """One HTML file.  `kind`: a key of `KINDS`; `plain`: what to show where scripts do not run."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY[kind]}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body class="{kind}">
<main id="page"><p class="loading" role="status">Reading the plan; that needs scripts …</p>
<noscript><pre>{_text(plain)}</pre></noscript></main>
<script type="application/json" id="data">"{embedded(data)}"</script>
<script>{_SCRIPTS[kind]}</script>
</body>
</html>
"""


def _text(text: str) -> str:
    """Escaped; lone surrogates, which no file can hold, are replaced."""
    return escape(text.encode("utf-8", "replace").decode())
