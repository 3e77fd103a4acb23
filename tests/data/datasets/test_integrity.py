from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caprompt.data.datasets._integrity import check_classes, check_count, check_files_exist
from caprompt.data.samples import Samples
from caprompt.errors import DataError


def make_samples(*labels: str) -> Samples:
    return Samples((np.zeros((2, 2), np.uint8),) * len(labels), labels)


def test_wrong_count_raises() -> None:
    check_count(Path("data"), "images", 3, 3)
    for actual in (2, 1000):
        with pytest.raises(
            DataError, match=f"'data' is damaged or incomplete: found {actual:,} images, expected 3; download it again"
        ):
            check_count(Path("data"), "images", actual, 3)


def test_missing_class_in_either_split_raises() -> None:
    both = make_samples("a", "b")
    check_classes(Path("data"), both, both, ["a", "b"])
    with pytest.raises(DataError, match=r"class 'b' has no training images \(found 1 classes, expected 2\)"):
        check_classes(Path("data"), make_samples("a"), both, ["a", "b"])
    with pytest.raises(DataError, match="class 'a' has no test images"):
        check_classes(Path("data"), both, make_samples("b"), ["a", "b"])


def test_missing_files_raise(tmp_path: Path) -> None:
    (tmp_path / "present").touch()
    check_files_exist(tmp_path, Path("list"), [tmp_path / "present"])
    with pytest.raises(
        DataError, match=r"'list' lists images that are not in .*: found 1, expected 3, the first missing is 'gone'"
    ):
        check_files_exist(tmp_path, Path("list"), [tmp_path / name for name in ("present", "gone", "lost")])
