"""The target `orders`: our default against its closest rivals, one column per class order.

A mean over orders can hide that a method is best in only one of them.
"""

from __future__ import annotations

from caprompt.experiments.run_folder import read_plan
from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence, Presentation, Row, Target
from caprompt.reproduce.plots import plot_dots
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import OWN, RECIPES
from caprompt.reproduce.targets.comparison import ROWS

__all__ = ["RIVALS", "TARGETS"]

NEAREST = ("nearest class mean", "ridge, frozen", "HiDe-Prompt", "EASE", "SSIAT", "RanPAC", "RanPAC, 20 epochs")
RIVALS = (*(row for row in ROWS if row.label in NEAREST), *RECIPES, OWN)
NOTES = (
    "Order k is the class order of seed k, which also seeds everything else that is random. Same epochs, images and batches for "
    "every row (preset 'budget'); the row of 20 epochs trains on the first task for as long as its authors do",
    "ACC and AF are means over the orders that have been run",
    "The paper's recipe is its head, its initial prompts, a tenth of the learning rate for the head, its alignment, and alpha 1 "
    "as in its code for CIFAR-100; the row of alpha 5 has alpha as in its text, and 100 epochs of alignment at rate 0.1, the "
    "default of CAPrompt's head here. Both have the learning rate, images, batches and epochs of all rows",
)


def present_orders(evidence: Evidence) -> Presentation:
    """Present ACC after the last task in each order, then means."""
    seeds = range(evidence.scale.seeds)
    columns = [Column("", f"order {seed}") for seed in seeds] + [Column("", "ACC"), Column("", "AF")]

    def entries(row: Row, dataset: str) -> list[Entry]:
        runs = evidence.load_runs(row, dataset)
        if isinstance(runs, str):
            return [runs] * len(columns)
        summaries = {read_plan(run.folder)["config"]["seed"]: run.summary() for run in runs}
        each: list[Entry] = [MeanStd(summaries[seed]["ACC"]) if seed in summaries else "not run" for seed in seeds]
        return [*each, *(mean_std([summary[name] for summary in summaries.values()]) for name in ("ACC", "AF"))]

    lines = evidence.build_lines(len(columns), entries)
    table = ResultTable(evidence.target.title, ("data set", "method"), tuple(columns), lines, (*NOTES, *evidence.notes()))
    plot = plot_dots(table)
    return Presentation(table, {"": plot} if plot else {})


TARGETS = (
    Target(
        "orders",
        "The default against its rivals in every class order: ACC in percent",
        RIVALS,
        present_orders,
        datasets=("tiny-imagenet",),
        preset="budget",
    ),
)
