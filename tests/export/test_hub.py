"""Models are published on a hub that runs on this machine, copied from it, and loaded."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from export.local_hub import TOKEN, LocalHub, start_hub, use_endpoint
from helpers import (
    assert_refused,
    caprompt_in_process,
    equal_tensors,
    extract_both_passes,
    quick_options,
    read_tree,
    square,
    squares,
    write_backbone,
    write_squares,
)
from huggingface_hub import constants
from safetensors.torch import load as load_tensors

from caprompt import ContinualClassifier, checkpoint
from caprompt.backbones.vit import ViT
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.checkpoint.hub import FILES
from caprompt.data.sources import read_source
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import CapromptError, InputError, ModelFolderError
from caprompt.export.hub import CONFIGURATION, LESSONS, prepare_publication, pull_model, push_model
from caprompt.methods import list_methods
from caprompt.methods.components.ridge import RidgeHead
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.inflora import ProtectedSubspaces

PREDICTS_WITH_MEANS = {"ease", "mos", "ncm"}  # their predictions are cosines with class means
LEARNS_ON = {"coda-prompt", "cprompt", "dualprompt", "finetune", "l2p", "linear", "sequential-prompt"}  # have no statistics
TEST_IMAGES = squares(("red", "green", "blue"), each=4, start=700)[0]


@pytest.fixture(scope="module")
def running_hub() -> Iterator[LocalHub]:
    with start_hub() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """Return an empty hub that `huggingface_hub` talks to, with an empty cache."""
    use_endpoint(running_hub.endpoint, tmp_path, monkeypatch)
    for content in (running_hub.repositories, running_hub.private, running_hub.large_files, running_hub.downloads):
        content.clear()
    return running_hub


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """Return the folder of a model of caprompt that has learned two tasks; one class has one image, seen once in each pass."""
    folder = tmp_path_factory.mktemp("models") / "pets"
    model = ContinualClassifier(backbone=backbone, device="cpu", mirror=False, crops=False, **quick_options("caprompt"))  # type: ignore[arg-type]
    model.learn(squares(("red", "green")), checkpoint_dir=folder)
    model.learn(([square("blue", 1)], ["blue"]), checkpoint_dir=folder)
    return folder


def predict(model: ContinualClassifier) -> list[dict[str, Any]]:
    return [prediction.as_dict() for prediction in model.predict(TEST_IMAGES, top=9)]


# -- round trips ---------------------------------------------------------------------------------------


def test_published_model_is_copied_and_predicts_the_same_bits(hub: LocalHub, trained: Path, backbone: Path, tmp_path: Path) -> None:
    pushed = push_model(trained, "me/pets")
    assert not pushed.can_learn
    assert pushed.revision == hub.repositories["me/pets"][-1][0]
    download = pull_model("me/pets", tmp_path / "copy")
    assert download.revision == pushed.revision
    assert json.loads((tmp_path / "copy" / "hub.json").read_text()) == {"repository": "me/pets", "revision": pushed.revision}
    original = ContinualClassifier.load(trained, device="cpu")
    for source in (tmp_path / "copy", "hf:me/pets", f"hf:me/pets@{pushed.revision}"):
        model = ContinualClassifier.load(source, backbone=backbone, device="cpu")
        assert predict(model) == predict(original)
        assert (model.classes, model.tasks, model.images_seen) == (original.classes, original.tasks, original.images_seen)


def test_model_without_sums_refuses_to_learn_also_after_it_was_saved(
    hub: LocalHub, trained: Path, backbone: Path, tmp_path: Path
) -> None:
    push_model(trained, "me/pets")
    model = ContinualClassifier.load("hf:me/pets", backbone=backbone, device="cpu")
    before = predict(model)
    with pytest.raises(InputError, match=r"can only predict; .* with_sums=True"):
        model.learn(squares(("cyan",)))
    with pytest.raises(InputError, match="can only predict"):
        model.forget("red", approximate=True)
    model.save(tmp_path / "again")
    model = ContinualClassifier.load(tmp_path / "again", device="cpu")
    with pytest.raises(InputError, match="can only predict"):
        model.learn(squares(("cyan",)), checkpoint_dir=tmp_path / "again")
    assert predict(model) == before
    push_model(tmp_path / "again", "me/second")
    assert set(load_tensors(hub.get_files("me/second")["state.safetensors"])) == set(
        load_tensors(hub.get_files("me/pets")["state.safetensors"])
    )


def test_model_with_sums_learns_on_like_the_original(hub: LocalHub, trained: Path, backbone: Path, tmp_path: Path) -> None:
    assert push_model(trained, "me/pets", with_sums=True).can_learn
    pull_model("me/pets", tmp_path / "copy")
    copy = ContinualClassifier.load(tmp_path / "copy", backbone=backbone, device="cpu")
    original = ContinualClassifier.load(trained, device="cpu")
    for model in (copy, original):
        model.learn(squares(("cyan", "purple")))
    assert equal_tensors(copy.method.state(), original.method.state())
    assert predict(copy) == predict(original)


def test_packaged_backbone_is_found_by_name(hub: LocalHub, tmp_path: Path) -> None:
    model = ContinualClassifier("ranpac", projections=50, adapt_first=False, device="cpu")
    model.learn(squares(("red", "green")), checkpoint_dir=tmp_path / "m")
    push_model(tmp_path / "m", "me/m")
    assert json.loads(hub.get_files("me/m")["config.json"])["backbone"]["path"] == ""
    loaded = ContinualClassifier.load("hf:me/m", device="cpu")
    assert loaded.backbone.name == DEFAULT_BACKBONE
    assert predict(loaded) == predict(model)


@pytest.mark.slow
def test_named_backbone_is_found_by_name(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The architecture of DeiT-Ti with random weights stands for its published weights."""
    from caprompt.backbones.registry import MODELS

    name = "deit_tiny_patch16_224.fb_in1k"
    monkeypatch.setenv("CAPROMPT_BACKBONES", str(tmp_path))
    torch.manual_seed(0)
    weights = write_backbone(tmp_path / f"{name}.safetensors", ViT(MODELS[name].config))
    model = ContinualClassifier("linear", name, device="cpu", epochs=1)
    model.learn(squares(("red", "green"), each=2), checkpoint_dir=tmp_path / "m")
    push_model(tmp_path / "m", "me/m")
    assert predict(ContinualClassifier.load("hf:me/m", device="cpu")) == predict(model)
    weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(InputError, match=f"weights of '{name}'"):
        ContinualClassifier.load("hf:me/m", device="cpu")


