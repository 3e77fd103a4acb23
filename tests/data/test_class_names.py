from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.data.class_names import check_class_name, natural_key, normalize_class_name, normalize_saved_names
from caprompt.errors import DataError


def test_digits_sort_by_value() -> None:
    names = ["b", "a10", "A2", "a1b", "10", "9", "a"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "a1b", "A2", "a10", "b"]


def test_names_with_equal_values_have_a_fixed_order() -> None:
    names = ["a01", "A1", "a1"]
    assert sorted(names, key=natural_key) == sorted(["a1", "a01", "A1"], key=natural_key)


@given(st.lists(st.text(), max_size=6))
def test_order_is_deterministic_for_any_names(names: list[str]) -> None:
    reversed_names = names[::-1]
    assert sorted(names, key=natural_key) == sorted(reversed_names, key=natural_key)


@pytest.mark.parametrize("name", ["cat", "sea lion", "Löwe", "猫", "v1.2", "console", "a" * 255, "it's", "0"])
def test_valid_names(name: str) -> None:
    check_class_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "\x7f", "a\x9b31m", " a", "a ", "a."),
        *(f"a{character}b" for character in '<>:"|?*'),
        *("CON", "nul", "com1", "LPT9.txt", "ä" * 128, "\udcff"),
    ],
)
def test_invalid_folder_names_raise(name: str) -> None:
    with pytest.raises(DataError, match=r"cannot be a class name: .+; rename the class"):
        check_class_name(name)


@given(st.text(max_size=10))
def test_normalized_names_stay_as_they_are(name: str) -> None:
    assert normalize_class_name(normalize_class_name(name)) == normalize_class_name(name)


def test_saved_names_are_normalized_unless_they_would_become_equal() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert normalize_saved_names([decomposed, "dog"]) == [composed, "dog"]
    assert normalize_saved_names([decomposed, "dog", composed]) == [decomposed, "dog", composed]
    assert normalize_saved_names([decomposed, decomposed]) == [composed, composed]  # two outputs of a joined class
