"""Deletion test of heat maps: does removing the most marked patches cost the predicted class more than removing random ones?

    OMP_NUM_THREADS=1 python benchmarks/explain.py --data cifar100/ --title "CIFAR-100, JPEG copies of quality 95"

Two models are tested, CAPrompt with its default options on the embedded backbone: of beetles, which the package draws, in four
tasks, and of ten classes of a folder with `train/` and `test/`, a sub-folder of images per class in each, in two tasks. For each of
200 test images, `model.explain` marks patches; then the most marked 10, 20 and 30 % are removed, and as many random ones, with
several seeds. A patch is removed as in the explanation: painted in the mean color of the image. What is compared is the drop of the
margin, the logit of the predicted class minus that of the runner-up.

On some of the images, other schemes are compared. All are measured by the same test, and 'blurred' removes by a Gaussian blur both
for the map and in the test. Prints tables, and writes them to results/explain.txt. With --figure, also draws the figure of
docs/explain.md.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from _common import ROOT
from torch import Tensor

import caprompt
from caprompt import ContinualClassifier
from caprompt.classifier.occlusion import compute_heat_map, draw_removals, fit_heat, remove_patches, select_hottest
from caprompt.data import Samples, load_dataset
from caprompt.data.datasets.beetles import draw_beetle
from caprompt.data.sources import read_source
from caprompt.engine.inputs import InputPipeline
from caprompt.experiments.provenance import find_commit
from caprompt.methods.caprompt import CAPrompt
from caprompt.report.explanation_figure import write_figure
from caprompt.utils.random import make_generator

SHARES = (0.1, 0.2, 0.3)
CLASSES, TRAIN_IMAGES, TASK_SIZE = 10, 50, 5  # of a folder
STEPS = 16  # of integrated gradients
SHOWN = ("two-striped", 43)  # the test image in docs/explain.md
Remove = Callable[[Tensor, Tensor], Tensor]  # image (3, S, S) and removed patches (K, R, R) -> copies (K, 3, S, S)
Margin = Callable[[Tensor], Tensor]  # images (K, 3, S, S) -> margins (K,)
Rows = dict[str, list[list[float]]]  # scheme -> images -> drop for each share


def main() -> None:
    """Test both models, print and write the tables."""
    lines = [*describe_run(), ""]
    beetles = load_dataset("beetles")
    datasets = [("beetles, drawn by the package, 12 classes in 4 tasks", beetles.train, beetles.test, 3)]
    if args.data is not None:
        train, test = (read_source(args.data / part) for part in ("train", "test"))
        chosen = train.classes[:: max(1, len(train.classes) // CLASSES)][:CLASSES]
        few = train.select_classes(chosen).select_per_class(TRAIN_IMAGES)
        title = f"{args.title or args.data.name}, {len(chosen)} classes in {-(-len(chosen) // TASK_SIZE)} tasks"
        datasets.append((title, few, test.select_classes(chosen), TASK_SIZE))
    for number, (title, train, test, size) in enumerate(datasets):
        model = get_model(train, size, args.models / f"explain-{number}" if args.models else None)
        if number == 0 and args.figure is not None:
            write_figure(model.explain(draw_beetle(*SHOWN)), args.figure)
        lines += [*measure_model(title, model, test), ""]
        args.out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def describe_run() -> list[str]:
    """Return lines on when and with what this was measured."""
    versions = f"caprompt {caprompt.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return [
        f"Deletion test of `caprompt explain`, {date.today().isoformat()}, commit {find_commit()}",
        f"{versions}, CPU, {torch.get_num_threads()} thread(s); CAPrompt, default options, embedded backbone, 8 x 8 patches",
    ]


def get_model(train: Samples, task_size: int, folder: Path | None) -> ContinualClassifier:
    """Return a model that has learned these images, from a folder if it has been saved there before."""
    if folder is not None and folder.is_dir():
        return ContinualClassifier.load(folder, device="cpu")
    model = ContinualClassifier(device="cpu")
    for start in range(0, len(train.classes), task_size):
        model.learn(train.select_classes(train.classes[start : start + task_size]))
    if folder is not None:
        model.save(folder)
    return model


def measure_model(title: str, model: ContinualClassifier, test: Samples) -> list[str]:
    """Return the tables of one model."""
    accuracy = model.evaluate(test).accuracy
    order = np.random.default_rng(0).permutation(len(test))[: args.images]
    tested = test.select(sorted(order.tolist()))
    marked, others, fits, seconds = [], [], [], []
    for number, (image, network_input) in enumerate(zip(tested.images, iterate_inputs(model, tested), strict=True)):
        began = time.process_time()
        explanation = model.explain(image)
        seconds.append(time.process_time() - began)
        margin = make_margin(model, [str(explanation.predicted.label), str(explanation.against.label)])
        marked.append(measure_marked(margin, network_input, torch.from_numpy(explanation.heat), remove_patches))
        others.append([measure_random(margin, network_input, (seed, number), remove_patches) for seed in range(args.seeds)])
        fits.append(explanation.fit)
    lines = [
        f"## {title}",
        f"accuracy {accuracy:.1f} % of {len(test)} test images; {len(tested)} of them explained, of any prediction, right or wrong",
        f"CPU seconds per explanation: median {np.median(seconds):.2f}; fit of the maps: median {np.median(fits):.2f}",
        "",
    ]
    lines += format_deletion(np.array(marked), np.array(others))
    return [*lines, "", *compare_schemes(model, tested.select(range(min(args.compared, len(tested)))))]


def iterate_inputs(model: ContinualClassifier, samples: Samples) -> Iterator[Tensor]:
    """Yield each image as network input (3, S, S)."""
    batches = InputPipeline(model.backbone, model.device).eval_batches(samples, [0] * len(samples), model.method.input_options)
    return (image for images, _ in batches for image in images)


def make_margin(model: ContinualClassifier, names: Sequence[str]) -> Margin:
    """Return the function from images to margins of the first class over the second."""
    first, second = (model.classes.index(name) for name in names)

    def compute(images: Tensor) -> Tensor:
        logits = torch.cat([model.method.predict(part).logits for part in images.split(64)])
        return logits[:, first] - logits[:, second]

    return compute


def measure_marked(margin: Margin, image: Tensor, heat: Tensor, remove: Remove) -> list[float]:
    """Return the drop of the margin without the hottest patches, for each share of them."""
    return measure_drops(margin, image, torch.stack([select_hottest(heat, share) for share in SHARES]), remove)


def measure_random(margin: Margin, image: Tensor, seed: tuple[int, int], remove: Remove) -> list[float]:
    """Return the drop of the margin without random patches, for each share of them; a seed and an image's number determine them."""
    generator = make_generator(*seed)
    return measure_drops(
        margin, image, torch.stack([select_hottest(torch.rand(8, 8, generator=generator), s) for s in SHARES]), remove
    )


