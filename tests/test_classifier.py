from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import QUICK, equal_tensors, square, squares, tiny_vit, write_backbone, write_squares
from PIL import Image

from caprompt import ContinualClassifier, InputError
from caprompt.backbones.vit import COMPILED_METHODS
from caprompt.callbacks.events import Consolidating, Event, ImagesChecked, LearnEnded, LearnStarted, StepEnded
from caprompt.errors import CapromptError, DataError, ModelFolderError, OptionError


def fresh(backbone: Path, **settings: object) -> ContinualClassifier:
    return ContinualClassifier(backbone=backbone, **{**QUICK, **settings})  # type: ignore[arg-type]


def test_folders_csv_arrays_and_pil_images_teach_the_same(tmp_path: Path, backbone: Path) -> None:
    folder = write_squares(tmp_path / "photos", ["blue", "red"])
    files = sorted(folder.rglob("*.png"))
    (tmp_path / "list.csv").write_text(
        "path,label\n" + "".join(f"{file.relative_to(tmp_path)},{file.parent.name}\n" for file in files)
    )
    arrays = [np.asarray(Image.open(file)) for file in files], [file.parent.name for file in files]
    pictures = [Image.fromarray(array) for array in arrays[0]], arrays[1]
    models = []
    for source in (folder, tmp_path / "list.csv", arrays, pictures):
        models.append(fresh(backbone))
        models[-1].learn(source)
    assert all(equal_tensors(model.method.state(), models[0].method.state()) for model in models)
    assert models[0].classes == ["blue", "red"]


