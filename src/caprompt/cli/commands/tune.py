"""The command `tune`: search for better options of a method, on validation images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from caprompt.cli import arguments
from caprompt.cli.arguments import Config, Device, Set, SkipBad
from caprompt.cli.console import err, out, print_skipped, print_table, print_warnings
from caprompt.errors import InputError, OptionError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caprompt.callbacks.events import Event
    from caprompt.callbacks.progress_bar import ProgressBar
    from caprompt.experiments.config import RunConfig
    from caprompt.experiments.search_space import Domain
    from caprompt.experiments.study import Study, Trial

__all__ = ["tune"]

STUDIES = Path("studies")
REPORT = "report.html"
NUM_SHOWN = 10  # trials in the table, besides the default


def tune(
    dataset: str | None = None,
    /,
    *,
    method: str | None = None,
    backbone: str | None = None,
    trials: int = 20,
    search: Annotated[list[str] | None, Parameter(negative=())] = None,
    space: bool = False,
    preset: str = "default",
    tasks: str | None = None,
    order: Literal["shuffled", "natural"] | None = None,
    seed: int | None = None,
    validation: float | None = None,
    out_folder: Annotated[Path | None, Parameter(name="--out")] = None,
    resume: bool = False,
    skip_bad: SkipBad = False,
    config: Config = None,
    set_: Set = None,
    device: Device = "auto",
) -> None:
    """Search for options of a method that do better on a dataset than the default; needs the extra caprompt[tune].

    Every trial is a class-incremental run whose accuracy is measured on validation images, held out from the training images. Test
    images are not read. The first trial has the default options, so the result is never worse than they are there.
    Writes best.toml, for `caprompt run --config`, and report.html.

    Examples:

        caprompt tune digits
        caprompt tune photos --method l2p --trials 40 --out photos-l2p
        caprompt tune digits --search learning_rate=1e-4..1e-2 --search length=4/8/16 --set epochs=2
        caprompt tune --space --method l2p
        caprompt tune digits --resume

    Parameters
    ----------
    dataset
        Name of a dataset (see `caprompt datasets`), folder with a sub-folder per class, or CSV file of path,label.
    method
        Name of a method (see `caprompt methods`).
    backbone
        Name of a backbone (see `caprompt backbones`) or weights file.
    trials
        Number of trials, the first one with the default options; more can be added later with --resume.
    search
        Option to search instead of the usual ones: name, name=low..high or name=a/b/c; may be repeated.
    space
        List the options that are searched and their ranges, and run nothing.
    preset
        Named settings that trials start from: default is recommended, paper is as in each method's paper.
    tasks
        Number of tasks (5), their sizes (1,4,2,3), or class names (cat,dog;cow).
    order
        Class order: shuffled by the seed, or natural.
    seed
        Seed of the runs, of the hold-out and of the search.
    validation
        Fraction of the training images to hold out; 0.2 unless it is set.
    out_folder
        Folder of the study; by default under studies/, named after dataset and method.
    resume
        Resume a stopped study; it will end as it would have without the stop.
    """
    flags = {"dataset": dataset, "method": method, "backbone": backbone, "order": order, "seed": seed, "validation": validation}
    settings = {
        **arguments.collect_settings(config, set_ or []),
        **{name: value for name, value in flags.items() if value is not None},
    }
    if tasks is not None:
        settings["tasks"] = arguments.parse_tasks(tasks)
    run_config, domains = _build_study(settings, preset, [_parse_search(text) for text in search or []])
    if space:
        _print_space(run_config, domains)
        return
    if "dataset" not in settings:
        raise InputError("give a dataset, such as caprompt tune digits, or list what would be searched with --space")
    folder = out_folder or STUDIES / f"{Path(run_config.dataset).stem}-{run_config.method}"
    study = _run(run_config, domains, folder, trials, resume, skip_bad, device)
    _present(study)


def _parse_search(text: str) -> tuple[str, Mapping[str, Any] | None]:
    """Parse one option to search.

    >>> _parse_search("length"), _parse_search("length=4..16"), _parse_search("crop_scale=0.3,1/0.6,1")
    (('length', None), ('length', {'low': 4, 'high': 16}), ('crop_scale', {'choices': [[0.3, 1], [0.6, 1]]}))
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals and name:
        return name, None
    ends = values.split("..")
    if len(ends) == 2:
        low, high = map(arguments.parse_value, ends)
        return name, {"low": low, "high": high}
    choices = [arguments.parse_value(part.strip()) for part in values.split("/")]
    if not name or len(choices) < 2:
        raise OptionError(f"'--search {text}' should read '--search name', '--search name=low..high' or '--search name=a/b/c'")
    return name, {"choices": choices}


def _build_study(
    settings: Mapping[str, Any], preset: str, search: Iterable[tuple[str, Mapping[str, Any] | None]]
) -> tuple[RunConfig, Mapping[str, Domain]]:
    """Return the configuration of the default trial, and the domains of the options that the others vary."""
    from caprompt.experiments.config import build_run_config, load_preset_settings
    from caprompt.experiments.search_space import build_space

    run_config = build_run_config({"validation": 0.2, **load_preset_settings(preset, settings), **settings})
    return run_config, build_space(run_config, fixed=settings.keys(), requested=dict(search) or None)


