"""The target `comparison`: every method under the same budget, with its storage and cost.

The paper has no such table; its tables compare results of ten codebases with different backbones, splits and metrics.
"""

from __future__ import annotations

import json

from caprompt.metrics import METRICS, MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import costs
from caprompt.reproduce.plots import plot_dots
from caprompt.reproduce.scales import format_backbone_title
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import OWN, PROMPT_METHODS

__all__ = ["ROWS", "SPEED_FILE", "TARGETS"]

#: From the cheapest kind to the most expensive: nothing trained, no protection, prompts, other adaptations, ours, upper bounds.
ROWS = (
    Row("nearest class mean", "ncm"),
    Row("ridge, frozen", "ranpac", options={"adapt_first": False}),
    Row("ridge, frozen, our strength", "ridge"),
    Row("linear", "linear"),
    Row("fine-tuning", "finetune", options={"masked": False}),
    Row("fine-tuning, masked", "finetune"),
    Row("prompts in turn, masked", "sequential-prompt", options={"masked": True}),
    *(row for row in PROMPT_METHODS if row.method != "caprompt"),
    Row("L2P, class token", "l2p", options={"read": "class-token"}),
    Row("InfLoRA", "inflora"),
    Row("EASE", "ease"),
    Row("SSIAT", "ssiat"),
    Row("MOS", "mos"),
    Row("TUNA", "tuna"),
    Row("RanPAC", "ranpac"),
    Row("RanPAC, 20 epochs", "ranpac", options={"epochs": 20}),
    Row("MoAL", "moal"),
    *(row for row in PROMPT_METHODS if row.method == "caprompt"),
    Row("joint prompts", "sequential-prompt", options={"joint": True}),
    Row("joint CAPrompt with ridge", options={**OWN.options, "joint": True}),
    Row("joint fine-tuning", "finetune", options={"joint": True, "epochs": 8}),
)
COMPARED_METRICS = ("ACC", "pooled", "AF", "learning_accuracy", "average_incremental_accuracy", "task_identification")
COSTS = {"numbers": ("trained, thousands", 1e3, 1), "bytes_per_class": ("kB per class", 1e3, 1), "mean_passes": ("passes", 1.0, 0)}
SPEEDS = {
    "training_images_per_second": ("trained images/s", 0),
    "rest_seconds": ("rest, s", 1),
    "prediction_images_per_second": ("predictions/s", 0),
}
SPEED_FILE = "speeds.json"  # beside the cells; timings of cells that share a device are not comparable
NOTES = (
    "Same backbone, images, class order, epochs and batches for every method (preset 'budget'). Joint training learns all classes "
    "at once (joint fine-tuning for 8 epochs) and is not class-incremental but an upper bound: joint prompts bound only the rows "
    "with one set of prompts and a trained head, joint CAPrompt, with a single task, those with one set and a regression. RanPAC "
    "trains on the first task only; its row of 20 epochs trains as long as its authors do",
    "ACC is the mean over tasks after the last one, pooled the accuracy over all images, AF the mean drop from a task's best, "
    "'when learned' the mean over tasks right after each, incremental the mean of ACC after every task, 'task identified' the "
    "share of images whose most likely task is the right one; 'trained' counts trained parameters that the model still needs, "
    "'kB per class' is everything else it stores (statistics, sums, earlier features) divided by the number of classes; passes "
    "are backbone passes per image at prediction",
)
SPEED_NOTE = (
    "Speeds are of each method alone on the device, in the last of ten tasks (benchmarks/methods.py); 'rest' is the time of a task "
    "outside its epochs"
)


def present_comparison(evidence: Evidence) -> Presentation:
    """Present a line for each method in a block for each dataset that has been run."""
    speeds = _read_speeds(evidence)
    columns = [Column("", METRICS[name].label) for name in COMPARED_METRICS]
    columns += [Column("", heading, digits) for heading, _, digits in COSTS.values()]
    columns += [Column("", heading, digits) for heading, digits in SPEEDS.values()] if speeds else []

    def entries(row: Row, dataset: str) -> list[Entry]:
        metrics = [evidence.compute_metric(row, dataset, name) for name in COMPARED_METRICS]
        speed = [MeanStd(value) if (value := speeds.get(row.label, {}).get(name)) else "" for name in SPEEDS]
        return [*metrics, *(_compute_cost(evidence, row, dataset, name) for name in COSTS), *(speed if speeds else [])]

    notes = (*NOTES, *([SPEED_NOTE] if speeds else []), *evidence.notes())
    lines = evidence.build_lines(len(columns), entries)
    table = ResultTable(evidence.target.title, ("data set", "method"), tuple(columns), lines, notes)
    plot = plot_dots(table)
    return Presentation(table, {"": plot} if plot else {})


def _read_speeds(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Return the results of benchmarks/methods.py with this backbone, by row label; empty if there are none."""
    path = evidence.cells_dir / SPEED_FILE
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    same = document["backbone"] == format_backbone_title(evidence.scale.backbone)
    rows: dict[str, dict[str, float]] = document["rows"] if same else {}
    return rows


def _compute_cost(evidence: Evidence, row: Row, dataset: str, name: str) -> Entry:
    """Return one of the costs, in the column's unit."""
    results, (_, unit, _) = evidence.read_measures(row, dataset, costs), COSTS[name]
    return results if isinstance(results, str) else mean_std([each[name] / unit for each in results])


TARGETS = (
    Target("comparison", "Every method under the same budget", ROWS, present_comparison, measures=(costs,), preset="budget"),
)