def test_prediction_has_a_name_a_score_and_its_weights(backbone: Path, tmp_path: Path) -> None:
    model = fresh(backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    Image.fromarray(square("red", 50)).save(tmp_path / "a.png")
    found = model.predict_one(str(tmp_path / "a.png"), top=2)
    assert found.label == found.top[0].label
    assert found.label in model.classes
    assert len(found.top) == 2
    assert found.top[0].score >= found.top[1].score
    assert sum(found.task_weights) == pytest.approx(1)
    assert len(model.predict([tmp_path / "a.png"], top=10)[0].top) == 3
    assert found.as_dict()["label"] == found.label


def test_one_class_at_a_time_and_one_image_per_class(backbone: Path) -> None:
    model = fresh(backbone)
    for colour in ("red", "green", "blue"):
        model.learn(squares([colour], each=1))
    assert [len(task) for task in model.tasks] == [1, 1, 1]
    assert model.evaluate(squares(["red", "green", "blue"])).images == 15


def test_further_images_merge_into_statistics_and_leave_prompts_alone(backbone: Path) -> None:
    """What the docs promise for the paper's head: old prompts stay, the class's statistics take the images in, it is aligned."""
    model = fresh(backbone, classifier="aligned")
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    prompts = [prompt.detach().clone() for prompt in model.method.prompts]  # type: ignore[union-attr]
    head = model.method.head.weight.detach().clone()
    model.learn(squares(["red"], each=3, start=40))
    assert model.method.statistics.count.tolist() == [5, 8, 5]  # type: ignore[union-attr, operator]
    assert all(torch.equal(a, b) for a, b in zip(prompts, model.method.prompts, strict=True))  # type: ignore[arg-type]
    assert not torch.equal(head, model.method.head.weight)
    assert model.images_seen == {"red": 8, "green": 5, "blue": 5}


def test_evaluate_counts_right(backbone: Path) -> None:
    model = fresh(backbone, epochs=4)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue", "yellow"]))
    images, labels = squares(["red", "blue", "yellow"], each=4, start=70)
    found = model.evaluate((images, labels))
    right = [prediction.label == label for prediction, label in zip(model.predict(images), labels, strict=True)]
    assert found.accuracy == pytest.approx(100 * np.mean(right))
    assert [(score.task, score.images) for score in found.tasks] == [(1, 4), (2, 8)]
    assert found.tasks[1].accuracy == pytest.approx(100 * np.mean(right[4:]))
    assert found.average_accuracy == pytest.approx(np.mean([np.mean(right[:4]), np.mean(right[4:])]) * 100)
    assert found.per_class["red"] == pytest.approx(100 * np.mean(right[:4]))


def test_giving_the_task_away_uses_that_tasks_prompt(backbone: Path) -> None:
    model = fresh(backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    seen: list[list[int]] = []
    real = model.method.predict

    def spied(images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> object:
        seen.append([] if true_tasks is None else true_tasks.tolist())
        return real(images, true_tasks)

    model.method.predict = spied  # type: ignore[method-assign, assignment]
    assert model.evaluate(squares(["blue", "red"]), give_task=True).mean_passes == 1
    assert model.evaluate(squares(["red"])).mean_passes == 2
    assert seen == [[1] * 5 + [0] * 5, []]


def test_an_option_that_cannot_be_held_leaves_the_model_as_it_was(backbone: Path) -> None:
    model = fresh(backbone)
    model.learn(squares(["red", "green"]))
    before = model.predict_one(square("red", 50))
    with pytest.raises(OptionError, match="fp8"):
        model.predict_one(square("red", 50), precision="fp8")
    assert model.method.options.precision == "auto"
    assert model.predict_one(square("red", 50)) == before


def test_compiling_for_one_prediction_does_not_stay(backbone: Path) -> None:
    model = fresh(backbone)
    block = model.method.vit.blocks[0]
    with model.override_options({"compile": True}):
        assert set(COMPILED_METHODS) <= set(vars(model.method.vit))
        assert block.mlp.compact
    assert not set(COMPILED_METHODS) & set(vars(model.method.vit))
    assert not block.mlp.compact
    assert not block.norm1.compact


def test_options_at_prediction(backbone: Path) -> None:
    model = fresh(backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    picture = square("blue", 3)
    assert model.predict_one(picture, cycles=4).passes == 4
    assert model.predict_one(picture).passes == 2
    assert 1 <= model.predict_one(picture, cycles="auto", max_cycles=3).passes <= 3
    with pytest.raises(InputError, match="'epochs' belongs to training"):
        model.predict_one(picture, epochs=3)
    with pytest.raises(InputError, match="unknown option 'cycle' .*did you mean 'cycles'"):
        model.predict_one(picture, cycle=3)
    with pytest.raises(InputError, match="cannot be '0'"):
        model.predict_one(picture, cycles=0)
    assert model.method.options.cycles == 2  # type: ignore[attr-defined]


def test_events_in_order(backbone: Path) -> None:
    events: list[Event] = []
    fresh(backbone).learn(squares(["red", "green"]), callbacks=events.append)
    kinds = [type(event) for event in events]
    assert kinds[0] is ImagesChecked
    assert kinds.index(LearnStarted) < kinds.index(StepEnded) < kinds.index(LearnEnded)
    began = next(event for event in events if isinstance(event, LearnStarted))
    assert (began.task, began.new_classes, began.images, began.epochs) == (1, ("green", "red"), 10, 2)


def test_a_method_that_does_not_train_tells_of_no_step(backbone: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=tmp_path, callbacks=events.append)
    kinds = [type(event) for event in events if not isinstance(event, ImagesChecked)]
    assert kinds == [LearnStarted, Consolidating, LearnEnded]
    assert next(event for event in events if isinstance(event, LearnStarted)).epochs == 0
    assert model.history == []
    again = ContinualClassifier.load(tmp_path)
    assert again.evaluate(squares(["red", "green"], start=30)).accuracy == 100


def test_a_failed_call_changes_nothing(backbone: Path, tmp_path: Path) -> None:
    model = fresh(backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=tmp_path / "m")
    before = {name: tensor.clone() for name, tensor in model.method.state().items()}
    files = {path: path.read_bytes() for path in (tmp_path / "m").iterdir()}

    def interrupt(event: Event) -> None:
        if isinstance(event, StepEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=interrupt)
    assert equal_tensors(before, model.method.state())
    assert model.classes == ["green", "red"]
    assert {path: path.read_bytes() for path in (tmp_path / "m").iterdir() if path.is_file()} == files
    model.learn(squares(["blue"]))
    assert model.classes == ["green", "red", "blue"]


def test_resuming_with_other_images_is_refused(backbone: Path, tmp_path: Path) -> None:
    model = fresh(backbone, epochs=3)

    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=stop)
    with pytest.raises(ModelFolderError, match="continue it with resume=True"):
        ContinualClassifier.load(tmp_path / "m")
    again = ContinualClassifier.load_stopped(tmp_path / "m")
    assert again is not None
    with pytest.raises(InputError, match="not those of the call that was stopped"):
        again.learn(squares(["blue"], start=9), checkpoint_dir=tmp_path / "m", resume=True)
    again.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    straight = fresh(backbone, epochs=3)
    straight.learn(squares(["blue"]))
    assert equal_tensors(again.method.state(), straight.method.state())
    assert not (tmp_path / "m" / "in-progress").exists()
    assert [record["epoch"] for record in again.history] == [0, 1, 2]


def test_saved_and_loaded_is_the_same_model(backbone: Path, tmp_path: Path) -> None:
    model = fresh(backbone, seed=7)
    model.learn(squares(["red", "green"]))
    model.save(tmp_path / "m")
    found = ContinualClassifier.load(tmp_path / "m")
    assert repr(found) == repr(model) == "ContinualClassifier('caprompt', backbone='tiny', 2 classes in 1 tasks)"
    assert (found.seed, found.num_calls, found.history) == (7, 1, model.history)
    assert found.method.options == model.method.options
    assert found.predict_one(square("red", 5)) == model.predict_one(square("red", 5))


def test_the_backbone_is_found_by_hash(tmp_path: Path) -> None:
    file = write_backbone(tmp_path / "net.safetensors")
    model = fresh(file)
    model.learn(squares(["red", "green"]))
    model.save(tmp_path / "m")
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ModelFolderError, match="no longer at"):
        ContinualClassifier.load(tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m", backbone=moved).classes == ["green", "red"]
    other = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=9))
    with pytest.raises(ModelFolderError, match="hash differs"):
        ContinualClassifier.load(tmp_path / "m", backbone=other)


def test_a_model_that_moved_on_meanwhile_is_not_overwritten(backbone: Path, tmp_path: Path) -> None:
    """Two processes that learn into one folder: the slower one is told, and nothing of the faster one is lost."""
    model = fresh(backbone)
    model.learn(squares(["red"]), checkpoint_dir=tmp_path / "m")

    def meanwhile(event: Event) -> None:
        if isinstance(event, LearnEnded):
            other = ContinualClassifier.load(tmp_path / "m")
            other.learn(squares(["cyan"]))
            other.save(tmp_path / "m")

    with pytest.raises(ModelFolderError, match="is not the one that is learning"):
        model.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=meanwhile)
    assert ContinualClassifier.load(tmp_path / "m").classes == ["red", "cyan"]
    with pytest.raises(ModelFolderError, match="is not the one that is learning"):
        fresh(backbone).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m")


