"""The target `theorem`: does what the paper's Theorem 1 assumes hold in trained models, and does what it promises?

`measures.concavity` says what is measured, term by term. Rows with and without the two constraints show what these are worth.
"""

from __future__ import annotations

from caprompt.metrics import mean_std
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import concavity
from caprompt.reproduce.plots import histograms
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import OWN

__all__ = ["TARGETS"]

FIGURES = (
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
    "weights p that the model itself uses for its second pass; g is the probability of the true class",
    "margin = g(x, y, sum_i p_i phi_i) - sum_i p_i g(x, y, phi_i); the theorem assumes that it is never below 0, and promises "
    "E1 <= E2 if so. 'holds' is the share of images for which it is not below 0, 'better' that for which it is above",
    "delta is that of Eq. 6, which training presses below 0 on training images of the newest task; 'newest' is the share of that "
    "task's test images with delta <= 0. 'E chosen' is the error of the likeliest task's prompt, 'E own' that of the true task's",
    "The paper argues the theorem and measures none of this, so no published figures stand beside ours",
)


def theorem(evidence: Evidence) -> Presentation:
    """A row for each way to train, and the margins of all images as a picture."""

    def entry(row: Row, dataset: str, name: str) -> Entry:
        found = evidence.found(row, dataset, concavity)
        return found if isinstance(found, str) else mean_std([each[name] for each in found])

    lines = evidence.blocks(len(FIGURES), lambda row, dataset: (entry(row, dataset, name) for name, _, _ in FIGURES))
    panels: dict[str, dict[str, list[int]]] = {}
    for dataset in evidence.datasets:
        for row in evidence.target.rows:
            found = evidence.found(row, dataset, concavity)
            if not isinstance(found, str):
                counts = [sum(column) for column in zip(*(each["margin_histogram"] for each in found), strict=True)]
                panels.setdefault(TITLES.get(dataset, dataset), {})[row.label] = counts
    columns = tuple(Column("", heading, digits) for _, heading, digits in FIGURES)
    sheet = ResultTable(evidence.target.title, ("data set", "method"), columns, lines, (*NOTES, *evidence.notes()))
    return Presentation(sheet, {"": histograms(panels, "margin of the mixture over single prompts")} if panels else {})


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
        theorem,
        measures=(concavity,),
    ),
)
