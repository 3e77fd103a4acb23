from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import QUICK, assert_refused, caprompt_in_process, squares, write_squares
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.classifier.file_prediction import predict_files
from caprompt.data.images import decode
from caprompt.data.sources import list_images, read_source
from caprompt.errors import DataError
from caprompt.outputs import Prediction


def test_prints_a_table_or_json(workspace: Path) -> None:
    table = caprompt_in_process("predict", "pets", "test/red/060.png", cwd=workspace)
    assert table.returncode == 0
    assert "test/red/060.png" in table.stdout
    done = caprompt_in_process("predict", "pets", "test/red/060.png", "test/green", "--json", "--top", 1, cwd=workspace)
    predictions = json.loads(done.stdout)
    assert [Path(entry["image"]).name for entry in predictions] == ["060.png", "060.png", "061.png", "062.png"]
    assert all(len(entry["top"]) == 1 and entry["label"] in ("red", "green") for entry in predictions)
    auto = caprompt_in_process("predict", "pets", "test/red/060.png", "--json", "--cycles", "auto", cwd=workspace)
    assert json.loads(auto.stdout)[0]["passes"] == 1


def test_names_are_printed_verbatim(workspace: Path, quick: tuple[str, ...]) -> None:
    """Square brackets are markup to rich, but not in names of classes and files."""
    write_squares(workspace / "odd names", ["blue"])
    (workspace / "odd names" / "blue").rename(workspace / "odd names" / "dog[red]")
    done = caprompt_in_process("learn", "brackets", "odd names", "--backbone", "tiny.safetensors", *quick, cwd=workspace)
    assert "dog[red]" in done.stdout
    (workspace / "a[").mkdir()
    shutil.copy(workspace / "test" / "red" / "060.png", workspace / "a[" / "b].png")
    assert "a[/b].png" in caprompt_in_process("predict", "brackets", "a[/b].png", cwd=workspace).stdout


def test_unreadable_images_are_skipped_only_with_skip_bad(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "blue"]))
    write_squares(tmp_path, ["red"], each=2)
    (tmp_path / "red" / "bad.png").write_bytes(b"no image")
    paths = list_images([tmp_path])
    with pytest.raises(DataError, match=r"bad\.png"):
        predict_files(model, paths, 1, skip_bad=False, options={})
    predictions, skipped = predict_files(model, paths, 1, skip_bad=True, options={})
    assert [path.name for path, _ in predictions] == ["000.png", "001.png"]
    assert len(skipped) == 1
    with pytest.raises(DataError, match="none of the images can be read"):
        predict_files(model, [tmp_path / "red" / "bad.png"], 1, skip_bad=True, options={})


@pytest.mark.parametrize(("tool", "name"), [("fiftyone", "pre.json"), ("fiftyone", "pre.csv"), ("label-studio", "pre.json")])
def test_pre_labels_for_labeling_tools(workspace: Path, tool: str, name: str) -> None:
    done = caprompt_in_process("predict", "pets", "test/red", "--to", tool, "--out", name, cwd=workspace)
    assert done.returncode == 0, done.stderr
    content = (workspace / name).read_text(encoding="utf-8")
    assert all(str(workspace / "test" / "red" / f"06{number}.png")[1:] in content for number in range(3))
    if tool == "fiftyone":
        assert read_source(workspace / name).classes == ("red",)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "fiftyone"], "give both --to and --out"),
        (["--out", "pre.json"], "give both --to and --out"),
        (["--to", "cvat", "--out", "pre.json"], "unknown labeling tool 'cvat'; there are: fiftyone, label-studio"),
        (["--to", "label-studio", "--out", "pre.csv"], "choose a file name that ends with .json"),
    ],
)
def test_invalid_pre_labels_are_refused(workspace: Path, words: list[str], sentence: str) -> None:
    assert_refused(workspace, ["predict", "pets", "test/red", *words], sentence, caprompt_in_process)


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_predictions_into_a_file(workspace: Path, name: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="the package pyarrow is not installed (the extra caprompt[cluster])")
    done = caprompt_in_process("predict", "pets", "test/red", (workspace / "test" / "green").as_uri(), "--out", name, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"6 of 6 images in {name}\n"
    assert done.stderr == ""
    assert_refused(workspace, ["predict", "pets", "test", "--out", name], f"'{name}' exists; remove it", caprompt_in_process)
    if name.endswith(".jsonl"):
        rows = [json.loads(line) for line in (workspace / name).read_text().splitlines()]
        assert [row["label"] for row in rows] == ["green"] * 3 + ["red"] * 3
        assert [row["path"].rpartition("test/")[2] for row in rows][2:4] == ["green/062.png", "red/060.png"]
    (workspace / name).unlink()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "all.jsonl", "--json"], "output goes to 'all.jsonl'; leave out --json and --csv"),
        (["--cluster", "local"], "name one that ends with .parquet or .jsonl with --out"),
        (["--out", "all.jsonl", "--gpus", 1], "name it with --cluster"),
        (["--out", "all.jsonl", "--cluster", "slurm"], "bulk prediction runs on Ray"),
        (["--out", "all.jsonl", "--cluster", "head"], "'head' is no cluster"),
        (["--out", "all.jsonl", "--cluster", "local", "--jobs", 0], "'jobs' must be at least 1"),
        (["nobody://photos", "--out", "all.jsonl"], "addresses that begin with nobody:// cannot be read"),
        (["file:///nowhere", "--out", "all.jsonl"], "there is no image at 'file:///nowhere'"),
    ],
)
def test_invalid_bulk_prediction_is_refused(workspace: Path, words: list[str], sentence: str) -> None:
    assert_refused(workspace, ["predict", "pets", "test/red", *words], sentence, caprompt_in_process)


