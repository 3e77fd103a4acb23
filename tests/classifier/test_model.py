from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import QUICK, equal_tensors, make_faint_images, quick_options, square, squares, tiny_vit, write_backbone, write_squares
from PIL import Image

from caprompt import ContinualClassifier, InputError
from caprompt.backbones.vit import COMPILED_METHODS, ViT
from caprompt.callbacks.events import Consolidating, EpochEnded, Event, ImagesChecked, LearnEnded, LearnStarted, StepEnded
from caprompt.checkpoint.model import has_stopped_call
from caprompt.classifier import editing
from caprompt.classifier import model as classifier_model
from caprompt.data.gpu_cache import GPUImageCache
from caprompt.data.sources import read_source
from caprompt.data.transforms import EvalTransform
from caprompt.engine import inputs, trainer
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import CapromptError, CapromptWarning, DataError, ModelFolderError, OptionError
from caprompt.methods.base import Method
from caprompt.methods.options import Options


def make_model(backbone: Path, **settings: object) -> ContinualClassifier:
    """Return a model that trains quickly and has learned nothing yet."""
    return ContinualClassifier(backbone=backbone, **{**QUICK, **settings})  # type: ignore[arg-type]


def test_folder_csv_arrays_and_pil_images_give_the_same_model(tmp_path: Path, backbone: Path) -> None:
    folder = write_squares(tmp_path / "photos", ["blue", "red"])
    files = sorted(folder.rglob("*.png"))
    (tmp_path / "list.csv").write_text(
        "path,label\n" + "".join(f"{file.relative_to(tmp_path)},{file.parent.name}\n" for file in files)
    )
    arrays = [np.asarray(Image.open(file)) for file in files], [file.parent.name for file in files]
    pil_images = [Image.fromarray(array) for array in arrays[0]], arrays[1]
    models = []
    for source in (folder, tmp_path / "list.csv", arrays, pil_images):
        models.append(make_model(backbone))
        models[-1].learn(source)
    assert all(equal_tensors(model.method.state(), models[0].method.state()) for model in models)
    assert models[0].classes == ["blue", "red"]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[GPUImageCache]:
    """Let images be prepared as on a GPU; return a list of what was uploaded."""
    uploaded: list[GPUImageCache] = []

    def record(*arguments: Any) -> GPUImageCache:
        uploaded.append(GPUImageCache(*arguments))
        return uploaded[-1]

    monkeypatch.setattr(inputs, "GPUImageCache", record)
    monkeypatch.setattr(classifier_model, "InputPipeline", partial(InputPipeline, batched=True))
    return uploaded


def test_images_of_new_classes_are_uploaded_while_they_are_checked(
    backbone: Path, tmp_path: Path, uploads: list[GPUImageCache]
) -> None:
    folder = write_squares(tmp_path / "photos", ["red", "blue"])
    models = [make_model(backbone), make_model(backbone)]
    for model, skip_bad in zip(models, (False, True), strict=True):  # with skip_bad, images are checked before
        events: list[Event] = []
        samples = model.learn(folder, skip_bad=skip_bad, callbacks=events.append)
        assert [event.done for event in events if isinstance(event, ImagesChecked)] == list(range(1, 11))
        assert samples == read_source(folder)
    assert [len(each) for each in uploads] == [10, 10]
    assert equal_tensors(models[0].method.state(), models[1].method.state())
    models[0].learn(squares(["red", "green"], start=20))
    assert [len(each) for each in uploads] == [10, 10, 5]  # of the new class alone