def test_other_backbone_has_to_be_given(hub: LocalHub, trained: Path) -> None:
    push_model(trained, "me/pets")
    with pytest.raises(
        ModelFolderError, match=r"'hf:me/pets' needs the backbone 'tiny' \(SHA-256 \w{16}\.\.\.\).* with backbone=\.\.\."
    ):
        ContinualClassifier.load("hf:me/pets")


def test_revisions_are_pinned(hub: LocalHub, trained: Path, backbone: Path, tmp_path: Path) -> None:
    first = push_model(trained, "me/pets").revision
    model = ContinualClassifier.load(trained, device="cpu")
    model.learn(squares(("cyan",)), checkpoint_dir=tmp_path / "more")
    second = push_model(tmp_path / "more", "me/pets").revision
    assert first != second
    assert pull_model("me/pets", tmp_path / "new").revision == second
    assert pull_model("me/pets", tmp_path / "old", first).revision == first
    assert len(ContinualClassifier.load("hf:me/pets", backbone=backbone, device="cpu").classes) == 4
    old = ContinualClassifier.load(f"hf:me/pets@{first}", backbone=backbone, device="cpu")
    assert predict(old) == predict(ContinualClassifier.load(trained, device="cpu"))


def test_commit_that_was_downloaded_before_needs_no_network(
    hub: LocalHub, trained: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = push_model(trained, "me/pets").revision
    before = predict(ContinualClassifier.load("hf:me/pets", backbone=backbone, device="cpu"))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{find_free_port()}")
    assert predict(ContinualClassifier.load(f"hf:me/pets@{revision}", backbone=backbone, device="cpu")) == before
    with pytest.raises(InputError, match=r"cannot be reached for 'me/pets'; .*hf:me/pets@HASH"):
        ContinualClassifier.load("hf:me/pets", backbone=backbone, device="cpu")


# -- what leaves the machine ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_methods())
def test_predictions_stay_and_statistics_go(name: str, backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier(name, backbone, device="cpu", **quick_options(name))  # type: ignore[arg-type]
    for task in (("red", "green"), ("blue",)):
        model.learn(squares(task), checkpoint_dir=tmp_path / "m")
    saved = checkpoint.read(tmp_path / "m")
    statistics = collect_statistics(model)
    if name in PREDICTS_WITH_MEANS:
        with pytest.raises(InputError, match=rf"'{name}' predicts with statistics .* with_sums=True"):
            prepare_publication(model, saved)
        published = prepare_publication(model, saved, with_sums=True)
        assert set(published.disclosure.statistics) == set(statistics)
    else:
        published = prepare_publication(model, saved)
        assert published.disclosure.statistics == ()
        assert_not_among(statistics, published.saved.tensors)
    assert bool(statistics) == (name not in LEARNS_ON)
    checkpoint.write(tmp_path / "published", published.saved)
    loaded = ContinualClassifier.load(tmp_path / "published", backbone=backbone, device="cpu")
    assert predict(loaded) == predict(model)
    if name in LEARNS_ON | PREDICTS_WITH_MEANS:
        for each in (model, loaded):
            each.learn(squares(("cyan",)))
        assert equal_tensors(model.method.state(), loaded.method.state())
    else:
        with pytest.raises(InputError, match="can only predict"):
            loaded.learn(squares(("cyan",)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list_methods())
def test_variants_predict_the_same_without_statistics(name: str, backbone: Path, tmp_path: Path) -> None:
    for variant in list_methods()[name].check_variants:
        if name in PREDICTS_WITH_MEANS:
            continue
        model = ContinualClassifier(name, backbone, device="cpu", **{**quick_options(name), **variant})  # type: ignore[arg-type]
        for task in (("red", "green"), ("blue",)):
            model.learn(squares(task, each=3))
        model.save(tmp_path / "m")
        published = prepare_publication(model, checkpoint.read(tmp_path / "m"))
        assert_not_among(collect_statistics(model), published.saved.tensors)
        checkpoint.write(tmp_path / "published", published.saved)
        assert predict(ContinualClassifier.load(tmp_path / "published", backbone=backbone, device="cpu")) == predict(model)


def collect_statistics(model: ContinualClassifier) -> dict[str, torch.Tensor]:
    """Return the state that holds sums, means, covariances or principal directions, by the type of the module that holds it."""
    names = {name for name, module in model.method.named_modules() if isinstance(module, (Statistics, ProtectedSubspaces))}
    ridges = {name for name, module in model.method.named_modules() if isinstance(module, RidgeHead)}
    others = {"importance_down", "importance_up"} if model.method.name == "evoprompt" else set()
    others |= {"down"} if model.method.name == "inflora" else set()
    return {
        name: tensor
        for name, tensor in model.method.state().items()
        if name.rpartition(".")[0] in names or name in {f"{ridge}.{part}" for ridge in ridges for part in ("gram", "sums")} | others
    }


def assert_not_among(statistics: dict[str, torch.Tensor], published: Any) -> None:
    """Check that no published tensor has the name or the values of a statistic, or a row that is parallel to one of its rows."""
    assert not {f"method.{name}" for name in statistics} & set(published)
    for name, statistic in statistics.items():
        if statistic.dim() < 2 or not statistic.is_floating_point():
            continue
        rows = torch.nn.functional.normalize(statistic.flatten(0, -2).double(), dim=1)
        for other, tensor in published.items():
            if tensor.dim() >= 2 and tensor.shape[-1] == statistic.shape[-1] and tensor.is_floating_point():
                others = torch.nn.functional.normalize(tensor.flatten(0, -2).double(), dim=1)
                assert (rows @ others.T).abs().max() < 0.9999, f"{other} holds {name}"


def test_sums_of_one_image_give_its_feature_back(trained: Path) -> None:
    """What a model card says about published sums: the regression's sums are h(x) = relu(f(x) P) of a class's only image."""
    model = ContinualClassifier.load(trained, device="cpu")
    method: Any = model.method
    pipeline = InputPipeline(model.backbone, model.device)
    images, _ = next(iter(pipeline.eval_batches(read_source(([square("blue", 1)], ["blue"])), [0], method.options)))
    first, second = extract_both_passes(method, images)
    torch.testing.assert_close(method.statistics.mean[2], second[0], rtol=1e-4, atol=1e-5)
    # Both passes were added to the sums of the class: where both are positive, h(first) + h(second) = (first + second) P.
    sums, projection = method.ridge.ridge.sums[2].double(), method.ridge.projection.double()
    is_active = ((first[0].double() @ projection) > 0) & ((second[0].double() @ projection) > 0)
    solved = torch.linalg.lstsq(projection[:, is_active].T, sums[is_active].unsqueeze(1)).solution.squeeze(1)
    torch.testing.assert_close(solved, (first[0] + second[0]).double(), rtol=1e-3, atol=1e-3)


def test_nothing_of_this_machine_is_published(hub: LocalHub, backbone: Path, tmp_path: Path) -> None:
    descriptions = tmp_path / "attributes.txt"
    descriptions.write_text("red: red\ngreen: green\n")
    options = {**quick_options("convprompt"), "descriptions": str(descriptions)}
    model = ContinualClassifier("convprompt", backbone, device="cpu", **options)  # type: ignore[arg-type]
    model.learn(write_squares(tmp_path / "photos", ("red", "green")), checkpoint_dir=tmp_path / "m")
    for with_sums in (False, True):
        push_model(tmp_path / "m", "me/m", with_sums=with_sums, evaluate=tmp_path / "photos")
        files = hub.get_files("me/m")
        assert not [
            name for name, content in files.items() if str(tmp_path).encode() in content or str(backbone).encode() in content
        ]
        assert json.loads(files["config.json"])["options"]["descriptions"] == "attributes.txt"


def test_hashes_and_journal_of_images_are_published_with_sums_only(hub: LocalHub, trained: Path) -> None:
    push_model(trained, "me/pets")
    files = hub.get_files("me/pets")
    assert set(files) == {"config.json", "classes.json", "metrics.jsonl", "state.safetensors", "README.md"}
    assert "lessons" not in json.loads(files["config.json"])
    push_model(trained, "me/whole", with_sums=True)
    assert set(hub.get_files("me/whole")) == {*FILES, "README.md"}
    assert json.loads(hub.get_files("me/whole")["config.json"])["lessons"]
    push_model(trained, "me/whole")  # the newest commit then has no hashes either
    assert set(hub.get_files("me/whole")) == set(files)


def test_every_setting_of_a_model_is_published_or_left_out_on_purpose(trained: Path) -> None:
    written_anew = {"format", "caprompt", "files", "removed"}
    assert set(checkpoint.read(trained).config) <= CONFIGURATION | {LESSONS} | written_anew


def test_method_that_declares_too_much_is_not_published(hub: LocalHub, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caprompt.methods.caprompt import CAPrompt

    monkeypatch.setattr(CAPrompt, "learning_state", ("statistics", "head", "ridge"))
    with pytest.raises(CapromptError, match="would predict differently: `learning_state` of the method 'caprompt'"):
        push_model(trained, "me/pets")
    assert hub.repositories == {}


# -- repositories that are refused -----------------------------------------------------------------------


def test_repository_with_a_pickle_is_refused(hub: LocalHub, trained: Path, tmp_path: Path) -> None:
    push_model(trained, "me/pets")
    hub.commit("me/pets", {"extra/weights.PKL": b"\x80\x04."})
    hub.downloads.clear()
    for action in (
        lambda: pull_model("me/pets", tmp_path / "copy"),
        lambda: ContinualClassifier.load("hf:me/pets"),
        lambda: push_model(trained, "me/pets"),
    ):
        with pytest.raises(InputError, match=r"'me/pets' holds 'extra/weights\.PKL', which may be a pickle"):
            action()
    assert hub.downloads == []
    assert not (tmp_path / "copy").exists()


def test_other_files_are_never_downloaded(hub: LocalHub, trained: Path, tmp_path: Path) -> None:
    push_model(trained, "me/pets")
    hub.commit("me/pets", {"picture.png": b"PNG", "setup.py": b"raise SystemExit"})
    hub.downloads.clear()
    pull_model("me/pets", tmp_path / "copy")
    names = {name.removeprefix("me/pets/") for name in hub.downloads}
    assert names == {"config.json", "classes.json", "metrics.jsonl", "state.safetensors", "README.md"}
    assert {path.name for path in (tmp_path / "copy").iterdir()} == names | {"hub.json"}


def test_damaged_and_foreign_repositories_are_refused(hub: LocalHub, trained: Path, tmp_path: Path) -> None:
    push_model(trained, "me/pets")
    hub.create("me/foreign")
    hub.commit("me/foreign", {"config.json": b'{"model_type": "vit"}', "model.safetensors": b""})
    hub.create("me/config")
    hub.commit("me/config", {**hub.get_files("me/pets"), "config.json": b'{"model_type": "vit"}'})
    hub.create("me/newer")
    newer = hub.get_files("me/pets")["config.json"].replace(f'"format": {checkpoint.FORMAT}'.encode(), b'"format": 99')
    hub.commit("me/newer", {**hub.get_files("me/pets"), "config.json": newer})
    hub.create("me/damaged")
    hub.commit("me/damaged", {**hub.get_files("me/pets"), "state.safetensors": b"not tensors"})
    for repository, sentence in {
        "me/foreign": "'me/foreign' is not a model of caprompt: it has no classes.json",
        "me/config": "'me/config' is not a model of caprompt that this version can read: config.json of 'me/config' is damaged",
        "me/newer": "written by a newer caprompt (format 99",
        "me/damaged": "state.safetensors of 'me/damaged' is damaged",
    }.items():
        with pytest.raises(InputError) as error:
            pull_model(repository, tmp_path / "copy")
        assert sentence in str(error.value)
        assert not (tmp_path / "copy").exists()


def test_config_that_lists_other_files_is_refused(hub: LocalHub, trained: Path, tmp_path: Path) -> None:
    saved = checkpoint.read(trained)
    checkpoint.write(tmp_path / "m", saved)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["sha256"]
    config["files"]["../secret.json"] = "0" * 64
    from caprompt.checkpoint.folder import _hash_config

    config["sha256"] = _hash_config(config)
    hub.create("me/m")
    hub.commit("me/m", {**{p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}, "config.json": json.dumps(config).encode()})
    with pytest.raises(InputError, match=r"its config\.json lists other files"):
        pull_model("me/m", tmp_path / "copy")


def test_push_does_not_replace_another_repository(hub: LocalHub, trained: Path) -> None:
    hub.create("me/other")
    hub.commit("me/other", {"train.csv": b"a,b"})
    with pytest.raises(InputError, match=r"'me/other' exists and holds other files \('train\.csv'\)"):
        push_model(trained, "me/other")
    assert set(hub.get_files("me/other")) == {"train.csv"}


def test_push_needs_a_token(hub: LocalHub, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    with pytest.raises(InputError, match="log in with 'hf auth login'"):
        push_model(trained, "me/pets")
    assert hub.repositories == {}


def test_private_repository(hub: LocalHub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push_model(trained, "me/pets", private=True)
    assert hub.private == {"me/pets"}
    pull_model("me/pets", tmp_path / "copy")
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    with pytest.raises(InputError, match="there is no model 'me/pets' on the hub, or it is private"):
        pull_model("me/pets", tmp_path / "other")


# -- commands ------------------------------------------------------------------------------------------


def test_commands(hub: LocalHub, trained: Path, backbone: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "pets")
    write_squares(tmp_path / "test", ("red", "green"), each=3, start=60)
    done = caprompt_in_process("push", "pets", "me/pets", "--evaluate", "test", "--license", "apache-2.0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    revision = hub.repositories["me/pets"][-1][0]
    assert f"published as me/pets, revision {revision}" in done.stdout
    assert "cannot learn on" in done.stdout
    done = caprompt_in_process("pull", "me/pets", "copy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"me/pets, revision {revision}, is now in 'copy'"
    image = next((tmp_path / "test" / "red").iterdir())
    outputs = [
        caprompt_in_process("predict", model, image, "--json", "--backbone", backbone, cwd=tmp_path).stdout
        for model in ("pets", "copy", "hf:me/pets", f"hf:me/pets@{revision}")
    ]
    assert len(set(outputs)) == 1
    assert json.loads(outputs[0])
    assert_refused(tmp_path, ["learn", "copy", "test", "--backbone", backbone], "--with-sums", caprompt_in_process)
    assert_refused(tmp_path, ["learn", "hf:me/pets", "test"], "copy it into a folder with 'caprompt pull'", caprompt_in_process)


def test_bad_input_is_one_sentence(hub: LocalHub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    shutil.copytree(trained, folder / "pets")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    push_model(trained, "me/pets")
    for words, sentence in {
        ("pull", "me/nothing", "copy"): "there is no model 'me/nothing' on the hub",
        ("pull", "nothing", "copy"): "'nothing' is not the name of a repository on the hub; write owner/name",
        ("pull", "me/../pets", "copy"): "is not the name of a repository",
        ("pull", "me/pets", "copy", "--revision", "0" * 40): "'me/pets' has no such revision",
        ("pull", "me/pets", "full"): "'full' exists and is not empty",
        ("pull", "me/pets", "pets"): "'pets' exists and is not empty",
        ("pull", "me/pets", "full/notes.txt"): "exists and is not empty",
        ("pull", "me/pets", "hf:me/copy"): "is on the hub, where nothing can be saved",
        ("push", "nothing", "me/new"): "'nothing' does not hold a caprompt model",
        ("push", "pets", "new"): "'new' is not the name of a repository",
        ("push", "pets", "me/new", "--evaluate", "nowhere"): "nowhere",
        (
            "push",
            "pets",
            "me/new",
            "--with-sums",
        ): "--with-sums asks for a confirmation, which needs a terminal; confirm with --yes",
        ("predict", "hf:me/nothing", "x.png"): "there is no model 'me/nothing'",
        ("predict", "hf:pets", "x.png"): "'pets' is not the name of a repository",
        ("predict", "hf:me/pets@", "x.png"): "has no revision after '@'",
    }.items():
        assert_refused(folder, words, sentence, caprompt_in_process)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{find_free_port()}")
    for words in (("pull", "me/pets", "copy"), ("push", "pets", "me/new"), ("predict", "hf:me/pets", "x.png")):
        assert_refused(folder, words, "cannot be reached", caprompt_in_process)
    assert set(hub.repositories) == {"me/pets"}


def test_statistics_are_published_with_yes_only(hub: LocalHub, backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier("ncm", backbone, device="cpu")
    model.learn(squares(("red", "green")), checkpoint_dir=tmp_path / "m")
    assert_refused(tmp_path, ["push", "m", "me/m"], "predicts with statistics of the features", caprompt_in_process)
    assert hub.repositories == {}
    done = caprompt_in_process("push", "m", "me/m", "--with-sums", "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "head.statistics.mean" in done.stderr
    assert "the feature vector of that image can be computed" in " ".join(done.stderr.split())
    assert b"the feature vector of that image can be computed" in hub.get_files("me/m")["README.md"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"\n", 2)])
def test_terminal_asks_before_statistics_are_published(
    hub: LocalHub, trained: Path, tmp_path: Path, answer: bytes, status: int
) -> None:
    """A whole process, on a terminal of its own, configured by the environment alone."""
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    controller, terminal = pty.openpty()
    os.write(controller, answer)
    done = subprocess.run(
        [sys.executable, "-m", "caprompt", "push", str(trained), "me/pets", "--with-sums"],
        stdin=terminal,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    os.close(controller)
    os.close(terminal)
    assert done.returncode == status, done.stderr
    assert "Publish that? [y/N]" in done.stderr + done.stdout
    assert ("me/pets" in hub.repositories) == (status == 0)
    if status:
        assert "nothing was published" in done.stderr


def find_free_port() -> int:
    """Return a port where nobody answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_copy_is_all_or_nothing(hub: LocalHub, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that ends in the middle leaves no folder."""
    push_model(trained, "me/pets")
    del hub.repositories["me/pets"][-1][1]["metrics.jsonl"]
    with pytest.raises(InputError, match=r"it has no metrics\.jsonl"):
        pull_model("me/pets", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == {}
    assert not (tmp_path / "copy").exists()
