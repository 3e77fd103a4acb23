from __future__ import annotations

from pathlib import Path

from grids import make_fake_evidence

from caprompt.metrics import MeanStd
from caprompt.reproduce.plots import save_plot


def test_every_row_on_every_dataset(tmp_path: Path) -> None:
    evidence = make_fake_evidence("theorem", tmp_path)
    shown = evidence.target.present(evidence)
    assert [line.labels for line in shown.table.lines[:6]] == [
        ("digits", "CAPrompt"),
        ("digits", "without L_con"),
        ("digits", "without L_l"),
        ("digits", "without both"),
        ("digits", "CAPrompt with ridge"),
        ("CIFAR-100", "every row"),
    ]
    first, absent = shown.table.lines[0], shown.table.lines[5]
    assert shown.table.headings[4:6] == ["E1", "E2"]
    assert first.entries[0] == MeanStd(0.5, 0.0, 2)
    assert isinstance(first.entries[1], MeanStd)
    assert first.entries[1].mean == 1.1
    assert set(absent.entries) == {"other scale"}
    assert len(shown.table.lines) == 5 + 3
    assert any("E1 = mean of -log" in note for note in shown.table.notes)
    assert "margin" in save_plot(shown.plots[""], tmp_path / "theorem")[0].read_text()
