"""Targets that are figures: each is a plot and the table of its values. The paper prints no values for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from caprompt.metrics import MeanStd, incremental_accuracies, mean_std
from caprompt.reproduce.evidence import TITLES, Evidence, Presentation, Row, Target
from caprompt.reproduce.measures import by_cycles, costs, first_layer_keys
from caprompt.reproduce.plots import Plot, Series, plot_lines, plot_scatter
from caprompt.reproduce.tables import OURS, Column, Entry, Line, ResultTable
from caprompt.reproduce.targets.accuracy_tables import LINEAR, OWN, PROMPT_METHODS

__all__ = ["TARGETS", "project_tsne"]

NO_VALUES = "The paper shows this as a figure without values, so there are no published ones beside ours"
ACCURACY = "ACC (%)"
ALPHAS, BETAS = (0.0, 1.0, 5.0, 10.0), (0.0, 0.2, 0.5, 1.0)
ALPHA, BETA = 5.0, 0.2  # the fixed value while the other is varied


def _get_title(dataset: str) -> str:
    """Return the display name of a dataset."""
    return TITLES.get(dataset, dataset)


def _list_drawn(evidence: Evidence) -> list[str]:
    """Return the datasets that have any results to draw."""
    rows = evidence.target.rows
    return [d for d in evidence.datasets if any(not isinstance(evidence.list_finished(row, d), str) for row in rows)]


def _present(evidence: Evidence, head: str, columns: Sequence[Column], rows: Iterator[Line], plot: Plot | None) -> Presentation:
    """Present a table of our own values, and its plot if there is anything to draw."""
    table = ResultTable(evidence.target.title, (head,), tuple(columns), tuple(rows), (NO_VALUES, *evidence.notes()))
    return Presentation(table, {"": plot} if plot else {})


# -- accuracy after each task, and with each number of cycles ------------------------------------------------------------------


def present_curve(evidence: Evidence) -> Presentation:
    """Present ACC after each task."""
    series = {(row.label, d): _compute_curve(evidence, row, d) for row in evidence.target.rows for d in evidence.datasets}
    return _present_series(evidence, series, "after task", "tasks learned")


def _compute_curve(evidence: Evidence, row: Row, dataset: str) -> Series | str:
    """Return (task, ACC over seeds)."""
    runs = evidence.load_runs(row, dataset)
    if isinstance(runs, str):
        return runs
    columns = zip(*(incremental_accuracies(run.matrix) for run in runs), strict=True)
    return [(task, mean_std(values)) for task, values in enumerate(columns, start=1)]


def present_cycles(evidence: Evidence) -> Presentation:
    """Present ACC for each number of cycles."""

    def compute(row: Row, dataset: str) -> Series | str:
        results = evidence.read_measures(row, dataset, by_cycles)
        if isinstance(results, str):
            return results
        return [(int(number), mean_std([each["ACC"][number] for each in results])) for number in results[0]["ACC"]]

    series = {(row.label, d): compute(row, d) for row in evidence.target.rows for d in evidence.datasets}
    presentation = _present_series(evidence, series, "cycles", "cycles")
    notes = (*presentation.table.notes, *_describe_auto_cycles(evidence))
    return replace(presentation, table=replace(presentation.table, notes=notes))


def _describe_auto_cycles(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence on `cycles="auto"` for each row and dataset that has been run."""
    for dataset in evidence.datasets:
        for row in evidence.target.rows:
            results = evidence.read_measures(row, dataset, by_cycles)
            if not isinstance(results, str):
                accuracy, passes = (mean_std([each["auto"][key] for each in results]) for key in ("ACC", "passes"))
                values = f"ACC {accuracy.text(2)} with {passes.text(2)} passes per image"
                yield f"{evidence.format_label(row)} on {_get_title(dataset)}, as many cycles as each image needs: {values}"


