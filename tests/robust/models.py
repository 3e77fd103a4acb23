"""Damaged model folders of every method, with hashes computed anew: shown, loaded, asked, resumed and undone."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import torch
from helpers import caprompt_in_process, quick_options, read_tree, squares, write_backbone
from mutations import JUNK, mutate_json, mutate_model, write_hashed
from safetensors.torch import load_file, save_file
from torch import Tensor

from caprompt import ContinualClassifier, methods
from caprompt.callbacks.events import EpochEnded
from caprompt.checkpoint import folder as folder_module
from caprompt.classifier import editing
from caprompt.errors import CapromptError
from robust.attack import Attack, InvalidError, LostError, RefusedError
from robust.damage import mutate_bytes
from robust.material import read_plan, write_plan

TENSORS = ("state.safetensors", "records.safetensors")
VALUES = (float("nan"), float("inf"), -float("inf"), 3e38, 1e30, -1e30, 1e-45, 0.0, -1.0)


class Models:
    """Trained models by method; they know red, green and blue, and a call that taught them yellow was stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backbone = write_backbone(folder / "tiny.safetensors")

    def train(self, method: str) -> Path:
        """Return the folder of a model of this method, which is trained when it is first asked for."""
        folder = self.folder / method
        return folder if folder.is_dir() else _train(folder, self.backbone, method)


def prepare(folder: Path) -> Models:
    """Return models that are still to be trained."""
    torch.set_num_threads(1)
    folder_module.MAX_READS = 1  # no writer comes in between
    return Models(folder)


def _train(folder: Path, backbone: Path, method: str) -> Path:
    model = ContinualClassifier(method, backbone, device="cpu", **quick_options(method))
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    model.learn(squares(["blue"]), checkpoint_dir=folder)
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))

    def stop(event: object) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    fresh = ContinualClassifier.load(folder, device="cpu")
    with suppress(KeyboardInterrupt):
        fresh.learn(
            squares(["yellow"]), checkpoint_dir=shutil.copytree(folder, folder.with_name(f"{method} stopped")), callbacks=stop
        )
    stopped = folder.with_name(f"{method} stopped") / "in-progress"
    if stopped.is_dir():  # methods without epochs have none
        stopped.rename(folder / "in-progress")
    return folder


EVALUATION: dict[str, Any] = {
    "date": "2026-11-16T12:00:00+00:00",
    "source": "test",
    "images": 30,
    "accuracy": 90.0,
    "interval": [74.4, 96.5],
    "average_accuracy": 90.0,
    "calibration_error": 3.5,
    "protocol": "honest",
}


def damage(models: Models, folder: Path, rng: Random, number: int) -> str:
    """Damage the current version, an earlier one, the checkpoint of a stopped call or the last evaluation of a model."""
    method = rng.choice(sorted(methods.list_methods()))
    model = folder / "model"
    shutil.copytree(models.train(method), model)
    part = rng.choices(("current", "evaluation", "in-progress", "versions", "ready"), (67, 8, 12, 10, 3))[0]
    if part == "evaluation":
        document, note = mutate_json(EVALUATION, rng)
        (model / "evaluation.json").write_bytes(json.dumps(document).encode(errors="surrogatepass"))
    elif part == "ready":  # a commit that was not finished, made by someone else
        note = rng.choice(
            ('["../secret"]', '["plan.json", "../plan.json"]', "[7]", "[", "{}", '["."]', '["/"]', '["config.json"]', "[]")
        )
        (model / ".ready").mkdir()
        (model / ".ready" / ".remove").write_text(note.replace("/", str(folder)) if note == '["/"]' else note)
    else:
        place = {"current": model, "in-progress": model / "in-progress", "versions": model / "versions" / "0"}[part]
        note = mutate_folder(place, rng) if place.is_dir() else "nothing"
    plan = {"part": part, "override": rng.random() < 0.9 or part != "current"}
    write_plan(folder, plan)
    return f"{method}, {part}: {note}"


