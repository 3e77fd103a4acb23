from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import squares, write_squares

from caprompt import ContinualClassifier
from caprompt.classifier.file_prediction import predict_files
from caprompt.data.sources import list_images
from caprompt.distributed import prediction_files
from caprompt.distributed.bulk_prediction import LEASES, PLAN, ModelSpec, Shard, ShardPredictor, ShardResult, predict_to_file
from caprompt.distributed.leases import hold_driver_lease
from caprompt.distributed.prediction_files import read_part, write_part
from caprompt.errors import InputError, StorageError


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


def test_output_that_another_call_has_finished_meanwhile_is_kept(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "all.jsonl"

    class OvertakenSpec(ModelSpec):
        def load(self) -> ContinualClassifier:
            output.write_text("of another call")
            return super().load()

    with pytest.raises(InputError, match=r"all.jsonl' exists"):
        predict_to_file(OvertakenSpec(place / "model"), list_images([place / "photos"]), output)
    assert output.read_text() == "of another call"
    assert list(tmp_path.iterdir()) == [output]


def test_parts_without_a_plan_do_not_count_and_are_removed_before_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, output, parts = list_images([place / "photos"]), tmp_path / "all.jsonl", tmp_path / "all.jsonl.parts"
    predict_to_file(ModelSpec(place / "model"), names, tmp_path / "whole.jsonl", shard_images=16)
    parts.mkdir()
    write_part(parts / "00001.jsonl", [{"path": "stale", "score": 1.0, "error": None}])
    removed: list[str] = []
    unlink = Path.unlink

    def watch(path: Path, missing_ok: bool = False) -> None:
        if path.parent == parts:
            assert (parts / LEASES / "driver").is_dir()
            removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", watch)
    predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16)
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert removed[0] == "00001.jsonl"
    assert sorted(removed[1:-1]) == [f"0000{number}.jsonl" for number in range(4)]
    assert removed[-1] == PLAN
    assert not parts.exists()
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        write_part(parts / "00000.jsonl", [])


def test_refused_call_keeps_parts_of_another_plan(place: Path, tmp_path: Path) -> None:
    """Also those that it would have none of: its own first shard is not among them."""
    names, output, parts = list_images([place / "photos"]), tmp_path / "all.jsonl", tmp_path / "all.jsonl.parts"

    def run_last(spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str) -> Any:
        yield ShardPredictor(spec, folder, driver)(shards[-1])
        raise Interruption

    with pytest.raises(Interruption):
        predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16, runner=run_last)
    with pytest.raises(InputError, match="was begun with another list of images"):
        predict_to_file(ModelSpec(place / "model"), names[:3], output, shard_images=16)
    assert sorted(path.name for path in parts.iterdir()) == ["00003.jsonl", PLAN]


def test_writers_of_one_part_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, fsync = tmp_path / "00000.jsonl", os.fsync

    def write_between(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        write_part(part, [{"path": "of the second"}])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", write_between)
    write_part(part, [{"path": "of the first"}])
    assert read_part(part) == [{"path": "of the first"}]
    assert list(tmp_path.iterdir()) == [part]


def test_nothing_is_written_for_a_driver_that_was_replaced(place: Path, tmp_path: Path) -> None:
    parts = tmp_path / "all.jsonl.parts"
    shard = Shard(0, tuple(list_images([place / "photos" / "blue"])), parts / "00000.jsonl")
    with hold_driver_lease(parts / LEASES, tmp_path / "all.jsonl") as lease:
        predictor = ShardPredictor(ModelSpec(place / "model"), parts, lease.token, expiry=0)
        assert predictor(shard).images == 20
        shard.part.unlink()
        later = lease.path.with_name("99")
        later.write_text(json.dumps({"token": "of another driver"}))
        with pytest.raises(InputError, match="has ended, or another one has taken over; repeat the command"):
            predictor(shard)
        later.unlink()
    assert not shard.part.exists()


def test_model_that_is_saved_anew_meanwhile_ends_the_call(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")

    def run_late(spec: ModelSpec, shards: Sequence[Shard], folder: Path, driver: str) -> Any:
        model = ContinualClassifier.load(tmp_path / "model")
        model.rename("red", "crimson")
        model.save(tmp_path / "model")
        return map(ShardPredictor(spec, folder, driver), shards)

    with pytest.raises(InputError, match="is another version than the one that the call began with"):
        predict_to_file(ModelSpec(tmp_path / "model"), list_images([place / "photos"]), tmp_path / "all.jsonl", runner=run_late)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs a regular file that cannot be read")
def test_storage_that_fails_ends_the_call_and_the_next_one_goes_on(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "photos", tmp_path / "photos")
    names, output = list_images([tmp_path / "photos"]), tmp_path / "all.jsonl"
    names[20].unlink()
    names[20].symlink_to("/proc/self/mem")
    sentence = r"is not a readable image \(Input/output error\); make sure that it can be read, and repeat the command"
    with pytest.raises(StorageError, match=sentence):
        predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16)
    assert sorted(path.name for path in (tmp_path / "all.jsonl.parts").iterdir()) == ["00000.jsonl", PLAN]
    names[20].unlink()
    shutil.copy(names[21], names[20])
    assert predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16).unreadable == 1


def test_images_of_which_none_can_be_decoded_are_all_listed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    names = [tmp_path / "bad.png", tmp_path / "removed.png"]
    for output in (tmp_path / "all.jsonl", tmp_path / "all.parquet"):
        if output.suffix == ".parquet":
            pytest.importorskip("pyarrow")
        result = predict_to_file(ModelSpec(place / "model"), names, output)
        assert (result.images, result.unreadable, len(result.examples)) == (2, 2, 2)
        assert [row["label"] for row in read_rows(output)] == [None, None]
        assert ["no known image format" in row["error"] for row in read_rows(output)] == [True, False]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_output_is_on_the_disk_before_it_has_its_name(
    place: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    output, synced, fsync = tmp_path / f"all{suffix}", list[int](), os.fsync

    def watch(descriptor: int) -> None:
        assert not output.exists()
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    predict_to_file(ModelSpec(place / "model"), list_images([place / "photos" / "red"]), output)
    assert synced[-1] == output.stat().st_ino


def test_full_disk_loses_no_shard(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    names, output = list_images([place / "photos"]), tmp_path / "all.jsonl"
    parts = tmp_path / "all.jsonl.parts"
    monkeypatch.setattr(prediction_files.secrets, "token_hex", lambda _: "0")

    def fill(shard: ShardResult) -> None:
        if shard.number == 1:
            (parts / ".00002.jsonl.0.next").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left on device"):
        predict_to_file(ModelSpec(place / "model"), names, output, shard_images=16, on_shard=fill)
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
