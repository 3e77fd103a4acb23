"""What decoding a photo at a fraction of its size saves, and what it changes: JPEG files of 12 megapixels, in one thread.

    python benchmarks/decoding.py        # prints a table, writes results/speed/decoding.json

A photo becomes pixels of four times the network's input, decoded at the least of 1/1, 1/2, 1/4 and 1/8 of its size that is enough,
as `caprompt` does it, or at its full size. The difference is that of these photos, reduced to the size of the network's input, in
levels of 255. The photos are drawn: smooth colors, edges and noise.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from _common import SPEED, print_table, save
from numpy.typing import NDArray
from PIL import Image

from caprompt.data import images
from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import decode
from caprompt.data.jpeg import get_decoder
from caprompt.engine.inputs import DECODE_FACTOR

WIDTH, HEIGHT, QUALITY = 4032, 3024, 92
INPUT_SIZES = (64, 224)  # of the embedded backbone and of a ViT-B/16
Pixels = NDArray[np.uint8]


def draw_photo(seed: int) -> bytes:
    """Return a JPEG file with smooth colors, a few hundred shapes with sharp edges, and noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (HEIGHT // 126, WIDTH // 126, 3), dtype=np.uint8))
    pixels = np.array(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    for _ in range(400):
        top, left, height, width = rng.integers(0, (HEIGHT, WIDTH, 400, 400))
        pixels[top : top + height, left : left + width] += rng.integers(-60, 60, 3, dtype=np.int16)
    pixels += rng.normal(0, 4, pixels.shape).astype(np.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def shrink(pixels: Pixels, short_side: int) -> Pixels:
    """Return the pixels with another short side."""
    height, width = (round(side * short_side / min(pixels.shape[:2])) for side in pixels.shape[:2])
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


def decode_whole(file: EncodedImage, short_side: int) -> Pixels:
    """Decode a photo at its full size, then shrink it."""
    return shrink(decode(file), short_side)


def measure(function: Callable[[EncodedImage, int], Pixels], files: list[EncodedImage], size: int) -> tuple[float, list[Pixels]]:
    """Return the median seconds for a photo, and the photos, reduced to the size of the network's input."""
    seconds, decoded = list[float](), list[Pixels]()
    for number in range(args.rounds * len(files)):
        start = time.perf_counter()
        decoded.append(function(files[number % len(files)], DECODE_FACTOR * size))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), [shrink(pixels, size) for pixels in decoded[: len(files)]]


def main() -> None:
    """Measure both ways with both decoders, print, write."""
    contents = [draw_photo(seed) for seed in range(args.photos)]
    files = [EncodedImage(partial(bytes, content)) for content in contents]
    decoders = {"Pillow": lambda: None, **({"simplejpeg": get_decoder} if get_decoder() else {})}
    rows = []
    for name, decoder in decoders.items():
        for size in INPUT_SIZES:
            with mock.patch.object(images, "get_decoder", decoder):
                whole, expected = measure(decode_whole, files, size)
                fraction, given = measure(decode, files, size)
            differences = np.abs(np.stack(given).astype(int) - np.stack(expected))
            row = {"decoder": name, "input": size, "whole_s": whole, "fraction_s": fraction}
            rows.append({**row, "mean_difference": differences.mean(), "largest_difference": int(differences.max())})
    size_mb = statistics.mean(map(len, contents)) / 1e6
    result = {"width": WIDTH, "height": HEIGHT, "photos": args.photos, "file_mb": size_mb, "rows": rows}
    save("decoding", result, args.out)
    print_table("decoding", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
