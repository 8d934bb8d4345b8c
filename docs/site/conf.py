"""How Sphinx makes the site of the pages that build.py writes."""

project = "planner"
author = "the planner's authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "planner"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_theme_options = {"source_repository": "", "top_of_page_buttons": []}
myst_heading_anchors = 6
myst_url_schemes = {"http": None, "https": None, "mailto": None}
suppress_warnings = ["misc.highlighting_failure"]  # output of programs, in blocks that are marked as a shell's
