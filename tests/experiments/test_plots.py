from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from caprompt.experiments.plots import plot_accuracy_curve


def test_accuracy_curve_has_a_line_per_name_in_its_own_color(tmp_path: Path) -> None:
    first = [[90.0], [80.0, 100.0], [70.0, 90.0, 95.0]]
    second = [[80.0], [30.0, 90.0], [10.0, 20.0, 90.0]]
    plot_accuracy_curve({"ours": [first, second], "plain": [second]}, tmp_path / "deep" / "curve.png", title="digits")
    pixels = np.asarray(Image.open(tmp_path / "deep" / "curve.png").convert("RGB")).reshape(-1, 3).astype(int)
    for color in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0)):
        assert (np.abs(pixels - color).sum(axis=1) < 12).sum() > 200
