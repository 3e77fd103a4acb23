"""Damaged run folders: read and shown as a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from helpers import QUICK, caprompt_in_process, write_backbone, write_squares
from mutations import mutate_json, mutate_tensors

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from robust.attack import Attack, InvalidError, RefusedError
from robust.damage import mutate_bytes

JSON_FILES = ("run.json", "results.json", "cost.json", "audit.json", "model/config.json")


def prepare(folder: Path) -> Path:
    """Run a small experiment, and add an audit to it."""
    torch.set_num_threads(1)
    data, colors = folder / "data", ("red", "green", "blue")
    write_squares(data / "train", colors)
    write_squares(data / "test", colors, each=2, start=50)
    backbone = write_backbone(folder / "tiny.safetensors")
    run = folder / "run"
    config = RunConfig(dataset=str(data), backbone=str(backbone), tasks=(1, 1, 1), options=QUICK)
    run_experiment(config, run, device="cpu")
    state = json.loads((run / "model" / "config.json").read_text())["files"]["state.safetensors"]
    arrangement = {"name": "x", "accuracy": 50.0, "average_accuracy": 50.0, "changed": 0, "largest_difference": 0.0}
    audit = {"state": state, "clean": True, "images": 24, "arrangements": [arrangement], "warnings": ["w"]}
    (run / "audit.json").write_text(json.dumps(audit))
    return run


def damage(run: Path, folder: Path, rng: Random, number: int) -> str:
    """Damage one file of the run."""
    copy = folder / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("*.safetensors", "versions", "curve.png"))
    name = rng.choice((*JSON_FILES, "predictions.npz", "predictions.npz"))
    path = copy / name
    if rng.random() < 0.25:
        content, note = mutate_bytes(path.read_bytes(), (run / rng.choice(JSON_FILES)).read_bytes(), rng, 200)
        path.write_bytes(content)
    elif path.suffix == ".json":
        document, note = mutate_json(json.loads(path.read_bytes()), rng)
        path.write_bytes(json.dumps(document).encode())
    else:
        note = _mutate_arrays(path, rng)
    return f"{name}: {note}"


def _mutate_arrays(path: Path, rng: Random) -> str:
    with np.load(path) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "classes"}
        classes = file["classes"]
    arrays, note = mutate_tensors(arrays, rng)
    kept: dict[str, Any] = {key: value.numpy() for key, value in arrays.items() if key.isidentifier()}
    if rng.random() < 0.3:
        name = rng.choice(sorted(kept))
        kept[name] = np.full_like(kept[name], rng.choice((0, 1, 100)))
        note += f", {name} constant"
    np.savez(path, classes=classes[: rng.choice((None, None, None, 1))], **kept)
    return note


def use(_: object, folder: Path) -> None:
    """Write the report by its command."""
    done = caprompt_in_process("report", folder / "run", "--out", folder / "report.html", "--no-pictures", cwd=folder)
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and len(lines) == 1 and lines[0].startswith("caprompt: "):
        if (folder / "report.html").exists():
            raise InvalidError("a refused run has a report")
        raise RefusedError(lines[0])
    if done.returncode or lines or "</html>" not in (folder / "report.html").read_text(encoding="utf-8"):
        raise AssertionError(f"exit status {done.returncode}: {done.stderr}")


ATTACK = Attack("runs", "mutated run folders, shown by `report`", 600, 40, prepare, damage, use)
