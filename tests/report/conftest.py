from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, write_squares

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment

COLOURS = ("red", "green", "blue", "yellow", "cyan", "orange")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A folder of finished runs on one data set: two seeds, another method, one that leaks, and a joint one. Leave it as it is."""
    place = tmp_path_factory.mktemp("reported")
    write_squares(place / "data" / "train", COLOURS)
    write_squares(place / "data" / "test", COLOURS, each=4, start=50)
    usual = RunConfig(dataset=str(place / "data"), backbone=str(backbone), tasks=(2, 3, 1), options={**QUICK, "epochs": 1})
    for name, changes in {
        "seed0": {},
        "seed1": {"seed": 1},
        "plain": {"method": "sequential-prompt", "options": {"epochs": 1, "length": 4}},
        "leak": {"options": {**QUICK, "protocol": "released", "classifier": "aligned"}},
        "joint": {"joint": True},
    }.items():
        run_experiment(usual.model_copy(update=changes), place / name)
    return place
