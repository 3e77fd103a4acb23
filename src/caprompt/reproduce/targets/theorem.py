"""The target `theorem`: whether the condition and the conclusion of the paper's Theorem 1 hold in trained models.

`measures.concavity` defines every term. Rows with and without the two constraints show their effect.
"""

from __future__ import annotations

from caprompt.metrics import mean_std
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import concavity
from caprompt.reproduce.plots import plot_histograms
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import OWN

__all__ = ["TARGETS"]

COLUMNS = (
    ("E1", "E1", 3),
    ("E2", "E2", 3),
    ("chosen", "E chosen", 3),
    ("own", "E own", 3),
    ("margin_holds", "holds %", 1),
    ("margin_gains", "better %", 1),
    ("margin", "margin", 5),
    ("delta_holds", "delta <= 0 %", 1),
    ("delta", "delta", 5),
    ("delta_holds_newest", "newest %", 1),
)
NOTES = (
    "E1 = mean of -log g(x, y, sum_i p_i phi_i), E2 = mean of -log sum_i p_i g(x, y, phi_i), in nats, on test images, with the "
    "weights p of the model's own second pass; g is the probability of the true class",
    "margin = g(x, y, sum_i p_i phi_i) - sum_i p_i g(x, y, phi_i); the theorem assumes that it is never below 0, and concludes "
    "E1 <= E2. 'holds' is the share of images for which it is not below 0, 'better' that for which it is above",
    "delta is that of Eq. 6, which training penalizes above 0 on training images of the newest task; 'newest' is the share of that "
    "task's test images with delta <= 0. 'E chosen' is the error of the most likely task's prompt, 'E own' that of the true task's",
    "The paper states the theorem without measurements, so there are no published values",
)


def present_theorem(evidence: Evidence) -> Presentation:
    """Present a line for each row, and a histogram of the margins of all images."""

    def entry(row: Row, dataset: str, name: str) -> Entry:
        results = evidence.read_measures(row, dataset, concavity)
        return results if isinstance(results, str) else mean_std([each[name] for each in results])

    lines = evidence.build_lines(len(COLUMNS), lambda row, dataset: (entry(row, dataset, name) for name, _, _ in COLUMNS))
    panels: dict[str, dict[str, list[int]]] = {}
    for dataset in evidence.datasets:
        for row in evidence.target.rows:
            results = evidence.read_measures(row, dataset, concavity)
            if not isinstance(results, str):
                counts = [sum(column) for column in zip(*(each["margin_histogram"] for each in results), strict=True)]
                panels.setdefault(TITLES.get(dataset, dataset), {})[row.label] = counts
    columns = tuple(Column("", heading, digits) for _, heading, digits in COLUMNS)
    table = ResultTable(evidence.target.title, ("data set", "method"), columns, lines, (*NOTES, *evidence.notes()))
    return Presentation(table, {"": plot_histograms(panels, "margin of the mixture over single prompts")} if panels else {})


TARGETS = (
    Target(
        "theorem",
        "Theorem 1 on test images: its condition, and E1 against E2",
        (
            Row.paper("CAPrompt"),
            Row.paper("without L_con", alpha=0.0),
            Row.paper("without L_l", beta=0.0),
            Row.paper("without both", alpha=0.0, beta=0.0),
            OWN,
        ),
        present_theorem,
        measures=(concavity,),
    ),
)
