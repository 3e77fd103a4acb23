from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caprompt.utils.text import escape_bytes, escape_controls, join_names


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("a\x1b[31m.png", r"a\x1b[31m.png"),
        ("a\x1b]0;title\x07", r"a\x1b]0;title\x07"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x9b31m", r"\x9b31m"),
        ("gpj.\u202eexe", r"gpj.\u202eexe"),
        (os.fsdecode(b"caf\xe9"), r"caf\xe9"),
        ("Löwe 猫 👩‍🚀", "Löwe 猫 👩‍🚀"),
    ],
)
def test_escape_controls(name: str, escaped: str) -> None:
    assert escape_controls(name) == escaped


@given(st.binary(max_size=20))
def test_every_file_name_can_be_encoded_and_controls_no_terminal(name: bytes) -> None:
    text = os.fsdecode(name)
    escape_bytes(text).encode()
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in escape_controls(text))


def test_lone_surrogates_that_are_no_bytes_are_escaped_too() -> None:
    assert escape_bytes("\ud83d") == r"\ud83d"


def test_join_names() -> None:
    assert join_names([str(number) for number in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert join_names([str(number) for number in range(10_000)]).endswith(", 11 and 9,988 more")
    assert join_names([]) == ""
