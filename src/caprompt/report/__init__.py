"""HTML reports of finished runs, each a single self-contained file.

`run_data` reads run folders; `tables`, `charts`, `mistakes`, `task_weights` and `thumbnails` make the parts of a report;
`view` arranges them for the template, and `page` renders and writes the file.
"""

from __future__ import annotations

from caprompt.report.page import render, write_report

__all__ = ["render", "write_report"]
