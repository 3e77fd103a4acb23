from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import html5lib
import pytest

from caprompt.errors import InputError
from caprompt.experiments.study import Study
from caprompt.report.study_page import render_study, write_study_report

HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}svg"


@pytest.fixture(scope="module")
def page(study: Study) -> str:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'caprompt[tune]'")
    return render_study(study)


def test_structure(page: str) -> None:
    document = html5lib.HTMLParser(strict=True).parse(page)
    ids = [element.attrib["id"] for element in document.iter() if "id" in element.attrib]
    assert len(set(ids)) == len(ids)
    assert {link.attrib["href"].removeprefix("#") for link in document.iter(f"{HTML}a")} <= set(ids)
    figures = [svg for svg in document.iter(SVG) if svg.attrib.get("role") == "img"]
    assert len(figures) == 5  # the history, and one of each option
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"'(]?(?:https?:)?//", page)


def test_page_has_every_trial_and_the_protocol(study: Study, page: str) -> None:
    assert "<h1>linear tuned on pets</h1>" in page
    assert "photos/pets" in page  # as best.toml has it
    for trial in study.trials:
        assert (f"<td>{trial.value:.2f}</td>" if trial.value is not None else "<td>failed</td>") in page
    assert "out of memory &lt;b&gt;" in page
    text = " ".join(page.split())
    assert "trained on 240 images and tested on 60 validation images. These are 20 % of each class's training images" in text
    assert "Test images were not read" in text
    assert f"trial {study.best.number}; 95 % interval" in text
    assert "Share of the variance between trials" in text
    assert "Mean ACC by crop_scale" in text
    assert "learning_rate, log scale" in text


def test_study_whose_default_is_the_best(study: Study) -> None:
    first = replace(study, trials=study.trials[:1])
    page = render_study(first)
    assert "No trial was better than the default configuration." in page
    assert "Share of the variance" not in page
    html5lib.HTMLParser(strict=True).parse(page)


def test_quick_study_says_how_few_images_it_used(study: Study) -> None:
    few = replace(study, config=study.config.model_copy(update={"per_class": 7}))
    assert "of each class at most 7 were trained on and at most 7 tested on" in render_study(few)


def test_page_is_written_to_a_file_only(study: Study, tmp_path: Path) -> None:
    write_study_report(study, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match="is a folder"):
        write_study_report(study, tmp_path)
