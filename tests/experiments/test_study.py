from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import read_tree, write_squares

from caprompt.callbacks.events import EpochEnded, Event, TaskEvaluated
from caprompt.errors import InputError, ModelFolderError, OptionError
from caprompt.experiments.config import RunConfig, build_run_config
from caprompt.experiments.search_space import Choices, Domain, Range, build_space
from caprompt.experiments.study import NullStudyProgress, Study, Trial, compute_importances, run_study
from caprompt.utils.files import read_toml

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'caprompt[tune]'")

COLORS = ("red", "green", "blue", "yellow")
SPACE: dict[str, Domain] = {
    "learning_rate": Range(0.001, 0.1, log=True),
    "epochs": Range(1, 3, integer=True),
    "crop_scale": Choices(((0.3, 1.0), (1.0, 1.0))),
}


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    """Return the configuration of a quick study; no test image can be read."""
    write_squares(tmp_path / "data" / "train", COLORS)
    write_squares(tmp_path / "data" / "test", COLORS, each=2, start=50)
    for path in (tmp_path / "data" / "test").rglob("*.png"):
        path.write_bytes(b"not an image")
    return RunConfig(dataset=str(tmp_path / "data"), backbone=str(backbone), method="linear", tasks=2, validation=0.4)


def study_of(config: RunConfig, folder: Path, trials: int = 3, space: Mapping[str, Domain] | None = None, **options: Any) -> Study:
    return run_study(config, space or SPACE, folder, trials=trials, device="cpu", **options)


def without_seconds(study: Study) -> list[Trial]:
    return [replace(trial, seconds=0.0) for trial in study.trials]


class Interrupt(NullStudyProgress):
    """Progress that presses Ctrl-C at an event of a kind in a trial."""

    def __init__(self, trial: int, kind: type) -> None:
        self.trial, self.kind, self.number = trial, kind, -1

    def on_start(self, number: int, options: Mapping[str, Any]) -> None:
        self.number = number

    def on_event(self, event: Event) -> None:
        if self.number == self.trial and isinstance(event, self.kind):
            raise KeyboardInterrupt


def test_default_comes_first_and_the_best_is_not_worse(config: RunConfig, tmp_path: Path) -> None:
    study = study_of(config, tmp_path / "study")
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert study.default.options == {}
    assert study.best.value is not None
    assert study.best.value >= (study.default.value or 0)
    assert sum(study.default.images) == 8  # two of each class were held out; no test image can be read
    for trial in study.trials[1:]:
        assert trial.options.keys() == SPACE.keys()
        assert all(SPACE[name].contains(value) for name, value in trial.options.items())
    assert not list((tmp_path / "study").rglob("model"))
    assert compute_importances(study) == {}


def test_best_configuration_is_that_of_a_run(config: RunConfig, tmp_path: Path) -> None:
    study = study_of(config.model_copy(update={"options": {"batch_size": 4}, "per_class": 3}), tmp_path / "study")
    best = build_run_config(read_toml(tmp_path / "study" / "best.toml"))
    assert best.model_dump(exclude={"options"}) == config.model_copy(update={"validation": 0.0}).model_dump(exclude={"options"})
    options = (
        best.options if "crop_scale" not in best.options else {**best.options, "crop_scale": tuple(best.options["crop_scale"])}
    )
    assert options == {"batch_size": 4, **study.best.options}


