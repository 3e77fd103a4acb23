"""Commands that change a model, with what they start from and what they should lead to, for attacks on running commands."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import QUICK, write_squares
from serve.running import pngs

from caprompt import ContinualClassifier, checkpoint
from caprompt.checkpoint.model import has_stopped_call
from caprompt.cli.app import main
from caprompt.data.sources import read_source
from caprompt.serve import worker
from caprompt.serve.uploads import Upload
from caprompt.utils.files import finish_commit
from robust.attack import LostError
from robust.forks import Ended, check_clean, read_content, read_model, run_fork
from robust.material import make_model, read_plan

OPTIONS = {**QUICK, "epochs": 4}
COLORS = ("red", "green", "blue")
SERVED = "0123456789abcdef"  # name of the upload of the server's lesson


@dataclass
class Scene:
    """A command, and what is known of an undisturbed call of it."""

    name: str
    base: Path
    old: dict[str, str] = field(default_factory=dict)  # hashes of the model's files before
    new: dict[str, str] = field(default_factory=dict)  # of what it has learned after
    steps: list[dict[str, str]] = field(default_factory=list)  # of what a run has learned after each task
    summary: str = ""  # of a run
    operations: int = 0
    seconds: float = 0.0

    def find_model(self, work: Path) -> Path:
        """Return the folder of the model in a working folder."""
        return work / "run" / "model" if self.name == "run" else work / "pets"

    def begin(self, work: Path) -> None:
        """Make what the command starts from."""
        start = {"undo": "taught", "run": None}.get(self.name, "pets")
        if start is not None:
            shutil.copytree(self.base / start, work / "pets")

    def make_call(self, work: Path) -> Callable[[], int]:
        """Return the command as a function; after a call that was stopped, the one that goes on with it."""
        if self.name == "serve":
            return self._make_job(work)
        words = [str(word) for word in self._list_words(work)]
        return lambda: run_main(words)

    def _list_words(self, work: Path) -> list[object]:
        model = self.find_model(work)
        if self.name == "learn":
            return ["learn", model, self.base / "week2", *(["--resume"] if has_stopped_call(model) else [])]
        if self.name == "run":
            settings = [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
            resume = ["--resume"] if (work / "run" / "run.json").is_file() else []
            place = ["--dataset", self.base / "data", "--backbone", self.base / "tiny.safetensors", "--out", work / "run"]
            return ["run", *place, "--tasks", "1,1,1", *settings, *resume]
        return {
            "undo": ["undo", model],
            "rename": ["rename", model, "red", "crimson"],
            "join": ["join", model, "red", "green", "--into", "any"],
            "evaluate": ["evaluate", model, self.base / "week1"],
        }[self.name]

    def _make_job(self, work: Path) -> Callable[[], int]:
        upload = self.base / "uploads" / SERVED
        request = {"kind": "learn", "folder": str(work / "pets"), "upload_folder": str(upload), "hold_out": 0.2, "calls": 1}
        job = work / "job.json"
        job.write_text(json.dumps({**request, "device": "cpu", "new": {}}))

        def call() -> int:
            silent, _ = os.pipe()  # a server that is there and says nothing
            os.dup2(silent, 0)
            return worker.main([str(job)])

        return call

    def measure(self, work: Path) -> Ended:
        """Run the command undisturbed and note what it leads to."""
        self.begin(work)
        self.old = read_model(self.find_model(work))
        first = run_fork(self.make_call(work), folder=work, note=True, limit=120)
        if first.status:
            raise RuntimeError(f"{self.name} fails undisturbed: {first.stderr}")
        self.new = read_content(self.find_model(work))
        self.operations, self.seconds, self.summary = first.operations, first.seconds, self._read_summary(work)
        for name in first.modules:  # so that later forks need not
            with suppress(ImportError):
                importlib.import_module(name)
        shutil.rmtree(work)
        work.mkdir()
        self.begin(work)
        self.seconds = run_fork(self.make_call(work), folder=work, limit=120).seconds
        return first

    def _read_summary(self, work: Path) -> str:
        path = work / "run" / "results.json"
        return json.dumps(json.loads(path.read_text())["summary"]) if path.is_file() else ""

    def classify(self, work: Path) -> str:
        """Return which version the model is of: old, new, or of a run in between; raise `LostError` for any other."""
        model = self.find_model(work)
        files = read_model(model)
        if files == self.old:
            return "old"
        content = read_content(model)
        if content == self.new:
            return "new"
        if content in self.steps:
            return "between"
        raise LostError(f"the model is neither the old nor the new one: {sorted(files)}")

    def finish(self, work: Path) -> None:
        """Go on after a disturbed call; raise `LostError` if it does not come to the same end, or leaves something behind."""
        if self.classify(work) != "new" or self.name in ("serve", "run", "evaluate"):
            ended = run_fork(self.make_call(work))
            if ended.status:
                raise LostError(f"the call cannot be resumed or repeated: exit status {ended.status}, {ended.stderr}")
        model = self.find_model(work)
        if read_content(model) != self.new:
            raise LostError("the resumed call has come to another end")
        if self._read_summary(work) != self.summary:
            raise LostError("the resumed run has other results")
        with checkpoint.lock_folder(model):
            finish_commit(model)  # the next writer does so, and removes what a killed one left
        if (model / "in-progress").exists() and has_stopped_call(model):
            raise LostError("a finished call counts as stopped")
        check_clean(model)


def run_main(words: list[str]) -> int:
    """Run a command of the CLI in this process and return its exit status."""
    try:
        main(words)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def make_scenes(folder: Path, names: tuple[str, ...]) -> dict[str, Scene]:
    """Make images and models, and run each command once undisturbed."""
    make_model(folder, {"week1": ["red", "green"], "week2": ["blue"]}, OPTIONS)
    write_squares(folder / "data" / "train", COLORS)
    write_squares(folder / "data" / "test", COLORS, each=2, start=50)
    shutil.copytree(folder / "pets", folder / "taught")
    ContinualClassifier.load(folder / "taught", device="cpu").learn(folder / "week2", checkpoint_dir=folder / "taught")
    (folder / "uploads" / SERVED).mkdir(parents=True)
    upload = Upload(folder / "uploads" / SERVED)
    for number, content in enumerate(pngs("blue", 8)):
        upload.add("blue", f"{number}.png", content, lambda _: None, lambda *_: False)
    scenes = {}
    for name in names:
        scene, work = Scene(name, folder), folder / "work"
        work.mkdir()
        scene.measure(work)
        if name == "run":
            scene.steps = _list_steps(scene, work)
        shutil.rmtree(work)
        scenes[name] = scene
    return scenes


def begin_planned(scenes: dict[str, Scene], folder: Path) -> tuple[dict[str, Any], Scene, Callable[[], int]]:
    """Make what the command of a plan starts from; return the plan, the scene of its command, and the command."""
    plan = read_plan(folder)
    scene = scenes[plan["command"]]
    scene.begin(folder)
    return plan, scene, scene.make_call(folder)


def _list_steps(scene: Scene, work: Path) -> list[dict[str, str]]:
    """Return what the model of a run has learned after each of its tasks, by running its tasks one after another."""
    steps: list[dict[str, str]] = []
    plan = json.loads((work / "run" / "run.json").read_text())
    model = ContinualClassifier(backbone=scene.base / "tiny.safetensors", device="cpu", **OPTIONS)
    for names in plan["tasks"]:
        samples = read_source(scene.base / "data" / "train").select_classes(names)
        model.learn(samples, again=True)
        target = work / "steps"
        model.save(target)
        steps.append(read_content(target))
    return steps
