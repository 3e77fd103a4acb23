"""The target `comparison`: every method here under the same budget, with what each of them keeps and costs.

No table of the paper has this; its own compare figures of ten programs with different backbones, splits and metrics.
"""

from __future__ import annotations

import json

from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import costs
from caprompt.reproduce.plots import dots
from caprompt.reproduce.scales import backbone_title
from caprompt.reproduce.tables import Column, Entry, ResultTable
from caprompt.reproduce.targets.accuracy_tables import PROMPT_METHODS

__all__ = ["ROWS", "SPEED_FILE", "TARGETS"]

#: From the cheapest to the dearest kind: nothing trained, no protection, prompts, other adaptations, ours, upper bounds.
ROWS = (
    Row("nearest class mean", "ncm"),
    Row("ridge, frozen", "ranpac", options={"adapt_first": False}),
    Row("linear", "linear"),
    Row("fine-tuning", "finetune", options={"masked": False}),
    Row("fine-tuning, masked", "finetune"),
    Row("prompts in turn, masked", "sequential-prompt", options={"masked": True}),
    *(row for row in PROMPT_METHODS if row.method != "caprompt"),
    Row("L2P, class token", "l2p", options={"read": "class-token"}),
    Row("InfLoRA", "inflora"),
    Row("EASE", "ease"),
    Row("SSIAT", "ssiat"),
    Row("RanPAC", "ranpac"),
    Row("RanPAC, 20 epochs", "ranpac", options={"epochs": 20}),
    *(row for row in PROMPT_METHODS if row.method == "caprompt"),
    Row("joint prompts", "sequential-prompt", options={"joint": True}),
    Row("joint CAPrompt with ridge", options={"classifier": "ridge", "joint": True}),
    Row("joint fine-tuning", "finetune", options={"joint": True, "epochs": 8}),
)
METRICS = {
    "ACC": "ACC",
    "pooled": "pooled",
    "AF": "AF",
    "learning_accuracy": "when learned",
    "average_incremental_accuracy": "incremental",
    "task_identification": "task found",
}
COSTS = {"numbers": ("trained, thousands", 1e3, 1), "bytes_per_class": ("kB a class", 1e3, 1), "mean_passes": ("passes", 1.0, 0)}
SPEEDS = {
    "training_images_per_second": ("trained images/s", 0),
    "rest_seconds": ("rest, s", 1),
    "prediction_images_per_second": ("answers/s", 0),
}
SPEED_FILE = "speeds.json"  # beside the cells; cells that share a device do not tell how fast a method is
NOTES = (
    "Same backbone, pictures, class order, epochs and batches for every method (preset 'budget'); joint training sees all classes "
    "at once, joint fine-tuning for 8 epochs, and is no class-incremental learning but its upper bound (joint prompts are that of "
    "rows alone that have one set of prompts and a trained head as well, joint CAPrompt, of one task, that of one set with a "
    "regression). RanPAC trains on the first task alone; the row of 20 "
    "epochs is as long as its authors train there",
    "ACC is the mean over tasks after the last one, pooled the share of all images, AF what tasks have lost since their best, "
    "'when learned' the mean over tasks right after each, incremental the mean of ACC after every task, 'task found' the share of "
    "images whose answer is a class of the right task; 'trained' is what training has set and the model still needs, 'kB a class' "
    "all else that it keeps (statistics, sums, earlier features), by the number of classes; passes are those of the backbone per "
    "image at prediction",
)
SPEED_NOTE = (
    "Speeds are of each method alone on the device, in the last of ten tasks (benchmarks/methods.py); 'rest' is what a task takes "
    "beside its epochs"
)


def comparison(evidence: Evidence) -> Presentation:
    """A line for each method, a block for each data set that has been run."""
    fast = speeds(evidence)
    columns = [Column("", heading) for heading in METRICS.values()]
    columns += [Column("", heading, digits) for heading, _, digits in COSTS.values()]
    columns += [Column("", heading, digits) for heading, digits in SPEEDS.values()] if fast else []

    def entries(row: Row, dataset: str) -> list[Entry]:
        metrics = [evidence.metric(row, dataset, name) for name in METRICS]
        speed = [MeanStd(found) if (found := fast.get(row.label, {}).get(name)) else "" for name in SPEEDS]
        return [*metrics, *(cost(evidence, row, dataset, name) for name in COSTS), *(speed if fast else [])]

    notes = (*NOTES, *([SPEED_NOTE] if fast else []), *evidence.notes())
    sheet = ResultTable(
        evidence.target.title, ("data set", "method"), tuple(columns), evidence.blocks(len(columns), entries), notes
    )
    picture = dots(sheet)
    return Presentation(sheet, {"": picture} if picture else {})


def speeds(evidence: Evidence) -> dict[str, dict[str, float]]:
    """What benchmarks/methods.py found with this backbone, by the labels of rows; nothing if it did not run."""
    path = evidence.home / SPEED_FILE
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    same = document["backbone"] == backbone_title(evidence.scale.backbone)
    rows: dict[str, dict[str, float]] = document["rows"] if same else {}
    return rows


def cost(evidence: Evidence, row: Row, dataset: str, name: str) -> Entry:
    """One of the costs, in the column's unit."""
    found, (_, unit, _) = evidence.found(row, dataset, costs), COSTS[name]
    return found if isinstance(found, str) else mean_std([each[name] / unit for each in found])


TARGETS = (Target("comparison", "Every method under the same budget", ROWS, comparison, measures=(costs,), preset="budget"),)
