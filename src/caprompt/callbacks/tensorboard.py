"""TensorBoard writer: losses of every epoch and metrics of every evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.callbacks.tracking import ReadConfig, Tracker
from caprompt.errors import OptionError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter(Tracker):
    """A callback that writes TensorBoard event files; nothing is written before the end of the first epoch."""

    def __init__(self, folder: Path, read_config: ReadConfig = dict) -> None:
        super().__init__(read_config)
        self.folder = folder
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise OptionError("TensorBoard logs need the package tensorboard: pip install 'caprompt[track]'") from None

    def start(self, config: Mapping[str, Any]) -> None:
        """Open the event file and write the configuration as text."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer: SummaryWriter = SummaryWriter(str(self.folder))
        if config:
            self.writer.add_text("config", f"```json\n{json.dumps(config, indent=2)}\n```")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write values of curves."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # so that a kill loses nothing

    def stop(self, failed: bool) -> None:
        """Close the event file."""
        self.writer.close()
