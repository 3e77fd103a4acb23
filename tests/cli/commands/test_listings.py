from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from backbones.published import DEIT, use_closed_port
from export.local_hub import LocalHub
from helpers import assert_refused, caprompt_in_process

from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.cli.commands import listings
from caprompt.cli.console import out
from caprompt.errors import UnknownNameError


def capture_output(name: str, *words: str) -> str:
    with out.capture() as capture:
        getattr(listings, name)(*words)
    return capture.get()


def test_methods_and_their_options() -> None:
    assert "sequential-prompt" in capture_output("methods")
    assert "caprompt run --joint --method NAME" in capture_output("methods")
    assert "align_epochs" in capture_output("methods", "caprompt")
    with pytest.raises(UnknownNameError):
        listings.methods("magic")


def test_backbones_have_sizes_and_licenses_and_one_is_chosen(tmp_path: Path, backbone_hub: LocalHub) -> None:
    done = caprompt_in_process("backbones", cwd=tmp_path)
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()}
    assert lines["vit_base_patch16_224.mae"][-5:] == ["343", "MB", "CC-BY-NC-4.0", "no:", "hub"]
    assert lines["vit_base_patch16_224.ibot"][-4:] == ["Apache-2.0", "no:", "by", "hand"]
    assert lines[DEFAULT_BACKBONE][-5:] == ["5", "MB", "Apache-2.0", "in", "package"]
    assert lines[DEIT][-5:] == ["23", "MB", "Apache-2.0", "no:", "hub"]
    proposal = f"caprompt learn chooses {DEFAULT_BACKBONE}, which is for demos; better: {DEIT} (23 MB, Apache-2.0), 45.3 %"
    assert proposal in done.stdout
    assert "The rule without a GPU: the widest network of at most 10 GFLOP an image" in done.stdout
    assert backbone_hub.downloads == []


def test_backbone_is_downloaded_by_name_once(tmp_path: Path, backbone_hub: LocalHub) -> None:
    for _ in range(2):
        done = caprompt_in_process("backbones", "--download", DEIT, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{DEIT} is at '")
        assert done.stdout.endswith("model.safetensors' (0 MB, Apache-2.0)\n")  # the network of this test is tiny
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"]
    assert f"caprompt learn chooses {DEIT}\n" in caprompt_in_process("backbones", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("deit_tiny_patch16_224", f"unknown backbone 'deit_tiny_patch16_224' (did you mean '{DEIT}'?); there are: "),
        ("vit_base_patch16_224.ibot", "are not on the hub; put 'checkpoint_teacher.pth' from https://github.com/bytedance/ibot"),
        ("vit_base_patch16_224.dino", "could not be downloaded"),  # this hub does not have it
    ],
)
def test_backbone_that_cannot_be_downloaded(tmp_path: Path, backbone_hub: LocalHub, name: str, sentence: str) -> None:
    assert_refused(tmp_path, ["backbones", "--download", name], sentence, caprompt_in_process)


def test_download_without_a_network(tmp_path: Path, backbone_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    use_closed_port(tmp_path, monkeypatch)
    assert_refused(tmp_path, ["backbones", "--download", DEIT], "the hub cannot be reached; put 'model", caprompt_in_process)


def test_datasets() -> None:
    text = capture_output("datasets")
    assert "digits" in text
    assert "cifar100" in text


def test_classes_of_a_dataset() -> None:
    text = capture_output("datasets", "digits")
    assert re.match(r"digits: 1,4\d\d training and 3\d\d test images of 10 classes: eight, five, four, ", text)


def test_images_of_a_dataset_are_written_as_folders(tmp_path: Path) -> None:
    words = ["datasets", "digits", "--out", "photos", "--classes", "six, one", "--per-class", "3"]
    done = caprompt_in_process(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Wrote 6 images to 'photos/train' and 6 to 'photos/test', 2 classes: one, six\n"
    assert sorted(path.name for path in (tmp_path / "photos" / "test" / "six").iterdir()) == ["0001.png", "0002.png", "0003.png"]
    assert_refused(tmp_path, words, "'photos' exists and is not an empty folder; choose another one", caprompt_in_process)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "photos"], "name it, as in 'caprompt datasets beetles --out photos'"),
        (["beetle", "--out", "photos"], "unknown dataset 'beetle' (did you mean 'beetles'?)"),
        (["digits", "--out", "photos", "--classes", "sevn"], "unknown class 'sevn' (did you mean 'seven'?)"),
        (["digits", "--out", "photos", "--per-class", "0"], "must be positive, not 0"),
    ],
)
def test_images_that_cannot_be_written(tmp_path: Path, words: list[str], sentence: str) -> None:
    assert_refused(tmp_path, ["datasets", *words], sentence, caprompt_in_process)


def test_listings_are_commands(tmp_path: Path) -> None:
    assert "digits" in caprompt_in_process("datasets", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("datasets", "Name of a dataset to download"),
        ("backbones", "Name of a backbone to download"),
        ("methods", "Method whose options"),
    ],
)
def test_help_describes_the_argument(tmp_path: Path, command: str, words: str) -> None:
    assert words in " ".join(caprompt_in_process(command, "--help", cwd=tmp_path).stdout.split())


def test_a_broken_method_of_another_package_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text("import package_that_is_missing\n")
    info = tmp_path / "broken_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[caprompt.methods]\nbroken = broken_plugin\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "caprompt", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment, timeout=300)

    sentence = "cannot load the method 'broken' of the package 'broken-package': No module named 'package_that_is_missing'"
    done = run("methods")
    assert done.returncode == 0, done.stderr
    assert "sequential-prompt" in done.stdout
    assert done.stderr == f"warning: {sentence}; update or uninstall that package\n"
    done = run("methods", "broken")
    assert done.returncode == 1
    assert f"caprompt: {sentence}" in done.stderr