def _present_series(evidence: Evidence, series: dict[tuple[str, str], Series | str], what: str, axis: str) -> Presentation:
    """Present a panel for each dataset with a line for each row, and a table with a column for each point."""
    known = {key: points for key, points in series.items() if not isinstance(points, str)}
    names = {row.label: evidence.format_label(row) for row in evidence.target.rows}
    panels = {_get_title(d): {names[label]: s for (label, own), s in known.items() if own == d} for d in _list_drawn(evidence)}
    widths = {d: max((len(s) for (_, own), s in known.items() if own == d), default=1) for d in evidence.datasets}
    columns = [
        Column(_get_title(d), f"{what} {number}" if d in _list_drawn(evidence) else "")
        for d in widths
        for number in range(1, widths[d] + 1)
    ]

    def rows() -> Iterator[Line]:
        for row in evidence.target.rows:
            entries: list[Entry] = []
            for dataset, width in widths.items():
                points = series[row.label, dataset]
                entries += [points] * width if isinstance(points, str) else [value for _, value in points]
            yield Line((row.label,), OURS, evidence.get_protocol(row), tuple(entries))

    return _present(evidence, "method", columns, rows(), plot_lines(panels, axis, ACCURACY) if panels else None)


# -- trained parameters, hyper-parameters ----------------------------------------------------------------------------------------


def present_parameters(evidence: Evidence) -> Presentation:
    """Present ACC against the number of trained parameters, relative to CAPrompt."""
    ours = next(row for row in evidence.target.rows if row.label == "CAPrompt")

    def absolute(row: Row, dataset: str) -> Entry:
        results = evidence.read_measures(row, dataset, costs)
        return results if isinstance(results, str) else mean_std([each["numbers"] for each in results])

    def relative(row: Row, dataset: str) -> Entry:
        own, reference = absolute(row, dataset), absolute(ours, dataset)
        return MeanStd(own.mean / reference.mean) if isinstance(own, MeanStd) and isinstance(reference, MeanStd) else own

    def accuracy(row: Row, dataset: str) -> Entry:
        return evidence.compute_metric(row, dataset, "ACC")

    parts: tuple[tuple[str, int, Callable[[Row, str], Entry]], ...]
    parts = (("parameters", 0, absolute), ("relative", 2, relative), ("ACC", 2, accuracy))
    columns = [Column(_get_title(d), name, digits) for d in evidence.datasets for name, digits, _ in parts]
    rows = (
        Line((row.label,), OURS, evidence.get_protocol(row), tuple(part(row, d) for d in evidence.datasets for _, _, part in parts))
        for row in evidence.target.rows
    )
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset in _list_drawn(evidence):
        for row in evidence.target.rows:
            x, y = relative(row, dataset), accuracy(row, dataset)
            if isinstance(x, MeanStd) and isinstance(y, MeanStd):
                panels.setdefault(_get_title(dataset), {})[evidence.format_label(row)] = [(x.mean, y.mean)]
    plot = plot_scatter(panels, "trained parameters, CAPrompt = 1", ACCURACY) if panels else None
    return _present(evidence, "method", columns, rows, plot)


def present_hyperparameters(evidence: Evidence) -> Presentation:
    """Present ACC against alpha and against beta."""
    panels: dict[str, dict[str, list[tuple[float, MeanStd]]]] = {}
    for row in evidence.target.rows:
        name, value = row.label.split(" = ")
        name = evidence.format_label(row).replace(row.label, name)
        for dataset in evidence.datasets:
            entry = evidence.compute_metric(row, dataset, "ACC")
            if isinstance(entry, MeanStd):
                panels.setdefault(name, {}).setdefault(_get_title(dataset), []).append((float(value), entry))
    columns = [Column(_get_title(d), metric) for d in evidence.datasets for metric in ("ACC", "AF")]
    rows = (
        Line(
            (row.label,),
            OURS,
            evidence.get_protocol(row),
            tuple(evidence.compute_metric(row, d, metric) for d in evidence.datasets for metric in ("ACC", "AF")),
        )
        for row in evidence.target.rows
    )
    return _present(evidence, "setting", columns, rows, plot_lines(panels, "value", ACCURACY) if panels else None)


