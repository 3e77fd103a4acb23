"""Hyperparameter studies: runs of a method with different options, compared on validation images.

Validation images are held out from the training images; test images are not read. Trial 0 has the default configuration, so that
the best trial is never worse than it there. A study folder holds
    study.json      configuration, search space, images and versions, written first
    study.db        the finished trials, an Optuna study in SQLite
    trials/003/     the run of a trial (`execution`), without its model once the trial has finished
    best.toml       the best configuration so far, for `caprompt run --config`

The options of a trial follow from the seed, its number and the trials before it, and from nothing else; a trial is stored when it
has finished, in one transaction. So a study that was stopped or killed goes on with the options that it had, and ends as one that
was not.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from caprompt.callbacks.events import Event
from caprompt.checkpoint.lock import LOCK, lock_folder
from caprompt.errors import CapromptError, InputError, ModelFolderError, OptionError, first_line
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.execution import plan_experiment, run_experiment
from caprompt.experiments.search_space import Domain
from caprompt.utils import files
from caprompt.utils.random import derive_seed
from caprompt.utils.toml import format_toml

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["BEST", "PLAN", "NullStudyProgress", "Study", "StudyProgress", "Trial", "compute_importances", "run_study"]

FORMAT = 1  # of a study folder
PLAN, DATABASE, TRIALS, BEST = "study.json", "study.db", "trials", "best.toml"
NAME = "caprompt"  # of the study in the database
PLANNED = ("backbone", "tasks", "train", "test")  # what a resumed study must have in common with the stopped one, besides settings
MIN_FOR_IMPORTANCE = 8  # trials
START_TRIALS = 10  # random trials before the sampler learns from them


@dataclass(frozen=True)
class Trial:
    """A finished trial: the options that it varied, and its accuracy on the validation images, or why it failed."""

    number: int
    options: Mapping[str, Any]  # empty for trial 0, which has the default configuration
    value: float | None  # ACC in percent; None if the trial failed
    reason: str | None
    accuracies: tuple[float, ...]  # on the classes of each task, after the last one
    images: tuple[int, ...]  # validation images behind each
    forgetting: float
    seconds: float  # spent in training epochs


@dataclass(frozen=True)
class Study:
    """A study so far."""

    folder: Path
    config: RunConfig
    space: Mapping[str, Domain]
    plan: Mapping[str, Any]  # of the runs: tasks, images, backbone, protocol, environment
    trials: Sequence[Trial]

    @property
    def default(self) -> Trial:
        """The trial with the default configuration."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The trial with the highest accuracy, the first of equals."""
        return max((trial for trial in self.trials if trial.value is not None), key=lambda trial: (trial.value, -trial.number))

    def get_options(self, trial: Trial) -> dict[str, Any]:
        """Return what a trial has for each searched option; where it varied nothing, the default."""
        defaults = resolve_config(self.config).options
        return {name: trial.options.get(name, defaults[name]) for name in self.space}

    def make_best_settings(self) -> dict[str, Any]:
        """Return the settings of the best trial, without those that are only for a study: hold-out and number of images."""
        fields = self.config.model_dump(mode="json", exclude={"options", "validation", "per_class"}, exclude_defaults=True)
        needed = {"dataset": self.config.dataset, "method": self.config.method, "backbone": self.config.backbone}
        return {**needed, **fields, **self.config.options, **self.best.options}


class StudyProgress(Protocol):
    """Callbacks for the progress of a study."""

    def on_start(self, number: int, options: Mapping[str, Any]) -> None:
        """Called when a trial starts."""

    def on_event(self, event: Event) -> None:
        """Called with the events of the run of a trial."""

    def on_end(self, study: Study) -> None:
        """Called when a trial has finished, the last of the study so far."""


class NullStudyProgress:
    """No-op progress callbacks."""

    def on_start(self, number: int, options: Mapping[str, Any]) -> None:
        """Do nothing."""

    def on_event(self, event: Event) -> None:
        """Do nothing."""

    def on_end(self, study: Study) -> None:
        """Do nothing."""


def run_study(
    config: RunConfig,
    space: Mapping[str, Domain],
    folder: Path,
    *,
    trials: int,
    resume: bool = False,
    skip_bad: bool = False,
    device: str = "auto",
    progress: StudyProgress | None = None,
) -> Study:
    """Run a study of this many trials in its folder, or resume it there. Everything is checked before anything is written."""
    _check_arguments(config, space, folder, trials, resume)
    plan = plan_experiment(config, skip_bad=skip_bad, device=device)
    with lock_folder(folder), _quiet_optuna():
        _write_or_compare(folder, _describe(config, space, plan), resume)
        study = Study(folder, config, space, plan, _read_trials(folder, space))
        run = partial(_run_trial, skip_bad=skip_bad, device=device, progress=progress or NullStudyProgress())
        while len(study.trials) < trials:
            study = run(study)
        for trial in study.trials:  # a kill may have left the model of the last one
            _remove_model(folder, trial.number)
        _write_best(study)
    return study