def _print_space(run_config: RunConfig, domains: Mapping[str, Domain]) -> None:
    from caprompt.cli.tables import make_table
    from caprompt.experiments.config import resolve_config
    from caprompt.methods import get_method

    defaults, fields = resolve_config(run_config).options, get_method(run_config.method).options_class.model_fields
    rows = [
        [name, domain.describe(), _format_value(defaults[name]), fields[name].description or ""] for name, domain in domains.items()
    ]
    title = f"options of {run_config.method} that caprompt tune searches, on {run_config.dataset}"
    print_table(make_table(title, ["option", "searched", "default", "meaning"], rows))


def _run(
    run_config: RunConfig,
    domains: Mapping[str, Domain],
    folder: Path,
    trials: int,
    resume: bool,
    skip_bad: bool,
    device: str,
) -> Study:
    from caprompt.experiments.study import PLAN, run_study

    try:
        with _show_progress(trials) as progress:
            return run_study(
                run_config, domains, folder, trials=trials, resume=resume, skip_bad=skip_bad, device=device, progress=progress
            )
    except KeyboardInterrupt:
        if not (folder / PLAN).is_file():
            raise StoppedError("Stopped; nothing was written.") from None
        raise StoppedError("Stopped; the same command with --resume continues after the last complete epoch.") from None


class TrialProgress:
    """Progress of a study: a bar over the trials, one over the training of the current trial, and a line for each that ended."""

    def __init__(self, bar: ProgressBar, total: int) -> None:
        self.bar, self.total = bar, total
        self.trials = bar.bars.add_task("trials", total=total, note="")

    def on_start(self, number: int, options: Mapping[str, Any]) -> None:
        """Show the trial that started."""
        self.bar.bars.update(self.trials, completed=number, note=_format_options(options) or "default options")

    def on_event(self, event: Event) -> None:
        """Update the bar of the current trial."""
        self.bar(event)

    def on_end(self, study: Study) -> None:
        """Print a line with the accuracy of the trial, or with the reason of its failure."""
        trial = study.trials[-1]
        outcome = f"failed, {trial.reason}" if trial.value is None else f"ACC {trial.value:.2f}"
        best = ", the best so far" if trial.number and trial is study.best else ""
        options = _format_options(trial.options) or "default options"
        self.bar.bars.console.print(
            f"[{trial.number + 1}/{self.total}] trial {trial.number}: {outcome}{best} ({options})", soft_wrap=True
        )
        self.bar.bars.update(self.trials, completed=trial.number + 1)


@contextmanager
def _show_progress(trials: int) -> Iterator[TrialProgress]:
    from caprompt.callbacks.progress_bar import ProgressBar

    with ProgressBar(err) as bar:
        yield TrialProgress(bar, trials)


def _present(study: Study) -> None:
    """Print the best trials, and write the report."""
    from caprompt.experiments.study import BEST
    from caprompt.report.study_page import write_study_report

    write_study_report(study, study.folder / REPORT)
    print_skipped(study.plan["skipped"])
    print_warnings(study.plan["warnings"])
    _print_trials(study)
    best, default = study.best, study.default
    assert best.value is not None
    assert default.value is not None
    gain = "no trial is better than the default" if best is default else f"{best.value - default.value:.2f} above the default"
    images = f"{study.plan['test']['images']:,} validation images held out from the training images"
    out.print(f"best: trial {best.number}, ACC {best.value:.2f}, {gain}, on {images}; test images were not read", soft_wrap=True)
    out.print(
        f"saved in {study.folder}, with {REPORT}; on the test images: caprompt run --config {study.folder / BEST}", soft_wrap=True
    )


def _print_trials(study: Study) -> None:
    from caprompt.cli.tables import make_table
    from caprompt.protocols import format_percent_title

    ranked = sorted(
        (trial for trial in study.trials if trial.value is not None), key=lambda trial: (-(trial.value or 0), trial.number)
    )
    shown = [trial for place, trial in enumerate(ranked) if place < NUM_SHOWN or trial.number == 0]
    rows = [_make_row(study, trial) for trial in shown]
    title = format_percent_title(f"the best of {len(study.trials)} trials, on validation images", study.plan["protocol"])
    print_table(make_table(title, ["trial", "ACC", "AF", "training s", *study.space], rows))


def _make_row(study: Study, trial: Trial) -> list[str]:
    number = "default" if trial.number == 0 else str(trial.number)
    options = [_format_value(value) for value in study.get_options(trial).values()]
    return [number, f"{trial.value:.2f}", f"{trial.forgetting:.2f}", f"{trial.seconds:.1f}", *options]


def _format_options(options: Mapping[str, Any]) -> str:
    """Return options as `--set` takes them.

    >>> _format_options({"epochs": 3, "crop_scale": (0.3, 1.0)})
    'epochs=3, crop_scale=0.3,1.0'
    """
    return ", ".join(f"{name}={_format_value(value)}" for name, value in options.items())


def _format_value(value: Any) -> str:
    return (
        ",".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value:g}" if isinstance(value, float) else str(value)
    )
