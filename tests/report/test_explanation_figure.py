from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caprompt.classifier.explanation import Explanation, Similarity
from caprompt.errors import InputError
from caprompt.outputs import Score
from caprompt.report.explanation_figure import check_figure_path, draw_figure, write_figure

TOP = (Score("tabby", 0.8), Score("lynx", 0.15), Score("$10 & <b>", 0.05))
EXPLANATION = Explanation(
    predicted=TOP[0],
    against=TOP[1],
    margin=1.7,
    heat=np.array([[0.0, 2.0], [-1.0, 0.5]]),
    fit=0.7,
    copies=256,
    image=np.full((50, 50, 3), 200, np.uint8),
    top=TOP,
    nearest=(Similarity("tabby", 0.9), Similarity("$10 & <b>", -0.2)),
    no_means=None,
    task_weights=((0.6, 0.4), (0.9, 0.1)),
    has_cycles=True,
    tasks=(("tabby", "lynx"), ("$10 & <b>",)),
)


def list_texts(explanation: Explanation) -> list[str]:
    """Return all texts that are drawn, in their order."""
    from matplotlib.text import Text

    texts = draw_figure(explanation).findobj(Text)
    return [text.get_text() for text in texts if isinstance(text, Text) and text.get_visible()]


def test_the_figure_shows_everything() -> None:
    texts = list_texts(EXPLANATION)
    for expected in (
        "predicted: tabby",
        "why not lynx?",
        "0.80",
        "0.15",
        "-0.20",
        r"\$10 & <b>",
        "after pass 2",
        "0.60",
        "task weights",
    ):
        assert expected in texts
    assert any("margin (+1.70)" in text for text in texts)


def test_what_is_missing_is_said() -> None:
    texts = list_texts(
        replace(EXPLANATION, nearest=(), no_means="the method x stores none", has_cycles=False, task_weights=((1.0,),))
    )
    assert any("left out: the method x stores none" in text for text in texts)
    assert "prediction" in texts
    assert not any("after pass" in text for text in texts)


def test_a_class_that_was_asked_for_has_its_own_bar() -> None:
    assert "0.01" in list_texts(replace(EXPLANATION, against=Score("dog", 0.01)))


def test_the_hottest_patch_is_the_reddest(tmp_path: Path) -> None:
    """In the picture itself: of the four patches, the one with the largest heat is red, the negative one blue."""
    write_figure(EXPLANATION, tmp_path / "why.png")
    pixels = np.asarray(Image.open(tmp_path / "why.png").convert("RGB")).astype(int)
    redness = pixels[..., 0] - pixels[..., 2]
    width = redness.shape[1]
    panel = slice(int(0.33 * width), int(0.58 * width))
    reds, blues = (np.argwhere(mask[:, panel]).mean(axis=0) for mask in (redness > 30, redness < -30))
    assert reds[0] < blues[0]  # above
    assert reds[1] > blues[1]  # on the right


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_files_are_the_same_every_time(tmp_path: Path, suffix: str, start: bytes) -> None:
    contents = []
    for name in ("one", "two"):
        path = tmp_path / "new folder" / f"{name}{suffix}"
        write_figure(EXPLANATION, path)
        contents.append(path.read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]


def test_many_tasks_and_long_names_fit(tmp_path: Path) -> None:
    many = tuple(Score("a class with a name that is far too long for any figure " + str(n), 0.1) for n in range(5))
    weights = tuple(tuple(np.full(50, 0.02)) for _ in range(5))
    write_figure(replace(EXPLANATION, predicted=many[0], top=many, task_weights=weights), tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 10_000


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("why", "why.jpg"):
        with pytest.raises(InputError, match=r"let its name end in \.png, \.svg or \.pdf"):
            check_figure_path(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_figure(EXPLANATION, tmp_path / "folder.png")
