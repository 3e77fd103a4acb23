"""The targets that are tables of accuracies: the paper's Tables 1 to 3 and those of its appendix."""

from __future__ import annotations

from collections.abc import Callable

from caprompt.metrics import mean_std
from caprompt.protocols import kind, single
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import given_task
from caprompt.reproduce.plots import dots
from caprompt.reproduce.published import leaks, published
from caprompt.reproduce.scales import backbone_title
from caprompt.reproduce.tables import OURS, PUBLISHED, Column, Entry, Line, ResultTable

__all__ = ["IDEAS", "LINEAR", "OWN", "PROMPT_METHODS", "RECIPES", "TARGETS"]

OWN = Row("CAPrompt with ridge", options={"classifier": "ridge"})  # what we recommend; the paper does not have it
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
LINEAR = (Row.paper("CAPrompt without L_l", beta=0.0), Row.paper("CAPrompt"))  # the constraint that lays prompts on a line
#: With a trained head: the rate that methods have in common, the program's weight of the constraint and alignment for CIFAR-100.
WITH_HEAD = {"learning_rate": 3e-3, "alpha": 1.0, "align_epochs": 30, "align_rate": 0.005}
AT_FIRST = {"init": "uniform", "head_rate": 0.1}
RECIPES = (
    Row.paper("CAPrompt, the paper's recipe", **AT_FIRST, **WITH_HEAD),
    Row.paper("CAPrompt, alpha 5, aligned longer", **AT_FIRST, learning_rate=3e-3),
)
IDEAS = (
    RECIPES[0],
    Row.paper("+ small first prompts, head at full rate", **WITH_HEAD),
    Row("+ regression in place of the trained head", options={"classifier": "ridge", "learning_rate": 3e-3}),
    OWN,  # at a higher rate
)
BACKBONES = {"own": "", "iBOT-1k": "vit_base_patch16_224.ibot", "DINO-1k": "vit_base_patch16_224.dino"}


def accuracies(evidence: Evidence) -> Presentation:
    """ACC and AF after the last task, published and ours."""
    return tabulated(evidence, ("ACC", "AF"), evidence.metric, evidence.protocol_of)


def with_task(evidence: Evidence) -> Presentation:
    """ACC where each image's true task is given away at the test, and only there."""

    def accuracy(row: Row, dataset: str, metric: str, backbone: str) -> Entry:
        found = evidence.found(row, dataset, given_task, backbone)
        return found if isinstance(found, str) else mean_std([each[metric] for each in found])

    def rules(row: Row) -> str:
        found = [evidence.found(row, dataset, given_task) for dataset in evidence.datasets]
        protocols = [each["protocol"] for one in found if not isinstance(one, str) for each in one]
        return kind(single(protocols)) if protocols else "oracle"

    return tabulated(evidence, ("ACC",), accuracy, rules)


def tabulated(
    evidence: Evidence,
    metrics: tuple[str, ...],
    ours: Callable[[Row, str, str, str], Entry],
    protocol: Callable[[Row], str],
) -> Presentation:
    """A line of published figures and one of ours for every row and backbone; what the paper does not have has none."""
    target, columns = evidence.target, [(dataset, metric) for dataset in evidence.datasets for metric in metrics]
    lines, several = [], len(target.backbones) > 1
    for title, backbone in evidence.backbones.items():
        block = title if backbone else ""
        for row in target.rows:
            names = (block or backbone_title(evidence.scale.backbone), row.label) if several else (row.label,)
            printed = [published(target.name, row.label, dataset, metric, block) for dataset, metric in columns]
            if any(printed):
                rules = "leaks" if leaks(row.method) else "no leak known"
                lines.append(Line(names, PUBLISHED, rules, tuple(figure or "" for figure in printed)))
            entries = tuple(ours(row, dataset, metric, backbone) for dataset, metric in columns)
            lines.append(Line(names, OURS, protocol(row), entries))
    heads = ("backbone", "method") if several else ("method",)
    headings = tuple(Column(TITLES.get(dataset, dataset), metric) for dataset, metric in columns)
    leaking = (LEAK_NOTE,) if any(line.protocol == "leaks" for line in lines) else ()
    sheet = ResultTable(target.title, heads, headings, tuple(lines), (*leaking, *evidence.notes()))
    picture = dots(sheet)
    return Presentation(sheet, {"": picture} if picture else {})


LEAK_NOTE = (
    "Published figures marked 'leaks' come from programs in which the images of a test batch influence each other, and a batch "
    "holds one task; they cannot be compared with honest ones"
)

TARGETS = (
    Target("table1", "Table 1: prompt methods, ACC and AF in percent", PROMPT_METHODS, accuracies),
    Target(
        "table2",
        "Table 2: other parameter-efficient methods, ACC and AF in percent",
        (Row("InfLoRA", "inflora"), Row("EASE", "ease"), Row("SSIAT", "ssiat"), Row.paper("CAPrompt"), OWN),
        accuracies,
    ),
    Target(
        "table3",
        "Table 3: what each part of CAPrompt is worth, ACC and AF in percent",
        (
            Row.paper("Base", aggregation=False, alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation", first_pass="query", alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation + Cyclic", alpha=0.0, beta=0.0),
            Row.paper("+ Aggregation + Cyclic + L_con", beta=0.0),
            Row.paper("+ Aggregation + Cyclic + L_con + L_l"),
        ),
        accuracies,
        datasets=("imagenet-r",),
    ),
    Target(
        "ablation",
        "What each idea adds to the paper's recipe, in turn: ACC and AF in percent",
        IDEAS,
        accuracies,
        preset="budget",
    ),
    Target(
        "table-taskid",
        "Appendix: ACC in percent where each test image's true task is given away",
        LINEAR,
        with_task,
        measures=(given_task,),
    ),
    Target(
        "table-backbones",
        "Appendix: self-supervised backbones, ACC and AF in percent",
        PROMPT_METHODS,
        accuracies,
        backbones=BACKBONES,
    ),
)
