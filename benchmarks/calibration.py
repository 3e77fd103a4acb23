"""Do scores mean what they say? Calibration error, prediction sets and unknown classes, on test images.

    python benchmarks/calibration.py --data cifar100=10 cars/=7 --backbone deit_tiny_patch16_224.safetensors --orders 0 1 2

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. For every class order, a model learns the tasks one
by one, each image once, no task identity, one image one prediction. After half of the tasks, test images of the classes that are
still to come are unknown; after the last, all test images are of learned classes. Nothing is fitted to test images.

Expected calibration error: 15 bins of equal width of the highest probability, as fitted by the lessons and without a fit. Sets:
the most likely classes, as many as `predict` returns for a coverage of 90 %. Unknown classes: area under the ROC curve of several
scores, and the share of test images of learned classes that are marked as unknown where 5 % are asked for. Writes
results/accuracy/calibration.json.

With `--scores FOLDER`, what is measured of a model is written there: the scores of its lessons, to which the calibration is fitted,
and its logits of test images. With `--validation 0.1`, a tenth of the training images takes the place of the test images, for
choices. A run whose file is there is not repeated, so that another fit can be tried without a network.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import ACCURACY, save
from safetensors.torch import load_file, save_file
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.calibration import Calibration, Evidence, fit_calibration, make_evidence
from caprompt.data import Samples, load_dataset
from caprompt.data.tasks import hold_out, order_classes, split_tasks
from caprompt.methods.base import HonestScores
from caprompt.metrics import compute_auroc, compute_calibration_error, compute_reliability, mean_std
from caprompt.outputs import count_plausible

COVERAGE, FALSE_ALARMS = 0.9, 0.05
DRAWS = 20  # of outcomes, for the calibration error that a perfectly calibrated model has by chance
KNOWN_SCORES: dict[str, Callable[[Tensor], Tensor]] = {  # of log-probabilities or logits (N, C); higher for known images
    "highest probability": lambda logits: logits.softmax(dim=1).amax(dim=1),
    "highest logit": lambda logits: logits.amax(dim=1),
    "margin of the logits": lambda logits: -logits.topk(2, dim=1).values.diff(dim=1).squeeze(1),
    "log-sum of the logits": lambda logits: logits.logsumexp(dim=1),
    "negative entropy": lambda logits: (logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1),
}


Scores = dict[str, Tensor]


class RecordingClassifier(ContinualClassifier):
    """A model that keeps the scores to which each lesson is calibrated."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recorded: Scores = {}

    def _calibrate_by(self, scores: HonestScores | None) -> None:
        if scores is not None:
            prefix = f"lesson{self.num_calls}"
            self.recorded[f"{prefix}.logits"] = self.table.merge_logits(scores.logits).float().cpu()
            if scores.optimistic is not None:
                self.recorded[f"{prefix}.optimistic"] = self.table.merge_logits(scores.optimistic).float().cpu()
            self.recorded[f"{prefix}.labels"] = torch.tensor(self.table.name_of_output)[scores.labels.cpu()]
        super()._calibrate_by(scores)


def collect(
    data: str, backbone: str, method: str, order: int, per_class: int | None, validation: float, options: dict[str, Any]
) -> Scores:
    """Learn the tasks of one class order; return scores of its lessons, and logits of test images at half time and at the end."""
    name, _, num_tasks = data.partition("=")
    dataset = load_dataset(name)
    train, test = hold_out(dataset.train, validation, order) if validation else (dataset.train, dataset.test)
    train = train.select_per_class(per_class) if per_class else train
    tasks = split_tasks(order_classes(train.classes, "shuffled", order), int(num_tasks))
    model = RecordingClassifier(method, backbone, seed=order, **options)
    scores: Scores = {}
    for number, names in enumerate(tasks, start=1):
        model.learn(train.select_classes(names), again=True)
        if number == (len(tasks) + 1) // 2:
            unknown = set(test.classes) - set(model.classes)
            scores["half.known"] = compute_logits(model, test.select_classes(model.classes))
            scores["half.unknown"] = compute_logits(model, test.select_classes(unknown))
            scores["half.lessons"] = torch.tensor(number)
    scores["end.logits"] = compute_logits(model, test)
    scores["end.labels"] = torch.tensor([model.classes.index(label) for label in test.labels])
    return {**scores, **model.recorded}


def compute_logits(model: ContinualClassifier, samples: Samples) -> Tensor:
    """Return logits without calibration, for samples of any class: (N, C)."""
    before, model.calibration = model.calibration, Calibration()
    try:
        output = model._predict_images(samples.images, None, {})
    finally:
        model.calibration = before
    assert output is not None
    return output.logits.float().cpu()


def fit(scores: Scores, num_lessons: int | None = None) -> Calibration:
    """Return the calibration of a model after some of its lessons, or all."""
    lessons = sorted(
        int(name.removeprefix("lesson").partition(".")[0])
        for name in scores
        if name.startswith("lesson") and name.endswith(".labels")
    )
    calibration, evidence = Calibration(), list[Evidence]()
    for lesson in lessons[:num_lessons]:
        logits, labels, optimistic = (scores.get(f"lesson{lesson}.{part}") for part in ("logits", "labels", "optimistic"))
        assert logits is not None
        assert labels is not None
        own = make_evidence(logits, labels, evidence, optimistic)
        calibration, evidence = fit_calibration([*evidence, own])
    return calibration


