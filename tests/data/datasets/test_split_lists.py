from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from caprompt.data.datasets._split_lists import read_file_list, split_stratified, write_file_list
from caprompt.errors import DataError

SIZES = {"a": 7, "b": 12, "c": 13, "d": 430, "e": 3}
FILES = [f"{name}/{number}.jpg" for name, size in SIZES.items() for number in range(size)]


def test_split_has_a_fifth_of_all_and_of_each_class() -> None:
    train, test = split_stratified(FILES)
    assert len(test) == len(FILES) // 5 == 93
    assert sorted(train + test) == sorted(FILES)
    counts = Counter(file[0] for file in test)
    assert all(abs(counts[name] - size / 5) < 1 for name, size in SIZES.items())


def test_split_is_fixed() -> None:
    """These must never change: published results depend on them."""
    assert split_stratified(FILES)[1][:5] == ["a/3.jpg", "b/1.jpg", "b/3.jpg", "c/3.jpg", "c/6.jpg"]
    assert split_stratified(FILES[::-1]) == split_stratified(FILES)
    assert split_stratified(FILES, seed=1)[1] != split_stratified(FILES)[1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.txt", "n01/a.jpg 0\nn02/b c.jpg 17\n\n"),
        ("x.txt", "# ours\nn01/a.jpg\ndata/imagenet-r/n02/b c.jpg\n"),
        ("x.txt", "\ufeffn01\\a.jpg 3\r\nn02\\b c.jpg 4\r\n"),
        ("x.yaml", "data:\n- data/imagenet-r/n01/a.jpg\n- 'data/imagenet-r/n02/b c.jpg'\ntargets:\n- 0\n- 1\n"),
        ("x.yaml", "data: [data/imagenet-r/n01/a.jpg,\n  data/imagenet-r/n02/b c.jpg]\ntargets: [0, 1]\n"),
        ("x.yml", "targets:\n- 0\n- 1\ndata:\n  - n01/a.jpg\n  - n02/b c.jpg\n"),
    ],
)
def test_common_list_formats(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_file_list(tmp_path / name) == ["n01/a.jpg", "n02/b c.jpg"]


def test_round_trip(tmp_path: Path) -> None:
    write_file_list(tmp_path / "x.txt", FILES)
    assert read_file_list(tmp_path / "x.txt") == FILES
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lists no images"),
        (b"a.jpg 1\n", "'a.jpg', which is not of the form class/file"),
        (b"../a.jpg\n", "not of the form class/file"),
        (b"n01/a.jpg\nn01/a.jpg\n", r"lists 1 image\(s\) twice"),
        (b"\xff\xd8\xff", "not a UTF-8 text file"),
    ],
)
def test_invalid_lists_raise(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_file_list(tmp_path / "x.txt")