# -- positions of the prompts --------------------------------------------------------------------------------------------------


def present_tsne(evidence: Evidence) -> Presentation:
    """Present the first layer's key prompts of all tasks in the plane, and how straight a line the tasks' prompts form."""
    columns = [Column(_get_title(d), "straightness", 3) for d in evidence.datasets]

    def straightness(row: Row, dataset: str) -> Entry:
        results = evidence.read_measures(row, dataset, first_layer_keys)
        return results if isinstance(results, str) else mean_std([compute_straightness(each["rows"]) for each in results])

    rows = (
        Line((row.label,), OURS, evidence.get_protocol(row), tuple(straightness(row, d) for d in evidence.datasets))
        for row in evidence.target.rows
    )
    panels = {}
    for dataset in _list_drawn(evidence):
        for row in evidence.target.rows:
            results = evidence.read_measures(row, dataset, first_layer_keys)
            if not isinstance(results, str):
                panels[f"{row.label}, {_get_title(dataset)}"] = project_tsne(results[0]["rows"])
    plot = plot_scatter(panels, "", "") if panels else None
    presentation = _present(evidence, "method", columns, rows, plot)
    return replace(presentation, table=replace(presentation.table, notes=(STRAIGHTNESS, *presentation.table.notes)))


STRAIGHTNESS = (
    "Straightness is the mean cosine of (phi_t - phi_1) and (phi_{t-1} - phi_1) over rows, and tasks from the third on: 1 on a "
    "line. The plot is of the first seed"
)


def project_tsne(rows: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[tuple[float, float]]]:
    """Project the rows of all tasks, (T, n, D), to the plane by t-SNE of all together; return points by task."""
    import numpy as np
    from sklearn.manifold import TSNE

    points = np.asarray(rows, dtype=np.float32)
    tasks, length, width = points.shape
    perplexity = min(30.0, max(2.0, tasks * length / 4))
    plane = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points.reshape(-1, width))
    projected = plane.reshape(tasks, length, 2).tolist()
    return {f"task {task}": [(x, y) for x, y in own] for task, own in enumerate(projected, start=1)}


def compute_straightness(rows: Sequence[Sequence[Sequence[float]]]) -> float:
    """Compute how straight a line the rows of all tasks, (T, n, D), form: the mean cosine of Eq. 8; 0 below three tasks.

    >>> round(compute_straightness([[[0.0, 0.0]], [[1.0, 1.0]], [[2.0, 2.0]], [[3.0, 3.0]]]), 6)
    1.0
    """
    import torch

    points = torch.tensor(rows, dtype=torch.float64)
    steps = points[1:] - points[:1]
    return float(torch.cosine_similarity(steps[1:], steps[:-1], dim=-1).mean()) if len(points) > 2 else 0.0


TARGETS = (
    Target("fig-curve", "Accuracy after each task, in percent", PROMPT_METHODS, present_curve),
    Target(
        "fig-cycles",
        "Accuracy by number of cycles, in percent",
        (Row.paper("CAPrompt"), OWN),
        present_cycles,
        measures=(by_cycles,),
    ),
    Target(
        "fig-tsne",
        "Key prompts of layer one, with and without the linear constraint",
        LINEAR,
        present_tsne,
        datasets=("imagenet-r",),
        measures=(first_layer_keys,),
    ),
    Target(
        "fig-params",
        "Accuracy against trained parameters",
        PROMPT_METHODS,
        present_parameters,
        datasets=("imagenet-r",),
        measures=(costs,),
    ),
    Target(
        "fig-hyper",
        "Accuracy against the weights of the two constraints, in percent",
        tuple(Row.paper(f"alpha = {value:g}", alpha=value, beta=BETA) for value in ALPHAS)
        + tuple(Row.paper(f"beta = {value:g}", alpha=ALPHA, beta=value) for value in BETAS),
        present_hyperparameters,
        datasets=("imagenet-r",),
    ),
)
