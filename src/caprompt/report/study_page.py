"""The page of a study: what was searched, on which images, the accuracy of every trial, and the effect of each option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caprompt import protocols
from caprompt.experiments.search_space import Choices
from caprompt.experiments.study import Study, Trial, compute_importances
from caprompt.metrics import compute_mean_interval, format_interval
from caprompt.report.page import check_path, render_template
from caprompt.report.study_charts import KINDS, Point, draw_effect, draw_history, draw_kinds
from caprompt.report.tables import Table, format_duration, format_value
from caprompt.utils import files

__all__ = ["render_study", "write_study_report"]


def write_study_report(study: Study, path: Path) -> None:
    """Write the report of a study to an HTML file."""
    check_path(path)
    files.write_bytes(path, render_study(study).encode())


def render_study(study: Study) -> str:
    """Render the report of a study as HTML."""
    return render_template("study.html", _make_view(study))


def _make_view(study: Study) -> dict[str, Any]:
    """Make the variables of the template."""
    protocol, config = str(study.plan["protocol"]), study.config
    finished = [trial for trial in study.trials if trial.value is not None]
    history = [Point(trial.number, trial.value or 0.0, _get_kind(study, trial)) for trial in finished]
    settings = study.make_best_settings()
    return {
        "title": f"{config.method} tuned on {Path(config.dataset).name}",
        "protocol": protocol,
        "honest": protocols.parse_kind(protocol) == "honest",
        "warnings": [*study.plan["warnings"], *study.plan["skipped"]],
        "tiles": _make_tiles(study),
        "is_default_best": study.best is study.default,
        "validation": study.plan["test"]["images"],
        "training": study.plan["train"]["images"],
        "share": f"{100 * config.validation:g} %",
        "per_class": config.per_class,
        "seed": config.seed,
        "num_tasks": len(study.plan["tasks"]),
        "num_trials": len(study.trials),
        "history": draw_history(history, "Accuracy of every trial on validation images, in percent"),
        "legend": draw_kinds(),
        "effects": [_make_effect(study, name) for name in study.space],
        "importances": _make_importance_table(study),
        "trials": _make_trial_table(study),
        "settings": Table("best.toml", ["setting", "value"], [[name, format_value(value)] for name, value in settings.items()]),
        "space": _make_space_table(study),
    }


def _get_kind(study: Study, trial: Trial) -> str:
    return "best" if trial is study.best else "default" if trial.number == 0 else "trial"


def _make_tiles(study: Study) -> list[tuple[str, str, str]]:
    """Make the headline: value, name and description of each tile."""
    best, default = study.best, study.default
    assert best.value is not None
    assert default.value is not None
    seconds = sum(trial.seconds for trial in study.trials)
    failed = sum(trial.value is None for trial in study.trials)
    return [
        (f"{best.value:.1f}", "best ACC, %", f"trial {best.number}; 95 % interval {_format_interval(best)}"),
        (f"{default.value:.1f}", "default ACC, %", f"trial 0; 95 % interval {_format_interval(default)}"),
        (f"{best.value - default.value:.1f}", "gain, points", "on the images by which the best trial was selected"),
        (str(len(study.trials)), "trials", f"{failed} failed; {format_duration(seconds)} of training"),
    ]


def _format_interval(trial: Trial) -> str:
    return format_interval(compute_mean_interval(trial.accuracies, trial.images))


def _make_effect(study: Study, name: str) -> dict[str, Any]:
    """Make the chart of an option; the default is not in it where it is no value of the range, such as "auto"."""
    domain = study.space[name]
    points = [
        Point(study.get_options(trial)[name], trial.value, _get_kind(study, trial))
        for trial in study.trials
        if trial.value is not None and domain.contains(study.get_options(trial)[name])
    ]
    points.sort(key=lambda point: KINDS.index(point.kind))  # the best one and the default are drawn over the others
    return {
        "name": name,
        "chart": draw_effect(name, domain, points) if points else "",
        "means": _make_means_table(name, domain, points) if isinstance(domain, Choices) else None,
    }


def _make_means_table(name: str, domain: Choices, points: list[Point]) -> Table:
    """Tabulate the mean accuracy of the trials with each choice."""
    rows = []
    for value in domain.values:
        accuracies = [point.accuracy for point in points if domain.encode(point.x) == domain.encode(value)]
        mean = f"{sum(accuracies) / len(accuracies):.1f}" if accuracies else ""
        rows.append([str(domain.encode(value)), str(len(accuracies)), mean])
    return Table(f"Mean ACC by {name}", [name, "trials", "mean ACC"], rows)


def _make_importance_table(study: Study) -> Table | None:
    """Tabulate how much of the variance between trials each option explains; None with too few trials to say."""
    importances = compute_importances(study)
    rows = [[name, f"{100 * share:.0f}"] for name, share in importances.items()]
    return (
        Table("Share of the variance between trials that each option explains, in percent", ["option", "share"], rows)
        if rows
        else None
    )


def _make_trial_table(study: Study) -> Table:
    """Tabulate every trial, the best first, the failed ones last."""

    def make_row(trial: Trial) -> list[str]:
        name = f"{trial.number} (default)" if trial.number == 0 else str(trial.number)
        options = [format_value(value) for value in study.get_options(trial).values()]
        if trial.value is None:
            return [name, "failed", "", "", "", *options, trial.reason or ""]
        values = [f"{trial.value:.2f}", _format_interval(trial), f"{trial.forgetting:.2f}", f"{trial.seconds:.1f}"]
        return [name, *values, *options, ""]

    ordered = sorted(study.trials, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number))
    columns, rows = (
        ["trial", "ACC", "95 % interval", "AF", "training s", *study.space, "failure"],
        [make_row(each) for each in ordered],
    )
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table("Every trial, on validation images, in percent", columns, rows)


def _make_space_table(study: Study) -> Table:
    """Tabulate what was searched."""
    defaults = study.get_options(study.default)
    rows = [[name, domain.describe(), format_value(defaults[name])] for name, domain in study.space.items()]
    return Table("Search space", ["option", "values", "default"], rows)
