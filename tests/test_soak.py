"""A process that learns and predicts for long keeps nothing; docs/soak.md shows what benchmarks/soak.py measured."""

from __future__ import annotations

import doctest
import gc
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import COLORS, QUICK, ROOT, squares, write_backbone, write_squares

from caprompt import ContinualClassifier
from caprompt.classifier.editing import undo

NAMES = list(COLORS)
linux_only = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec = importlib.util.spec_from_file_location("soak_benchmark", ROOT / "benchmarks" / "soak.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "soak_benchmark", module)  # dataclasses look it up
        spec.loader.exec_module(module)
        yield module


def count_kept() -> dict[str, int]:
    """Count what a leak would add to: tensors, types (ctypes makes and keeps them), open files and threads."""
    gc.collect()
    objects = gc.get_objects()
    return {
        "tensors": sum(issubclass(type(each), torch.Tensor) for each in objects),
        "types": sum(issubclass(type(each), type) for each in objects),
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


@linux_only
def test_lessons_and_predictions_keep_nothing(tmp_path: Path) -> None:
    folder, files = tmp_path / "model", write_squares(tmp_path / "files", NAMES[:3], each=2)
    arrays, _ = squares(NAMES[:3], each=2)

    def use(model: ContinualClassifier, classes: int) -> ContinualClassifier:
        """Teach so many new classes, predict, undo and load again; the sizes of all files differ with the number of classes."""
        model.learn(squares(NAMES[2 : 2 + classes], each=4), checkpoint_dir=folder)
        for _ in range(3):
            assert len(model.predict(files)) == len(model.predict(arrays)) == 6
        undo(folder)
        return ContinualClassifier.load(folder, device="cpu")

    model = ContinualClassifier(backbone=write_backbone(tmp_path / "tiny.safetensors"), device="cpu", **QUICK)
    model.learn(squares(NAMES[:2], each=4), checkpoint_dir=folder)
    model = use(model, 1)
    before = count_kept()
    for classes in (2, 3, 4):
        model = use(model, classes)
    assert count_kept() == before


@linux_only
def test_soak_reads_the_process_after_every_lesson(benchmark: ModuleType, tmp_path: Path) -> None:
    readings = list(benchmark.soak("undone", 3, 4, tmp_path))
    assert [(each.lesson, each.classes, each.predicted) for each in readings] == [(1, 2, 4), (2, 2, 8), (3, 2, 12)]
    assert readings[1].open_files == readings[2].open_files
    assert 50 < readings[0].resident_mb < 10_000
    assert readings[0].model_mb == readings[2].model_mb > 0


def test_growth_is_that_after_the_first_tenth(benchmark: ModuleType) -> None:
    assert doctest.testmod(benchmark).failed == 0
    assert doctest.testmod(benchmark).attempted


def test_page_shows_the_result(benchmark: ModuleType) -> None:
    result = json.loads((benchmark.SPEED / "soak.json").read_text(encoding="utf-8"))
    text = benchmark.PAGE.read_text(encoding="utf-8")
    assert benchmark.fill_page(text, result) == text, "write it again with python benchmarks/soak.py --page"
    assert result["undone"]["summary"]["growth_percent"] < benchmark.LIMIT
    assert result["undone"]["summary"]["lessons"] == 200
    assert result["undone"]["summary"]["images"] == 200_000
