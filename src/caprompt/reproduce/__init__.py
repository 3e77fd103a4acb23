"""The paper's tables and figures again, each by one command, with our figures beside the published ones.

scales.py, scales.toml          how large: the paper itself, a small version, a tiny one for a laptop
published.py, published.toml    the paper's own figures
targets.py                      what can be reproduced: rows, data sets, backbones, what is measured
accuracies.py, figures.py, theorem.py, comparison.py, orders.py         the families of targets
measures.py                     what is measured on trained models
evidence.py                     which cells a target needs, and what they have found
sheets.py, drawing.py           tables in every format, and pictures
page.py                         docs/results.md
"""

from __future__ import annotations
