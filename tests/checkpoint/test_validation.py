from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers import QUICK, quick_options, squares
from mutations import DTYPES, is_refused, mutate_model, write_hashed
from safetensors.torch import load_file, save_file

from caprompt import ContinualClassifier
from caprompt.checkpoint import folder as folder_module
from caprompt.checkpoint import model as model_module
from caprompt.classifier.info import read_info
from caprompt.errors import CapromptError, ModelFolderError

SEED = 20261116


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A model of two tasks, with lessons, a calibration and records. Read-only."""
    return train(tmp_path_factory.mktemp("trained") / "m", backbone, "caprompt", QUICK)


def train(folder: Path, backbone: Path, method: str, options: dict[str, Any]) -> Path:
    model = ContinualClassifier(method, backbone, device="cpu", **options)
    model.learn(squares(["red", "green"]), checkpoint_dir=folder)
    model.learn(squares(["blue"]), checkpoint_dir=folder)
    return folder


@pytest.fixture
def model_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a model, to be damaged."""
    monkeypatch.setattr(folder_module, "MAX_READS", 1)
    return Path(shutil.copytree(trained, tmp_path / "m"))


def load(folder: Path) -> ContinualClassifier:
    return ContinualClassifier.load(folder, device="cpu")


def change_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    write_hashed(folder, config)