def test_problems_of_images_that_are_uploaded_at_once_are_explained(
    backbone: Path, tmp_path: Path, uploads: list[GPUImageCache]
) -> None:
    model, (images, labels) = make_model(backbone), squares(["red", "blue"])
    with pytest.raises(DataError, match="are the same image"):
        model.learn((images[:-1] + images[:1], labels))
    with pytest.raises(DataError, match=r"image 3 of class 'red' cannot be used: .*int64"):
        model.learn(([*images[:3], images[3].astype(np.int64), *images[4:]], labels))
    folder = write_squares(tmp_path / "photos", ["red", "blue"])
    (folder / "red" / "002.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"002\.png' is not a readable image .*skip_bad=True"):
        model.learn(folder)
    assert model.classes == []
    assert len(model.learn(folder, skip_bad=True)) == 9


def test_prediction_has_label_score_and_task_weights(backbone: Path, tmp_path: Path) -> None:
    model = make_model(backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    Image.fromarray(square("red", 50)).save(tmp_path / "a.png")
    prediction = model.predict_one(str(tmp_path / "a.png"), top=2)
    assert prediction.label == prediction.top[0].label
    assert prediction.label in model.classes
    assert len(prediction.top) == 2
    assert prediction.top[0].score >= prediction.top[1].score
    assert sum(prediction.task_weights) == pytest.approx(1)
    assert len(model.predict([tmp_path / "a.png"], top=10)[0].top) == 3
    assert prediction.as_dict()["label"] == prediction.label


def test_tasks_of_one_class_and_one_image(backbone: Path) -> None:
    model = make_model(backbone)
    for color in ("red", "green", "blue"):
        model.learn(squares([color], each=1))
    assert [len(task) for task in model.tasks] == [1, 1, 1]
    assert model.evaluate(squares(["red", "green", "blue"])).images == 15


def test_further_images_update_statistics_and_head_but_not_prompts(backbone: Path) -> None:
    """With the paper's classifier: old prompts stay, the statistics include the new images, and the head is aligned again."""
    model = make_model(backbone, classifier="aligned")
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    prompts = [prompt.detach().clone() for prompt in model.method.prompts]  # type: ignore[union-attr]
    head = model.method.head.weight.detach().clone()
    model.learn(squares(["red"], each=3, start=40))
    assert model.method.statistics.count.tolist() == [5, 8, 5]  # type: ignore[union-attr, operator]
    assert all(torch.equal(a, b) for a, b in zip(prompts, model.method.prompts, strict=True))  # type: ignore[arg-type]
    assert not torch.equal(head, model.method.head.weight)
    assert model.images_seen == {"red": 8, "green": 5, "blue": 5}


def test_evaluate_matches_predict(backbone: Path) -> None:
    model = make_model(backbone, epochs=4)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue", "yellow"]))
    images, labels = squares(["red", "blue", "yellow"], each=4, start=70)
    evaluation = model.evaluate((images, labels))
    correct = [prediction.label == label for prediction, label in zip(model.predict(images), labels, strict=True)]
    assert evaluation.accuracy == pytest.approx(100 * np.mean(correct))
    assert [(score.task, score.images) for score in evaluation.tasks] == [(1, 4), (2, 8)]
    assert evaluation.tasks[1].accuracy == pytest.approx(100 * np.mean(correct[4:]))
    assert evaluation.average_accuracy == pytest.approx(np.mean([np.mean(correct[:4]), np.mean(correct[4:])]) * 100)
    assert evaluation.per_class["red"] == pytest.approx(100 * np.mean(correct[:4]))


def test_give_task_passes_the_true_tasks_to_the_method(backbone: Path) -> None:
    model = make_model(backbone, device="cpu")
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    passed: list[list[int]] = []
    predict = model.method.predict

    def record(images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> object:
        passed.append([] if true_tasks is None else true_tasks.tolist())
        return predict(images, true_tasks)

    model.method.predict = record  # type: ignore[method-assign, assignment]
    assert model.evaluate(squares(["blue", "red"]), give_task=True).mean_passes == 1
    assert model.evaluate(squares(["red"])).mean_passes == 2
    assert passed == [[1]] * 5 + [[0]] * 5 + [[]] * 5  # on a CPU, one image at a time


def test_unsupported_precision_leaves_the_model_unchanged(backbone: Path) -> None:
    model = make_model(backbone, device="cpu")
    model.learn(squares(["red", "green"]))
    before = model.predict_one(square("red", 50))
    with pytest.raises(OptionError, match="fp8"):
        model.predict_one(square("red", 50), precision="fp8")
    assert model.method.options.precision == "auto"
    assert model.predict_one(square("red", 50)) == before


def test_compiling_for_one_prediction_is_undone(backbone: Path) -> None:
    model = make_model(backbone)
    block = model.method.vit.blocks[0]
    with model.override_options({"compile": True}):
        assert set(COMPILED_METHODS) <= set(vars(model.method.vit))
        assert block.mlp.compact
    assert not set(COMPILED_METHODS) & set(vars(model.method.vit))
    assert not block.mlp.compact
    assert not block.norm1.compact


def test_options_at_prediction(backbone: Path) -> None:
    model = make_model(backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    image = square("blue", 3)
    assert model.predict_one(image, cycles=4).passes == 4
    assert model.predict_one(image).passes == 2
    assert 1 <= model.predict_one(image, cycles="auto", max_cycles=3).passes <= 3
    with pytest.raises(InputError, match="'epochs' belongs to training"):
        model.predict_one(image, epochs=3)
    with pytest.raises(InputError, match="unknown option 'cycle' .*did you mean 'cycles'"):
        model.predict_one(image, cycle=3)
    with pytest.raises(InputError, match="cannot be '0'"):
        model.predict_one(image, cycles=0)
    assert model.method.options.cycles == 2  # type: ignore[attr-defined]


def test_order_of_events(backbone: Path) -> None:
    events: list[Event] = []
    make_model(backbone).learn(squares(["red", "green"]), callbacks=events.append)
    kinds = [type(event) for event in events]
    assert kinds[0] is ImagesChecked
    assert kinds.index(LearnStarted) < kinds.index(StepEnded) < kinds.index(LearnEnded)
    started = next(event for event in events if isinstance(event, LearnStarted))
    assert (started.task, started.new_classes, started.images, started.epochs) == (1, ("green", "red"), 10, 2)


def learn_and_get_start(model: ContinualClassifier, colors: list[str], each: int = 5, start: int = 0) -> LearnStarted:
    events: list[Event] = []
    model.learn(squares(colors, each, start), callbacks=events.append)
    return next(event for event in events if isinstance(event, LearnStarted))


def test_effort_is_chosen_for_the_images_of_the_call(backbone: Path) -> None:
    """The tiny backbone has a width of 32."""
    model = ContinualClassifier(backbone=backbone, length=4, projections=40)
    started = learn_and_get_start(model, ["red", "green"], each=10)
    assert (
        started.effort == "20 images, so 20 epochs in batches of 16 (40 steps) at learning rate 0.12; "
        "fewer than 50 of a class, so crops of them are learned, too, and 62 % of what training changes is kept"
    )
    assert started.epochs == 20
    assert len(model.history) == 20
    assert learn_and_get_start(model, ["blue"], each=3).effort.startswith("3 images, so 20 epochs")


def test_single_images_of_classes_train_no_prompt(backbone: Path) -> None:
    """The regression alone learns them; given epochs, and the paper's head, are trained all the same."""
    model = ContinualClassifier(backbone=backbone, length=4, projections=40)
    started = learn_and_get_start(model, ["red", "green"], each=1)
    assert started.epochs == 0
    assert started.effort.startswith("2 images, too few of each class to train on, so no epochs; the prompt stays as it is")
    assert model.history == []
    assert [prediction.label for prediction in model.predict([square("red", 90), square("green", 91)])] == ["red", "green"]
    before = model.method.prompt.detach().clone()
    assert learn_and_get_start(model, ["blue", "white"], each=1).epochs == 0
    assert torch.equal(model.method.prompt, before), "the prompt of a task that is not trained is a copy of the last one"
    assert learn_and_get_start(model, ["black", "gray"], each=2).epochs == 20
    for options in ({"epochs": 2}, {"classifier": "aligned", "epochs": "auto", "align_epochs": 1}):
        trained = ContinualClassifier(backbone=backbone, length=4, **options)  # type: ignore[arg-type]
        assert learn_and_get_start(trained, ["red", "green"], each=1).epochs == (2 if options["epochs"] == 2 else 20)


def test_images_of_known_classes_do_not_count_if_they_are_not_trained_on(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, ...]] = []
    for method, expected in (("caprompt", 5), ("linear", 10)):
        model = ContinualClassifier(method, backbone, **{**quick_options(method), "epochs": "auto"})  # type: ignore[arg-type]
        model.learn(squares(["red", "green"]))
        with monkeypatch.context() as patch:
            choose_effort = model.method.choose_effort
            patch.setattr(
                model.method, "choose_effort", lambda *counted, choose=choose_effort: counts.append(counted) or choose(*counted)
            )
            assert learn_and_get_start(model, ["red", "blue"], start=20).effort.startswith(f"{expected} images")
    assert counts == [(5, 1), (10, 2)], "images and classes"


def test_method_can_have_the_images_of_a_lesson_with_another_crop(backbone: Path) -> None:
    model = make_model(backbone)
    model.learn(squares(["red", "green"]))
    samples, pipeline = read_source(squares(["red", "green"], start=50)), InputPipeline(model.backbone, model.device)
    batches = model._eval_batches(samples, pipeline)
    for share, own in ((None, batches), (0.5, batches.crop(0.5))):
        options = model.method.options if share is None else model.method.options.model_copy(update={"test_crop": share})
        expected = torch.cat([images for images, _ in pipeline.eval_batches(samples, [0] * len(samples), options)])
        assert torch.equal(torch.cat([images for images, _ in own]), expected)


def test_selected_crop_is_used_everywhere(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole images are selected; predictions, evaluations and explanations read them, also after loading."""
    monkeypatch.setattr("caprompt.methods.caprompt.classifier.SMALL_SHARE", 10.0)
    model = ContinualClassifier("caprompt", backbone, **quick_options("caprompt"))  # type: ignore[arg-type]
    model.learn(squares(["red", "green"]))
    model.save(tmp_path / "model")
    loaded, size = ContinualClassifier.load(tmp_path / "model"), model.backbone.config.image_size
    sizes: list[int | None] = []
    make_transform = InputPipeline.make_eval_transform

    def record(pipeline: InputPipeline, options: Options) -> EvalTransform:
        transform = make_transform(pipeline, options)
        sizes.append(transform.resize)
        return transform

    monkeypatch.setattr(InputPipeline, "make_eval_transform", record)
    for each in (model, loaded):
        each.predict(squares(["red"])[0])
        each.evaluate(squares(["red", "green"], start=20))
        each.explain(squares(["red"])[0][0], copies=32)
    assert len(sizes) >= 6
    assert set(sizes) == {size}
    loaded.learn(squares(["blue"]))
    assert set(sizes) == {size, round(size / 0.8)}, "and a narrower crop in lessons"


def test_few_images_of_known_classes_are_cropped_like_those_of_new_ones(backbone: Path) -> None:
    options = {**quick_options("caprompt"), "ridge_strength": 0.1}
    model = ContinualClassifier("caprompt", backbone, **options)  # type: ignore[arg-type]
    counts = []
    for start in (0, 50):
        model.learn(squares(["red", "green"], start=start))
        counts.append(int(model.method.ridge.ridge.count))
    assert counts == [10 * 12, 20 * 12], "two passes over six views of each image"


def test_images_that_cannot_be_hashed_end_a_lesson_early(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are hashed while the lesson is trained; the first event after that ends it, and the model is as before."""

    def fail(image: object) -> bytes:
        raise DataError("the disk is gone")

    model, events = make_model(backbone, epochs=50), list[Event]()
    monkeypatch.setattr("caprompt.data.samples.hash_image", fail)
    with pytest.raises(DataError, match="the disk is gone"):
        model.learn(squares(["red", "green"]), callbacks=events.append)
    assert model.classes == []
    assert sum(isinstance(event, EpochEnded) for event in events) < 50


def test_batches_have_the_chosen_size(backbone: Path) -> None:
    sizes: list[int] = []

    def record(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 0:
            sizes.append(event.images)

    ContinualClassifier(backbone=backbone, length=4, projections=40).learn(squares(["red", "green"], each=10), callbacks=record)
    assert sizes == [16, 4]


def test_effort_of_given_options_is_not_explained(backbone: Path) -> None:
    assert learn_and_get_start(make_model(backbone, learning_rate=0.01), ["red", "green"]).effort == ""
    assert learn_and_get_start(ContinualClassifier("linear", backbone, epochs=1), ["red", "green"]).effort == ""
    assert learn_and_get_start(ContinualClassifier("ncm", backbone, epochs="auto"), ["red", "green"]).effort == "", "not trained"


def test_effort_has_the_epochs_of_the_task(backbone: Path) -> None:
    """SSIAT trains later tasks for a fraction of the epochs."""
    model = ContinualClassifier("ssiat", backbone, **{**quick_options("ssiat"), "epochs": "auto", "later_share": 0.5})  # type: ignore[arg-type]
    assert "so 20 epochs" in learn_and_get_start(model, ["red", "green"]).effort
    assert "so 10 epochs" in learn_and_get_start(model, ["blue"]).effort


def test_method_without_training_reports_no_step(backbone: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=tmp_path, callbacks=events.append)
    kinds = [type(event) for event in events if not isinstance(event, ImagesChecked)]
    assert kinds == [LearnStarted, Consolidating, LearnEnded]
    assert next(event for event in events if isinstance(event, LearnStarted)).epochs == 0
    assert model.history == []
    loaded = ContinualClassifier.load(tmp_path)
    assert loaded.evaluate(squares(["red", "green"], start=30)).accuracy == 100


def test_failed_call_changes_nothing(backbone: Path, tmp_path: Path) -> None:
    model = make_model(backbone)
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
    model = make_model(backbone, epochs=3)

    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=stop)
    with pytest.raises(ModelFolderError, match="continue it with resume=True"):
        ContinualClassifier.load(tmp_path / "m")
    resumed = ContinualClassifier.load_stopped(tmp_path / "m")
    assert resumed is not None
    with pytest.raises(InputError, match="not those of the call that was stopped"):
        resumed.learn(squares(["blue"], start=9), checkpoint_dir=tmp_path / "m", resume=True)
    resumed.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    uninterrupted = make_model(backbone, epochs=3)
    uninterrupted.learn(squares(["blue"]))
    assert equal_tensors(resumed.method.state(), uninterrupted.method.state())
    assert not (tmp_path / "m" / "in-progress").exists()
    assert [record["epoch"] for record in resumed.history] == [0, 1, 2]


def test_loaded_model_equals_the_saved_one(backbone: Path, tmp_path: Path) -> None:
    model = make_model(backbone, seed=7)
    model.learn(squares(["red", "green"]))
    model.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m")
    assert repr(loaded) == repr(model) == "ContinualClassifier('caprompt', backbone='tiny', 2 classes in 1 tasks)"
    assert (loaded.seed, loaded.num_calls, loaded.history) == (7, 1, model.history)
    assert loaded.method.options == model.method.options
    assert loaded.predict_one(square("red", 5)) == model.predict_one(square("red", 5))


def test_backbone_is_identified_by_its_hash(tmp_path: Path) -> None:
    file = write_backbone(tmp_path / "net.safetensors")
    model = make_model(file)
    model.learn(squares(["red", "green"]))
    model.save(tmp_path / "m")
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ModelFolderError, match="no longer at"):
        ContinualClassifier.load(tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m", backbone=moved).classes == ["green", "red"]
    other = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=9))
    with pytest.raises(ModelFolderError, match="hash differs"):
        ContinualClassifier.load(tmp_path / "m", backbone=other)


def test_model_saved_by_another_process_meanwhile_is_not_overwritten(backbone: Path, tmp_path: Path) -> None:
    """Two models learn into one folder: the second one gets an error before it trains, and the result of the first one stays."""
    model, trained = make_model(backbone), False
    model.learn(squares(["red"]), checkpoint_dir=tmp_path / "m")
    other = ContinualClassifier.load(tmp_path / "m")

    def learn_elsewhere(event: Event) -> None:
        nonlocal trained
        if isinstance(event, LearnEnded):
            trained = True
            with pytest.raises(ModelFolderError, match=f"being changed by another call .process {os.getpid()}"):
                other.learn(squares(["cyan"]), checkpoint_dir=tmp_path / "m")
            with pytest.raises(ModelFolderError, match="being changed by another call"):
                other.save(tmp_path / "m")

    model.learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=learn_elsewhere)
    assert trained
    assert ContinualClassifier.load(tmp_path / "m").classes == ["red", "blue"]
    with pytest.raises(ModelFolderError, match="is not the one that is learning"):
        other.learn(squares(["cyan"]), checkpoint_dir=tmp_path / "m")  # it is of the version before
    with pytest.raises(ModelFolderError, match="is not the one that is learning"):
        make_model(backbone).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m")


def test_resuming_with_other_settings_is_refused(backbone: Path, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model(backbone).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", callbacks=stop)
    with pytest.raises(InputError, match=r"other settings \(seed\)"):
        make_model(backbone, seed=4).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    other = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=9))
    with pytest.raises(InputError, match="had another backbone"):
        make_model(other).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)
    with pytest.raises(InputError, match=r"other settings \(options\)"):
        make_model(backbone, modulation=0.5).learn(squares(["blue"]), checkpoint_dir=tmp_path / "m", resume=True)


