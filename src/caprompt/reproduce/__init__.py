"""Reproduction of the paper's tables and figures, each by one command, with our results beside the published ones.

scales.py, scales.toml          sizes of a reproduction: the paper itself, a small version, a tiny one for a laptop
published.py, published.toml    the values printed in the paper
evidence.py                     targets (tables and figures as data), and the results of their cells
targets/                        the registered targets, one family per file
plan.py                         the cells that a target needs, and the record of them
measures.py                     measurements on trained models
tables.py, plots.py             result tables and matplotlib figures
writers.py                      the files of a target: Markdown, CSV, LaTeX, SVG, PNG
"""

from __future__ import annotations