def change_classes(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    classes = json.loads((folder / "classes.json").read_text())
    change(classes)
    (folder / "classes.json").write_text(json.dumps(classes))
    change_config(folder, lambda config: None)


def change_tensors(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)
    change_config(folder, lambda config: None)


def test_unchanged_copy_with_new_hashes_loads(model_folder: Path) -> None:
    change_classes(model_folder, lambda classes: None)
    assert load(model_folder).classes == ["green", "red", "blue"]


@pytest.mark.parametrize("sizes", [[10**11, 1], [-1, 4], [2, 2], [3], [2, 1, 0, 10**9], [2.0, 1], "21", None, [0] * 10**6])
def test_forged_task_sizes_are_refused_before_anything_is_allocated(model_folder: Path, sizes: object) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    change_config(model_folder, lambda config: config.update(task_sizes=sizes))
    with pytest.raises(ModelFolderError, match="is damaged"):
        load(model_folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def test_many_classes_without_their_rows_are_refused_before_anything_is_allocated(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of `classes.json` and `config.json` fit together, but not to the state."""
    monkeypatch.setattr(model_module, "SPARE_BYTES", 0)  # the rows of a tiny backbone are small
    count = 10**4
    change_classes(model_folder, lambda classes: classes.extend({"name": f"c{i}", "task": 3, "images": 1} for i in range(count)))
    change_config(model_folder, lambda config: config.update(task_sizes=[2, 1, count]))
    change_tensors(model_folder, "state.safetensors", lambda tensors: tensors.update({"method.x": torch.zeros(count)}))
    with pytest.raises(ModelFolderError, match=r"10003 classes in 3 tasks need .* bytes"):
        load(model_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda classes: classes.pop(), "it has 2 classes, but the tasks have 3"),
        (lambda classes: classes[0].update(name="a/b"), "cannot be a class name: it contains '/'"),
        (lambda classes: classes[0].update(name=""), "cannot be a class name"),
        (lambda classes: classes[0].update(name=7), "'0.name'"),
        (lambda classes: classes[0].update(task=2), "is of task 2, but should be of task 1"),
        (lambda classes: classes[0].update(task=0), "'0.task'"),
        (lambda classes: classes[0].update(images=-1), "'0.images'"),
        (lambda classes: classes[0].update(type="int"), "'green' is not an integer"),
        (lambda classes: classes[0].pop("images"), "'0.images': field required"),
    ],
)
def test_classes_are_checked(model_folder: Path, change: Callable[[list[dict[str, Any]]], object], message: str) -> None:
    change_classes(model_folder, change)
    with pytest.raises(ModelFolderError, match=r"^classes\.json of .* is damaged") as error:
        load(model_folder)
    assert message in str(error.value)


def test_tensors_that_would_replace_the_backbone_are_refused(model_folder: Path) -> None:
    vit = load(model_folder).method.vit.state_dict()
    poisoned = {f"method.vit.{name}": torch.zeros_like(tensor) for name, tensor in vit.items()}
    change_tensors(model_folder, "state.safetensors", lambda tensors: tensors.update(poisoned))
    with pytest.raises(ModelFolderError, match=r"its tensor 'method\.vit\..*' is not part of the state of a method"):
        load(model_folder)


def test_states_of_another_shape_or_kind_are_refused(model_folder: Path) -> None:
    original = (model_folder / "state.safetensors").read_bytes()
    name = next(name for name, tensor in load_file(model_folder / "state.safetensors").items() if tensor.ndim == 2)
    for change in (
        lambda tensors: tensors.pop(name),
        lambda tensors: tensors.update({name: tensors[name].T.contiguous()[:-1]}),
        lambda tensors: tensors.update({name: tensors[name].to(DTYPES[-1])}),  # complex
        lambda tensors: tensors.update({name: tensors[name].to(torch.int64)}),
        lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}),
        lambda tensors: tensors.update({"other": torch.zeros(3)}),
    ):
        (model_folder / "state.safetensors").write_bytes(original)
        change_tensors(model_folder, "state.safetensors", change)
        with pytest.raises(ModelFolderError, match=r"is damaged .*restore the folder from a backup$"):
            load(model_folder)


def test_records_of_images_of_no_class_are_refused(model_folder: Path) -> None:
    change_tensors(model_folder, "records.safetensors", lambda tensors: tensors["outputs"].fill_(99))
    with pytest.raises(ModelFolderError, match="its 'outputs' are not outputs of the model"):
        load(model_folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_states_that_are_not_finite_are_refused(model_folder: Path, value: float) -> None:
    name = next(name for name, tensor in load_file(model_folder / "state.safetensors").items() if tensor.is_floating_point())
    change_tensors(model_folder, "state.safetensors", lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    with pytest.raises(ModelFolderError, match=r"^state\.safetensors of .* has values that are not finite"):
        load(model_folder)


def test_state_that_predictions_need_cannot_be_declared_removed(model_folder: Path) -> None:
    """It would be replaced by values that nobody has learned, without a word."""
    state = load(model_folder).method
    needed = sorted(set(state.state()) - set(state.list_learning_state()))[0]
    change_tensors(model_folder, "state.safetensors", lambda tensors: tensors.pop(f"method.{needed}"))
    change_config(model_folder, lambda config: config.update(removed=[needed]))
    with pytest.raises(ModelFolderError, match=rf"it is without '{needed}', which is not only for learning"):
        load(model_folder)


@pytest.mark.parametrize("removed", [["x"] * 10_001, ["two\nlines"], [""], ["x" * 201]])
def test_lists_of_removed_state_are_limited(model_folder: Path, removed: list[str]) -> None:
    change_config(model_folder, lambda config: config.update(removed=removed))
    with pytest.raises(ModelFolderError, match=r"^config\.json of .* is damaged \('removed"):
        load(model_folder)


def test_scores_that_overflow_are_an_error(model_folder: Path) -> None:
    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.fill_(3e38)

    change_tensors(model_folder, "state.safetensors", enlarge)
    with pytest.raises(CapromptError, match="the scores of this model are not finite; undo its last lesson"):
        load(model_folder).predict(squares(["red"], each=1)[0])


def test_files_outside_the_folder_are_refused(model_folder: Path) -> None:
    change_config(model_folder, lambda config: config["files"].update({"../secret": "0" * 64}))
    with pytest.raises(ModelFolderError, match="lists other files"):
        load(model_folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 1e999}', '{"format": ' + "9" * 5000 + "}", "\ud800"])
def test_documents_that_are_no_config(model_folder: Path, text: str) -> None:
    (model_folder / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ModelFolderError, match="is damaged"):
        load(model_folder)


def try_mutations(original: Path, folder: Path, seed: int, count: int) -> int:
    """Damage copies of a model; loading and predicting must succeed or raise one sentence. Return how many were refused."""
    images, refused = squares(["red"], each=1)[0], 0
    for number in range(count):
        rng = Random(f"{seed}-{number}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("versions"))
        case = f"seed {seed}, case {number}: {mutate_model(folder, rng)}"
        refused += is_refused(lambda: load(folder).predict(images), case)
        is_refused(lambda: read_info(folder), case)
    return refused


def test_altered_models_load_or_are_refused_with_one_sentence(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MAX_READS", 1)
    assert try_mutations(trained, tmp_path / "m", SEED, 200) > 100


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ncm", "ridge", "l2p", "convprompt", "ease", "finetune", "hide-prompt", "tuna"])
def test_altered_models_of_other_methods(method: str, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_READS", 1)
    trained = train(tmp_path / "trained", backbone, method, quick_options(method))
    assert try_mutations(trained, tmp_path / "m", SEED, 200) > 80