def measure_unknown(scores: Scores) -> dict[str, Any]:
    """Tell test images of learned classes from those of the others by several scores."""
    known, unknown, calibration = (
        scores["half.known"].double(),
        scores["half.unknown"].double(),
        fit(scores, int(scores["half.lessons"])),
    )
    aurocs = {name: round(compute_auroc(score(known).tolist(), score(unknown).tolist()), 2) for name, score in KNOWN_SCORES.items()}
    threshold = calibration.get_threshold(FALSE_ALARMS)
    assert threshold is not None
    below = [100 * float((calibration.apply(each).exp().amax(dim=1) < threshold).double().mean()) for each in (known, unknown)]
    return {"classes": known.shape[1], "aurocs": aurocs, "false_alarms": round(below[0], 2), "recognized": round(below[1], 2)}


def measure_known(scores: Scores) -> dict[str, Any]:
    """Return accuracy, calibration errors, and the coverage and size of prediction sets."""
    logits, targets, calibration = scores["end.logits"].double(), scores["end.labels"], fit(scores)
    fitted = calibration.apply(logits).exp()
    probabilities, ranked = fitted.sort(dim=1, descending=True)
    sizes = count_plausible(probabilities, calibration.get_mass(COVERAGE))
    ranks = (ranked == targets.unsqueeze(1)).double().argmax(dim=1)
    is_correct = (ranks == 0).tolist()

    def compute_error(each: Tensor) -> float:
        return round(compute_calibration_error(compute_reliability(each.amax(dim=1).tolist(), is_correct)), 2)

    return {
        "images": len(targets),
        "accuracy": round(100 * sum(is_correct) / len(targets), 2),
        "ece_unfitted": compute_error(logits.softmax(dim=1)),
        "ece": compute_error(fitted),
        "ece_by_chance": compute_error_by_chance(fitted.amax(dim=1)),
        "calibration": {name: value for name, value in calibration.as_dict().items() if name not in ("quantiles", "masses")},
        "coverage": round(100 * float((ranks < sizes).double().mean()), 2),
        "set_size": round(float(sizes.double().mean()), 2),
    }


def compute_error_by_chance(sureness: Tensor) -> float:
    """Return the calibration error of a model that is right exactly as often as it is sure (N,), since images are few."""
    generator = torch.Generator().manual_seed(0)
    draws = (torch.rand(sureness.shape, generator=generator, dtype=sureness.dtype) < sureness for _ in range(DRAWS))
    return round(
        mean_std([compute_calibration_error(compute_reliability(sureness.tolist(), own.tolist())) for own in draws]).mean, 2
    )


def format_table(runs: list[dict[str, Any]]) -> str:
    """Return a row per data set and method: mean and standard deviation over the orders."""
    lines = [
        "| data | method | accuracy | ECE | by chance | without a fit | 90 % sets cover | labels | AUROC, best score | alarms |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for data, method in dict.fromkeys((run["data"], run["method"]) for run in runs):
        own = [run for run in runs if (run["data"], run["method"]) == (data, method)]
        columns = [
            mean_std([run[key] for run in own]).text(1)
            for key in ("accuracy", "ece", "ece_by_chance", "ece_unfitted", "coverage", "set_size")
        ]
        means = {name: mean_std([run["unknown"]["aurocs"][name] for run in own]) for name in KNOWN_SCORES}
        best = max(means, key=lambda name: means[name].mean)
        alarms = mean_std([run["unknown"]["false_alarms"] for run in own]).text(1)
        lines.append(f"| {' | '.join([data, method, *columns, f'{means[best].text(1)} ({best})', alarms])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, save and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["beetles=4"], metavar="NAME=TASKS")
    parser.add_argument("--backbone", default="vit_mini_patch8_64.tin200_distilled")
    parser.add_argument("--methods", nargs="+", default=["caprompt"])
    parser.add_argument("--orders", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--per-class", type=int, help="training images of each class")
    parser.add_argument("--validation", type=float, default=0.0, help="share of the training images to measure on, not test images")
    parser.add_argument("--projections", type=int, default=5_000)
    parser.add_argument("--name", default="calibration", help="of the file in results/accuracy")
    parser.add_argument("--scores", type=Path, help="folder for the scores of lessons and test images")
    args = parser.parse_args()
    runs = []
    for data, method, order in ((data, method, order) for data in args.data for method in args.methods for order in args.orders):
        name = Path(data.partition("=")[0]).name
        file = args.scores / f"{name}-{method}-{order}.safetensors" if args.scores else None
        if file is not None and file.is_file():
            scores = load_file(file)
        else:
            scores = collect(data, args.backbone, method, order, args.per_class, args.validation, {"projections": args.projections})
        if file is not None:
            args.scores.mkdir(parents=True, exist_ok=True)
            save_file(scores, file)
        runs.append({"data": name, "method": method, "order": order, "unknown": measure_unknown(scores), **measure_known(scores)})
        print(runs[-1], flush=True)
    save(args.name, {"backbone": Path(args.backbone).stem, "per_class": args.per_class, "runs": runs}, ACCURACY)
    print(format_table(runs))


if __name__ == "__main__":
    main()
