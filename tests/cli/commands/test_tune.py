from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, assert_refused, caprompt, caprompt_in_process

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'caprompt[tune]'")

#: Flags that make a trial quick.
QUICK = ("--backbone", "tiny.safetensors", "--method", "linear", "--set", "per_class=4")


def test_study_of_the_digits(workspace: Path) -> None:
    done = caprompt_in_process("tune", "digits", *QUICK, "--trials", 3, cwd=workspace)
    assert done.returncode == 0, done.stderr
    folder = workspace / "studies" / "digits-linear"
    assert {path.name for path in folder.iterdir()} == {"best.toml", "report.html", "study.db", "study.json", "trials"}
    for sentence in ("the best of 3 trials, on validation images, in percent", "test images were not read", "default"):
        assert sentence in done.stdout
    assert "caprompt run --config studies/digits-linear/best.toml" in done.stdout
    lines = done.stderr.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["[1/3] trial 0", "[2/3] trial 1", "[3/3] trial 2"]
    values = [float(line.partition("ACC ")[2].split()[0].rstrip(",")) for line in lines]
    best = float(done.stdout.partition(", ACC ")[2].split(",")[0])
    assert best == max(values)
    assert best >= values[0]
    again = caprompt_in_process("tune", "digits", *QUICK, "--trials", 3, "--resume", cwd=workspace)
    assert again.stdout == done.stdout
    assert again.stderr == ""
    run = caprompt_in_process(
        "run", "--config", "studies/digits-linear/best.toml", "--set", "per_class=4", "--out", "r", cwd=workspace
    )
    assert run.returncode == 0, run.stderr
    assert json.loads((workspace / "r" / "run.json").read_text())["test"]["from"] == "test images"


def test_space_is_listed_and_nothing_is_run(workspace: Path) -> None:
    done = caprompt_in_process("tune", "--space", "--method", "l2p", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "options of l2p that caprompt tune searches" in done.stdout
    assert "0.0003 to 0.03, log scale" in done.stdout
    requested = ["--search", "length=4/8", "--search", "epochs=1..3", "--search", "optimizer"]
    done = caprompt_in_process("tune", "digits", "--space", *requested, "--preset", "paper", cwd=workspace)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("length", "epochs", "optimizer", "learning_rate")] == [
        "length",
        "epochs",
        "optimizer",
    ]
    assert "adam / adamw / sgd" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits", "--method", "l3p"], "unknown method 'l3p' (did you mean 'l2p'?)"),
        (["diggits"], "unknown dataset 'diggits' (did you mean 'digits'?)"),
        (["digits", "--trials", "0"], "option 'trials' must be at least 1, not 0"),
        (["digits", "--trials", "-3"], "option 'trials' must be at least 1, not -3"),
        (["digits", "--out", "week1"], "'week1' is not empty; choose another folder, or resume the study there with --resume"),
        (["digits", "--out", "week1", "--resume"], "there is no study to resume in 'week1'; start it without --resume"),
        (["digits", "--out", "tiny.safetensors"], "'tiny.safetensors' is a file; give a folder for the study"),
        (["digits", "--validation", "0"], "option 'validation' must be above 0"),
        (["digits", "--validation", "1.5"], "option 'validation' of run cannot be '1.5'"),
        (["digits", "--search", "lenght"], "unknown option 'lenght' for caprompt (did you mean 'length'?)"),
        (["digits", "--search", "length=8"], "'--search length=8' should read '--search name', '--search name=low..high'"),
        (["digits", "--search", "length=9..12"], "option 'length' of caprompt cannot be '9'"),
        (["digits", "--search", "length", "--set", "length=8"], "option 'length' of caprompt is both set and searched"),
        (["digits", "--preset", "best"], "unknown preset 'best'"),
        ([], "give a dataset, such as caprompt tune digits"),
        (["digits", "--tasks", "40"], "cannot split 10 classes into 40 tasks"),
        (["digits", "--backbone", "nothing.safetensors"], "nothing.safetensors"),
    ],
)
def test_bad_input_is_one_sentence(workspace: Path, words: list[str], sentence: str) -> None:
    assert_refused(workspace, ["tune", *words], sentence, caprompt_in_process)


def test_missing_optuna_names_the_extra(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    sentence = "a study needs the package optuna: pip install 'caprompt[tune]'"
    assert_refused(workspace, ["tune", "digits", "--out", "none"], sentence, caprompt_in_process)
    assert caprompt_in_process("tune", "--space", cwd=workspace).returncode == 0


def test_other_settings_are_refused_on_resume(workspace: Path) -> None:
    words = ["tune", "digits", *QUICK, "--out", "seeded", "--trials", "1"]
    assert caprompt_in_process(*words, cwd=workspace).returncode == 0
    assert_refused(workspace, words, "'seeded' is not empty", caprompt_in_process)
    sentence = "the study in 'seeded' was started with other settings (seed was 0 and is 1 now); resume it with the same ones"
    assert_refused(workspace, [*words, "--resume", "--seed", "1"], sentence, caprompt_in_process)
    assert_refused(workspace, [*words, "--resume", "--search", "epochs"], "was started with other settings", caprompt_in_process)


@pytest.mark.slow
def test_ctrl_c_is_one_sentence_and_the_study_goes_on(workspace: Path) -> None:
    words = [sys.executable, "-m", "caprompt", "tune", "digits", *QUICK, "--trials", "4", "--out"]
    process = subprocess.Popen([*words, "stopped"], cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("[1/4] trial 0: ACC")
    os.kill(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == "caprompt: Stopped; the same command with --resume continues after the last complete epoch."
    assert "Traceback" not in errors
    assert printed == ""
    assert not (workspace / "stopped" / "report.html").exists()
    resumed = caprompt(*words[3:], "stopped", "--resume", cwd=workspace)
    whole = caprompt(*words[3:], "whole", cwd=workspace)
    assert resumed.returncode == whole.returncode == 0, resumed.stderr
    # Seconds are measured anew; ranks, accuracies and options are the same.
    assert (workspace / "stopped" / "best.toml").read_bytes() == (workspace / "whole" / "best.toml").read_bytes()
    assert whole.stderr.endswith(resumed.stderr)
    assert resumed.stdout.splitlines()[-2] == whole.stdout.splitlines()[-2]


def test_commands_of_the_page_exist() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    shown = {line.split()[1] for line in page.splitlines() if line.startswith("caprompt ")}
    assert {"tune", "run"} <= shown
    for command in shown:
        assert caprompt(command, "--help").returncode == 0
