"""The target `orders`: our default against its nearest rivals, class order by class order.

A mean over orders can hide that a method wins in one of them alone; here every order stands in a column of its own.
"""

from __future__ import annotations

from caprompt.experiments.run_folder import read_plan
from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence, Presentation, Row, Target
from caprompt.reproduce.plots import dots
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import OWN, RECIPES
from caprompt.reproduce.targets.comparison import ROWS

__all__ = ["RIVALS", "TARGETS"]

NEAREST = ("nearest class mean", "ridge, frozen", "HiDe-Prompt", "EASE", "SSIAT", "RanPAC", "RanPAC, 20 epochs")
RIVALS = (*(row for row in ROWS if row.label in NEAREST), *RECIPES, OWN)
NOTES = (
    "Order k is the class order of seed k, which all else that is random follows from too. Same epochs, pictures and batches for "
    "every row (preset 'budget'); the row of 20 epochs trains on the first task for as long as its authors do",
    "ACC and AF are means over the orders that have been run",
    "The paper's recipe is its head, first prompts, a tenth of the rate for the head, its alignment, and alpha 1, as its program "
    "has it for CIFAR-100; the row of alpha 5 has that of its text, and 100 epochs of alignment at 0.1, as CAPrompt's head has "
    "here by default. Both have the rate, pictures, batches and epochs that all rows have",
)


def by_order(evidence: Evidence) -> Presentation:
    """ACC after the last task in each order, then means."""
    seeds = range(evidence.scale.seeds)
    columns = [Column("", f"order {seed}") for seed in seeds] + [Column("", "ACC"), Column("", "AF")]

    def entries(row: Row, dataset: str) -> list[Entry]:
        runs = evidence.runs(row, dataset)
        if isinstance(runs, str):
            return [runs] * len(columns)
        found = {read_plan(run.folder)["config"]["seed"]: run.summary() for run in runs}
        each: list[Entry] = [MeanStd(found[seed]["ACC"]) if seed in found else "not run" for seed in seeds]
        return [*each, *(mean_std([summary[name] for summary in found.values()]) for name in ("ACC", "AF"))]

    lines = evidence.blocks(len(columns), entries)
    sheet = ResultTable(evidence.target.title, ("data set", "method"), tuple(columns), lines, (*NOTES, *evidence.notes()))
    picture = dots(sheet)
    return Presentation(sheet, {"": picture} if picture else {})


TARGETS = (
    Target(
        "orders",
        "The default against its rivals in every class order: ACC in percent",
        RIVALS,
        by_order,
        datasets=("tiny-imagenet",),
        preset="budget",
    ),
)
