"""The targets that are figures: each is a picture and the table of its numbers. The paper prints no numbers for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from caprompt.metrics import MeanStd, incremental_accuracies, mean_std
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import by_cycles, costs, first_layer_keys
from caprompt.reproduce.plots import Picture, Series, lines, scatter
from caprompt.reproduce.tables import OURS, Column, Entry, Line, ResultTable
from caprompt.reproduce.targets.accuracy_tables import LINEAR, OWN, PROMPT_METHODS

__all__ = ["TARGETS", "laid_out"]

NO_NUMBERS = "The paper shows this as a picture without numbers, so no published figures stand beside ours"
ACCURACY = "ACC (%)"
ALPHAS, BETAS = (0.0, 1.0, 5.0, 10.0), (0.0, 0.2, 0.5, 1.0)
ALPHA, BETA = 5.0, 0.2  # of the one while the other is varied


def titled(dataset: str) -> str:
    """A data set's name for people."""
    return TITLES.get(dataset, dataset)


def shown(evidence: Evidence) -> list[str]:
    """The data sets of which there is anything to draw."""
    return [d for d in evidence.datasets if any(not isinstance(evidence.done(row, d), str) for row in evidence.target.rows)]


def presentation(
    evidence: Evidence, head: str, columns: Sequence[Column], rows: Iterator[Line], picture: Picture | None
) -> Presentation:
    """A table of our own figures, and its picture if there is anything to draw."""
    sheet = ResultTable(evidence.target.title, (head,), tuple(columns), tuple(rows), (NO_NUMBERS, *evidence.notes()))
    return Presentation(sheet, {"": picture} if picture else {})


# -- accuracy after each task, and with each number of cycles ------------------------------------------------------------------


def curve(evidence: Evidence) -> Presentation:
    """ACC after each task."""
    found = {(row.label, d): after_each_task(evidence, row, d) for row in evidence.target.rows for d in evidence.datasets}
    return drawn_and_told(evidence, found, "after task", "tasks learned")


def after_each_task(evidence: Evidence, row: Row, dataset: str) -> Series | str:
    """(task, ACC) over seeds."""
    runs = evidence.runs(row, dataset)
    if isinstance(runs, str):
        return runs
    columns = zip(*(incremental_accuracies(run.matrix) for run in runs), strict=True)
    return [(task, mean_std(values)) for task, values in enumerate(columns, start=1)]


def cycles(evidence: Evidence) -> Presentation:
    """ACC with one pass, two, and more."""

    def series(row: Row, dataset: str) -> Series | str:
        found = evidence.found(row, dataset, by_cycles)
        if isinstance(found, str):
            return found
        return [(int(number), mean_std([each["ACC"][number] for each in found])) for number in found[0]["ACC"]]

    found = {(row.label, d): series(row, d) for row in evidence.target.rows for d in evidence.datasets}
    drawn = drawn_and_told(evidence, found, "cycles", "cycles")
    return replace(drawn, sheet=replace(drawn.sheet, notes=(*drawn.sheet.notes, *as_needed(evidence))))


def as_needed(evidence: Evidence) -> Iterator[str]:
    """What comes of `cycles="auto"`, a sentence for each row and data set that has been run."""
    for dataset in evidence.datasets:
        for row in evidence.target.rows:
            found = evidence.found(row, dataset, by_cycles)
            if not isinstance(found, str):
                accuracy, passes = (mean_std([each["auto"][key] for each in found]) for key in ("ACC", "passes"))
                told = f"ACC {accuracy.text(2)} with {passes.text(2)} passes an image"
                yield f"{evidence.named(row)} on {titled(dataset)}, as many cycles as each image needs: {told}"


def drawn_and_told(evidence: Evidence, found: dict[tuple[str, str], Series | str], what: str, axis: str) -> Presentation:
    """A panel for each data set, a line in it for each row; the table has a column for each point."""
    known = {key: series for key, series in found.items() if not isinstance(series, str)}
    names = {row.label: evidence.named(row) for row in evidence.target.rows}
    panels = {titled(d): {names[label]: s for (label, own), s in known.items() if own == d} for d in shown(evidence)}
    places = {d: max((len(s) for (_, own), s in known.items() if own == d), default=1) for d in evidence.datasets}
    columns = [
        Column(titled(d), f"{what} {place}" if d in shown(evidence) else "") for d in places for place in range(1, places[d] + 1)
    ]

    def rows() -> Iterator[Line]:
        for row in evidence.target.rows:
            entries: list[Entry] = []
            for dataset, width in places.items():
                series = found[row.label, dataset]
                entries += [series] * width if isinstance(series, str) else [figure for _, figure in series]
            yield Line((row.label,), OURS, evidence.protocol_of(row), tuple(entries))

    return presentation(evidence, "method", columns, rows(), lines(panels, axis, ACCURACY) if panels else None)


# -- trained parameters, hyper-parameters ----------------------------------------------------------------------------------------


