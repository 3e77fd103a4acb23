from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, write_squares

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment

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