def test_integer_labels_are_printed(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn((squares(["red"])[0], [3] * 5))
    model.save(tmp_path / "m")
    write_squares(tmp_path, ["red"], each=1)
    assert "3" in caprompt_in_process("predict", "m", "red", cwd=tmp_path).stdout
    assert json.loads(caprompt_in_process("predict", "m", "red", "--json", cwd=tmp_path).stdout)[0]["label"] == 3
    assert caprompt_in_process("predict", "m", "red", "--csv", cwd=tmp_path).stdout.splitlines()[1].split(",")[1] == "3"


# -- names of files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def odd_names(workspace: Path) -> Path:
    """A folder of images whose names a terminal, a spreadsheet program or an encoder would act on."""
    folder = workspace / "odd files"
    if not folder.exists():
        write_squares(folder, ["red"], each=1)
        for name in (b"caf\xe9.png", b"esc\x1b[31m.png", b"two\nlines.png", b'a,"b".png'):
            shutil.copy(folder / "red" / "000.png", folder / "red" / os.fsdecode(name))
    return folder


def test_long_paths_are_complete_where_stdout_is_not_a_terminal(workspace: Path) -> None:
    deep = workspace / ("a very long name of a folder " * 4).strip() / "holiday"
    deep.mkdir(parents=True)
    for name in ("photo number one.png", "photo number two.png"):
        shutil.copy(workspace / "test" / "red" / "060.png", deep / name)
    done = caprompt_in_process("predict", "pets", deep.parent.name, cwd=workspace)
    for path in deep.iterdir():
        assert str(path.relative_to(workspace)) in done.stdout


def test_csv(workspace: Path, odd_names: Path) -> None:
    shutil.copy(workspace / "test" / "red" / "060.png", workspace / "=1+1.png")
    done = caprompt_in_process("predict", "pets", "test/green", "odd files", "=1+1.png", "--csv", "--top", 2, cwd=workspace)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 9
    assert [row["path"] for row in rows[:3]] == [f"test/green/06{number}.png" for number in range(3)]
    assert rows[0]["label"] == "green"
    assert float(rows[0]["score"]) > float(rows[0]["score_2"])
    assert rows[0]["label_2"] == "red"
    names = {row["path"].removeprefix("odd files/red/") for row in rows[3:8]}
    assert names == {"000.png", r"caf\xe9.png", r"esc\x1b[31m.png", r"two\nlines.png", 'a,"b".png'}
    assert rows[8]["path"] == "./=1+1.png"


def test_class_names_in_csv_are_no_formulas(workspace: Path, quick: tuple[str, ...]) -> None:
    write_squares(workspace / "formulas", ["red"])
    (workspace / "formulas" / "red").rename(workspace / "formulas" / "=cmd")
    caprompt_in_process("learn", "formula model", "formulas", "--backbone", "tiny.safetensors", *quick, cwd=workspace)
    done = caprompt_in_process("predict", "formula model", "formulas/=cmd/000.png", "--csv", cwd=workspace)
    assert done.stdout.splitlines()[1].startswith("formulas/=cmd/000.png,'=cmd,1.0")


def test_json_and_csv_together_are_refused(workspace: Path) -> None:
    assert_refused(workspace, ["predict", "pets", "test", "--json", "--csv"], "JSON or CSV, not both", caprompt_in_process)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("flags", [[], ["--json"], ["--csv"]], ids=["table", "json", "csv"])
def test_no_name_reaches_the_terminal_as_it_is(workspace: Path, odd_names: Path, flags: list[str], encoding: str) -> None:
    words = [sys.executable, "-m", "caprompt", "predict", "pets", "odd files", *flags]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, cwd=workspace, capture_output=True, check=True, env=environment, timeout=300)
    output = done.stdout.decode(encoding)  # nothing that cannot be decoded
    assert "\x1b" not in output
    assert r"caf\xe9.png" in output.replace("\\\\", "\\")
    assert "000.png" in output
    if flags == ["--json"]:
        names = {Path(entry["image"]).name for entry in json.loads(output)}
        assert {r"caf\xe9.png", "esc\x1b[31m.png", "two\nlines.png"} <= names