def parameters(evidence: Evidence) -> Presentation:
    """ACC against the numbers that training sets, as many times those of CAPrompt."""
    ours = next(row for row in evidence.target.rows if row.label == "CAPrompt")

    def numbers(row: Row, dataset: str) -> Entry:
        found = evidence.found(row, dataset, costs)
        return found if isinstance(found, str) else mean_std([each["numbers"] for each in found])

    def relative(row: Row, dataset: str) -> Entry:
        own, reference = numbers(row, dataset), numbers(ours, dataset)
        return MeanStd(own.mean / reference.mean) if isinstance(own, MeanStd) and isinstance(reference, MeanStd) else own

    def accuracy(row: Row, dataset: str) -> Entry:
        return evidence.metric(row, dataset, "ACC")

    parts: tuple[tuple[str, int, Callable[[Row, str], Entry]], ...]
    parts = (("parameters", 0, numbers), ("relative", 2, relative), ("ACC", 2, accuracy))
    columns = [Column(titled(d), name, digits) for d in evidence.datasets for name, digits, _ in parts]
    rows = (
        Line((row.label,), OURS, evidence.protocol_of(row), tuple(part(row, d) for d in evidence.datasets for _, _, part in parts))
        for row in evidence.target.rows
    )
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset in shown(evidence):
        for row in evidence.target.rows:
            x, y = relative(row, dataset), accuracy(row, dataset)
            if isinstance(x, MeanStd) and isinstance(y, MeanStd):
                panels.setdefault(titled(dataset), {})[evidence.named(row)] = [(x.mean, y.mean)]
    picture = scatter(panels, "trained parameters, CAPrompt = 1", ACCURACY) if panels else None
    return presentation(evidence, "method", columns, rows, picture)


def hyper(evidence: Evidence) -> Presentation:
    """ACC against alpha and against beta."""
    panels: dict[str, dict[str, list[tuple[float, MeanStd]]]] = {}
    for row in evidence.target.rows:
        name, value = row.label.split(" = ")
        name = evidence.named(row).replace(row.label, name)
        for dataset in evidence.datasets:
            entry = evidence.metric(row, dataset, "ACC")
            if isinstance(entry, MeanStd):
                panels.setdefault(name, {}).setdefault(titled(dataset), []).append((float(value), entry))
    columns = [Column(titled(d), metric) for d in evidence.datasets for metric in ("ACC", "AF")]
    rows = (
        Line(
            (row.label,),
            OURS,
            evidence.protocol_of(row),
            tuple(evidence.metric(row, d, metric) for d in evidence.datasets for metric in ("ACC", "AF")),
        )
        for row in evidence.target.rows
    )
    return presentation(evidence, "setting", columns, rows, lines(panels, "value", ACCURACY) if panels else None)


# -- where the prompts lie -------------------------------------------------------------------------------------------------------


def tsne(evidence: Evidence) -> Presentation:
    """The first layer's key prompts of all tasks in the plane, and how straight a line the tasks' prompts form."""
    columns = [Column(titled(d), "straightness", 3) for d in evidence.datasets]

    def straight(row: Row, dataset: str) -> Entry:
        found = evidence.found(row, dataset, first_layer_keys)
        return found if isinstance(found, str) else mean_std([straightness(each["rows"]) for each in found])

    rows = (
        Line((row.label,), OURS, evidence.protocol_of(row), tuple(straight(row, d) for d in evidence.datasets))
        for row in evidence.target.rows
    )
    panels = {}
    for dataset in shown(evidence):
        for row in evidence.target.rows:
            found = evidence.found(row, dataset, first_layer_keys)
            if not isinstance(found, str):
                panels[f"{row.label}, {titled(dataset)}"] = laid_out(found[0]["rows"])
    picture = scatter(panels, "", "") if panels else None
    made = presentation(evidence, "method", columns, rows, picture)
    sheet = ResultTable(made.sheet.title, made.sheet.heads, made.sheet.columns, made.sheet.lines, (STRAIGHT, *made.sheet.notes))
    return Presentation(sheet, made.pictures)


STRAIGHT = (
    "Straightness is the mean cosine of (phi_t - phi_1) and (phi_{t-1} - phi_1) over rows, and tasks from the third on: 1 on a "
    "line. The picture is of the first seed"
)


def laid_out(rows: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[tuple[float, float]]]:
    """Rows of all tasks, (T, n, D), in the plane: t-SNE of all together, named by task."""
    import numpy as np
    from sklearn.manifold import TSNE

    points = np.asarray(rows, dtype=np.float32)
    tasks, each, width = points.shape
    perplexity = min(30.0, max(2.0, tasks * each / 4))
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points.reshape(-1, width))
    places = plane.reshape(tasks, each, 2).tolist()
    return {f"task {task}": [(x, y) for x, y in own] for task, own in enumerate(places, start=1)}


def straightness(rows: Sequence[Sequence[Sequence[float]]]) -> float:
    """How straight a line the rows of all tasks, (T, n, D), form: the mean cosine of Eq. 8; 0 for fewer than three tasks.

    >>> round(straightness([[[0.0, 0.0]], [[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]), 6)
    1.0
    """
    import torch

    points = torch.tensor(rows, dtype=torch.float64)
    steps = points[1:] - points[:1]
    return float(torch.cosine_similarity(steps[1:], steps[:-1], dim=-1).mean()) if len(points) > 2 else 0.0


TARGETS = (
    Target("fig-curve", "Accuracy after each task, in percent", PROMPT_METHODS, curve),
    Target(
        "fig-cycles",
        "Accuracy with one pass, two, and more, in percent",
        (Row.paper("CAPrompt"), OWN),
        cycles,
        measures=(by_cycles,),
    ),
    Target(
        "fig-tsne",
        "Key prompts of layer one, with and without the linear constraint",
        LINEAR,
        tsne,
        datasets=("imagenet-r",),
        measures=(first_layer_keys,),
    ),
    Target(
        "fig-params",
        "Accuracy against trained parameters",
        PROMPT_METHODS,
        parameters,
        datasets=("imagenet-r",),
        measures=(costs,),
    ),
    Target(
        "fig-hyper",
        "Accuracy against the weights of the two constraints, in percent",
        tuple(Row.paper(f"alpha = {value:g}", alpha=value, beta=BETA) for value in ALPHAS)
        + tuple(Row.paper(f"beta = {value:g}", alpha=ALPHA, beta=value) for value in BETAS),
        hyper,
        datasets=("imagenet-r",),
    ),
)
