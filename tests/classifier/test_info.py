from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import quick_options, squares

from caprompt import ContinualClassifier
from caprompt.classifier import editing
from caprompt.classifier.info import describe_kept, read_info
from caprompt.errors import InputError, ModelFolderError


def test_model_in_memory_and_on_disk(backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier("ncm", backbone, seed=3, scale=30.0)
    model.learn(squares(["red", "green"]), checkpoint_dir=tmp_path / "m")
    model.learn(squares(["red"], 2, 30), checkpoint_dir=tmp_path / "m")
    info = model.info()
    assert [(each.name, each.images, each.tasks) for each in info.classes] == [("green", 5, (1,)), ("red", 7, (1,))]
    assert (info.method, info.options, info.seed, info.images) == ("ncm", {"scale": 30.0}, 3, 12)
    assert info.backbone["sha256"] == model.backbone.sha256
    assert [lesson["kind"] for lesson in info.lessons] == ["learn", "learn"]
    assert info.lessons[0]["classes"]["red"]["sha256"] != info.lessons[1]["classes"]["red"]["sha256"]
    saved = read_info(tmp_path / "m")
    assert saved.classes == info.classes
    assert saved.lessons == info.lessons
    assert saved.kept == info.kept
    assert saved.versions == 1
    assert saved.bytes == sum(path.stat().st_size for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert not saved.evaluation


def test_dates_of_classes(backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "green"]))
    model.learn(squares(["red"], 2, 30))
    model.lessons[0]["date"], model.lessons[1]["date"] = "2026-01-01", "2026-02-02"
    model.save(tmp_path / "m")
    editing.join(tmp_path / "m", ["red", "green"], "any")
    (joined,) = read_info(tmp_path / "m").classes
    assert (joined.first, joined.last, joined.images, joined.tasks) == ("2026-01-01", "2026-02-02", 12, (1, 1))


def test_what_is_kept_of_images_depends_on_the_method(backbone: Path) -> None:
    def get_kept(method: str, **options: object) -> str:
        model = ContinualClassifier(method, backbone, **{**quick_options(method), **options})  # type: ignore[arg-type]
        model.learn(squares(["red", "green"]))
        return " ".join(model.info().kept)

    assert "mean feature of each class" in get_kept("ncm")
    assert "sums over images of products" in get_kept("ridge")
    assert "features of every image" in get_kept("ridge", keep_features=True)
    assert "mean feature" not in get_kept("linear", epochs=1)
    assert all("hash of every image file" in get_kept(method) for method in ("ncm", "ridge"))
    assert describe_kept(["method.ridge.ridge.gram"])[0].startswith("sums over images")


def test_damaged_evaluation_is_named(backbone: Path, tmp_path: Path) -> None:
    ContinualClassifier("ncm", backbone).learn(squares(["red", "green"]), checkpoint_dir=tmp_path / "m")
    valid = {"date": "2026-11-16", "images": 3, "accuracy": 66.7}
    for change in ({"accuracy": "high"}, {"accuracy": 101.0}, {"accuracy": float("nan")}, {"images": -1}, {"date": None}):
        (tmp_path / "m" / "evaluation.json").write_text(json.dumps({**valid, **change}))
        with pytest.raises(
            ModelFolderError, match=r"^evaluation\.json of .* is damaged .*; remove it, or evaluate the model again$"
        ):
            read_info(tmp_path / "m")
    for text in ("[" * 100_000, "[1]", '{"accuracy": 50.0}', "\udce9"):
        (tmp_path / "m" / "evaluation.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ModelFolderError, match="is damaged"):
            read_info(tmp_path / "m")
    (tmp_path / "m" / "evaluation.json").write_text(json.dumps(valid))
    assert read_info(tmp_path / "m").evaluation == valid


def test_home_of_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="home folder of a user who does not exist"):
        read_info("~no such user/m")
