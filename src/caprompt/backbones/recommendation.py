"""Which backbone a new model should have: the best on this machine, and a better one to download.

    choice = recommend(find_present(), gpu=False)
    choice.name      # the best that is on this machine; the embedded one if there is no other
    choice.better    # one that is worth its download, or None

The rule:

1. Only licenses that permit commercial use (`PERMISSIVE`) are considered.
2. A forward pass of one image takes at most `MAX_GFLOP`: a ViT-B/16 at 224 pixels with a GPU, a ViT-S/16 without.
3. A wider network is better; of equally wide ones, the one with the higher measured accuracy. Those that were not measured
   follow, in the order of the registry. The embedded backbone is last.
4. Only a backbone that was measured and is on the hub is worth a download, and only if it is wider than the best one on this
   machine, or more accurate where both were measured.

What was measured is in `MEASURED`. Any other backbone can be chosen by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from caprompt.backbones.registry import MODELS, Model, find_local_file
from caprompt.backbones.vit import ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE

__all__ = [
    "MAX_GFLOP",
    "MEASURED",
    "PERMISSIVE",
    "Measurement",
    "Recommendation",
    "compare",
    "count_gflop",
    "describe_download",
    "describe_rule",
    "find_present",
    "recommend",
]

PERMISSIVE = frozenset({"Apache-2.0", "MIT"})
MAX_GFLOP = {True: 40.0, False: 10.0}  # of one forward pass, by whether there is a GPU


@dataclass(frozen=True)
class Measurement:
    """Figures of one backbone; the results that they are from are in the repository."""

    cars: float  # accuracy in percent: results/search/ridge_strength.txt, strength 0.1, 21 images of a class
    cpu_speed: float | None = None  # images per second on two cores: results/accuracy/embedded_backbone.json, CIFAR-100


MEASURED = {
    DEFAULT_BACKBONE: Measurement(22.7, 259),
    "deit_tiny_patch16_224.fb_in1k": Measurement(45.3, 21),
    "vit_base_patch16_clip_224.openai": Measurement(90.1),
}
BENCHMARK = "Stanford Cars, 98 classes, JPEG copies, ridge regression on frozen features, validation images"


@dataclass(frozen=True)
class Recommendation:
    """The backbone that a new model should have, and one that would be better."""

    name: str  # on this machine
    better: Model | None = None  # to download

    @property
    def is_embedded(self) -> bool:
        """Whether nothing better than the embedded backbone is on this machine."""
        return self.name == DEFAULT_BACKBONE


def find_present() -> list[str]:
    """Return the names of the backbones that are on this machine, besides the embedded one."""
    return [name for name, model in MODELS.items() if find_local_file(model) is not None]


def recommend(present: Collection[str], *, gpu: bool) -> Recommendation:
    """Apply the rule to the backbones that are on this machine.

    >>> recommend([], gpu=False).better.name, recommend([], gpu=True).better.name
    ('deit_tiny_patch16_224.fb_in1k', 'vit_base_patch16_clip_224.openai')
    >>> recommend(["deit_tiny_patch16_224.fb_in1k", "vit_base_patch16_clip_224.openai"], gpu=False)
    Recommendation(name='deit_tiny_patch16_224.fb_in1k', better=None)
    """
    ranking = _rank(gpu)
    best = next((model for model in ranking if model.name in present), None)
    better = next((model for model in ranking if model.name not in present and _is_worth_download(model, best)), None)
    return Recommendation(best.name if best else DEFAULT_BACKBONE, better)


def _rank(gpu: bool) -> Sequence[Model]:
    """Return the models that may be chosen without being named, the best first."""
    suitable = [model for model in MODELS.values() if model.license in PERMISSIVE and count_gflop(model.config) <= MAX_GFLOP[gpu]]

    def score(model: Model) -> tuple[int, float]:
        measurement = MEASURED.get(model.name)
        return model.config.width, measurement.cars if measurement else 0.0

    return sorted(suitable, key=score, reverse=True)  # stable: the registry's order decides between equals


def _is_worth_download(model: Model, best: Model | None) -> bool:
    """Return whether a model was measured, is on the hub, and is better than the best one on this machine."""
    measurement = MEASURED.get(model.name)
    if measurement is None or model.repo is None:
        return False
    if best is None or model.config.width > best.config.width:
        return True
    known = MEASURED.get(best.name)
    return known is not None and model.config.width == best.config.width and measurement.cars > known.cars


def count_gflop(config: ViTConfig) -> float:
    """Return the GFLOP of a forward pass of one image: patch embedding, matmuls of the blocks, attention.

    >>> round(count_gflop(MODELS["deit_tiny_patch16_224.fb_in1k"].config), 1)
    2.5
    >>> round(count_gflop(MODELS["vit_base_patch16_224.dino"].config), 1)
    35.1
    """
    patches = config.grid**2
    tokens = patches + 1 + config.registers
    maps = 4 * config.width**2 + 2 * config.width * config.mlp_width  # of a token in a block
    blocks = config.depth * (tokens * maps + 2 * tokens**2 * config.width)
    return 2 * (patches * 3 * config.patch_size**2 * config.width + blocks) / 1e9


def describe_rule(*, gpu: bool) -> str:
    """Return the rule as a sentence.

    >>> describe_rule(gpu=False)
    'the widest network of at most 10 GFLOP an image, the most accurate one where that was measured; no non-commercial license'
    """
    return (
        f"the widest network of at most {MAX_GFLOP[gpu]:.0f} GFLOP an image, the most accurate one where that was measured; "
        "no non-commercial license"
    )


def describe_download(model: Model) -> str:
    """Return a model's name, size of its file and license.

    >>> describe_download(MODELS["deit_tiny_patch16_224.fb_in1k"])
    'deit_tiny_patch16_224.fb_in1k (23 MB, Apache-2.0)'
    """
    size = [] if model.megabytes is None else [f"{model.megabytes} MB"]
    return f"{model.name} ({', '.join([*size, model.license])})"


def compare(better: str, name: str, *, gpu: bool) -> str:
    """Return what was measured of a better backbone and, where it was, of the one that would be used instead.

    >>> compare("deit_tiny_patch16_224.fb_in1k", DEFAULT_BACKBONE, gpu=False)  # doctest: +ELLIPSIS
    '45.3 % instead of 22.7 % right (Stanford Cars, ...), at 21 instead of 259 images/s on two CPU cores'
    >>> compare("vit_base_patch16_clip_224.openai", "deit_small_patch16_224.fb_in1k", gpu=True)  # doctest: +ELLIPSIS
    '90.1 % right (Stanford Cars, ...)'
    """
    figures, other = MEASURED[better], MEASURED.get(name)
    text = f"{figures.cars} %{f' instead of {other.cars} %' if other else ''} right ({BENCHMARK})"
    if gpu or figures.cpu_speed is None or other is None or other.cpu_speed is None:
        return text
    return f"{text}, at {figures.cpu_speed:g} instead of {other.cpu_speed:g} images/s on two CPU cores"
