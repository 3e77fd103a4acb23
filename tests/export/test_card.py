"""Model cards state what a model is and reveals, and only accuracies that were measured."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_refused, caprompt_in_process, quick_options, squares, write_squares
from huggingface_hub import ModelCard

from caprompt import ContinualClassifier, RunConfig, protocols, run_experiment
from caprompt.errors import InputError, ModelFolderError
from caprompt.export.card import CardOptions, Disclosure, MeasuredAccuracy, make_card, read_recorded_evaluation, write_model_card
from caprompt.utils.files import read_json, write_json

NOTHING = Disclosure((), False, can_learn=False)
MEASURED = MeasuredAccuracy("photos", 12, 91.666, 90.5, protocols.HONEST)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> ContinualClassifier:
    """Return a model of two tasks that is saved in the folder `pets`."""
    model = ContinualClassifier(backbone=backbone, device="cpu", **quick_options("caprompt"))  # type: ignore[arg-type]
    folder = tmp_path_factory.mktemp("card") / "pets"
    for task in (("red", "green"), ("blue",)):
        model.learn(squares(task), checkpoint_dir=folder)
    model.folder = folder  # type: ignore[attr-defined]
    return model


def read_metadata(card: str) -> dict[str, Any]:
    return dict(ModelCard(card).data.to_dict())


def test_metadata_without_an_evaluation(model: ContinualClassifier) -> None:
    card = make_card(model, CardOptions("me/pets", "apache-2.0", NOTHING))
    assert read_metadata(card) == {
        "library_name": "caprompt",
        "pipeline_tag": "image-classification",
        "license": "apache-2.0",
        "base_model": "tiny",
        "tags": ["caprompt", "class-incremental-learning", "continual-learning", "image-classification"],
    }
    assert "No evaluation was recorded." in card


def test_metadata_with_an_honest_evaluation(model: ContinualClassifier) -> None:
    card = make_card(model, CardOptions("me/pets", "unknown", NOTHING), MEASURED)
    data = ModelCard(card).data
    assert data.model_name == "pets"
    assert [(result.dataset_name, result.metric_type, result.metric_value) for result in data.eval_results] == [
        ("photos", "accuracy", 91.67),
        ("photos", "accuracy", 90.5),
    ]
    assert "| photos | 12 | 91.67 % | 90.50 % |" in card
    assert f"Protocol {protocols.HONEST}." in card


def test_other_protocols_are_marked_and_not_in_the_metadata(model: ContinualClassifier) -> None:
    leaky = MeasuredAccuracy("photos", 12, 99.0, 99.0, f"released: {protocols.LEAK}")
    card = make_card(model, CardOptions("me/pets", "unknown", NOTHING), leaky)
    assert "model-index" not in read_metadata(card)
    assert "Protocol released: as in the authors' code" in card
    assert "not comparable" in card


def test_text_of_a_model_that_only_predicts(model: ContinualClassifier) -> None:
    card = make_card(model, CardOptions("me/pets", "unknown", NOTHING))
    assert "| classes | 3, learned in 2 tasks |" in card
    assert "| training images | 15; none of them is stored in the model |" in card
    assert 'ContinualClassifier.load("hf:me/pets", backbone="WEIGHTS_FILE")' in card
    assert model.backbone.sha256 in card
    assert "This model cannot learn on" in card
    assert "caprompt learn" not in card
    assert "No sums, means or covariances of features, no images and no hashes of them." in card
    assert "~~~text\ntask 1: green, red\ntask 2: blue\n~~~\n" in card


def test_text_of_a_model_that_learns_on(model: ContinualClassifier) -> None:
    whole = Disclosure(("head.statistics.mean",), True, can_learn=True)
    card = make_card(model, CardOptions("me/pets", "unknown", whole))
    assert "caprompt pull me/pets pets\ncaprompt learn pets PHOTOS --backbone WEIGHTS_FILE\n```\n" in card
    assert r"head.statistics.mean\): from the float32 sums or the mean of a class with one image" in card
    assert "whoever has a copy of an image can tell whether it was learned" in card
    assert "cannot learn on" not in card


def test_packaged_backbone_needs_no_file() -> None:
    model = ContinualClassifier("ncm", device="cpu")
    model.learn(squares(("red",), each=1))
    card = make_card(model, CardOptions("me/pets", "unknown", NOTHING))
    assert 'ContinualClassifier.load("hf:me/pets")' in card
    assert "WEIGHTS_FILE" not in card
    assert "An image classifier of 1 class." in card
    assert "| classes | 1, learned in 1 task |" in card


def test_names_are_text_and_not_markup(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone, device="cpu")
    images, _ = squares(("red", "green"), each=1)
    model.learn((images, ["_a_ `b`", "~~~"]))
    card = make_card(
        model, CardOptions("me/pets", "unknown", NOTHING), MeasuredAccuracy("a|b <c>", 1, 50.0, 50.0, protocols.HONEST)
    )
    assert r"| a\|b \<c\> | 1 |" in card
    assert card.endswith("~~~text\ntask 1: _a_ `b`, ~~~\n~~~\n")
    assert ModelCard(card).data.eval_results[0].dataset_name == "a|b <c>"


def test_many_classes_are_not_all_listed(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone, device="cpu")
    images, _ = squares(("red",), each=230)
    model.learn((images[:150], [f"c{number}" for number in range(150)]))
    model.learn((images[150:], [f"c{number}" for number in range(150, 230)]))
    card = make_card(model, CardOptions("me/pets", "unknown", NOTHING))
    assert card.endswith(", c198, c199\n... and 30 more\n~~~\n")


def test_card_has_no_gaps_and_no_template_code(model: ContinualClassifier) -> None:
    for disclosure in (NOTHING, Disclosure(("statistics.mean",), True, can_learn=True)):
        for evaluation in (None, MEASURED):
            for is_local in (False, True):
                card = make_card(model, CardOptions("me/pets", "unknown", disclosure, is_local), evaluation)
                assert not re.search(r"\n\n\n|[ \t]\n|\{[{%]", card), card
                assert card.count("```") % 2 == 0
                assert ("hf:" in card) != is_local


# -- local models --------------------------------------------------------------------------------------


def test_card_of_a_local_model(model: ContinualClassifier, tmp_path: Path) -> None:
    shutil.copytree(model.folder, tmp_path / "pets")  # type: ignore[attr-defined]
    write_squares(tmp_path / "exam", ("red", "green", "white"), each=3, start=60)
    done = caprompt_in_process("card", "pets", "--evaluate", "exam", "--license", "mit", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "written to pets/README.md"
    card = (tmp_path / "pets" / "README.md").read_text(encoding="utf-8")
    evaluation = ContinualClassifier.load(tmp_path / "pets", device="cpu").evaluate(tmp_path / "exam")
    assert evaluation.images == 6
    assert f"| exam | 6 | {evaluation.accuracy:.2f} % |" in card
    assert "3 images of classes that the model has not learned were left out." in card
    assert "caprompt learn pets PHOTOS" in card
    assert "caprompt pull" not in card
    assert read_metadata(card)["license"] == "mit"
    assert ContinualClassifier.load(tmp_path / "pets", device="cpu").classes == model.classes
    assert write_model_card(tmp_path / "pets") == tmp_path / "pets" / "README.md"  # its own card is replaced


def test_bad_input_is_one_sentence(model: ContinualClassifier, tmp_path: Path) -> None:
    shutil.copytree(model.folder, tmp_path / "pets")  # type: ignore[attr-defined]
    (tmp_path / "pets" / "README.md").write_text("mine")
    (tmp_path / "out").mkdir()
    for words, sentence in {
        ("card", "pets"): "'pets/README.md' is not a card that was written here before; give another file with --out",
        ("card", "pets", "--out", "out"): "'out' is a folder; give the path of the file to write",
        ("card", "nothing", "--out", "card.md"): "'nothing' does not hold a caprompt model",
        ("card", "pets", "--out", "card.md", "--evaluate", "nowhere"): "nowhere",
        ("card", "hf:me/pets", "--out", "card.md"): "copy it into a folder with 'caprompt pull' first",
    }.items():
        assert_refused(tmp_path, words, sentence, caprompt_in_process)


def test_final_test_of_a_run_is_stated(backbone: Path, tmp_path: Path) -> None:
    write_squares(tmp_path / "toys", ("red", "green", "blue", "cyan"), each=5)
    config = RunConfig(
        dataset=str(tmp_path / "toys"),
        method="ranpac",
        backbone=str(backbone),
        tasks=2,
        options={**quick_options("ranpac"), "adapt_first": False},
    )
    result = run_experiment(config, tmp_path / "run", device="cpu")
    model = ContinualClassifier.load(tmp_path / "run" / "model", device="cpu")
    recorded = read_recorded_evaluation(tmp_path / "run" / "model", model)
    assert recorded is not None
    assert recorded.dataset.startswith("toys")
    assert recorded.images == sum(result.rows[-1].images)
    assert recorded.average_accuracy == result.summary()["ACC"]
    assert recorded.accuracy == pytest.approx(result.summary()["pooled"])
    card = write_model_card(tmp_path / "run" / "model").read_text(encoding="utf-8")
    assert f"| {recorded.images} | {recorded.accuracy:.2f} % |" in card
    assert str(tmp_path) not in card
    assert read_recorded_evaluation(tmp_path / "run", model) is None
    results = read_json(tmp_path / "run" / "results.json")
    write_json(tmp_path / "run" / "results.json", {**results, "rows": results["rows"][:1]})
    assert read_recorded_evaluation(tmp_path / "run" / "model", model) is None
    write_json(tmp_path / "run" / "results.json", results)
    model.learn(squares(("white",)))
    assert read_recorded_evaluation(tmp_path / "run" / "model", model) is None


def test_published_models_cannot_be_given_by_reference() -> None:
    with pytest.raises(InputError, match="is on the hub"):
        write_model_card("hf:me/pets")
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        write_model_card("nothing")
