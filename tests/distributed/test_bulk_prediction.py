from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import squares, write_squares

from caprompt import ContinualClassifier
from caprompt.classifier.file_prediction import predict_files
from caprompt.data.sources import list_images
from caprompt.distributed.bulk_prediction import LEASES, ModelSpec, Shard, ShardPredictor, predict_to_file
from caprompt.distributed.leases import hold_driver_lease
from caprompt.errors import DataError, InputError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """Return a folder with a model and images, of which one cannot be read."""
    folder = tmp_path_factory.mktemp("bulk")
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "green", "blue"]))
    model.save(folder / "model")
    write_squares(folder / "photos", ["red", "green", "blue"], each=20)
    (folder / "photos" / "red" / "005.png").write_bytes(b"no image")
    return folder


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return list(pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist())


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_are_those_of_predict_in_the_order_of_paths(place: Path, tmp_path: Path, suffix: str) -> None:
    output, names = tmp_path / f"all{suffix}", list_images([place / "photos"])
    spec = ModelSpec(place / "model", top=2)
    shards: list[int] = []
    result = predict_to_file(spec, names[::-1], output, shard_images=16, on_shard=lambda shard: shards.append(shard.number))
    assert shards == [0, 1, 2, 3]
    assert (result.images, result.unreadable, result.warnings) == (60, 1, ())
    assert "005.png' is not a readable image" in result.examples[0]
    rows = read_rows(output)
    assert [row["path"] for row in rows] == sorted(map(str, names))
    expected, _ = predict_files(spec.load(), names, 2, skip_bad=True, options={})
    labels = {str(name): prediction.label for name, prediction in expected}
    assert {row["path"]: row["label"] for row in rows if row["error"] is None} == labels
    assert all(len(row["top"]) == 2 and row["top"][0]["label"] == row["label"] for row in rows if row["error"] is None)
    (bad,) = [row for row in rows if row["error"] is not None]
    assert bad["label"] is None
    assert bad["error"].endswith("(its content is in no known image format)")
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


class Interruption(Exception):  # noqa: N818
    """Stands for a kill."""


def test_stopped_call_goes_on_with_the_shards_that_are_left(place: Path, tmp_path: Path) -> None:
    names, whole, stopped = list_images([place / "photos"]), tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    spec = ModelSpec(place / "model")
    predict_to_file(spec, names, whole, shard_images=16)

    def run_until(spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str) -> Any:
        predictor = ShardPredictor(spec, folder, driver)
        yield predictor(shards[0])
        yield predictor(shards[2])
        raise Interruption

    with pytest.raises(Interruption):
        predict_to_file(spec, names, stopped, shard_images=16, runner=run_until)
    with pytest.raises(InputError, match="was begun with another list of images; repeat that call"):
        predict_to_file(spec, names[1:], stopped, shard_images=16)
    with pytest.raises(InputError, match="was begun with another setting"):
        predict_to_file(ModelSpec(place / "model", top=1), names, stopped, shard_images=16)
    computed: list[int] = []

    def run_rest(spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str) -> Any:
        computed.extend(shard.number for shard in shards)
        return map(ShardPredictor(spec, folder, driver), shards)

    predict_to_file(spec, names, stopped, shard_images=16, runner=run_rest)
    assert computed == [1, 3]
    assert stopped.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stopped.jsonl", "whole.jsonl"]


def test_bad_input_is_a_sentence_and_nothing_is_written(place: Path, tmp_path: Path) -> None:
    names, spec = list_images([place / "photos"]), ModelSpec(place / "model")
    with pytest.raises(InputError, match=r"choose a name that ends with \.jsonl or \.parquet"):
        predict_to_file(spec, names, tmp_path / "all.csv")
    with pytest.raises(InputError, match="top must be at least 1"):
        predict_to_file(ModelSpec(place / "model", top=0), names, tmp_path / "all.jsonl")
    with pytest.raises(InputError, match="has no option 'cycles'|unknown option 'cycles'"):
        predict_to_file(ModelSpec(place / "model", options={"cycles": 2}), names, tmp_path / "all.jsonl")
    with pytest.raises(DataError, match="none of the images can be read; the first: there is no image file 'none.png'"):
        predict_to_file(spec, [Path("none.png")], tmp_path / "all.jsonl")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "all.jsonl").touch()
    with pytest.raises(InputError, match=r"all.jsonl' exists; remove it, or choose another output"):
        predict_to_file(spec, names, tmp_path / "all.jsonl")


def test_two_calls_on_one_output_are_refused(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "all.jsonl"
    with (
        hold_driver_lease(tmp_path / "all.jsonl.parts" / LEASES, output),
        pytest.raises(InputError, match=r"all.jsonl' is being written by another call"),
    ):
        predict_to_file(ModelSpec(place / "model"), list_images([place / "photos"]), output)


def test_full_disk_loses_no_shard(place: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    names, output = list_images([place / "photos"]), tmp_path / "all.jsonl"
    parts = tmp_path / "all.jsonl.parts"
    parts.mkdir()
    (parts / ".00002.jsonl.next").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16)
    assert sorted(path.name for path in parts.glob("0*")) == ["00000.jsonl", "00001.jsonl"]
    predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16)
    assert len(read_rows(output)) == 60


def test_integer_labels_and_odd_names(place: Path, tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn((squares(["red", "blue"])[0], [3] * 5 + [4] * 5))
    model.save(tmp_path / "model")
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes((place / "photos" / "red" / "000.png").read_bytes())
    for name in ("all.jsonl", "all.parquet"):
        predict_to_file(ModelSpec(tmp_path / "model"), [odd], tmp_path / name)
        (row,) = read_rows(tmp_path / name)
        assert row["label"] == 3
        assert row["path"].endswith(r"caf\xe9.png")
