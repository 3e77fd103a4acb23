"""Undo, rename, join and forget on model folders: byte identity, exactness, kills, and refusals."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import quick_options, squares

from caprompt import ContinualClassifier, checkpoint
from caprompt.callbacks.events import EpochEnded, Event
from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call
from caprompt.classifier import editing
from caprompt.errors import CapromptError, InputError, ModelFolderError
from caprompt.methods import list_methods

FROZEN = {"projections": 60, "keep_features": True}


def make_model(backbone: Path, method: str = "caprompt", **options: object) -> ContinualClassifier:
    return ContinualClassifier(method, backbone, **{**quick_options(method), **options})  # type: ignore[arg-type]


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(backbone: Path, tmp_path: Path) -> Path:
    """A model of two lessons."""
    folder = tmp_path / "m"
    model = make_model(backbone, "ncm")
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    model.learn(squares(["blue", "yellow"]), checkpoint_dir=folder)
    return folder


CHANGES: dict[str, Callable[[Path], object]] = {
    "new classes": lambda folder: ContinualClassifier.load(folder).learn(squares(["cyan"]), checkpoint_dir=folder),
    "more images": lambda folder: ContinualClassifier.load(folder).learn(squares(["red"], start=30), checkpoint_dir=folder),
    "both": lambda folder: ContinualClassifier.load(folder).learn(squares(["red", "cyan"], start=30), checkpoint_dir=folder),
    "rename": lambda folder: editing.rename(folder, "red", "crimson"),
    "join": lambda folder: editing.join(folder, ["red", "blue"], "any"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_undo_restores_every_file(folder: Path, change: str) -> None:
    before = read_tree(folder)
    CHANGES[change](folder)
    assert read_tree(folder) != before
    editing.undo(folder)
    assert read_tree(folder) == before


def test_changes_are_undone_one_by_one_down_to_nothing(folder: Path) -> None:
    trees = []
    for change in CHANGES.values():
        trees.append(read_tree(folder))
        if len(trees) < 4:
            change(folder)
    for tree in reversed(trees[:3]):
        editing.undo(folder)
        assert read_tree(folder) == tree
    editing.undo(folder)
    assert ContinualClassifier.load(folder).classes == ["green", "red"]
    lesson = editing.undo(folder)
    assert set(lesson["classes"]) == {"red", "green"}
    assert list(folder.iterdir()) == []
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        editing.undo(folder)


def test_only_the_newest_versions_are_kept(folder: Path) -> None:
    for number in range(8):
        editing.rename(folder, "red" if not number else f"red{number - 1}", f"red{number}")
    assert len(checkpoint.list_versions(folder)) == 5
    for _ in range(5):
        editing.undo(folder)
    with pytest.raises(InputError, match="no version before the last lesson"):
        editing.undo(folder)
    assert "red2" in ContinualClassifier.load(folder).classes


def test_undo_discards_a_stopped_call_first(backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    model = make_model(backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    before = read_tree(folder)

    def stop(event: Event) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["blue"]), checkpoint_dir=folder, callbacks=stop)
    assert read_tree(folder) != before
    with pytest.raises(InputError, match="learning was stopped"):
        editing.rename(folder, "red", "crimson")
    assert editing.undo(folder) is editing.STOPPED
    assert read_tree(folder) == before


def test_undo_brings_back_no_checkpoint_of_a_call_that_has_ended(backbone: Path, tmp_path: Path) -> None:
    """A process that was killed after the model was saved leaves one, which belongs to the version before."""
    folder, copy = tmp_path / "m", tmp_path / "copy"
    model = make_model(backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    before = read_tree(folder)

    def copy_checkpoint(event: Event) -> None:
        if isinstance(event, EpochEnded) and not copy.exists():
            shutil.copytree(folder / IN_PROGRESS, copy)

    model.learn(squares(["blue"]), checkpoint_dir=folder, callbacks=copy_checkpoint)
    copy.rename(folder / IN_PROGRESS)
    assert editing.undo(folder)["kind"] == "learn"
    assert not has_stopped_call(folder)
    assert read_tree(folder) == before


def test_rename_and_join_in_predictions_and_further_lessons(folder: Path) -> None:
    editing.rename(folder, "red", "crimson")
    editing.join(folder, ["crimson", "blue"], "any")
    model = ContinualClassifier.load(folder)
    assert model.classes == ["green", "any", "yellow"]
    assert model.tasks == [["green", "any"], ["yellow"]]
    assert model.images_seen == {"green": 5, "any": 10, "yellow": 5}
    images, _ = squares(["red", "blue", "green"], 2, 50)
    assert [each.label for each in model.predict(images)] == ["any"] * 4 + ["green"] * 2
    assert all(abs(sum(score.score for score in each.top) - 1) < 1e-5 for each in model.predict(images))
    evaluation = model.evaluate((images, ["any"] * 4 + ["green"] * 2))
    assert evaluation.accuracy == 100
    model.learn((squares(["red"], 2, 70)[0], ["any", "any"]), checkpoint_dir=folder)
    assert ContinualClassifier.load(folder).images_seen["any"] == 12


# -- forgetting --------------------------------------------------------------------------------------------------------


def get_weights(model: ContinualClassifier) -> torch.Tensor:
    return model.method.head.ridge.weight  # type: ignore[union-attr, return-value]


@pytest.mark.parametrize("given", ["features", "images"])
def test_forgetting_equals_never_having_learned(backbone: Path, tmp_path: Path, given: str) -> None:
    options = {**FROZEN, "keep_features": given == "features"}
    taught, never = make_model(backbone, "ridge", **options), make_model(backbone, "ridge", **options)
    images, labels = squares(["red", "green", "blue"], 9)
    shown = [index for index, label in enumerate(labels) if label != "green"]
    hidden = [index for index, label in enumerate(labels) if label == "green"]
    taught.learn((images, labels))
    never.learn(([images[index] for index in shown], [labels[index] for index in shown]))
    for model in (taught, never):
        model.learn(squares(["yellow", "cyan"], 9))
    taught.save(tmp_path / "m")
    again = ([images[index] for index in hidden], ["green"] * 9)
    forgotten = editing.forget(tmp_path / "m", "green", images=None if given == "features" else again)
    assert forgotten.classes == never.classes
    error = (get_weights(forgotten) - get_weights(never)).abs().max() / get_weights(never).abs().max()
    assert error < (1e-10 if given == "features" else 1e-5)  # features of images are rounded differently in other batches
    reloaded = ContinualClassifier.load(tmp_path / "m")
    torch.testing.assert_close(get_weights(reloaded), get_weights(forgotten), rtol=0, atol=0)
    for model in (reloaded, never):
        model.learn(squares(["white"], 9))
    error = (get_weights(reloaded) - get_weights(never)).abs().max() / get_weights(never).abs().max()
    assert error < (1e-10 if given == "features" else 1e-5)


def test_no_file_has_a_trace_of_a_forgotten_class(backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    model = make_model(backbone, "ridge", **FROZEN)
    images, labels = squares(["red", "green", "blue"], 5)
    model.learn((images, labels), checkpoint_dir=folder)
    model.learn(squares(["yellow"]), checkpoint_dir=folder)
    features = model.method.head.kept_features[model.method.head.kept_labels == model.classes.index("green")]  # type: ignore[union-attr]
    entry = model.lessons[0]["classes"]["green"]
    digests = [key for key, output in model.table.digests.items() if model.table.output_names[output] == "green"]
    traces = [b"green", entry["sha256"].encode(), *digests, *(row.numpy().tobytes() for row in features)]
    assert len(traces) == 2 + 5 + 5
    assert all(any(trace in content for content in read_tree(folder).values()) for trace in traces), "the search should find them"
    editing.forget(folder, "green")
    for name, content in read_tree(folder).items():
        for trace in traces:
            assert trace not in content, f"{name} still has {trace!r}"
    assert not checkpoint.list_versions(folder)
    with pytest.raises(InputError, match="forgetting a class cannot be undone"):
        editing.undo(folder)


@pytest.mark.parametrize("whole_task", [False, True])
@pytest.mark.parametrize("method", list_methods())
def test_every_method_forgets_approximately_and_learns_on(backbone: Path, tmp_path: Path, method: str, whole_task: bool) -> None:
    model = make_model(backbone, method, **({"epochs": 1} if method not in ("ncm", "ridge") else {}))
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"] if whole_task else ["blue", "yellow"]))
    model.forget("blue", approximate=True)
    images, _ = squares(["red", "blue"], 2, 50)
    assert "blue" not in {score.label for each in model.predict(images, top=9) for score in each.top}
    model.learn(squares(["cyan"]))
    model.save(tmp_path / "m")
    reloaded = ContinualClassifier.load(tmp_path / "m")
    assert reloaded.classes == ["green", "red", *([] if whole_task else ["yellow"]), "cyan"]
    assert [each.label for each in reloaded.predict(images)] == [each.label for each in model.predict(images)]


def test_refusals_are_sentences_and_change_nothing(backbone: Path, folder: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    model = make_model(backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=trained)
    sums = tmp_path / "sums"
    make_model(backbone, "ridge", projections=60).learn(squares(["red", "green"]), checkpoint_dir=sums)
    before = {path: read_tree(path) for path in (folder, trained, sums)}
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: editing.forget(trained, "red"), "cannot be forgotten exactly: its images have trained"),
        (lambda: editing.forget(sums, "red"), "give its images once more"),
        (lambda: editing.forget(sums, "red", images=squares(["red"], 4)), "not the 5 images of 'red'"),
        (lambda: editing.forget(sums, "red", images=squares(["red"], 5, 40)), "not the 5 images of 'red'"),
        (lambda: editing.forget(folder, "rad"), "'rad' has not been learned .did you mean 'red'"),
        (lambda: editing.rename(folder, "red", "blue"), "there is a class 'blue' already"),
        (lambda: editing.join(folder, ["red"], "x"), "two different classes"),
        (lambda: editing.rename(tmp_path / "none", "red", "blue"), "does not hold a caprompt model"),
    ]
    for call, message in refused:
        with pytest.raises(CapromptError, match=message):
            call()
    assert {path: read_tree(path) for path in before} == before
    assert not (tmp_path / "none").exists()
    editing.forget(folder, "red")
    for name in ("green", "blue"):
        editing.forget(folder, name)
    with pytest.raises(InputError, match="only class"):
        editing.forget(folder, "yellow")


# Forks a child for every kill, so that the imports are paid once. Each child works on its own copy of the model, and kills
# itself at the n-th file operation of the change.
KILLS = """
import os, shutil, signal, sys
from pathlib import Path
from caprompt import ContinualClassifier, checkpoint
from caprompt.classifier import editing

