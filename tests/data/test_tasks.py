from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.data.samples import Samples
from caprompt.data.tasks import hold_out, order_classes, split_tasks
from caprompt.errors import InputError

NAMES = [f"c{i}" for i in range(12)]


def make_samples(**counts: int) -> Samples:
    labels = tuple(name for name, count in counts.items() for _ in range(count))
    return Samples(tuple(np.full((1, 1, 3), i, np.uint8) for i in range(len(labels))), labels)


def get_ids(samples: Samples) -> list[int]:
    return [int(image[0, 0, 0]) for image in samples.images]


def test_natural_order() -> None:
    assert order_classes(["c10", "c2", "c1", "c2"], "natural", seed=5) == ["c1", "c2", "c10"]


def test_shuffled_order_depends_on_the_seed_only() -> None:
    first = order_classes(NAMES, "shuffled", seed=1)
    assert sorted(first) == sorted(NAMES)
    assert first == order_classes(NAMES[::-1], "shuffled", seed=1)
    assert first != order_classes(NAMES, "shuffled", seed=2)
    assert first != order_classes(NAMES, "natural", seed=1)


def test_unknown_order_raises() -> None:
    with pytest.raises(InputError, match="unknown class order 'random'"):
        order_classes(NAMES, "random", seed=0)  # type: ignore[arg-type]


@given(st.integers(1, 12))
def test_even_split(tasks: int) -> None:
    split = split_tasks(NAMES, tasks)
    sizes = [len(task) for task in split]
    assert len(split) == tasks
    assert [name for task in split for name in task] == NAMES
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_split_by_size_and_by_name() -> None:
    assert split_tasks(NAMES[:4], (3, 1)) == [["c0", "c1", "c2"], ["c3"]]
    assert split_tasks(NAMES[:3], [("c2",), ("c1", "c0")]) == [["c2"], ["c1", "c0"]]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (0, "cannot split 4 classes into 0 tasks"),
        (5, "cannot split 4 classes into 5 tasks"),
        ([2, 1], "sum to 3 but there are 4 classes"),
        ([4, 0], "task of 0 classes"),
        ([["c0", "c1"], ["c2"]], r"class 'c3' is in no task \(1 missing"),
        ([["c0", "c1"], ["c2", "c3", "c0"]], "'c0' occurs twice"),
        ([["c0", "c1"], ["c2", "c33"]], "task 2 has an unknown class 'c33' .*'c3'"),
        ([["c0", "c1", "c2", "c3"], []], "task 2 has no classes"),
        (["c0", "c1", "c2", "c3"], "cannot split"),
        ([2, ["c2", "c3"]], "cannot split"),
        ([], "cannot split"),
    ],
)
def test_invalid_tasks_raise(tasks, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_tasks(NAMES[:4], tasks)


def test_hold_out_is_stratified_and_complete() -> None:
    samples = make_samples(a=20, b=10, c=2, d=1)
    train, held_out = hold_out(samples, 0.2, seed=0)
    assert held_out.counts() == {"a": 4, "b": 2, "c": 1}
    assert train.counts() == {"a": 16, "b": 8, "c": 1, "d": 1}
    assert sorted(get_ids(train) + get_ids(held_out)) == list(range(33))
    assert get_ids(train) == sorted(get_ids(train))


def test_hold_out_depends_on_the_seed_and_not_on_other_classes() -> None:
    samples = make_samples(a=20, b=20)
    _, held_out = hold_out(samples, 0.3, seed=1)
    assert get_ids(held_out) == get_ids(hold_out(samples, 0.3, seed=1)[1])
    assert get_ids(held_out) != get_ids(hold_out(samples, 0.3, seed=2)[1])
    assert [i for i in get_ids(held_out) if i >= 20] != [i + 20 for i in get_ids(held_out) if i < 20]
    _, alone = hold_out(make_samples(a=20), 0.3, seed=1)
    assert get_ids(alone) == [i for i in get_ids(held_out) if i < 20]


def test_hold_out_limits() -> None:
    samples = make_samples(a=5, b=3)
    assert len(hold_out(samples, 0.0, seed=0)[1]) == 0
    assert hold_out(samples, 0.99, seed=0)[0].counts() == {"a": 1, "b": 1}
    for share in (1.0, -0.1, float("nan")):
        with pytest.raises(InputError, match="share of images"):
            hold_out(samples, share, seed=0)


def test_duplicates_are_held_out_together() -> None:
    """Of six images that occur three times each, two are held out with all their duplicates."""
    images = tuple(np.full((1, 1, 3), i % 6, np.uint8) for i in range(18))
    for seed in range(5):
        train, held_out = hold_out(Samples(images, ("a",) * 18), 0.3, seed)
        assert len(held_out) == 6
        assert not set(get_ids(train)) & set(get_ids(held_out))
    assert len(hold_out(Samples(images[::6], ("a",) * 3), 0.3, seed=0)[1]) == 0


def test_image_with_two_labels_stays_in_training() -> None:
    images = tuple(np.full((1, 1, 3), i, np.uint8) for i in (*range(8), *range(4, 12)))
    for seed in range(5):
        train, held_out = hold_out(Samples(images, ("a",) * 8 + ("b",) * 8), 0.5, seed)
        assert len(train) + len(held_out) == 16
        assert not set(get_ids(train)) & set(get_ids(held_out))


def test_names_of_tasks_match_in_any_unicode_form() -> None:
    composed, decomposed = (unicodedata.normalize(form, "Löwe") for form in ("NFC", "NFD"))
    assert split_tasks(["cat", composed], [[decomposed], ["cat"]]) == [[composed], ["cat"]]
