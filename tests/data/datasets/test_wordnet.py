from __future__ import annotations

from pathlib import Path

from caprompt.data.class_names import check_class_name
from caprompt.data.datasets._wordnet import read_class_names


def test_names_follow_the_ids(tmp_path: Path) -> None:
    table = tmp_path / "words.txt"
    table.write_text(
        "Some heading\nn01443537\tgoldfish, Carassius auratus\nn02106662: german_shepherd_dog\n"
        "n00000001\ta/b: c. \nn99999999\tunused\n"
    )
    names = read_class_names(["n01443537", "n02106662", "n00000001", "n00000002"], table)
    assert names == {
        "n01443537": "n01443537 goldfish",
        "n02106662": "n02106662 german shepherd dog",
        "n00000001": "n00000001 a-b- c",
        "n00000002": "n00000002",
    }
    for name in names.values():
        check_class_name(name)


def test_ids_are_used_alone_without_a_table(tmp_path: Path) -> None:
    assert read_class_names(["n01443537"], tmp_path / "none") == {"n01443537": "n01443537"}
