"""The command `export`."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import assert_refused, write_squares
from helpers import caprompt_in_process as caprompt

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """Return a folder with a model `pets`, one that cannot be exported, test images and something like a runtime."""
    folder = tmp_path_factory.mktemp("export")
    write_squares(folder / "train", ["red", "green"])
    write_squares(folder / "test", ["red", "green"], each=3, start=60)
    (folder / "empty").mkdir()
    (folder / "taken.onnx").touch()
    (folder / "npm").mkdir()
    for name in ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        (folder / "npm" / name).write_bytes(b"ONNX Runtime Web")
    for name, method in (("pets", "ncm"), ("switching", "mos")):
        flags = ("--set", "epochs=1", "--set", "align_epochs=1") if method == "mos" else ()
        done = caprompt("learn", name, "train", "--method", method, "--backbone", backbone, *flags, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_onnx_file_is_verified_and_written(folder: Path) -> None:
    done = caprompt("export", "pets", "--to", "onnx", "--out", "new/pets.onnx", "--weights", "fp16", "--verify", "test", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "same label for 6 of 6 images (100.00 %)"
    assert 0 < float(lines[1].removeprefix("largest difference of a score ")) < 0.01
    assert "on 6 labeled images" in lines[2]
    assert lines[3].startswith("written to new/pets.onnx (0.")
    session = onnxruntime.InferenceSession(str(folder / "new" / "pets.onnx"))
    assert session.get_modelmeta().custom_metadata_map["weights"] == "fp16"


def test_page_is_written(folder: Path) -> None:
    done = caprompt("export", "pets", "--to", "browser", "--out", "page", "--runtime", "npm", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("written to page (")
    assert done.stdout.strip().endswith("open index.html in a browser")
    assert '"name": "pets"' in (folder / "page" / "labels.js").read_text(encoding="utf-8")


def test_invalid_input_is_one_sentence_and_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: str, *arguments: object, out: str = "bad.onnx", to: str = "onnx") -> None:
        assert_refused(folder, ["export", *arguments, "--to", to, "--out", out], message, caprompt)

    refuse("'nowhere' does not hold a caprompt model", "nowhere")
    refuse("the method 'mos' cannot be exported", "switching")
    refuse("'taken.onnx' exists already; choose another name", "pets", out="taken.onnx")
    refuse("'test' exists already", "pets", out="test", to="browser")
    refuse("opset 17 is too old; use one from 18", "pets", "--opset", 17)
    refuse("there is no folder 'nowhere'", "pets", "--verify", "nowhere")
    refuse("there is no image in the folder 'empty'", "pets", "--verify", "empty")
    refuse("there is no ort.wasm.min.js in 'empty'", "pets", "--runtime", "empty", to="browser")
    refuse("leave out --runtime", "pets", "--runtime", "npm")
    refuse("weights", "pets", "--weights", "int4")
    refuse("to", "pets", to="tflite")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(folder))
        refuse(
            "npm is not installed; install it, or give the folder of the npm package onnxruntime-web with --runtime",
            "pets",
            to="browser",
        )
    monkeypatch.setattr("caprompt.export.onnx_graph.PACKAGES", ("no_such_package",))
    refuse("needs the package no_such_package; install the extra: pip install 'caprompt[export]'", "pets")
    refuse("needs the package no_such_package", "pets", to="browser")
