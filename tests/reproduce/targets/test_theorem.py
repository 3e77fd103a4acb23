from __future__ import annotations

from pathlib import Path

from grids import pretended

from caprompt.metrics import MeanStd
from caprompt.reproduce.plots import save


def test_every_way_to_train_on_every_data_set(tmp_path: Path) -> None:
    evidence = pretended("theorem", tmp_path)
    shown = evidence.target.present(evidence)
    assert [line.labels for line in shown.sheet.lines[:6]] == [
        ("digits", "CAPrompt"),
        ("digits", "without L_con"),
        ("digits", "without L_l"),
        ("digits", "without both"),
        ("digits", "CAPrompt with ridge"),
        ("CIFAR-100", "every row"),
    ]
    first, absent = shown.sheet.lines[0], shown.sheet.lines[5]
    assert shown.sheet.headings[4:6] == ["E1", "E2"]
    assert first.entries[0] == MeanStd(0.5, 0.0, 2)
    assert isinstance(first.entries[1], MeanStd)
    assert first.entries[1].mean == 1.1
    assert set(absent.entries) == {"other scale"}
    assert len(shown.sheet.lines) == 5 + 3
    assert any("E1 = mean of -log" in note for note in shown.sheet.notes)
    assert "margin" in save(shown.pictures[""], tmp_path / "theorem")[0].read_text()
