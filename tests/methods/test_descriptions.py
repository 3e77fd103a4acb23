from __future__ import annotations

from pathlib import Path

import pytest

from caprompt.errors import DataError
from caprompt.methods.convprompt import attributes_of, read_descriptions, similarity, words_of


def write(folder: Path, text: str) -> Path:
    path = folder / "classes.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_reading(tmp_path: Path) -> None:
    found = read_descriptions(write(tmp_path, "tabby: Striped fur, green eyes,\n\n big cat :roar\n"))
    assert found == {"tabby": [{"striped", "fur"}, {"green", "eyes"}], "big cat": [{"roar"}]}


@pytest.mark.parametrize("line", ["tabby", "tabby:", "tabby: , ,"])
def test_a_line_without_attributes_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match=f"line 2 of .*not '{line.strip()}'"):
        read_descriptions(write(tmp_path, f"cat: fur\n{line}\n"))


def test_a_missing_file_and_a_missing_class_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.txt' cannot be read"):
        read_descriptions(tmp_path / "none.txt")
    with pytest.raises(DataError, match="does not describe the class 'dog'"):
        attributes_of(["cat", "dog"], {"cat": [words_of("fur")]}, "classes.txt")


def test_similarity_by_hand() -> None:
    """striped fur: best 'soft fur', 1 word of 3; green eyes: comes again; beak: nowhere."""
    old = [words_of("striped fur"), words_of("green eyes"), words_of("beak")]
    new = [words_of("soft fur"), words_of("eyes, green"), words_of("long tail")]
    assert similarity(old, new) == pytest.approx((1 / 3 + 1 + 0) / 3)
