"""HTML reports of finished runs and of taught models, each a single self-contained file.

`run_data` reads run folders, and `model_data` tests a model; `tables`, `model_tables`, `charts`, `mistakes`, `confusion`,
`task_weights` and `thumbnails` make the parts of a report, and `panels` its sections; `view` and `model_view` arrange them for the
templates, and `page` renders and writes the file. `exports` writes the mistakes of a model as CSV and PNG.
"""

from __future__ import annotations

from caprompt.report.model_data import evaluate_model
from caprompt.report.page import render, render_model, write_model_report, write_report

__all__ = ["evaluate_model", "render", "render_model", "write_model_report", "write_report"]