def test_errors_about_odd_names_are_one_line(workspace: Path) -> None:
    (workspace / os.fsdecode(b"b\xe9d\x1b[2J\n.png")).write_bytes(b"no image")
    name = os.fsdecode(b"b\xe9d\x1b[2J\n.png")
    assert_refused(workspace, ["predict", "pets", name], r"'b\xe9d\x1b[2J\n.png' is not a readable image", caprompt_in_process)
    assert_refused(workspace, ["predict", "pets", os.fsdecode(b"n\xff")], r"no image file 'n\xff'", caprompt_in_process)


# -- files that are not images -------------------------------------------------------------------------------------------------


def test_ignored_files_are_named(workspace: Path) -> None:
    folder = write_squares(workspace / "holiday", ["red"], each=1)
    for name in ("a.txt", "b.pdf", "c.mov"):
        (folder / "red" / name).write_bytes(b"%PDF")
    done = caprompt_in_process("predict", "pets", "holiday", "--json", cwd=workspace)
    assert done.stderr == (
        "ignored 3 files that are not images in a known format: holiday/red/a.txt, holiday/red/b.pdf, holiday/red/c.mov\n"
    )
    assert len(json.loads(done.stdout)) == 1


# -- memory --------------------------------------------------------------------------------------------------------------------


def test_chunks_with_a_bad_file_are_bounded_by_bytes(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn(squares(["red", "blue"]))
    write_squares(tmp_path, ["red"], each=10)
    paths = list_images([tmp_path])
    whole, _ = predict_files(model, paths, 1, skip_bad=False, options={})
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not an image")
    sizes: list[int] = []

    def record(images: list[Any], **options: Any) -> list[Prediction]:
        sizes.append(sum(image.nbytes for image in images if isinstance(image, np.ndarray)))
        return predict(images, **options)

    predict, image_bytes = model.predict, decode(paths[0]).nbytes
    monkeypatch.setattr(model, "predict", record)
    monkeypatch.setattr("caprompt.classifier.file_prediction.CHUNK_BYTES", 3 * image_bytes)
    chunked, skipped = predict_files(model, [bad, *paths], 1, skip_bad=True, options={})
    assert sizes == [0] + [3 * image_bytes] * 3 + [image_bytes]  # first all files together
    assert chunked == whole
    assert ["bad.png" in sentence for sentence in skipped] == [True]
    assert predict_files(model, paths, 1, skip_bad=False, options={})[0] == whole
    assert sizes[5:] == [0]


MEASURE = """
import re, sys
from pathlib import Path
from caprompt.cli.app import main
try:
    main(sys.argv[1:])
except SystemExit as error:
    assert not error.code
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is measured on Linux only")
def test_memory_is_bounded_for_small_files_of_huge_images(workspace: Path) -> None:
    """12 PNG files of 10 kB, of 9000 x 9000 pixels each, in less than a gigabyte."""
    folder = workspace / "huge"
    folder.mkdir()
    Image.new("P", (9000, 9000), 0).save(folder / "00.png", transparency=b"\x80")
    for number in range(1, 12):
        os.link(folder / "00.png", folder / f"{number:02d}.png")
    words = [sys.executable, "-c", MEASURE, "predict", "pets", "huge", "--json"]
    done = subprocess.run(words, cwd=workspace, capture_output=True, text=True, check=True, timeout=300)
    assert len(json.loads(done.stdout)) == 12
    assert int(done.stderr.split()[-1]) < 1_000_000
