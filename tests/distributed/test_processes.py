from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import caprompt_in_process, make_faint_images, read_tree, squares, write_backbone, write_images, write_squares
from safetensors.torch import load_file

from caprompt import ContinualClassifier
from caprompt.distributed import processes
from caprompt.distributed.processes import is_started_by_torchrun, join_processes
from caprompt.errors import InputError
from caprompt.utils.communication import ALONE, get_communicator

WORKER = Path(__file__).with_name("worker.py")
NAMES = ["red", "green", "blue"]
# As in the worker.
OPTIONS = {"epochs": 4, "batch_size": 16, "length": 4, "projections": 100, "exact_sums": "true", "crops": "true"}


def torchrun(count: int, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Start as many processes with torchrun: of a script, or with "-m" of a module. Further options may precede it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a backbone, photos, and the model that one process learns from them."""
    folder = tmp_path_factory.mktemp("processes")
    write_backbone(folder / "tiny.safetensors")
    write_squares(folder / "photos", NAMES, each=50)
    flags = [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
    done = caprompt_in_process("learn", "alone", "photos", "--backbone", "tiny.safetensors", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def get_labels(model: Path) -> list[Any]:
    images = squares(NAMES, each=100, start=500)[0]
    return [prediction.label for prediction in ContinualClassifier.load(model, device="cpu").predict(images)]


def assert_same_labels(folder: Path, name: str) -> None:
    """Compare a model with the one that one process has learned: labels, and roughly all parameters."""
    assert get_labels(folder / name) == get_labels(folder / "alone")
    state, expected = (load_file(folder / each / "state.safetensors") for each in (name, "alone"))
    assert state.keys() == expected.keys()
    for key, tensor in expected.items():
        scale = max(1e-12, float(tensor.double().abs().max())) if tensor.numel() else 1.0
        torch.testing.assert_close(state[key].double(), tensor.double(), rtol=0, atol=1e-3 * scale)


def list_messages(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("caprompt: ")]


def test_a_process_without_torchrun_is_alone() -> None:
    assert not is_started_by_torchrun()
    with join_processes("cpu") as device:
        assert device == "cpu"
        assert get_communicator() is ALONE


def test_a_damaged_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InputError, match="RANK is 'first', not a number"), join_processes("cpu"):
        pass


def test_an_exchanged_tensor_is_waited_for_until_the_last_thread_has_let_go_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, freed = torch.zeros(1), threading.Event()
    reference = weakref.ref(tensor, lambda _: freed.set())
    holder = threading.Thread(target=lambda kept: (time.sleep(0.2), kept.clear()), args=([tensor],))
    holder.start()
    del tensor
    assert not freed.is_set()
    processes._wait_until_freed(reference)
    assert freed.is_set()
    holder.join()
    kept = torch.zeros(1)
    monkeypatch.setattr(processes, "MAX_SECONDS_TO_FREE", 0.1)  # one that is never freed does not stop the call
    processes._wait_until_freed(weakref.ref(kept))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_processes_compute_the_gradients_and_learn_the_labels_of_one(folder: Path, count: int) -> None:
    done = torchrun(count, WORKER, "step", f"step{count}.safetensors", cwd=folder)
    assert done.returncode == 0, done.stderr
    gradients = load_file(folder / f"step{count}.safetensors")
    names = [name.removeprefix("alone.") for name in gradients if name.startswith("alone.")]
    assert any(gradients[f"alone.{name}"].abs().max() > 1e-3 for name in names)
    for name in names:
        torch.testing.assert_close(gradients[f"together.{name}"], gradients[f"alone.{name}"], rtol=0, atol=1e-6)
    words = ("-m", "caprompt", "learn", f"by{count}", "photos", "--backbone", "tiny.safetensors")
    flags = [word for name, value in OPTIONS.items() for word in ("--set", f"{name}={value}")]
    done = torchrun(count, *words, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Learned 150 images") == 1
    assert_same_labels(folder, f"by{count}")


@pytest.mark.slow
def test_a_call_of_four_processes_is_resumed_by_two(folder: Path) -> None:
    done = torchrun(4, WORKER, "learn", "resumed", "photos", "tiny.safetensors", "stop", cwd=folder)
    assert done.returncode != 0
    progress = json.loads((folder / "resumed" / "in-progress" / "config.json").read_text())["progress"]
    assert 1 <= progress["epochs_done"] <= 2
    done = torchrun(2, "-m", "caprompt", "learn", "resumed", "photos", "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert_same_labels(folder, "resumed")


@pytest.mark.slow
def test_a_killed_process_ends_the_call_which_one_process_resumes(folder: Path) -> None:
    patience = ("--monitor-interval", 10)  # torchrun ends the other process when it notices; before that, it should end by itself
    done = torchrun(2, *patience, WORKER, "learn", "killed", "photos", "tiny.safetensors", "die", cwd=folder)
    assert done.returncode != 0
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):  # older versions of torchrun may end it at once
        assert "another process of this call has ended or does not answer" in done.stderr
    assert not (folder / "killed" / ".lock").exists()
    done = caprompt_in_process("learn", "killed", "photos", "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert_same_labels(folder, "killed")


@pytest.mark.slow
def test_bad_input_is_one_sentence_of_one_process(folder: Path) -> None:
    before = read_tree(folder)
    words = ("-m", "caprompt", "learn", "new", "photos", "--backbone", "tiny.safetensors", "--method", "hide-prompt")
    done = torchrun(2, *words, cwd=folder)
    assert done.returncode != 0
    (message,) = list_messages(done.stderr)
    assert "'hide-prompt' cannot be trained by 2 processes: its contrastive loss compares" in message
    done = torchrun(2, "-m", "caprompt", "learn", "new", "nowhere", "--backbone", "tiny.safetensors", cwd=folder)
    (message,) = list_messages(done.stderr)
    assert "there is no folder or CSV file 'nowhere'" in message
    assert read_tree(folder) == before


@pytest.mark.slow
def test_an_experiment_of_two_processes_has_the_results_of_one(folder: Path) -> None:
    """Images that are hard to tell apart; after the second task there are 72 test images, more than a batch for one process."""
    write_images(folder / "faint", *make_faint_images(range(3), each=60, seed=0))
    words = ["run", "--dataset", "faint", "--tasks", "2,1", "--backbone", "tiny.safetensors", "--validation", "0.5"]
    words += ["--set", "epochs=2", "--set", "batch_size=16", "--set", "length=4", "--set", "projections=100"]
    done = caprompt_in_process(*words, "--out", "run1", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = torchrun(2, "-m", "caprompt", *words, "--out", "run2", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saved in run2") == 1
    one, two = (json.loads((folder / name / "results.json").read_text())["rows"] for name in ("run1", "run2"))
    assert [row["images"] for row in one] == [row["images"] for row in two]
    assert [row["accuracies"] for row in one] == [row["accuracies"] for row in two]
    assert sum(one[1]["images"]) > 64
    assert one[1]["accuracies"] != [100.0, 100.0]
    assert sorted(read_tree(folder / "run1")) == sorted(read_tree(folder / "run2"))
