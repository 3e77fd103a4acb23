"""The command `reproduce`; a slow test runs all targets at scale tiny."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from grids import write_fake_cell
from helpers import assert_refused, caprompt_in_process, read_tree
from PIL import Image

from caprompt.reproduce.plan import plan_target
from caprompt.reproduce.scales import get_scale
from caprompt.reproduce.targets.registry import TARGETS

ROWS = {"table1": 9, "table2": 5, "table3": 5, "ablation": 4, "table-taskid": 2, "table-backbones": 27, "comparison": 24 + 3 + 4}
ROWS |= {"fig-curve": 9, "fig-cycles": 2, "fig-tsne": 2, "fig-params": 9, "fig-hyper": 8, "theorem": 5 + 3, "orders": 10 + 1}
PUBLISHED = {"table1": 48, "table2": 24, "table3": 10, "table-taskid": 6, "table-backbones": 96}

CLUSTERS: tuple[tuple[list[object], str], ...] = (
    (["--cluster", "head"], "'head' is no cluster; give ray://HOST:10001, HOST:6379, auto, local or slurm"),
    (["--cluster", "local", "--gpus", 1.5], "'gpus' must be a share of one GPU"),
    (["--cluster", "local", "--cpus", 0], "'cpus' must be above 0"),
    (["--cluster", "local", "--jobs", 0], "'jobs' must be at least 1"),
    (["--cluster", "slurm"], "'slurm' does not say how many minutes a job may take"),
    (["--cluster", "slurm:gpu"], "'gpu' in 'slurm:gpu' should read name=value"),
)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_lists_targets_and_scales(tmp_path: Path) -> None:
    for words in (["reproduce", "--list"], ["reproduce"]):
        done = caprompt_in_process(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        for name in (*TARGETS, "all", "full", "small", "tiny"):
            assert name in done.stdout
    assert read_tree(tmp_path) == {}


def test_finished_cells_are_not_run_again(tmp_path: Path) -> None:
    cells_folder = tmp_path / "reproduced" / "cells"
    for cell in plan_target(TARGETS["fig-cycles"], get_scale("tiny"), cells_folder)[1]:
        write_fake_cell(cell, cells_folder)
    done = caprompt_in_process("reproduce", "fig-cycles", "--scale", "tiny", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "51.50 ± 0.71" in done.stdout
    assert "saved in reproduced/tiny/fig-cycles" in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 100  # nothing is wrapped without a terminal
    assert (tmp_path / "reproduced" / "tiny" / "fig-cycles" / "fig-cycles.png").is_file()


def test_failed_cell_is_marked_and_the_rest_is_shown(tmp_path: Path) -> None:
    cells_folder = tmp_path / "cells"
    cells = plan_target(TARGETS["table-taskid"], get_scale("tiny", seeds=1, settings={"tasks": 40}), cells_folder)[1]
    write_fake_cell(cells[0], cells_folder)
    words = ["reproduce", "table-taskid", "--scale", "tiny", "--seeds", 1, "--set", "tasks=40", "--out", "."]
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = [row for row in read_csv(tmp_path / "tiny" / "table-taskid" / "table-taskid.csv") if row["figures"] == "ours"]
    digits = {row["method"]: row for row in ours if row["data set"] == "digits"}
    assert digits["CAPrompt without L_l"]["mean"] == "90.0"
    assert digits["CAPrompt"]["why none"] == "failed"
    assert json.loads((cells_folder / f"{cells[1].name}.failed.json").read_text())["reason"] in done.stderr


def test_bad_input_is_one_sentence_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    def assert_reproduce_refused(*words: object, sentence: str) -> None:
        assert_refused(tmp_path, ["reproduce", *words], sentence, caprompt_in_process)

    assert_reproduce_refused("tabel1", sentence="unknown target 'tabel1' (did you mean 'table1'?)")
    assert_reproduce_refused("table1", "--scale", "huge", sentence="huge")
    assert_reproduce_refused("table1", "--scale", "tiny", "--seeds", 0, sentence="'seeds' must be at least 1")
    assert_reproduce_refused("table1", "--scale", "tiny", "--jobs", 0, sentence="'jobs' must be at least 1")
    assert_reproduce_refused("table1", "--scale", "tiny", "--gpus", 0.5, sentence="name it with --cluster")
    for words, sentence in CLUSTERS:
        assert_reproduce_refused("table1", "--scale", "tiny", *words, sentence=sentence)
    assert_reproduce_refused("table1", "--scale", "tiny", "--backbone", "no.pth", sentence="there is no backbone 'no.pth'")
    assert_reproduce_refused(
        "table1", "--scale", "tiny", "--set", "epoch=1", sentence="option 'epoch' cannot be set here (did you mean 'epochs'?)"
    )
    assert_reproduce_refused("table1", "--scale", "tiny", "--set", "seed=1", sentence="option 'seed' cannot be set here")
    assert_reproduce_refused(
        "table1", "--scale", "tiny", "--set", "epochs=many", sentence="option 'epochs' of l2p cannot be 'many'"
    )
    assert_reproduce_refused(
        "theorem", "--scale", "tiny", "--protocol", "released", sentence="not available with --protocol released"
    )
    assert_reproduce_refused(
        "table3", "--scale", "small", sentence="nothing of table3 can be run here (cifar100: data not at hand; imagenet-r"
    )


def test_unreadable_cells_are_one_sentence(tmp_path: Path) -> None:
    cells_folder = tmp_path / "reproduced" / "cells"
    (first, *_) = plan_target(TARGETS["table3"], get_scale("tiny"), cells_folder)[1]
    write_fake_cell(first, cells_folder)
    words = ["reproduce", "table3", "--scale", "tiny"]
    path = cells_folder / first.name / "results.json"
    path.write_text(path.read_text()[:50])
    assert_refused(tmp_path, words, "is half-written or of another version of caprompt; remove the folder", caprompt_in_process)
    (cells_folder / first.name / "run.json").write_text('{"config": {}}')
    assert_refused(
        tmp_path, words, "was written by another version of caprompt; remove the folder and run it again", caprompt_in_process
    )


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_continues(tmp_path: Path) -> None:
    words = ["reproduce", "table-taskid", "--scale", "tiny", "--seeds", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "caprompt", *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("[1/2] digits-caprompt-seed0-")
    time.sleep(1)  # into the second one
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.strip() == "caprompt: Stopped; the same command continues where it stopped."
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["[2/2]"]


@pytest.mark.slow
def test_all_targets_at_scale_tiny(tmp_path: Path, backbone: Path) -> None:
    words = [
        "reproduce",
        "all",
        "--scale",
        "tiny",
        "--seeds",
        1,
        "--backbone",
        backbone,
        "--set",
        "epochs=1",
        "--set",
        "per_class=4",
    ]
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stderr
    for name in TARGETS:
        folder = tmp_path / "reproduced" / "tiny" / name
        assert {path.suffix for path in folder.iterdir()} == {".md", ".csv", ".tex", ".json", ".svg", ".png"}
        rows = read_csv(folder / f"{name}.csv")
        lines = [line for line in (folder / f"{name}.md").read_text().splitlines() if line.startswith("|")]
        assert sum(" | ours | " in line for line in lines) == ROWS[name]
        assert sum(row["figures"] == "published" for row in rows) == PUBLISHED.get(name, 0)
        measured = [row for row in rows if row["figures"] == "ours" and row["mean"]]
        assert measured
        assert {row["seeds"] for row in measured} == {"1"}
        with Image.open(folder / f"{name}.png") as image:
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    again = caprompt_in_process(*words, cwd=tmp_path)
    assert again.stdout == done.stdout
    assert again.stderr == ""
