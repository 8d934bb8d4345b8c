"""Pages: one self-contained file each, which works offline, in a frame, and under a strict content policy.

`page` is the shell for any kind of page; the script and the style are constants, so that a server can allow them by
`SCRIPT_HASHES` and `STYLE_HASHES`.  Data goes in compressed (`embedded`), never as markup.

Script files are concatenated into one closed function: first those of `COMMON`, then the one of the page's kind.
`core.js` has element builders and formats, `plan.js` reads the data of `planner.report.html.data.page_data` into a
`Plan`, `bars.js`, `mesh.js`, `timeline.js` and `panel.js` draw what is said about it, and `graph.js` has `Graph`: boxes
that open, scroll and select, with callbacks (`onselect`, `onview`) and `mark(numbers, class)` for another page's needs.
"""

from __future__ import annotations

from planner.report.html.shell import (
    COMMON,
    CONTENT_POLICY,
    KINDS,
    SCRIPT_HASHES,
    STYLE_HASHES,
    embedded,
    page,
)

__all__ = ["COMMON", "CONTENT_POLICY", "KINDS", "SCRIPT_HASHES", "STYLE_HASHES", "embedded", "page"]
