"""The layouts are those that FiftyOne 1.22 and the converter of label-studio-sdk 2.1 write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from caprompt.data.annotations import PreLabel, write_pre_labels
from caprompt.data.sources import read_source
from caprompt.errors import DataError, InputError

Pairs = list[tuple[str, str]]


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    """Return a folder of an export: data/i0.png, data/i1.png and data/i2.png."""
    (tmp_path / "export" / "data").mkdir(parents=True)
    for number in range(3):
        shutil.copy(photos / "class1" / f"{number}.png", tmp_path / "export" / "data" / f"i{number}.png")
    return tmp_path / "export"


def write(file: Path, content: Any) -> Path:
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def read(file: Path) -> Pairs:
    """Return file names and labels; the files exist."""
    samples = read_source(file)
    assert all(isinstance(image, Path) and image.is_file() for image in samples.images)
    return [(image.name, label) for image, label in zip(samples.images, samples.labels, strict=True)]  # type: ignore[union-attr]


EXPECTED = [("i0.png", "cat"), ("i1.png", "sea lion")]


@pytest.mark.parametrize(
    "labels",
    [
        {"classes": ["sea lion", "cat"], "labels": {"i0": 1, "i1": 0, "i2": None}},
        {"classes": None, "labels": {"i0": "cat", "i1": "sea lion", "i2": None}},
        {"labels": {"i0": {"label": "cat", "confidence": 0.5}, "i1": {"label": "sea lion", "confidence": None}, "i2": None}},
        {
            "classes": ["cat", "sea lion"],
            "labels": {"i0": [0], "i1": [{"label": 1, "confidence": None, "attributes": {}}], "i2": []},
        },
    ],
)
def test_fiftyone_labels(folder: Path, labels: dict[str, Any]) -> None:
    file = write(folder / "labels.json", labels)
    assert read(file) == EXPECTED
    assert read_source(file).skipped == (f"1 image in '{file}' without a label, skipped",)


def test_fiftyone_labels_by_path_or_with_a_manifest(folder: Path, tmp_path: Path) -> None:
    by_path = {str(folder / "data" / name): label for name, label in EXPECTED}
    assert read(write(tmp_path / "by_path.json", {"labels": by_path})) == EXPECTED
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere / "data.json", {"i0": str(folder / "data" / "i0.png"), "i1": "../export/data/i1.png"})
    assert read(write(elsewhere / "labels.json", {"labels": {"i0": "cat", "i1": "sea lion"}})) == EXPECTED


def make_sample(name: str, **fields: str) -> dict[str, Any]:
    classifications = {
        key: {"_id": {"$oid": "6a"}, "_cls": "Classification", "tags": [], "label": label} for key, label in fields.items()
    }
    return {"filepath": f"data/{name}", "tags": [], "metadata": None, **classifications}


def test_fiftyone_samples(folder: Path) -> None:
    samples = [make_sample(name, ground_truth=label, predictions="dog") for name, label in EXPECTED]
    assert read(write(folder / "samples.json", {"samples": [*samples, make_sample("i2.png")]})) == EXPECTED
    samples = [make_sample(name, kind=label) for name, label in EXPECTED]
    assert read(write(folder / "samples.json", {"samples": samples})) == EXPECTED
    samples = [make_sample(name, kind=label, other=label) for name, label in EXPECTED]
    with pytest.raises(DataError, match="has the fields kind, other of classifications; export one, and name it ground_truth"):
        read(write(folder / "samples.json", {"samples": samples}))
    with pytest.raises(DataError, match="has no field of classifications"):
        read(write(folder / "samples.json", {"samples": [make_sample("i0.png")]}))


@pytest.mark.parametrize("column", ["ground_truth.label", "ground_truth", "label", "kind.label"])
def test_fiftyone_csv(folder: Path, column: str) -> None:
    rows = f"filepath,uniqueness,{column}\ni0.png,0.5,cat\ni1.png,,sea lion\ni2.png,0.1,\n"
    assert read(write(folder / "labels.csv", rows)) == EXPECTED


def make_task(image: str, *choices: list[str], cancelled: bool = False) -> dict[str, Any]:
    """Return a task of Label Studio with an annotation for each list of choices, the newest last."""
    control = {"from_name": "choice", "to_name": "image", "type": "choices"}
    annotations = [
        {
            "id": number,
            "created_at": f"2026-01-0{number + 1}T00:00:00Z",
            "was_cancelled": cancelled,
            "result": [{**control, "value": {"choices": names}}],
        }
        for number, names in enumerate(choices)
    ]
    return {"id": 3, "data": {"image": image, "note": "x"}, "annotations": annotations, "predictions": []}


@pytest.mark.parametrize(
    "place",
    [
        "/data/upload/7/{name}",
        "/data/upload/7/0a1b2c3d-{name}",
        "/data/local-files/?d=somewhere/else/{name}",
        "https://example.com/bucket/{name}?key=1",
        "s3://bucket/{name}",
        "data/{name}",
        "{folder}/data/{name}",
        "/data/local-files/?d={folder}/data/{name}",
    ],
)
def test_label_studio_json(folder: Path, place: str) -> None:
    tasks = [make_task(place.format(name=name, folder=folder), ["dog"], [label]) for name, label in EXPECTED]
    unlabeled = [make_task(place.format(name="i2.png", folder=folder)), make_task("data/i2.png", ["dog"], cancelled=True)]
    file = write(folder / "project.json", [*tasks, *unlabeled])
    assert read(file) == EXPECTED


def test_label_studio_json_min_and_csv(folder: Path) -> None:
    records = [
        {"image": f"/data/upload/7/{name}", "id": 1, "choice": label, "annotator": 1, "annotation_id": 5, "lead_time": 1.0}
        for name, label in [*EXPECTED, *EXPECTED]  # two annotators that agree
    ]
    records.append({"image": "/data/upload/7/i2.png", "id": 2, "annotator": None, "annotation_id": None, "lead_time": None})
    assert read(write(folder / "min.json", records)) == EXPECTED
    rows = '"annotation_id","annotator","choice","created_at","id","image","lead_time","updated_at"\n'
    rows += "".join(f'10,"1","{label}","2026-01-01T00:00:00Z",0,"/data/upload/3/{name}",1.0,""\n' for name, label in EXPECTED)
    assert read(write(folder / "result.csv", f'{rows}"","","","",2,"/data/upload/3/i2.png","",""\n')) == EXPECTED


@pytest.mark.parametrize(
    "content",
    [
        [make_task("data/i0.png", ["cat", "dog"])],
        [{"image": "i0.png", "choice": {"choices": ["cat", "dog"]}, "annotation_id": 5}],
        {"labels": {"i0": ["cat", "dog"]}},
    ],
)
def test_two_labels_of_one_image_are_refused(folder: Path, content: Any) -> None:
    with pytest.raises(DataError, match=r"i0.*' in '.*x\.json' has 2 labels \(cat, dog\); keep one for each image"):
        read_source(write(folder / "x.json", content))
    rows = 'image,choice,annotation_id\ni0.png,"{""choices"": [""cat"", ""dog""]}",5\n'
    with pytest.raises(DataError, match=r"2 labels \(cat, dog\)"):
        read_source(write(folder / "x.csv", rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON in UTF-8; export it again"),
        ({"a": 1}, "is no export of FiftyOne or Label Studio"),
        ([1, 2], "is no export of FiftyOne or Label Studio"),
        ([{"a": 1}], "has a; an export has one column of images and one of labels"),
        ([{"id": 5, "data": {"text": "good"}}], "task 5 in .* has no image in its data"),
        ({"labels": {"i0": None}}, "has no labeled image"),
        ({"labels": {"i0": "a/b"}}, "'a/b' cannot be a class name"),
    ],
)
def test_other_json_raises_one_sentence(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_source(write(tmp_path / "x.json", content))


def test_missing_images_are_named_where_the_export_says(folder: Path) -> None:
    samples = read_source(write(folder / "labels.json", {"labels": {"i0": "cat", "gone": "cat"}}))
    assert samples.images[1] == folder / "gone"


def test_table_of_path_and_label_is_no_export(photos: Path) -> None:
    samples = read_source(write(photos / "list.csv", "path,label\nclass1/0.png,cat\n"))
    assert samples.images == (photos / "class1" / "0.png",)


# -- writing ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pre.json", "pre.csv"])
def test_fiftyone_predictions_are_read_back(folder: Path, name: str) -> None:
    rows = [PreLabel(folder / "data" / file, label, 0.75) for file, label in EXPECTED]
    write_pre_labels(folder / name, "fiftyone", rows)
    assert read(folder / name) == EXPECTED


def test_real_fiftyone_imports_the_predictions(folder: Path) -> None:
    importers = pytest.importorskip("fiftyone.utils.data", reason="FiftyOne is not installed; its layouts are compared instead")
    write_pre_labels(folder / "pre.json", "fiftyone", [PreLabel(folder / "data" / file, label, 0.75) for file, label in EXPECTED])
    with importers.FiftyOneImageClassificationDatasetImporter(labels_path=str(folder / "pre.json")) as importer:
        rows = [(Path(path).name, label.label, label.confidence) for path, _, label in importer]
    assert rows == [(file, label, 0.75) for file, label in EXPECTED]


def test_real_label_studio_accepts_the_predictions(folder: Path) -> None:
    interface = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
    write_pre_labels(
        folder / "pre.json", "label-studio", [PreLabel(folder / "data" / file, label, 0.75) for file, label in EXPECTED]
    )
    choices = "".join(f'<Choice value="{label}"/>' for _, label in EXPECTED)
    config = f'<View><Image name="image" value="$image"/><Choices name="choice" toName="image">{choices}</Choices></View>'
    for task in json.loads((folder / "pre.json").read_text(encoding="utf-8")):
        assert interface.LabelInterface(config).validate_prediction(task["predictions"][0])


def test_label_studio_predictions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = folder / "data" / "my cat.png"
    write_pre_labels(folder / "pre.json", "label-studio", [PreLabel(image, "cat", 0.75)])
    (task,) = json.loads((folder / "pre.json").read_text(encoding="utf-8"))
    assert task["data"]["image"] == "/data/local-files/?d=" + str(image)[1:].replace(" ", "%20")
    (prediction,) = task["predictions"]
    assert prediction["score"] == 0.75
    assert prediction["result"] == [{"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}]
    monkeypatch.setenv("LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT", str(folder))
    write_pre_labels(folder / "pre.json", "label-studio", [PreLabel(image, "cat", 0.75)])
    (task,) = json.loads((folder / "pre.json").read_text(encoding="utf-8"))
    assert task["data"]["image"] == "/data/local-files/?d=data/my%20cat.png"


def test_other_tools_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown labeling tool 'labelstudio' .*did you mean 'label-studio'"):
        write_pre_labels(tmp_path / "x.json", "labelstudio", [])
    with pytest.raises(
        InputError, match=r"label-studio cannot import predictions from .*; choose a file name that ends with \.json"
    ):
        write_pre_labels(tmp_path / "x.csv", "label-studio", [])
    with pytest.raises(InputError, match=r"ends with \.json or \.csv"):
        write_pre_labels(tmp_path / "x.txt", "fiftyone", [])
    assert not list(tmp_path.iterdir())
