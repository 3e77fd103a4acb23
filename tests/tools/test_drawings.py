from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import pytest
from helpers import ROOT

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "drawings", raising=False)
    import drawings

    return drawings


@pytest.mark.parametrize("name", ["mixture.svg", "cycles.svg", "ridge.svg", "leak.svg"])
def test_drawings_are_those_of_the_script_and_are_shown(drawings: ModuleType, name: str) -> None:
    text = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    assert text == drawings.DRAWINGS[name]().render()
    root = ElementTree.fromstring(text)
    title = root.find(f"{NAMESPACE}title")
    assert title is not None
    assert title.text
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "explanation").glob("*.md")]
    assert any(re.search(rf"!\[[^\]]{{20,}}\]\(\.\./images/{name}\)", page) for page in pages)  # with an alternative text


def test_texts_stay_inside_the_drawing(drawings: ModuleType) -> None:
    for draw in drawings.DRAWINGS.values():
        drawing = draw()
        for text in ElementTree.fromstring(drawing.render()).iter(f"{NAMESPACE}text"):
            x, width = float(text.attrib["x"]), 0.53 * float(text.attrib["font-size"]) * len(text.text or "")
            shift = {"middle": 0.5, "start": 0.0}[text.attrib["text-anchor"]]
            assert x - shift * width >= 0, text.text
            assert x + (1 - shift) * width <= drawing.width, text.text
