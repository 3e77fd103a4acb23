"""Targets that are tables of accuracies: Tables 1 to 3 of the paper and those of its appendix."""

from __future__ import annotations

from collections.abc import Callable

from caprompt.metrics import mean_std
from caprompt.protocols import parse_kind, require_same_protocol
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import given_task
from caprompt.reproduce.plots import plot_dots
from caprompt.reproduce.published import get_published, is_leaking
from caprompt.reproduce.scales import format_backbone_title
from caprompt.reproduce.tables import OURS, PUBLISHED, Column, Entry, Line, ResultTable

__all__ = ["IDEAS", "LINEAR", "OWN", "PROMPT_METHODS", "RECIPES", "TARGETS"]

#: A regression in place of the paper's head, trained as in the paper otherwise: the default of version 0.1.
REGRESSION = {
    "classifier": "ridge",
    "ridge_strength": "held-out",
    "training_prompt": "mixture",
    "training_head": "linear",
    "alpha": 5.0,
    "beta": 0.2,
    "modulation": 0.0,
    "kept_change": 1.0,
    "readout_blocks": 1,
    "mirror": False,
}
OWN = Row("CAPrompt with ridge", options={**REGRESSION, "learning_rate": 1e-2})
PROMPT_METHODS = (
    Row("L2P", "l2p"),
    Row("DualPrompt", "dualprompt"),
    Row("CODA-Prompt", "coda-prompt"),
    Row("HiDe-Prompt", "hide-prompt"),
    Row("EvoPrompt", "evoprompt"),
    Row("ConvPrompt", "convprompt"),
    Row("CPrompt", "cprompt"),
    Row.paper("CAPrompt"),
    OWN,
)
LINEAR = (Row.paper("CAPrompt without L_l", beta=0.0), Row.paper("CAPrompt"))  # the constraint that aligns prompts on a line
#: With a trained head: the learning rate shared by all methods, and alpha and alignment of the authors' code for CIFAR-100.
WITH_HEAD = {"learning_rate": 3e-3, "alpha": 1.0, "align_epochs": 30, "align_rate": 0.005}
PAPER_INIT = {"init": "uniform", "head_rate": 0.1}
RECIPES = (
    Row.paper("CAPrompt, the paper's recipe", **PAPER_INIT, **WITH_HEAD),
    Row.paper("CAPrompt, alpha 5, aligned longer", **PAPER_INIT, learning_rate=3e-3),
)
IDEAS = (
    RECIPES[0],
    Row.paper("+ small first prompts, head at full rate", **WITH_HEAD),
    Row("+ regression in place of the trained head", options={**REGRESSION, "learning_rate": 3e-3}),
    OWN,  # with a higher learning rate
)
BACKBONES = {"own": "", "iBOT-1k": "vit_base_patch16_224.ibot", "DINO-1k": "vit_base_patch16_224.dino"}


def present_accuracies(evidence: Evidence) -> Presentation:
    """Present ACC and AF after the last task, published and ours."""
    return _present(evidence, ("ACC", "AF"), evidence.compute_metric, evidence.get_protocol)


def present_given_task(evidence: Evidence) -> Presentation:
    """Present ACC where each image's true task is given at test, and only there."""

    def accuracy(row: Row, dataset: str, metric: str, backbone: str) -> Entry:
        results = evidence.read_measures(row, dataset, given_task, backbone)
        return results if isinstance(results, str) else mean_std([each[metric] for each in results])

    def protocol(row: Row) -> str:
        results = [evidence.read_measures(row, dataset, given_task) for dataset in evidence.datasets]
        protocols = [each["protocol"] for seeds in results if not isinstance(seeds, str) for each in seeds]
        return parse_kind(require_same_protocol(protocols)) if protocols else "oracle"

    return _present(evidence, ("ACC",), accuracy, protocol)


def _present(
    evidence: Evidence,
    metrics: tuple[str, ...],
    ours: Callable[[Row, str, str, str], Entry],
    protocol: Callable[[Row], str],
) -> Presentation:
    """Present a line of published values and one of ours for every row and backbone; rows not in the paper have only ours."""
    target, columns = evidence.target, [(dataset, metric) for dataset in evidence.datasets for metric in metrics]
    lines, several = [], len(target.backbones) > 1
    for title, backbone in evidence.backbones.items():
        block = title if backbone else ""
        for row in target.rows:
            names = (block or format_backbone_title(evidence.scale.backbone), row.label) if several else (row.label,)
            published = [get_published(target.name, row.label, dataset, metric, block) for dataset, metric in columns]
            if any(published):
                kind = "leaks" if is_leaking(row.method) else "no leak known"
                lines.append(Line(names, PUBLISHED, kind, tuple(value or "" for value in published)))
            entries = tuple(ours(row, dataset, metric, backbone) for dataset, metric in columns)
            lines.append(Line(names, OURS, protocol(row), entries))
    heads = ("backbone", "method") if several else ("method",)
    headings = tuple(Column(TITLES.get(dataset, dataset), metric) for dataset, metric in columns)
    leak_note = (LEAK_NOTE,) if any(line.protocol == "leaks" for line in lines) else ()
    table = ResultTable(target.title, heads, headings, tuple(lines), (*leak_note, *evidence.notes()))
    plot = plot_dots(table)
    return Presentation(table, {"": plot} if plot else {})


LEAK_NOTE = (
    "Published values marked 'leaks' come from code in which the images of a test batch influence each other, and a batch "
    "holds one task; they are not comparable with honest ones"
)

TARGETS = (
    Target("table1", "Table 1: prompt methods, ACC and AF in percent", PROMPT_METHODS, present_accuracies),
    Target(
        "table2",
        "Table 2: other parameter-efficient methods, ACC and AF in percent",
        (Row("InfLoRA", "inflora"), Row("EASE", "ease"), Row("SSIAT", "ssiat"), Row.paper("CAPrompt"), OWN),
        present_accuracies,
    ),
    Target(
        "table3",
        "Table 3: contribution of each part of CAPrompt, ACC and AF in percent",
        (
            Row.paper("Base", aggregation=False, alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation", first_pass="query", alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation + Cyclic", alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation + Cyclic + L_con", beta=0.0),
            Row.paper("+ Aggregation + Cyclic + L_con + L_l"),
        ),
        present_accuracies,
        datasets=("imagenet-r",),
    ),
    Target(
        "ablation",
        "Contribution of each change to the paper's recipe, added in turn: ACC and AF in percent",
        IDEAS,
        present_accuracies,
        preset="budget",
    ),
    Target(
        "table-taskid",
        "Appendix: ACC in percent where each test image's true task is given",
        LINEAR,
        present_given_task,
        measures=(given_task,),
    ),
    Target(
        "table-backbones",
        "Appendix: self-supervised backbones, ACC and AF in percent",
        PROMPT_METHODS,
        present_accuracies,
        backbones=BACKBONES,
    ),
)
