"""SIGKILL at 20 moments of a teaching job: the model is the old or the new one, byte for byte, and the job can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import QUICK
from serve.running import pngs, write_model

from caprompt.serve.uploads import UploadStore

# Kills fall into reading, training, the checkpoint of an epoch, fitting, and the moves by which a new version takes effect: an
# event, how often it has come, and where among the file operations in the model folder that follow it, as a share of them; None is
# at the event itself. So a fast machine is killed at the same points as a slow one.
MOMENTS = [
    *(("ImagesChecked", times, None) for times in (1, 8)),
    *(("StepEnded", times, None) for times in (1, 3, 6)),
    ("EpochEnded", 2, None),
    *(("StepEnded", 2, share) for share in (0.0, 0.5, 0.9)),  # the checkpoint of the first epoch
    ("Consolidating", 1, None),
    *(("LearnEnded", 1, share / 10) for share in range(10)),
]

# One process imports torch and is then forked for every attempt, which saves the seconds that importing takes.
DRIVER = """
import importlib, json, os, shutil, signal, sys
from pathlib import Path

import torch
torch.set_num_threads(1)
from caprompt import checkpoint
from caprompt.serve import worker
from caprompt.utils.files import get_current_path

folder, job, moments = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
backup = folder.with_name("backup")
shutil.copytree(folder, backup)
FILE_OPERATIONS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree"}
NOTES = folder.with_name("notes.json")

def run(until=None, times=0, kill_at=None):
    "Do the job in a fork; return its status and its last message. Kill it at an operation after an event."
    result, message = os.pipe()
    pid = os.fork()
    if pid:
        os.close(message)
        with os.fdopen(result) as lines:
            last = [line for line in lines][-1:]
        return os.waitpid(pid, 0)[1], json.loads(last[0]) if last else {}
    silent, _ = os.pipe()
    os.dup2(silent, 0)
    os.dup2(message, 1)
    make_callback = worker._make_callback
    seen, operations = {}, {}  # events by name; operations by event and number

    def make_counting_callback(report):
        callback = make_callback(report)
        def count_event(event):
            callback(event)
            name = type(event).__name__
            seen[name] = seen.get(name, 0) + 1
            if kill_at == 0 and (name, seen[name]) == (until, times):
                os.kill(os.getpid(), signal.SIGKILL)
        return count_event

    def count_operation(name, arguments):
        if name in FILE_OPERATIONS and arguments and str(folder) in str(arguments[0]):
            for event, number in seen.items():
                operations[f"{event} {number}"] = operations.get(f"{event} {number}", 0) + 1
            if kill_at and seen.get(until, 0) == times and operations[f"{until} {times}"] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    worker._make_callback = make_counting_callback
    sys.addaudithook(count_operation)
    status = worker.main([job])
    NOTES.write_text(json.dumps({"operations": operations, "modules": sorted(sys.modules)}))
    os._exit(status)

def read_files():
    return {name: get_current_path(folder, name).read_bytes() for name in checkpoint.list_files(folder)}

def restore():
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)

old = read_files()
status, last = run()
assert status == 0, last
new, expected = read_files(), last["result"]
notes = json.loads(NOTES.read_text())
for name in notes["modules"]:
    if name.startswith(("caprompt", "torch", "numpy", "scipy", "sklearn", "PIL")) and name not in sys.modules:
        importlib.import_module(name)
for event, times, share in moments:
    restore()
    total = notes["operations"].get(f"{event} {times}", 0)
    status, last = run(event, times, 0 if share is None else 1 + int(share * total))
    assert status == signal.SIGKILL, (event, times, share, total, status, last)
    found = read_files()
    checkpoint.read(folder)  # every hash is right
    status, last = run()
    assert status == 0, (event, times, share, last)
    after = read_files()
    version = "old" if found == old else "new" if found["state.safetensors"] == new["state.safetensors"] else "other"
    print(json.dumps({
        "moment": [event, times, share, total],
        "version": version,
        "same_state": after["state.safetensors"] == new["state.safetensors"],
        "same_result": last["result"] == expected,
        "lessons": len(checkpoint.read_config(folder)["lessons"]),
        "left": (folder / "in-progress").exists(),
    }), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_job_that_is_killed_leaves_the_old_or_the_new_model_and_can_be_resumed(tmp_path: Path, backbone: Path) -> None:
    folder = write_model(tmp_path / "pets", backbone, epochs=4)
    upload = UploadStore(tmp_path / "uploads").create()
    for number, content in enumerate(pngs("blue", 10)):
        assert upload.add("blue", f"{number}.png", content, lambda _: None, lambda *_: False) is None
    new = {"method": "caprompt", "backbone": str(backbone), "options": QUICK}
    request = {"kind": "learn", "folder": str(folder), "upload_folder": str(upload.folder), "hold_out": 0.2}
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**request, "calls": 1, "device": "cpu", "new": new}))

    words = [sys.executable, "-c", DRIVER, str(folder), str(job), json.dumps(MOMENTS)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=280)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert len(results) == len(MOMENTS) == 20
    for result in results:
        assert result["version"] in ("old", "new"), result
        assert result["same_state"], result
        assert result["same_result"], result
        assert (result["lessons"], result["left"]) == (2, False), result
    assert {result["version"] for result in results} == {"old", "new"}, "the kills should have met both versions"


def test_what_libraries_print_is_no_message(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"kind": "export"}))
    script = (
        "import os, sys; from caprompt.serve import worker\n"
        "worker.export = lambda job, report: (print('noise'), os.system('echo noise'), {'bytes': 1})[-1]\n"
        "sys.exit(worker.main([sys.argv[1]]))"
    )
    words = [sys.executable, "-c", script, str(job)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        lines, noise = process.stdout.read(), process.stderr.read()
        assert process.wait() == 0
    assert json.loads(lines) == {"result": {"bytes": 1}}
    assert noise.count("noise") == 2