def test_interrupted_study_ends_as_one_that_was_not(config: RunConfig, tmp_path: Path) -> None:
    whole = study_of(config, tmp_path / "whole", trials=4)
    for resume, trial, kind in ((False, 0, EpochEnded), (True, 2, TaskEvaluated)):
        with pytest.raises(KeyboardInterrupt):
            study_of(config, tmp_path / "stopped", trials=4, resume=resume, progress=Interrupt(trial, kind))
    resumed = study_of(config, tmp_path / "stopped", trials=4, resume=True)
    assert without_seconds(resumed) == without_seconds(whole)
    for name in ("best.toml", "study.json"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_more_trials_can_be_added_and_other_seeds_try_others(config: RunConfig, tmp_path: Path) -> None:
    whole = study_of(config, tmp_path / "whole", trials=3)
    study_of(config, tmp_path / "grown", trials=2)
    assert without_seconds(study_of(config, tmp_path / "grown", trials=3, resume=True)) == without_seconds(whole)
    assert len(study_of(config, tmp_path / "grown", trials=1, resume=True).trials) == 3
    other = study_of(config.model_copy(update={"seed": 1}), tmp_path / "other", trials=2)
    assert other.trials[1].options != whole.trials[1].options


def test_sampler_learns_from_the_trials(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the random trials, proposals are nearer to the optimum of a function that stands in for training."""
    from caprompt.experiments import study as module

    def evaluate(study: Study, number: int, options: Mapping[str, Any], **_: Any) -> Trial:
        distance = abs(options.get("learning_rate", 0.001) - 0.05) * 1000
        return Trial(number, options, 100 - distance, None, (90.0,), (10,), 0.0, 0.0)

    monkeypatch.setattr(module, "_evaluate", evaluate)
    study = study_of(config, tmp_path / "study", trials=40)
    rates = [trial.options["learning_rate"] for trial in study.trials[1:]]
    errors = [abs(rate - 0.05) for rate in rates]
    assert sum(errors[-15:]) / 15 < 0.75 * sum(errors[:9]) / 9
    importances = compute_importances(study)
    assert next(iter(importances)) == "learning_rate"
    assert sum(importances.values()) == pytest.approx(1.0)


def test_invalid_combination_is_a_failed_trial(config: RunConfig, tmp_path: Path) -> None:
    mixed = config.model_copy(update={"method": "caprompt", "options": {"epochs": 1, "length": 4, "projections": 20}})
    requested = {"alpha": {"choices": [0.0, 5.0]}, "training_prompt": {"choices": ["own", "mixture"]}}
    study = study_of(mixed, tmp_path / "study", trials=6, space=build_space(mixed, requested=requested))
    failed = [trial for trial in study.trials if trial.value is None]
    assert failed
    for trial in failed:
        assert trial.options == {"alpha": 5.0, "training_prompt": "own"}
        assert "OptionError" in (trial.reason or "")
    assert study.best.value is not None
    again = study_of(mixed, tmp_path / "study", trials=6, space=study.space, resume=True)
    assert again.trials == study.trials


def test_first_of_equal_trials_is_the_best(config: RunConfig, tmp_path: Path) -> None:
    default = Trial(0, {}, 80.0, None, (80.0,), (10,), 0.0, 1.0)
    others = [Trial(1, {"epochs": 2}, None, "failed", (), (), 0.0, 0.0), replace(default, number=2, options={"epochs": 3})]
    study = Study(tmp_path, config, SPACE, {}, [default, *others])
    assert study.best is default
    better = replace(default, number=3, value=81.0)
    assert replace(study, trials=[*study.trials, better, replace(better, number=4)]).best is better


def test_folder_may_have_any_name(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%41é"
    study = study_of(config, folder, trials=1)
    assert study_of(config, folder, trials=1, resume=True).trials == study.trials
    assert (folder / "study.db").is_file()


def test_lost_database_is_made_again_from_the_runs(config: RunConfig, tmp_path: Path) -> None:
    study = study_of(config, tmp_path / "study", trials=2)
    (tmp_path / "study" / "study.db").unlink()
    assert study_of(config, tmp_path / "study", trials=2, resume=True).trials == study.trials


# -- refused -------------------------------------------------------------------------------------------------------------------


def refuse(config: RunConfig, folder: Path, sentence: str, kind: type[InputError] = InputError, **options: Any) -> None:
    """Check that a study is refused with a sentence, and that nothing is written."""
    before = read_tree(folder) if folder.is_dir() else None
    with pytest.raises(kind, match=sentence):
        study_of(config, folder, **options)
    assert (read_tree(folder) if folder.is_dir() else None) == before


def test_arguments_that_cannot_be_used(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "study"
    refuse(config, folder, "option 'trials' must be at least 1, not 0", OptionError, trials=0)
    refuse(config.model_copy(update={"validation": 0.0}), folder, "'validation' must be above 0", OptionError)
    refuse(config.model_copy(update={"tasks": 40}), folder, "cannot split 4 classes into 40 tasks")
    refuse(config.model_copy(update={"validation": 0.4, "dataset": "nowhere"}), folder, "unknown dataset 'nowhere'")
    refuse(config, folder, "there is no study to resume in '.*'; start it without resume=True", resume=True)
    monkeypatch.setitem(sys.modules, "optuna", None)
    refuse(config, folder, r"a study needs the package optuna: pip install 'caprompt\[tune\]'", OptionError)
    assert not folder.exists()


def test_folder_of_something_else_is_left_alone(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "todo.txt").write_text("buy milk")
    refuse(config, folder, "is not empty; choose another folder, or resume the study there with resume=True")
    refuse(config, folder, "there is no study to resume", resume=True)
    (folder / "study.json").write_text("{}")
    refuse(config, folder, "does not hold a study", ModelFolderError, resume=True)
    (folder / "study.json").write_text("{")
    refuse(config, folder, "cannot be read", ModelFolderError, resume=True)


def test_other_settings_are_refused_on_resume(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study_of(config, folder, trials=1)
    refuse(config, folder, "is not empty", trials=2)
    refuse(
        config.model_copy(update={"seed": 3}),
        folder,
        "other settings .seed was 0 and is 3 now.; resume it with the same",
        resume=True,
    )
    narrow = {**SPACE, "epochs": Range(1, 2, integer=True)}
    refuse(config, folder, "other settings .epochs was 1 to 3 and is 1 to 2 now.", resume=True, space=narrow)
    refuse(config, folder, "learning_rate was .* and is not searched now", resume=True, space={"epochs": SPACE["epochs"]})
    shutil.rmtree(tmp_path / "data" / "train" / "red")
    write_squares(tmp_path / "data" / "train", ["red"], start=70)
    refuse(config, folder, "other settings .the images differ.", resume=True)


def test_damaged_database_is_refused(config: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study_of(config, folder, trials=1)
    content = (folder / "study.db").read_bytes()
    (folder / "study.db").write_bytes(b"no database at all" * 1000)
    refuse(config, folder, "study.db' is damaged", ModelFolderError, resume=True, trials=2)
    (folder / "study.db").write_bytes(content)
    with sqlite3.connect(folder / "study.db") as database:
        database.execute("DELETE FROM trial_user_attributes")
    refuse(config, folder, "study.db' is damaged", ModelFolderError, resume=True, trials=2)


# -- killed --------------------------------------------------------------------------------------------------------------------

# Runs or resumes a study and prints its trials. At the n-th file operation after the m-th epoch the process kills itself.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from caprompt.callbacks.events import EpochEnded
from caprompt.experiments.config import RunConfig
from caprompt.experiments.search_space import build_space
from caprompt.experiments.study import NullStudyProgress, run_study

backbone, out, epochs_left, operations_left = *sys.argv[1:3], *map(int, sys.argv[3:])
FILE_OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree", "sqlite3.connect"}

class Count(NullStudyProgress):
    def on_event(self, event):
        global epochs_left
        epochs_left -= isinstance(event, EpochEnded)

def count_operation(name, _):
    global operations_left
    if epochs_left <= 0 and name in FILE_OPERATIONS:
        operations_left -= 1
        if operations_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count_operation)
config = RunConfig(dataset="digits", backbone=backbone, method="linear", validation=0.2, per_class=4)
resume = (Path(out) / "study.json").is_file()
study = run_study(config, build_space(config), Path(out), trials=4, resume=resume, device="cpu", progress=Count())
print(json.dumps([[trial.number, trial.options, trial.value, trial.accuracies, trial.reason] for trial in study.trials]))
"""


@pytest.mark.slow
def test_killed_study_of_the_digits_ends_as_one_that_was_not(tmp_path: Path, backbone: Path) -> None:
    def run(out: str, epochs: int = 10**9, operations: int = 1) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", SCRIPT, str(backbone), str(tmp_path / out), str(epochs), str(operations)]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)

    whole = run("whole")
    assert whole.returncode == 0, whole.stderr
    rng = random.Random(0)
    for _ in range(2):
        killed = run("killed", rng.randint(1, 12), rng.randint(1, 150))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = run("killed")
    assert last.returncode == 0, last.stderr
    assert last.stdout == whole.stdout
    for name in ("best.toml", "study.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not [path for path in (tmp_path / "killed").rglob("*") if path.name.startswith(".")]