def _check_arguments(config: RunConfig, space: Mapping[str, Domain], folder: Path, trials: int, resume: bool) -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise OptionError("a study needs the package optuna: pip install 'caprompt[tune]'") from None
    if trials < 1:
        raise OptionError(f"option 'trials' must be at least 1, not {trials}")
    if not config.validation:
        raise OptionError("option 'validation' must be above 0: a study compares trials on validation images, never on test images")
    if not space:
        raise OptionError("a study needs at least one option to search")
    if resume and not (folder / PLAN).is_file():
        raise InputError(f"there is no study to resume in '{folder}'; start it without resume=True")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file; give a folder for the study")
    if not resume and folder.exists() and not _is_empty(folder):
        raise InputError(f"'{folder}' is not empty; choose another folder, or resume the study there with resume=True")
    format_toml({"dataset": config.dataset, "backbone": config.backbone})  # names that no file can hold are refused now


def _is_empty(folder: Path) -> bool:
    """Return whether a folder is empty, apart from what a killed first write may have left."""
    return all(path.name in (LOCK, f".{PLAN}.next") for path in folder.iterdir())


def _describe(config: RunConfig, space: Mapping[str, Domain], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written to `study.json`."""
    import optuna

    return {
        **plan,
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "space": {name: domain.describe() for name, domain in space.items()},
        "optuna": optuna.__version__,  # another version may sample other options
    }


def _write_or_compare(folder: Path, described: Mapping[str, Any], resume: bool) -> None:
    """Write the plan of a new study; for one that is resumed, raise if it is another one."""
    if not resume:
        files.write_json(folder / PLAN, described)
        return
    before = _read_plan(folder)
    now = json.loads(json.dumps(described))
    for part in ("config", "space", "optuna", *PLANNED):
        if now[part] != before[part]:
            raise InputError(
                f"the study in '{folder}' was started with other settings ({_find_difference(part, before[part], now[part])}); "
                "resume it with the same ones"
            )


def _read_plan(folder: Path) -> dict[str, Any]:
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"'{path}' cannot be read ({first_line(error)}); start a new study in another folder") from error
    if not isinstance(plan, dict) or not plan.keys() >= {"format", "config", "space", "optuna", *PLANNED}:
        raise ModelFolderError(f"'{folder}' does not hold a study: its {PLAN} is not a plan; choose another folder")
    if plan["format"] != FORMAT:
        raise ModelFolderError(f"the study in '{folder}' was written by another version of caprompt; start a new one")
    return plan


def _find_difference(part: str, before: Any, now: Any) -> str:
    """Return what differs between the plans of two studies.

    >>> _find_difference("config", {"seed": 0, "tasks": 2}, {"seed": 1, "tasks": 2})
    'seed was 0 and is 1 now'
    """
    if part in PLANNED:
        return f"{part} differs" if part in ("backbone", "tasks") else "the images differ"
    if isinstance(before, dict) and isinstance(now, dict):
        part = next(name for name in {**before, **now} if before.get(name) != now.get(name))
        before, now = before.get(part, "not searched"), now.get(part, "not searched")
    return f"{part} was {before} and is {now} now"


# -- trials --------------------------------------------------------------------------------------------------------------------


def _run_trial(study: Study, *, skip_bad: bool, device: str, progress: StudyProgress) -> Study:
    """Run the next trial, store it, and return the study with it."""
    number = len(study.trials)
    options = _propose(study, number) if number else {}
    progress.on_start(number, options)
    trial = _evaluate(study, number, options, skip_bad=skip_bad, device=device, progress=progress)
    with _open_database(study.folder) as database:
        database.add_trial(_freeze(study, trial))
    _remove_model(study.folder, number)
    study = Study(study.folder, study.config, study.space, study.plan, [*study.trials, trial])
    _write_best(study)
    progress.on_end(study)
    return study


def _propose(study: Study, number: int) -> dict[str, Any]:
    """Return the options of a trial: random ones at first, then those that a model of the trials so far expects most of."""
    import optuna

    seed = derive_seed(study.config.seed, "study", number) % 2**32
    sampler = optuna.samplers.TPESampler(n_startup_trials=START_TRIALS, seed=seed)
    sampled = optuna.create_study(direction="maximize", sampler=sampler)
    frozen = [_freeze(study, trial) for trial in study.trials]
    sampled.add_trials([each for each in frozen if each.params.keys() == study.space.keys()])  # "auto" is no number to learn from
    parameters = sampled.ask({name: domain.make_distribution() for name, domain in study.space.items()}).params
    return {name: domain.decode(parameters[name]) for name, domain in study.space.items()}


def _evaluate(
    study: Study, number: int, options: Mapping[str, Any], *, skip_bad: bool, device: str, progress: StudyProgress
) -> Trial:
    """Run the experiment of a trial, or resume it; a failure of any but the default configuration is recorded."""
    config = study.config.model_copy(update={"options": {**study.config.options, **options}})
    folder = _get_trial_folder(study.folder, number)
    try:
        result = run_experiment(config, folder, resume=True, skip_bad=skip_bad, device=device, callbacks=progress.on_event)
    except Exception as error:
        if number == 0 or not _is_due_to_options(error):
            raise
        return Trial(number, options, None, f"{type(error).__name__}: {first_line(error)}", (), (), 0.0, 0.0)
    summary, last = result.summary(), result.rows[-1]
    seconds = round(sum(row.seconds for row in result.rows), 3)
    return Trial(number, options, summary["ACC"], None, last.accuracies, last.images, summary["AF"], seconds)


def _is_due_to_options(error: Exception) -> bool:
    """Return whether other options may not raise this error: not if a file cannot be read or written."""
    return isinstance(error, OptionError) or not isinstance(error, (OSError, CapromptError))


def _get_trial_folder(folder: Path, number: int) -> Path:
    return folder / TRIALS / f"{number:03d}"


def _remove_model(folder: Path, number: int) -> None:
    """Delete the model of a finished trial, which may be hundreds of megabytes."""
    shutil.rmtree(_get_trial_folder(folder, number) / "model", ignore_errors=True)


def _write_best(study: Study) -> None:
    best, default = study.best, study.default
    note = (
        f"# The best of {len(study.trials)} trials of `caprompt tune`, trial {best.number}: ACC {best.value:.2f} on validation "
        f"images; the default has {default.value:.2f}.\n"
    )
    files.write_bytes(study.folder / BEST, (note + format_toml(study.make_best_settings())).encode())


def compute_importances(study: Study) -> dict[str, float]:
    """Return the share of the variance between trials that each option explains, the largest first; empty with too few trials."""
    import optuna

    frozen = [_freeze(study, trial) for trial in study.trials if trial.value is not None]
    complete = [each for each in frozen if each.params.keys() == study.space.keys()]
    if len(complete) < MIN_FOR_IMPORTANCE or len({each.value for each in complete}) == 1:
        return {}
    with _quiet_optuna():
        sampled = optuna.create_study(direction="maximize")
        sampled.add_trials(complete)
        return dict(optuna.importance.get_param_importances(sampled, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)))


# -- the database --------------------------------------------------------------------------------------------------------------


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna from printing a line for everything that it does."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _open_database(folder: Path) -> Iterator[Any]:
    """Provide the Optuna study in a folder, which is made if there is none; an `optuna.Study`."""
    import optuna
    import sqlalchemy

    path = folder / DATABASE
    if not path.exists():
        _make_database(path)
    storage = None
    try:
        storage = _open_storage(path)
        yield optuna.load_study(study_name=NAME, storage=storage)
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, KeyError, TypeError) as error:
        raise ModelFolderError(f"'{path}' is damaged ({first_line(error)}); start a new study in another folder") from error
    finally:
        if storage is not None:
            storage.engine.dispose()


def _make_database(path: Path) -> None:
    """Make a database without trials, under a temporary name, so that a kill leaves none with half of its tables."""
    import optuna

    draft = path.with_name(f".{path.name}.next")
    draft.unlink(missing_ok=True)
    storage = _open_storage(draft)
    optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
    storage.engine.dispose()
    draft.replace(path)


def _open_storage(path: Path) -> Any:
    """Return an `optuna.storages.RDBStorage` in a file, whose path may have characters that mean something in a URL."""
    import optuna

    connect = partial(sqlite3.connect, path, check_same_thread=False)
    return optuna.storages.RDBStorage(f"sqlite:///{DATABASE}", engine_kwargs={"creator": connect})


def _read_trials(folder: Path, space: Mapping[str, Domain]) -> list[Trial]:
    with _open_database(folder) as database:
        return [_thaw(frozen, space) for frozen in database.get_trials(deepcopy=False)]


def _freeze(study: Study, trial: Trial) -> FrozenTrial:
    """Return a trial for the database; one parameter of the default configuration may be missing, such as where it is "auto"."""
    import optuna

    options = study.get_options(trial)
    known = {name: domain for name, domain in study.space.items() if domain.contains(options[name])}
    failed = trial.value is None
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
        value=trial.value,
        params={name: domain.encode(options[name]) for name, domain in known.items()},
        distributions={name: domain.make_distribution() for name, domain in known.items()},
        user_attrs={
            "reason": trial.reason,
            "accuracies": list(trial.accuracies),
            "images": list(trial.images),
            "forgetting": trial.forgetting,
            "seconds": trial.seconds,
        },
    )


def _thaw(frozen: FrozenTrial, space: Mapping[str, Domain]) -> Trial:
    """Return a trial of the database."""
    options = {name: space[name].decode(value) for name, value in frozen.params.items()} if frozen.number else {}
    value = frozen.value if frozen.state.name == "COMPLETE" else None
    recorded: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in frozen.user_attrs.items()}
    return Trial(frozen.number, options, value, **recorded)
