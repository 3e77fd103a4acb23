"""How long the command line takes from a cold start: `caprompt predict MODEL IMAGE` with the embedded backbone, and its parts.

    python benchmarks/cold_start.py          # prints a table, writes results/speed/cold_start.json

Each row is the median of processes started one after the other, after one that is not counted and fills the cache of files. The
processes see no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import SPEED, print_table, save
from PIL import Image

from caprompt import ContinualClassifier

COMMAND_LINE = (sys.executable, "-m", "caprompt")


def make_model(folder: Path) -> None:
    """Save a model of three classes with the embedded backbone, and an image as a file."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (30, 64, 64, 3), dtype=np.uint8)
    model = ContinualClassifier(epochs=1, device="cpu")
    model.learn((list(images), [f"class {number % 3}" for number in range(30)]), progress=False)
    model.save(folder / "model")
    Image.fromarray(generator.integers(0, 256, (375, 500, 3), dtype=np.uint8)).save(folder / "photo.jpg")


def time_process(command: tuple[str, ...]) -> float:
    """Return the median seconds of a process from its start to its end."""
    environment, seconds = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, []
    for _ in range(args.rounds + 1):
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        commands = {
            "python -c 'import torch'": (sys.executable, "-c", "import torch"),
            "python -c 'import torch, gc; gc.freeze()'": (sys.executable, "-c", "import torch, gc; gc.freeze()"),
            "caprompt --version": (*COMMAND_LINE, "--version"),
            "caprompt predict MODEL IMAGE": (*COMMAND_LINE, "predict", str(folder / "model"), str(folder / "photo.jpg")),
        }
        rows = [{"command": command, "seconds": time_process(words)} for command, words in commands.items()]
    result = {"cores": os.cpu_count(), "rounds": args.rounds, "rows": rows}
    save("cold_start", result, args.out)
    print_table("cold_start", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
