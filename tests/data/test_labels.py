from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from caprompt.data.labels import convert_labels, index_names
from caprompt.errors import DataError


def test_integers_are_recognized_in_all_containers() -> None:
    for labels in ([3, 10], (3, 10), np.array([3, 10]), torch.tensor([3, 10]), pd.Series([3, 10]), list(torch.tensor([3, 10]))):
        assert convert_labels(labels) == (("3", "10"), {"3", "10"})
    assert convert_labels(np.array(["3", "cat"])) == (("3", "cat"), frozenset())
    assert convert_labels([True, False]) == (("True", "False"), frozenset())
    assert convert_labels([-1]) == (("-1",), {"-1"})


def test_numbers_and_text_may_be_mixed_but_not_for_one_class() -> None:
    assert convert_labels(["cat", 3]) == (("cat", "3"), {"3"})
    with pytest.raises(DataError, match="'3' is both an integer and a text among the labels; use one of the two"):
        convert_labels(["3", 3])


def test_names_replace_numbers() -> None:
    assert convert_labels(torch.tensor([1, 0]), ["cat", "dog"]) == (("dog", "cat"), frozenset())
    assert convert_labels([7, "fox"], {7: "owl"}) == (("owl", "fox"), frozenset())
    assert index_names(np.array(["cat", "dog"])) == {0: "cat", 1: "dog"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([1.5], None, "label 0 is a float; labels must be strings or integers"),
        (["a", None], None, "label 1 is missing"),
        ([torch.zeros(3)], None, "label 0 is a Tensor"),
        ("cat", None, "a single str; give a sequence"),
        (3, None, "a single int; give a sequence"),
        (None, None, "a single NoneType; give a sequence"),
        ([0, 2], ["cat", "dog"], "label 1 is 2, which is none of the 2 named classes"),
        ([-1], ["cat", "dog"], "label 0 is -1"),
        ([0], "cat", "names is a str; give a list"),
        ([0], 3, "names is a int; give a list"),
        ([0], ["cat", "cat"], "names has 'cat' twice"),
        ([0], [0, 1], "names has the entry 0: 0; give a text"),
        ([0], {"a": "cat"}, "names has the entry 'a': 'cat'"),
    ],
)
def test_invalid_labels_raise_one_sentence(labels: object, names: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        convert_labels(labels, names)  # type: ignore[arg-type]