def measure_drops(margin: Margin, image: Tensor, removals: Tensor, remove: Remove) -> list[float]:
    """Return the drop of the margin without these patches: (K, R, R) -> K numbers."""
    drops: list[float] = (margin(image.unsqueeze(0)) - margin(remove(image, removals))).tolist()
    return drops


def format_deletion(marked: np.ndarray, others: np.ndarray) -> list[str]:
    """Return the table of drops: `marked` (images, shares) and `others` (images, seeds, shares)."""
    rows = [
        "| patches removed | drop, most marked | drop, random | ratio | images with a larger drop than random |",
        "|---|--:|--:|--:|--:|",
    ]
    for index, share in enumerate(SHARES):
        of_seeds = others[:, :, index].mean(axis=0)
        ratio = marked[:, index].mean() / of_seeds.mean()
        larger = (marked[:, index] > others[:, :, index].mean(axis=1)).mean()
        spread = f"{of_seeds.mean():.2f} ± {of_seeds.std(ddof=1):.2f}"
        rows.append(f"| {share:.0%} | {marked[:, index].mean():.2f} | {spread} | {ratio:.1f} | {larger:.0%} |")
    return [*rows, "", f"mean drop of the margin; random: mean and standard deviation over {others.shape[1]} seeds"]


# -- other schemes ----------------------------------------------------------------------------------------------------------


def compare_schemes(model: ContinualClassifier, tested: Samples) -> list[str]:
    """Return the table of schemes: drops of the margin for each share, and forward passes or copies that a map takes."""
    rows: Rows = {}
    baselines: Rows = {}
    cost: dict[str, str] = {}
    for number, image in enumerate(iterate_inputs(model, tested)):
        ranked = model.method.predict(image.unsqueeze(0)).logits[0].topk(2).indices.tolist()
        margin = make_margin(model, [model.classes[index] for index in ranked])
        for name, copies, heat, remove in list_schemes(model, margin, image, ranked):
            rows.setdefault(name, []).append(measure_marked(margin, image, heat, remove))
            key = "blurred" if remove is blur_patches else "painted"
            cost[name] = copies
            if len(baselines.setdefault(key, [])) < len(rows[name]):
                drops = [measure_random(margin, image, (seed, number), remove) for seed in range(args.seeds)]
                baselines[key].append(np.mean(drops, axis=0).tolist())
    lines = [f"| scheme, on {len(tested)} of these images | cost of a map | 10% | 20% | 30% |", "|---|---|--:|--:|--:|"]
    for name, drops in rows.items():
        others = np.mean(baselines["blurred" if "blurred" in name else "painted"], axis=0)
        cells = [f"{drop:.2f} ({drop / other:.1f})" for drop, other in zip(np.mean(drops, axis=0), others, strict=True)]
        lines.append(f"| {name} | {cost[name]} | {' | '.join(cells)} |")
    return [*lines, "", "mean drop of the margin without the most marked patches (times that of random ones)"]


