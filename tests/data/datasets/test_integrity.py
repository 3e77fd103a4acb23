from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caprompt.data.datasets._integrity import check_classes, check_count, check_present
from caprompt.data.samples import Samples
from caprompt.errors import DataError


def samples(*labels: str) -> Samples:
    return Samples((np.zeros((2, 2), np.uint8),) * len(labels), labels)


def test_counts() -> None:
    check_count(Path("here"), "images", 3, 3)
    for found in (2, 1000):
        with pytest.raises(DataError, match=f"'here' is damaged or incomplete: found {found:,} images, expected 3; get it anew"):
            check_count(Path("here"), "images", found, 3)


def test_a_class_missing_in_either_part() -> None:
    both = samples("a", "b")
    check_classes(Path("here"), both, both, ["a", "b"])
    with pytest.raises(DataError, match=r"class 'b' has no training images \(found 1 classes, expected 2\)"):
        check_classes(Path("here"), samples("a"), both, ["a", "b"])
    with pytest.raises(DataError, match="class 'a' has no test images"):
        check_classes(Path("here"), both, samples("b"), ["a", "b"])


def test_absent_files(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    check_present(tmp_path, Path("list"), [tmp_path / "there"])
    with pytest.raises(
        DataError, match=r"'list' lists images that are not in .*: found 1, expected 3, the first missing is 'gone'"
    ):
        check_present(tmp_path, Path("list"), [tmp_path / name for name in ("there", "gone", "lost")])