def test_resuming_as_another_model_is_refused(backbone: Path, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fresh(backbone).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=stop)
    with pytest.raises(InputError, match=r"other settings \(seed\)"):
        fresh(backbone, seed=4).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    other = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=9))
    with pytest.raises(InputError, match="had another backbone"):
        fresh(other).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    with pytest.raises(InputError, match=r"other settings \(options\)"):
        fresh(backbone, alpha=4).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)


def test_losses_that_explode_are_a_failure_not_a_model(backbone: Path) -> None:
    model = fresh(backbone, learning_rate=1e30, clip=0)
    with pytest.raises(CapromptError, match="no longer finite after epoch 1; lower learning_rate"):
        model.learn(squares(["red", "blue"]))
    assert model.classes == []


def test_bad_calls_are_sentences(backbone: Path, tmp_path: Path) -> None:
    model = fresh(backbone)
    with pytest.raises(InputError, match="has not learned any class yet"):
        model.predict_one(square("red", 1))
    with pytest.raises(InputError, match="has not learned any class yet"):
        model.evaluate(squares(["red"]))
    with pytest.raises(DataError, match="there is no folder"):
        model.learn(tmp_path / "nowhere")
    model.learn(squares(["red"]))
    with pytest.raises(InputError, match="class 'blue' has not been learned; this model knows: red"):
        model.evaluate(squares(["blue"]))
    with pytest.raises(InputError, match="top must be at least 1"):
        model.predict_one(square("red", 1), top=0)
    with pytest.raises(InputError, match="seed must be a non-negative integer, not '-1'"):
        ContinualClassifier(backbone=backbone, seed=-1)
    with pytest.raises(InputError, match="unknown method 'capromt' .*did you mean 'caprompt'"):
        ContinualClassifier("capromt", backbone)
    with pytest.raises(InputError, match="names layer 2, but this backbone has layers 0 to 1"):
        ContinualClassifier(backbone=backbone, layers="0-5")


@pytest.mark.slow
def test_three_processes_equal_one(tmp_path: Path, backbone: Path) -> None:
    """Learn, save, load in a new process, learn again: the same bits as in one go."""
    weeks = [["red"], ["green", "blue", "yellow"], ["cyan", "red"]]
    for number, colours in enumerate(weeks):
        write_squares(tmp_path / f"week{number}", colours, start=10 * number)
    script = (
        "import sys; from caprompt import ContinualClassifier as C; from pathlib import Path\n"
        "folder, backbone, *weeks = sys.argv[1:]\n"
        f"model = C.load(folder) if Path(folder).exists() else C(backbone=backbone, **{QUICK})\n"
        "for week in weeks: model.learn(week)\n"
        "model.save(folder)\n"
    )
    places = [str(tmp_path / f"week{number}") for number in range(3)]
    for folder, calls in (("one", [places]), ("three", [[place] for place in places])):
        for weeks_of_call in calls:
            subprocess.run([sys.executable, "-c", script, str(tmp_path / folder), str(backbone), *weeks_of_call], check=True)
    assert (tmp_path / "one" / "state.safetensors").read_bytes() == (tmp_path / "three" / "state.safetensors").read_bytes()
    assert (tmp_path / "one" / "classes.json").read_bytes() == (tmp_path / "three" / "classes.json").read_bytes()