def list_schemes(
    model: ContinualClassifier, margin: Margin, image: Tensor, ranked: Sequence[int]
) -> Iterator[tuple[str, str, Tensor, Remove]]:
    """Yield each scheme's name, cost, heat map (R, R) and way of removing patches."""
    for copies in (128, 256, 512):
        heat = compute_heat_map(margin, image, 8, copies, batch_size=64).heat
        yield f"regression, {copies // 2} copies and {copies // 2} closer ones", f"{copies} copies", heat, remove_patches
    removals = draw_removals(256, 8, torch.Generator().manual_seed(0))
    margins = margin(remove_patches(image, removals))
    yield "regression, all copies alike", "256 copies", fit_heat(removals, margins).heat, remove_patches
    yield "mean over the copies with a patch (RISE)", "256 copies", average_kept(removals, margins), remove_patches
    yield "one patch at a time", "64 copies", slide_window(margin, image, 1), remove_patches
    yield "windows of 2 x 2 patches", "49 copies", slide_window(margin, image, 2), remove_patches
    if isinstance(model.method, CAPrompt):
        yield "gradient x difference", "1 gradient", integrate_gradients(model.method, image, ranked, 1), remove_patches
        yield "integrated gradients", f"{STEPS} gradients", integrate_gradients(model.method, image, ranked, STEPS), remove_patches
    blurred = margin(blur_patches(image, removals))
    yield "regression, all copies alike, patches blurred", "256 copies", fit_heat(removals, blurred).heat, blur_patches


def average_kept(removals: Tensor, margins: Tensor) -> Tensor:
    """Return the mean margin of the copies that have a patch, minus that of all copies: (R, R)."""
    kept = (~removals).double()
    return (kept * margins.double()[:, None, None]).sum(dim=0) / kept.sum(dim=0) - margins.double().mean()


def slide_window(margin: Margin, image: Tensor, side: int) -> Tensor:
    """Return the drop of the margin without each window of patches, averaged over the windows that hold a patch: (R, R)."""
    places = [(row, column) for row in range(9 - side) for column in range(9 - side)]
    windows = torch.zeros(len(places), 8, 8, dtype=torch.bool)
    for window, (row, column) in zip(windows, places, strict=True):
        window[row : row + side, column : column + side] = True
    drops = torch.tensor(measure_drops(margin, image, windows, remove_patches))
    return (windows * drops[:, None, None]).sum(dim=0) / windows.sum(dim=0)


def integrate_gradients(method: CAPrompt, image: Tensor, ranked: Sequence[int], steps: int) -> Tensor:
    """Return gradients of the margin times the difference to the mean color, along the way from there, by patch: (R, R).

    The task weights are those of the prediction: no gradient flows through them.
    """
    weights = method.predict(image.unsqueeze(0)).task_weights
    base = image.mean(dim=(1, 2), keepdim=True)
    positions = torch.ones(1) if steps == 1 else (torch.arange(steps) + 0.5) / steps
    inputs = (base + positions.view(-1, 1, 1, 1) * (image - base)).requires_grad_()
    logits = method.compute_logits(method.vit.stem(inputs), weights.expand(steps, -1))
    (gradient,) = torch.autograd.grad((logits[:, ranked[0]] - logits[:, ranked[1]]).sum(), inputs)
    return F.avg_pool2d((gradient.mean(dim=0) * (image - base)).sum(dim=0, keepdim=True), 8)[0].detach()


def blur_patches(image: Tensor, removals: Tensor) -> Tensor:
    """Return copies of an image in which patches are blurred by a Gaussian as wide as a patch, instead of painted."""
    offsets = torch.arange(-24, 25)
    kernel = torch.exp(-offsets.square() / (2 * 8.0**2))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    padded = F.pad(image.unsqueeze(1), (24, 24, 24, 24), mode="replicate")  # the colors are three images of one channel
    blurred = F.conv2d(F.conv2d(padded, kernel), kernel.transpose(2, 3)).squeeze(1)
    return torch.where(removals.repeat_interleave(8, 1).repeat_interleave(8, 2).unsqueeze(1), blurred, image)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train/ and test/, each with a sub-folder of images per class")
    parser.add_argument("--title", help="what these images are, such as that they are JPEG copies; default: the folder's name")
    parser.add_argument("--images", type=int, default=200, help="test images to explain")
    parser.add_argument("--compared", type=int, default=30, help="images on which the schemes are compared")
    parser.add_argument("--seeds", type=int, default=5, help="of the random patches")
    parser.add_argument("--models", type=Path, help="folder in which the trained models are kept")
    parser.add_argument("--figure", type=Path, help="figure of one beetle to draw")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "explain.txt")
    args = parser.parse_args()
    main()