def mutate_folder(folder: Path, rng: Random) -> str:
    """Damage one file of a model folder in one of several ways, and compute its hashes anew."""
    way = rng.choice(("structure", "structure", "structure", "values", "values", "header", "bytes", "config"))
    if way == "structure":
        return mutate_model(folder, rng)
    config = json.loads((folder / "config.json").read_bytes())
    path = folder / rng.choice([name for name in TENSORS if (folder / name).is_file()])
    if way == "values":
        tensors, note = mutate_values(load_file(path), rng)
        save_file(tensors, path)
    elif way == "header":
        note = mutate_header(path, rng)
    elif way == "bytes":
        path = folder / rng.choice((*config["files"], "config.json"))
        content, note = mutate_bytes(path.read_bytes(), b"", rng, 200)
        path.write_bytes(content)
        if path.name == "config.json":
            return f"config.json: {note}"
    else:
        key = rng.choice(("removed", "lessons", "calibration", "progress", "options", "task_sizes", "calls", "seed"))
        value = rng.choice((["x"] * 10**5, [{}] * 1000, {"a": 1}, ["\ud800"], 10**15, [[]], {"factor": 1e-300}, *JUNK))
        config[key], note = value, f"{key} = {str(value)[:60]}"
    write_hashed(folder, config)
    return f"{path.name if way != 'config' else 'config.json'}: {note}"


def mutate_values(tensors: dict[str, Tensor], rng: Random) -> tuple[dict[str, Tensor], str]:
    """Replace one value, or all values, of one tensor."""
    changed, name = dict(tensors), rng.choice(sorted(tensors))
    tensor = changed[name].clone()
    if tensor.is_floating_point():
        value: float = rng.choice(VALUES)
    else:
        value = rng.choice((-1, 0, 1, 127, *([] if tensor.element_size() < 4 else [2**31 - 1])))
    if rng.random() < 0.5 and tensor.numel():
        tensor.view(-1)[rng.randrange(tensor.numel())] = value
    else:
        tensor.fill_(value)
    changed[name] = tensor
    return changed, f"{name} has {value}"


def mutate_header(path: Path, rng: Random) -> str:
    """Damage the header of a safetensors file: its length, or its JSON document."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    if rng.random() < 0.2:
        forged = rng.choice((0, 1, length - 1, length + 1, 10**8, 2**63, 2**64 - 1))
        path.write_bytes(struct.pack("<Q", forged) + content[8:])
        return f"header of {forged} bytes"
    document, note = mutate_json(json.loads(content[8 : 8 + length]), rng)
    header = json.dumps(document).encode()
    if rng.random() < 0.8:
        header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    return f"header: {note}"


def use(models: Models, folder: Path) -> None:
    """Show, load and ask a model; then resume or undo the call that was stopped, where that is what was damaged."""
    model, plan = folder / "model", read_plan(folder)
    backbone = models.backbone if plan["override"] else None
    before = read_tree(model)
    shown = caprompt_in_process("info", model, cwd=folder)
    if shown.returncode not in (0, 2) or len(shown.stderr.strip().splitlines()) > 1:
        raise AssertionError(f"info: exit status {shown.returncode}, {shown.stderr}")
    loaded = _ask(model, backbone)
    if read_tree(model) != before:
        raise LostError("loading has changed the model")
    if plan["part"] == "in-progress":
        loaded.learn(squares(["yellow"]), checkpoint_dir=model, resume=True)
        _ask(model, backbone)
    elif plan["part"] == "ready":
        outside = read_tree(folder)
        with suppress(CapromptError):
            editing.rename(model, loaded.classes[0], "renamed")
        if any(not name.startswith("model/") and name not in read_tree(folder) for name in outside):
            raise LostError("a change of the model has deleted files outside")
    elif plan["part"] == "versions":
        editing.undo(model)  # the stopped call
        editing.undo(model)
        _ask(model, backbone)
    if shown.returncode:
        raise RefusedError(shown.stderr)


def _ask(folder: Path, backbone: Path | None) -> ContinualClassifier:
    """Load a model and check its predictions."""
    model = ContinualClassifier.load(folder, backbone=backbone, device="cpu")
    for prediction in model.predict(squares(["red"], each=2)[0], top=3):
        scores = [each.score for each in prediction.top]
        if not all(0 <= score <= 1.001 for score in scores) or prediction.label not in model.labels:
            raise InvalidError(f"predicted {prediction.label!r} with {scores}")
    return model


ATTACK = Attack("models", "mutated model folders, hashes recomputed", 1000, 60, prepare, damage, use)
