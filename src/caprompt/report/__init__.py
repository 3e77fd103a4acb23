"""The report: run folders become one HTML file that needs nothing else. `gathering` reads, `figures` draws, `page` writes."""

from __future__ import annotations

from caprompt.report.page import render, write_report

__all__ = ["render", "write_report"]