source, root = Path(sys.argv[1]), Path(sys.argv[2])
FILE_OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "shutil.rmtree"}
CHANGES = {
    "undo": editing.undo,
    "rename": lambda folder: editing.rename(folder, "red", "crimson"),
    "join": lambda folder: editing.join(folder, ["red", "blue"], "any"),
    "forget": lambda folder: editing.forget(folder, "red"),
}

def change_and_die(change, folder, left):
    def count(name, args):
        nonlocal left
        if name in FILE_OPERATIONS and args and str(folder) in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    change(folder)

for name, change in CHANGES.items():
    for moment in range(1, 200):
        folder = root / name / str(moment)
        shutil.copytree(source, folder)
        child = os.fork()
        if child == 0:
            change_and_die(change, folder, moment)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
    print(name, moment, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_file_operation_the_model_is_the_old_or_the_new_one(folder: Path, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", KILLS, str(folder), str(tmp_path / "killed")], capture_output=True, text=True, check=True
    )
    moments = {name: int(count) for name, count in map(str.split, process.stdout.splitlines())}
    assert all(count >= 15 for count in moments.values()), f"too few file operations: {moments}"
    assert sum(moments.values()) >= 100
    old, digest = ["green", "red", "blue", "yellow"], hash_state(folder)
    new = {
        "undo": old[:2],
        "rename": ["green", "crimson", *old[2:]],
        "join": ["green", "any", "yellow"],
        "forget": ["green", *old[2:]],
    }
    seen = {name: {"old": 0, "new": 0} for name in new}
    for name, count in moments.items():
        finished = hash_state(tmp_path / "killed" / name / str(count))
        for moment in range(1, count + 1):
            killed = tmp_path / "killed" / name / str(moment)
            model = ContinualClassifier.load(killed)
            assert model.classes in (old, new[name])
            kind = "old" if model.classes == old else "new"
            assert hash_state(killed) == (digest if kind == "old" else finished)
            seen[name][kind] += 1
            editing.rename(killed, "green", "emerald")  # a later change finds nothing in its way, and leaves nothing behind
            assert not [path.name for path in killed.iterdir() if path.name.startswith(".")]
            shutil.rmtree(killed)
    assert all(counts["old"] and counts["new"] for counts in seen.values()), seen


def hash_state(folder: Path) -> str:
    """Return a hash of the tensors of a model, which do not hold the date of the change."""
    tensors = checkpoint.read(folder).tensors
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()
