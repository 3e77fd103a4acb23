"""Bulk prediction of 2,000 images on a local Ray cluster; one of its actors is killed on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import caprompt_in_process, squares, write_squares

from caprompt import ContinualClassifier
from caprompt.classifier.file_prediction import predict_files
from caprompt.data.sources import list_images
from caprompt.distributed.bulk_prediction import ModelSpec, ShardResult, predict_to_file
from caprompt.distributed.ray_prediction import RayRunner, _Actor, _encode, _read_outcome
from caprompt.errors import InputError
from caprompt.utils.threads import use_threads


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """Return Ray with a local cluster of two CPUs, which the tests use since it is there already."""
    ray = pytest.importorskip("ray", reason="the package ray is not installed (the extra caprompt[cluster])")
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=80_000_000
    )
    yield ray
    ray.shutdown()


COLORS = ("red", "green", "blue", "yellow", "cyan")


def list_actors() -> list[int]:
    """Return the process ids of the actors that hold a model."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::") and b"MapWorker" in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="actors are found through /proc")
def test_killed_actor(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(COLORS))
    model.save(tmp_path / "model")
    write_squares(tmp_path / "photos", COLORS, each=400)
    (tmp_path / "photos" / "red" / "005.png").write_bytes(b"no image")
    names, output = list_images([tmp_path / "photos"]), tmp_path / "all.jsonl"
    assert len(names) == 2000
    killed: list[int] = []

    def kill_one(shard: ShardResult) -> None:
        if not killed:
            killed.append(list_actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    result = predict_to_file(
        ModelSpec(tmp_path / "model", device="cpu"),
        names,
        output,
        runner=RayRunner("local", limit=2),
        on_shard=kill_one,
        shard_images=50,
    )
    assert killed
    assert (result.images, result.unreadable) == (2000, 1)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["path"] for row in rows] == sorted(map(str, names))
    expected, _ = predict_files(model, names, 1, skip_bad=True, options={})
    assert {row["path"]: row["label"] for row in rows if row["error"] is None} == {str(name): each.label for name, each in expected}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("all")] == ["all.jsonl"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="actors are found through /proc")
def test_actors_that_always_die_end_the_call(tmp_path: Path, backbone: Path) -> None:
    """As do those that get an image whose decoding ends the process."""
    write_squares(tmp_path / "photos", ["red", "blue"], each=5)
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "blue"]))
    model.save(tmp_path / "model")
    ended, kills = threading.Event(), list[int]()

    def kill_all() -> None:
        deadline = time.monotonic() + 120
        while not ended.is_set() and time.monotonic() < deadline:
            for pid in list_actors():
                kills.append(pid)
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_all)
    killer.start()
    spec, names = ModelSpec(tmp_path / "model", device="cpu"), list_images([tmp_path / "photos"])
    try:
        with pytest.raises(InputError, match="the Ray cluster could not finish: .*; the same command goes on where it stopped"):
            predict_to_file(spec, names, tmp_path / "all.jsonl", runner=RayRunner("local", limit=1))
    finally:
        ended.set()
        killer.join()
    assert len(set(kills)) > 1
    assert not (tmp_path / "all.jsonl.parts").exists()


def test_full_disk_of_an_actor_is_that_of_the_call() -> None:
    with pytest.raises(OSError, match="No space left on device: '/parts'"):
        _read_outcome(_encode(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/parts")))


def test_actors_use_the_cores_that_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the variable of the command that started the cluster, which they inherit, says another number."""
    monkeypatch.chdir(tmp_path)
    with use_threads(1):
        _Actor(ModelSpec(tmp_path / "model"), tmp_path, "driver", tmp_path, 2)
        assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_errors_of_actors_are_sentences(tmp_path: Path, backbone: Path) -> None:
    """What actors meet, here a part that cannot be written, ends the command as if it had met it; the same command goes on."""
    write_squares(tmp_path / "photos", ["red", "blue"], each=5)
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "blue"]))
    model.save(tmp_path / "model")
    (tmp_path / "all.jsonl.parts" / "00000.jsonl").mkdir(parents=True)
    words = ["predict", "model", "photos", "--out", "all.jsonl", "--cluster", "local", "--jobs", 1]
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "all.jsonl.parts' cannot be used: Is a directory" in done.stderr
    shutil.rmtree(tmp_path / "all.jsonl.parts" / "00000.jsonl")
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "10 of 10 images in all.jsonl\n"
    assert done.stderr == ""
