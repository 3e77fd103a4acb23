"""Agreement of exported models with the original: labels, scores and accuracy with float32, float16 and 8-bit weights.

    python benchmarks/export_accuracy.py                               # beetles, the default method: a few minutes on a CPU
    python benchmarks/export_accuracy.py --data cifar100 --methods all --weights fp32

Prints a table, and writes it into results/accuracy/export.json, where rows of earlier calls stay. A method learns two tasks of a
few images each with the embedded backbone. The test images are written to files of five sizes, upright and rotated by EXIF, in
gray and with transparency, and both torch and ONNX Runtime read these files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
from _common import ACCURACY, save
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.data import Samples, load_dataset
from caprompt.data.images import decode
from caprompt.errors import InputError
from caprompt.export.onnx_graph import encode_onnx
from caprompt.export.quantization import Weights, store_weights
from caprompt.export.verification import compare_scores, compute_exported_scores, compute_scores
from caprompt.methods import list_methods
from caprompt.utils.files import read_json

ORIENTATION = 0x0112  # EXIF tag


def resize(short: int) -> Callable[[Image.Image, Path], Path]:
    """Return a function that writes an image with this short side."""

    def write(image: Image.Image, stem: Path) -> Path:
        factor = short / min(image.size)
        return _save(image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC), stem)

    return write


def write_gray(image: Image.Image, stem: Path) -> Path:
    """Write an image in gray."""
    return _save(image.convert("L"), stem)


def write_transparent(image: Image.Image, stem: Path) -> Path:
    """Write an image that fades out to the right."""
    alpha = np.tile(np.linspace(255, 0, image.width), (image.height, 1)).astype(np.uint8)
    return _save(Image.merge("RGBA", [*image.split(), Image.fromarray(alpha)]), stem)


def write_rotated(image: Image.Image, stem: Path) -> Path:
    """Write an image on its side, with the EXIF tag that rotates it back."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    path = stem.with_suffix(".jpg")
    image.transpose(Image.Transpose.ROTATE_90).save(path, quality=95, exif=exif)
    return path


def _save(image: Image.Image, stem: Path) -> Path:
    path = stem.with_suffix(".png")
    image.save(path)
    return path


VARIANTS = (*(resize(short) for short in (24, 64, 150, 300, 480)), write_gray, write_transparent, write_rotated)


def write_variants(samples: Samples, folder: Path) -> list[Path]:
    """Write every image in one of the variants, in turn."""
    return [
        VARIANTS[number % len(VARIANTS)](Image.fromarray(decode(image)), folder / f"{number:05d}")
        for number, image in enumerate(samples.images)
    ]


def train(name: str, train_samples: Samples, tasks: Sequence[Sequence[str]], per_class: int) -> ContinualClassifier:
    """Teach a method some tasks with few images of each class."""
    model = ContinualClassifier(name, device="cpu", epochs=1, batch_size=16)
    for classes in tasks:
        chosen = [i for each in classes for i in [i for i, label in enumerate(train_samples.labels) if label == each][:per_class]]
        model.learn(train_samples.select(chosen))
    return model


def measure(name: str, data_name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one method on one dataset: a row for each way to store the weights."""
    data = load_dataset(data_name)
    classes = data.train.classes[: args.classes]
    half = len(classes) // 2
    model = train(name, data.train, [classes[:half], classes[half:]], args.per_class)
    known = data.test.select_classes(classes)
    spread = np.linspace(0, len(known) - 1, min(args.images, len(known))).astype(int)
    test = known.select(spread.tolist())
    targets = np.array([model.classes.index(label) for label in test.labels])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        paths = write_variants(test, Path(folder))
        began = time.perf_counter()
        exported_model = onnx.load_from_string(encode_onnx(model))
        seconds = time.perf_counter() - began
        originals = compute_scores(model, paths)
        for weights in args.weights:
            stored = onnx.ModelProto()
            stored.CopyFrom(exported_model)
            store_weights(stored, weights)
            content = stored.SerializeToString()
            agreement = compare_scores(originals, compute_exported_scores(content, paths), targets)
            assert agreement.accuracies is not None
            original, exported = agreement.accuracies
            rows.append(
                {
                    "data": Path(data_name).name,
                    "method": name,
                    "weights": weights,
                    "mb": len(content) / 1e6,
                    "images": agreement.images,
                    "same_label_percent": agreement.agreement,
                    "largest_difference": agreement.largest_difference,
                    "accuracy_torch": original,
                    "accuracy_onnx": exported,
                    "export_s": seconds,
                }
            )
            print(format_row(rows[-1]), flush=True)
    return rows


HEADING = (
    "| data | method | weights | MB | images | same label, % | largest difference | torch, % | ONNX Runtime, % |",
    "|---|---|---|--:|--:|--:|--:|--:|--:|",
)


def format_row(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    return (
        f"| {row['data']} | `{row['method']}` | {row['weights']} | {row['mb']:.1f} | {row['images']:,} "
        f"| {row['same_label_percent']:.1f} | {row['largest_difference']:.0e} "
        f"| {row['accuracy_torch']:.1f} | {row['accuracy_onnx']:.1f} |"
    )


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of docs/export.md."""
    return "\n".join([*HEADING, *map(format_row, rows)])


def main() -> None:
    """Measure, print, write."""
    names = list(list_methods()) if args.methods == ["all"] else args.methods
    print("\n".join(HEADING))
    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    for name in names:
        for data_name in args.data:
            try:
                rows += measure(name, data_name, args)
            except InputError as error:
                refused[name] = str(error)
                print(f"{name}: {error}", flush=True)
    before = read_json(ACCURACY / "export.json")
    digests = {**before.get("data_sha256", {}), **{Path(name).name: compute_digests(name) for name in args.data}}
    rows, refused = merge([*before.get("rows", []), *rows]), {**before.get("refused", {}), **refused}
    save("export", {"data_sha256": digests, "rows": rows, "refused": refused}, ACCURACY)


def compute_digests(data_name: str) -> dict[str, str]:
    """Return the digests of the training and test images of a dataset."""
    data = load_dataset(data_name)
    return {"train": data.train.digest(), "test": data.test.digest()}


def merge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows sorted; of several with the same data, method and weights, only the last stays."""
    latest = {(row["data"], row["method"], row["weights"]): row for row in rows}
    return sorted(latest.values(), key=lambda row: (row["data"], row["method"], list(get_args(Weights)).index(row["weights"])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["beetles"], help="datasets, or folders with train/ and test/")
    parser.add_argument("--methods", nargs="+", default=["caprompt"], help="methods, or all")
    parser.add_argument("--weights", nargs="+", default=list(get_args(Weights)), choices=get_args(Weights))
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--per-class", type=int, default=10, help="training images")
    parser.add_argument("--images", type=int, default=1000, help="test images")
    args = parser.parse_args()
    main()