def test_infinite_loss_is_an_error(backbone: Path) -> None:
    model = make_model(backbone, learning_rate=1000, optimizer="sgd", weight_decay=1000, clip=0)
    with pytest.raises(CapromptError, match="no longer finite after epoch 2; lower learning_rate"):
        model.learn(squares(["red", "blue"]))
    assert model.classes == []


def test_errors_of_invalid_calls(backbone: Path, tmp_path: Path) -> None:
    model = make_model(backbone)
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
def test_learning_in_three_processes_is_bit_equal_to_one(tmp_path: Path, backbone: Path) -> None:
    """Learn, save, load in a new process, learn again: the same bits as in one process."""
    weeks = [["red"], ["green", "blue", "yellow"], ["cyan", "red"]]
    for number, colors in enumerate(weeks):
        write_squares(tmp_path / f"week{number}", colors, start=10 * number)
    script = (
        "import sys; from caprompt import ContinualClassifier as C; from pathlib import Path\n"
        "folder, backbone, *weeks = sys.argv[1:]\n"
        f"model = C.load(folder) if Path(folder).exists() else C(backbone=backbone, **{QUICK})\n"
        "for week in weeks: model.learn(week)\n"
        "model.save(folder)\n"
    )
    sources = [str(tmp_path / f"week{number}") for number in range(3)]
    for folder, processes in (("one", [sources]), ("three", [[source] for source in sources])):
        for own_sources in processes:
            subprocess.run([sys.executable, "-c", script, str(tmp_path / folder), str(backbone), *own_sources], check=True)
    assert (tmp_path / "one" / "state.safetensors").read_bytes() == (tmp_path / "three" / "state.safetensors").read_bytes()
    assert (tmp_path / "one" / "classes.json").read_bytes() == (tmp_path / "three" / "classes.json").read_bytes()


