from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import QUICK, square, write_images, write_squares
from PIL import Image

from caprompt import ContinualClassifier, protocols
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.search_space import Choices, Range
from caprompt.experiments.study import Study, Trial
from caprompt.report import evaluate_model
from caprompt.report.model_data import ModelRecord

COLORS = ("red", "green", "blue", "yellow", "cyan", "orange")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A folder of finished runs on one dataset: two seeds, another method, one that leaks, and a joint one. Read-only."""
    folder = tmp_path_factory.mktemp("reported")
    write_squares(folder / "data" / "train", COLORS)
    write_squares(folder / "data" / "test", COLORS, each=4, start=50)
    config = RunConfig(dataset=str(folder / "data"), backbone=str(backbone), tasks=(2, 3, 1), options={**QUICK, "epochs": 1})
    for name, changes in {
        "seed0": {},
        "seed1": {"seed": 1},
        "plain": {"method": "sequential-prompt", "options": {"epochs": 1, "length": 4}},
        "leak": {"options": {**QUICK, "protocol": "released", "classifier": "aligned"}},
        "joint": {"joint": True},
    }.items():
        run_experiment(config.model_copy(update=changes), folder / name)
    return folder


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> ModelRecord:
    """A model of two tasks, tested on images of which some are labeled wrongly, and one class has none. Read-only."""
    folder = tmp_path_factory.mktemp("taught")
    model = ContinualClassifier("ncm", backbone)
    model.learn(write_squares(folder / "week1", ["red", "green", "blue"]))
    model.learn(write_squares(folder / "week2", ["yellow", "white"]))
    test = write_squares(folder / "test", ["red", "green", "blue", "cyan"], each=4, start=50)
    write_squares(test, ["yellow"], each=1, start=50)
    for number in (90, 91):
        Image.fromarray(square("red", number)).save(test / "green" / f"{number}.png")
    return evaluate_model(model, test, "pets")


@pytest.fixture(scope="session")
def long_named(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> ModelRecord:
    """A model of 45 classes with long names, all of whose test images are labeled wrongly. Read-only."""
    folder = tmp_path_factory.mktemp("long")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(45)]
    names = [f"a_very_long_name_without_any_blank_{number}" for number in range(45)]
    model = ContinualClassifier("ncm", backbone)
    model.learn((images, names))
    return evaluate_model(model, write_images(folder, images[1:], names[:-1]), "pets_with_a_very_long_name_without_any_blank")


@pytest.fixture(scope="session")
def study() -> Study:
    """A study of twelve trials, of which one failed; its values are made up. Read-only."""
    space = {
        "learning_rate": Range(0.0003, 0.03, log=True),
        "epochs": Range(1, 8, integer=True),
        "crop_scale": Choices(((0.05, 1.0), (0.3, 1.0), (0.6, 1.0))),
        "optimizer": Choices(("adam", "adamw", "sgd")),
    }
    plan = {
        "protocol": protocols.HONEST,
        "warnings": [],
        "skipped": [],
        "tasks": [["a", "b"], ["c"]],
        "train": {"images": 240},
        "test": {"images": 60},
    }
    trials = [Trial(0, {}, 80.0, None, (75.0, 85.0), (40, 20), 4.0, 10.0)]
    for number in range(1, 12):
        rate, crop = 0.0003 * 1.5**number, space["crop_scale"].values[number % 3]
        options = {
            "learning_rate": rate,
            "epochs": 1 + number % 8,
            "crop_scale": crop,
            "optimizer": ("adam", "adamw", "sgd")[number % 3],
        }
        value = 78.0 + 0.7 * number if number < 8 else 80.0 - number / 2
        trials.append(Trial(number, options, value, None, (value - 5, value + 5), (40, 20), 3.0, 12.5))
    trials[5] = Trial(5, trials[5].options, None, "RuntimeError: out of memory <b>", (), (), 0.0, 0.0)
    config = RunConfig(dataset="photos/pets", method="linear", tasks=2, validation=0.2, options={"batch_size": 8})
    return Study(Path("studies/pets"), config, space, plan, trials)
