from __future__ import annotations

import pytest
import torch
from helpers import squares

from caprompt.classifier.class_table import ClassTable
from caprompt.data.samples import Samples
from caprompt.errors import DataError, InputError


def make_samples(*colors: str, each: int = 3, start: int = 0) -> Samples:
    images, labels = squares(list(colors), each, start)
    return Samples(tuple(images), tuple(labels))


@pytest.fixture
def table() -> ClassTable:
    table = ClassTable()
    table.add(["red", "green", "blue"])
    table.record_lesson(make_samples("red", "green", "blue"), {"date": "2026-01-01"})
    return table


def test_images_of_new_classes_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them can have been learned."""
    table, samples = ClassTable(), make_samples("red", "green")
    monkeypatch.setattr(Samples, "hashes", property(lambda self: pytest.fail("hashed")))
    assert table.find_learned(samples) == []


def test_lesson_counts_images_and_remembers_them(table: ClassTable) -> None:
    table.record_lesson(make_samples("red", each=2, start=20), {"date": "2026-02-01"})
    assert table.images_seen == {"red": 5, "green": 3, "blue": 3}
    first, second = table.lessons
    assert first["classes"]["red"]["new"]
    assert not second["classes"]["red"]["new"]
    assert table.find_learned(make_samples("red", "green", each=4)) == [0, 1, 2, 4, 5, 6]  # the fourth of each is another image
    relabeled = make_samples("red")
    assert table.find_learned(Samples(relabeled.images, ("green",) * 3)) == []  # as another class it is not the same lesson


def test_item_assignment_renames_and_keeps_the_count(table: ClassTable) -> None:
    table.names[0] = "crimson"
    assert table.images_seen == {"crimson": 3, "green": 3, "blue": 3}


def test_rename_reaches_lessons(table: ClassTable) -> None:
    table.rename("red", "crimson", {"date": "2026-03-01"})
    assert table.names == ["crimson", "green", "blue"]
    assert "red" not in table.lessons[0]["classes"]
    assert table.lessons[-1] == {"kind": "rename", "date": "2026-03-01", "from": "red", "to": "crimson"}
    with pytest.raises(InputError, match="has not been learned"):
        table.rename("red", "scarlet", {})
    with pytest.raises(InputError, match="join them"):
        table.rename("green", "blue", {})
    with pytest.raises(DataError, match="cannot be a class name"):
        table.rename("green", "a/b", {})


def test_joined_classes_add_their_probabilities(table: ClassTable) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [5.0, -1.0, 4.9], [100.0, -100.0, 100.0]])
    table.join(["red", "blue"], "warm", {"date": "2026-03-01"})
    assert table.names == ["warm", "green"]
    merged = table.merge_logits(logits)
    probabilities = logits.softmax(dim=1)
    torch.testing.assert_close(merged.softmax(dim=1), torch.stack([probabilities[:, [0, 2]].sum(1), probabilities[:, 1]], dim=1))
    assert table.images_seen == {"warm": 6, "green": 3}
    assert table.lessons[0]["classes"]["warm"]["images"] == 6
    table.add(["yellow"])
    assert table.first_outputs() == [0, 1, 3]  # further images of "warm" are learned as the first of its outputs
    with pytest.raises(InputError, match="two different classes"):
        table.join(["warm", "warm"], "hot", {})
    with pytest.raises(InputError, match="not one of those to join"):
        table.join(["warm", "yellow"], "green", {})


def test_without_joins_logits_are_untouched(table: ClassTable) -> None:
    logits = torch.randn(2, 3)
    assert table.merge_logits(logits) is logits


def test_removal_leaves_no_mention(table: ClassTable) -> None:
    table.rename("green", "emerald", {"date": "2026-03-01"})
    table.join(["emerald", "blue"], "cold", {"date": "2026-03-02"})
    for output in (2, 1):
        table.remove(output, output == 1, {"date": "2026-03-03"})
    assert table.names == ["red"]
    text = repr(table)
    for name in ("green", "emerald", "blue", "cold"):
        assert name not in text
    assert [lesson["kind"] for lesson in table.lessons] == ["learn", "forget"]
    assert set(table.digests.values()) == {0}
    assert len(table.digests) == 3


def test_removal_renumbers_later_outputs(table: ClassTable) -> None:
    table.remove(0, True, {})
    assert table.name_of_output == [0, 1]
    assert sorted(set(table.digests.values())) == [0, 1]
    assert table.find_learned(make_samples("blue")) == [0, 1, 2]


def test_round_trip_through_files(table: ClassTable) -> None:
    table.join(["red", "green"], "mixed", {"date": "2026-03-01"})
    entries = table.as_entries([0, 0, 1])
    assert [entry["task"] for entry in entries] == [1, 1, 2]
    assert ClassTable.from_saved(entries, table.lessons, table.as_tensors()) == table
    empty = ClassTable()
    assert ClassTable.from_saved(empty.as_entries([]), [], empty.as_tensors()) == empty
    assert ClassTable.from_saved([{"name": "a", "images": 2, "task": 1}], [], {}).digests == {}  # an older model


def test_copy_is_independent(table: ClassTable) -> None:
    copy = table.copy()
    table.rename("red", "crimson", {})
    assert copy.names[0] == "red"
    assert "red" in copy.lessons[0]["classes"]