# -- two writers, other models, links and full disks -------------------------------------------------------------------

LEARN = """
import sys, time
from caprompt import ContinualClassifier
from caprompt.errors import CapromptError
model = ContinualClassifier.load(sys.argv[1])
print("loaded", flush=True)
sys.stdin.readline()
try:
    model.learn(sys.argv[2], checkpoint_dir=sys.argv[1])
    print("learned", flush=True)
except CapromptError as error:
    print(error, flush=True)
"""


def make_untrained(backbone: Path) -> ContinualClassifier:
    """Return a model of a method that does not train."""
    return ContinualClassifier("ncm", backbone)


@pytest.mark.parametrize("name", [".ready", "in-progress", "versions"])
def test_link_in_a_received_folder_is_never_followed(backbone: Path, tmp_path: Path, name: str) -> None:
    folder, victim = tmp_path / "m", tmp_path / "victim"
    model = make_untrained(backbone)
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    shutil.copytree(folder, victim)
    (victim / "precious.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    (folder / name).symlink_to(victim)
    for change in (
        lambda: model.learn(squares(["blue"]), checkpoint_dir=folder),
        lambda: model.save(folder),
        lambda: editing.rename(folder, "red", "crimson"),
        lambda: editing.undo(folder),
    ):
        with pytest.raises(InputError, match="symbolic link"):
            change()
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before
    assert (folder / name).is_symlink()


def test_another_model_with_as_many_calls_is_not_overwritten(backbone: Path, tmp_path: Path) -> None:
    first, second = make_untrained(backbone), make_untrained(backbone)
    first.learn(squares(["red"]), checkpoint_dir=tmp_path / "first")
    second.learn(squares(["green"]), checkpoint_dir=tmp_path / "second")
    with pytest.raises(ModelFolderError, match="is not the one that is learning"):
        second.learn(squares(["blue"]), checkpoint_dir=tmp_path / "first")
    assert ContinualClassifier.load(tmp_path / "first").classes == ["red"]


def test_lack_of_space_is_found_before_training(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(ModelFolderError, match=r"about \d+ MB are needed in '.*m', but 0 MB are free"):
        make_model(backbone).learn(squares(["red"]), checkpoint_dir=tmp_path / "m", callbacks=events.append)
    assert not any(isinstance(event, LearnStarted) for event in events)
    assert not (tmp_path / "m").exists()


def test_checkpoint_that_cannot_be_removed_is_no_error(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is saved by then, and the checkpoint of a call that has ended is ignored."""
    folder = tmp_path / "m"

    def fail(path: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system")

    model = make_model(backbone)
    model.learn(squares(["red"]), checkpoint_dir=folder)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        model.learn(squares(["green"]), checkpoint_dir=folder)
    assert ContinualClassifier.load(folder).classes == ["red", "green"]
    assert not has_stopped_call(folder)


def test_images_that_were_learned_are_left_out(backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    model = make_untrained(backbone)
    model.learn(write_squares(tmp_path / "photos", ["red", "green"]), checkpoint_dir=folder)
    with pytest.raises(InputError, match="all 10 images were learned before; learn them once more with again=True"):
        model.learn(tmp_path / "photos", checkpoint_dir=folder)
    write_squares(tmp_path / "photos", ["red"], each=2, start=40)
    learned = ContinualClassifier.load(folder).learn(tmp_path / "photos", checkpoint_dir=folder)
    assert len(learned) == 2
    assert learned.skipped == ("10 image(s) that were learned before were left out; learn them once more with again=True",)
    model = ContinualClassifier.load(folder)
    assert model.images_seen == {"green": 5, "red": 7}
    model.learn(tmp_path / "photos", again=True)
    assert model.images_seen == {"green": 10, "red": 14}


def test_resuming_needs_checkpoints(backbone: Path) -> None:
    with pytest.raises(InputError, match="give checkpoint_dir as well"):
        make_untrained(backbone).learn(squares(["red"]), resume=True)


@pytest.mark.slow
def test_two_processes_that_learn_at_once_lose_nothing(backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    make_model(backbone).learn(squares(["red", "green"]), checkpoint_dir=folder)
    processes = []
    for color in ("blue", "yellow"):
        photos = write_squares(tmp_path / color, [color])
        words = [sys.executable, "-c", LEARN, str(folder), str(photos)]
        processes.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]
    winners = [color for color, answer in zip(("blue", "yellow"), answers, strict=True) if answer == "learned"]
    assert len(winners) == 1, answers
    refusal = next(answer for answer in answers if answer != "learned")
    assert "being changed by another call" in refusal or "is not the one that is learning" in refusal
    assert ContinualClassifier.load(folder).classes == ["green", "red", *winners]


# -- calibration -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["caprompt", "ridge"])
def test_every_lesson_calibrates_and_the_fit_is_saved(backbone: Path, tmp_path: Path, method: str) -> None:
    model = ContinualClassifier(method, backbone, **quick_options(method))  # type: ignore[arg-type]
    fits = []
    for colors in (["red", "green"], ["blue"], ["yellow", "cyan"]):
        model.learn(squares(colors))
        fits.append(model.calibration)
    assert all(fit.images >= 8 for fit in fits)
    assert len(set(fits)) == 3
    images, _ = squares(["red", "cyan", "white"], 3, 50)
    before = [each.as_dict() for each in model.predict(images, coverage=0.9)]
    model.save(tmp_path / "m")
    loaded = ContinualClassifier.load(tmp_path / "m")
    assert [each.as_dict() for each in loaded.predict(images, coverage=0.9)] == before
    for each in (model, loaded):
        each.learn(squares(["black"]))
    assert loaded.calibration.factor == model.calibration.factor
    assert loaded.calibration.background == model.calibration.background


def test_failed_lesson_leaves_the_calibration(backbone: Path) -> None:
    model = make_model(backbone)
    model.learn(squares(["red", "green"]))
    before = model.calibration

    def fail(event: Event) -> None:
        if isinstance(event, LearnEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["blue"]), callbacks=fail)
    assert model.calibration == before
    assert len(model.evidence) == 1


def test_sets_hold_the_classes_whose_probabilities_add_up(backbone: Path) -> None:
    model = make_model(backbone)
    model.learn(squares(["red", "green", "blue"]))
    for each in model.predict(squares(["red", "cyan"], 4, 50)[0], top=3, coverage=0.9):
        total = sum(score.score for score in each.top[: len(each.prediction_set)])
        assert [score.label for score in each.top[: len(each.prediction_set)]] == list(each.prediction_set)
        assert total >= 0.9 - 1e-6
        assert total - each.top[len(each.prediction_set) - 1].score < 0.9


def test_unfitted_models_promise_nothing_until_they_are_calibrated(backbone: Path) -> None:
    model = make_untrained(backbone)
    model.learn(make_faint_images(range(3), 6, seed=0))
    images, labels = make_faint_images(range(3), 6, seed=1)
    assert not any(each.unknown for each in model.predict(images))
    with pytest.raises(InputError, match="is not calibrated"):
        model.predict(images, coverage=0.9)
    with pytest.raises(OptionError, match="false_alarms must be between 0 and 1"):
        model.predict(images, false_alarms=1.5)
    with pytest.raises(InputError, match="8 images at least"):
        model.calibrate((images[:3], labels[:3]))
    fitted = model.calibrate((images, labels))
    assert fitted.images == 18
    assert model.lessons[-1]["kind"] == "calibrate"
    assert all(each.prediction_set for each in model.predict(images, coverage=0.9))
    flagged = [each.unknown for each in model.predict(images, false_alarms=0.5)]
    assert 6 <= sum(flagged) <= 12


@pytest.mark.parametrize("fails", [False, True])
def test_long_trainings_are_compiled_and_nothing_else(backbone: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    events: list[str] = []
    monkeypatch.setattr(ViT, "set_compiled", lambda self, enabled: events.append("compiled" if enabled else "plain"))
    monkeypatch.setattr(trainer, "is_worth_compiling", lambda num_images, device: num_images == 2 * 6)

    def record(method: Method, *arguments: object, **options: object) -> None:
        events.append("fit")
        if fails:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "fit", record)
    model = make_model(backbone, epochs=2)
    events.clear()
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        model.learn(squares(["red", "blue"], each=3))
    assert events[:3] == ["compiled", "fit", "plain"]
    make_model(backbone, compile=True)
    assert events[-1] == "compiled"


@pytest.mark.parametrize(("method", "layers"), [("ease", {}), ("hide-prompt", {}), ("caprompt", {"layers": [0]})])
def test_blocks_without_a_prompt_are_not_compiled(
    backbone: Path, monkeypatch: pytest.MonkeyPatch, method: str, layers: dict[str, object]
) -> None:
    """On a GPU their compiled attention was wrong."""
    compiled: list[bool] = []
    monkeypatch.setattr(ViT, "set_compiled", lambda self, enabled: compiled.append(enabled))
    monkeypatch.setattr(trainer, "is_worth_compiling", lambda num_images, device: True)
    options = {**quick_options(method), **layers}
    ContinualClassifier(method, backbone, **options).learn(squares(["red", "blue"]))  # type: ignore[arg-type]
    with pytest.warns(CapromptWarning, match="'compile' has no effect"):
        ContinualClassifier(method, backbone, compile=True, **options).learn(squares(["red", "blue"]))  # type: ignore[arg-type]
    assert compiled
    assert not any(compiled)
