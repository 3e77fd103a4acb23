"""CAPrompt: cyclic prompt aggregation (Li and Zhou, AAAI 2025, https://arxiv.org/abs/2412.08929).

Every task i has prefix prompts phi_i for a frozen ViT. For an image x they are not selected but
mixed,

    phi(x) = sum_i p_i(x) phi_i                                                     (Eq. 2)

where p_i(x) is the probability that x belongs to a class of task i. The class probabilities of each
forward pass give the weights of the next one (Eq. 9, Algorithm 1). The first pass has equal weights
in the paper and with `classifier="aligned"`; by default it uses the prompt of the first task (see
`extract_first_features`).

Two constraints make the mixture at least as good as the prompt of a single task: the prediction
should be concave along the mixture (Eq. 6-7), and the prompts should lie on a line (Eq. 8). They are
part of the paper's recipe, `classifier="aligned"`. With the regression they change nothing but the
cost, so by default a task trains its own prompt alone (docs/experiments.md).

docs/decisions.md lists what the paper leaves open or the authors' code does differently, and what
is done here. Above all, prefixes are built per image, so a prediction never depends on the other
images of its batch; the exception, for comparison with published tables, is `protocol="released"`
(`components/batch_leak.py`).

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys and n of values, D width, K blocks
whose class tokens are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.errors import OptionError
from caprompt.methods.base import Batches, CroppableBatches, HonestScores, Method, MethodOutput
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.batch_leak import ReleasedOptions, mix_batch
from caprompt.methods.components.exact_sums import OTHER_PROJECTION, OTHER_TRAINING
from caprompt.methods.components.heads import CosineHead, LinearHead
from caprompt.methods.components.prefix import PLACES, ModulatedPrefix, Prefix, PrefixOptions, draw_prompt, resolve_layers
from caprompt.methods.components.readout import list_candidates, select_num_blocks
from caprompt.methods.components.ridge import MAX_SCORED, RandomRidge
from caprompt.methods.components.shared_rows import SharedRows
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.components.strength import STRENGTHS, USUAL, choose_images, make_evidence, select_strength
from caprompt.methods.options import USUAL_CROP
from caprompt.methods.registry import register
from caprompt.utils.communication import get_communicator

__all__ = ["CAPrompt", "CAPromptOptions", "concave_gap", "linear_loss"]

RATE_TIMES_WIDTH = 3.84  # a learning rate of 0.02 for a width of 192
MIN_TRAINED_IMAGES = 2  # of a class; a prompt that is trained on single images may be worse than none (docs/experiments.md)
MAX_CROPPED_IMAGES = 50  # of a class; with more, crops of them teach the regression little (docs/experiments.md)
MANY_STRENGTH = 0.025  # of the regression with that many images or more: 0.1 for each of two passes over two views
HALF_KEPT_IMAGES = 6  # of a class; with so many, half of what training changes in a prompt is kept (docs/experiments.md)
SMALL_SHARE = 0.5  # of the side of the network's input; smaller images are read whole (docs/experiments.md)
ZOOM = 0.8  # side of the narrow crop, relative to that at prediction
MAX_SCORED_ROWS = 6 * MAX_SCORED  # of the regression, for all images that are scored as if they were left out

LabeledFeatures: TypeAlias = list[tuple[Tensor, Tensor]]  # batches of features (n, K D) and classes (n,)

#: What goes with the paper's classifier, where nothing else is said.
PAPER_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "epochs": 5,
        "batch_size": 24,
        "learning_rate": 1e-2,
        "training_prompt": "mixture",
        "training_head": "linear",
        "alpha": 5.0,
        "beta": 0.2,
        "modulation": 0.0,
        "kept_change": 1.0,
        "readout_blocks": 1,
        "mirror": False,
        "test_crop": USUAL_CROP,
    }
)


class CAPromptOptions(ReplayOptions, PrefixOptions, ReleasedOptions):
    """Options of CAPrompt: constraints, cycles, aggregation (the switches of the ablation table) and classifier.

    The defaults are what we recommend (docs/experiments.md says why). With `classifier="aligned"` those of `PAPER_DEFAULTS` are
    the paper's; all of the paper's own values are the preset 'paper'.
    """

    epochs: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="training epochs per task; 'auto' follows from the number of images"
    )
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="images per training step; 'auto' follows from the number of images"
    )
    learning_rate: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="learning rate of the prompts, the head's is times head_rate; 'auto' follows from the backbone's width"
    )
    test_crop: Annotated[float, Field(ge=0.1, le=1)] | Literal["auto"] = Field(
        "auto",
        description="size of the central crop at prediction, as a fraction of the short side; 'auto' is 0.875, or 1 if the first "
        "task's images have less than half the side of the network's input",
    )
    training_prompt: Literal["own", "mixture"] = Field(
        "own", description="prompt with which a task is trained: its own, or the mixture of all tasks' prompts, as in the paper"
    )
    training_head: Literal["cosine", "linear"] = Field(
        "cosine", description="head that prompts are trained with: cosines with rows that start as class means, or linear"
    )
    alpha: float = Field(0.0, ge=0, description="training_prompt='mixture': weight of the concave constraint; 0 disables it")
    beta: float = Field(0.0, ge=0, description="training_prompt='mixture': weight of the linear constraint; 0 disables it")
    modulation: float = Field(
        0.1,
        ge=0,
        description="factor on the scales and shifts that a prompt has for attention and MLP of each block; 0 disables them",
    )
    kept_change: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        "auto",
        description="share of what training changes in a prompt that is kept; 'auto': n / (n + 6) where a call has n < 50 images "
        "of a class, on average, else all",
    )
    cycles: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="forward passes at prediction; 'auto' stops for each image once its task weights have converged"
    )
    max_cycles: int = Field(5, ge=1, description="cycles='auto': maximum number of passes")
    settled: float = Field(0.02, gt=0, description="cycles='auto': converged if all task weights change by less than this")
    sure: float = Field(
        0.95, gt=0, le=1, description="cycles='auto', classifier='ridge': stop once the top class has at least this probability"
    )
    aggregation: bool = Field(
        True, description="mix the prompts of all tasks; if false, use only that of the task predicted by a query pass"
    )
    classifier: Literal["ridge", "aligned"] = Field(
        "ridge",
        validate_default=True,
        description="closed-form ridge regression, or the paper's linear head aligned with replayed features",
    )
    first_pass: Literal["prompted", "query"] = Field(
        "prompted",
        description="prompt of the first pass: the first task's (classifier='aligned': all, equally mixed); 'query': none",
    )
    projections: int = Field(
        10_000, ge=1, description="classifier='ridge': number of random projections; model size grows with its square"
    )
    ridge_strength: Annotated[float, Field(gt=0)] | Literal["auto", "held-out"] = Field(
        "auto",
        description="classifier='ridge': its lambda, relative to the inputs' mean square; 'auto' selects it by few images, each "
        "left out in turn; 'held-out' selects a power of ten by a fifth of the images",
    )
    readout_blocks: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="classifier='ridge': number of last blocks whose class tokens it reads; 'auto' selects it by the first task's "
        "images, each left out in turn",
    )
    mirror: bool = Field(
        True, description="classifier='ridge': fit it to mirrored images as well, unless flip is 0 or ridge_strength 'held-out'"
    )
    crops: bool | Literal["auto"] = Field(
        "auto",
        description="classifier='ridge': fit it to a wider and a narrower crop of each image as well, unless ridge_strength is "
        "'held-out'; 'auto': where a call has fewer than 50 images of a class, on average, and neither exact_sums nor "
        "keep_features is set",
    )
    exact_sums: bool = Field(
        False,
        description="classifier='ridge': add up features in float64, so that their sums do not depend on their order or on the "
        "number of processes; the model takes twice the space",
    )
    keep_features: bool = Field(
        False,
        description="classifier='ridge': keep the features of every image, so that those of a class can be taken out again; "
        "with few images the model is then smaller, but it reveals more of them",
    )
    ridge_scale: float = Field(20.0, gt=0, description="classifier='ridge': factor on the logits")

    at_prediction: ClassVar[frozenset[str]] = PrefixOptions.at_prediction | {
        "cycles",
        "max_cycles",
        "settled",
        "sure",
        "ridge_scale",
    }

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({"patches": False})
    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "training_prompt": "mixture",
            "training_head": "linear",
            "modulation": 0.0,
            "kept_change": 1.0,
            "ridge_strength": "held-out",
            "readout_blocks": 1,
            "mirror": False,
            "crops": False,
        }
    )

    @model_validator(mode="before")
    @classmethod
    def fill_paper_defaults(cls, values: Any) -> Any:
        """Use the paper's values with the paper's classifier, and its mixture with its constraints, unless the caller says else."""
        if not isinstance(values, Mapping):
            return values
        if values.get("classifier") == "aligned":
            unused = {"alpha", "beta"} if values.get("training_prompt") == "own" else set()
            return {**{name: value for name, value in PAPER_DEFAULTS.items() if name not in unused}, **values}
        constrained = values.get("alpha") or values.get("beta")
        return {"training_prompt": "mixture", "training_head": "linear", **values} if constrained else values

    @field_validator("alpha", "beta")
    @classmethod
    def check_mixture(cls, value: float, info: ValidationInfo) -> float:
        """Refuse a constraint on the mixture where training does not use the mixture."""
        if value and (info.data.get("training_prompt"), info.data.get("training_head")) != ("mixture", "linear"):
            raise ValueError("it constrains the mixture of prompts; it needs training_prompt=mixture and training_head=linear")
        return value

    @field_validator("classifier")
    @classmethod
    def check_released_classifier(cls, value: str, info: ValidationInfo) -> str:
        """Refuse the ridge regression with `protocol="released"`: the authors' code has none."""
        if value == "ridge" and info.data.get("protocol") == "released":
            raise ValueError("protocol 'released' is the authors' code, which has only classifier 'aligned' (see preset 'paper')")
        if value == "aligned" and info.data.get("training_head") == "cosine":
            raise ValueError("its head is linear; leave out training_head")
        return value


def mix_prompts(weights: Tensor, prompts: Tensor) -> Tensor:
    """Mix prompts for each image, Eq. 2: (B, T) and (T, L, 2, n, D) -> (L, 2, B, n, D)."""
    return torch.einsum("bt,tlknd->lkbnd", weights, prompts)


def replace_last_block(first: Tensor, last: Tensor) -> Tensor:
    """Return the first pass's class tokens of K blocks with that of the last block replaced: (B, K D), (B, D) -> (B, K D).

    >>> replace_last_block(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[5.0, 6.0]]))
    tensor([[1., 2., 5., 6.]])
    """
    return torch.cat([first[:, : -last.shape[1]], last], dim=1)


def concave_gap(p_now: Tensor, g_now: Tensor, g_old: Tensor, g_mixed: Tensor) -> Tensor:
    """Return delta of Eq. 6: mixed predictions minus prediction of the mixture; <= 0 if concave.

    >>> import torch
    >>> concave_gap(torch.tensor(0.25), torch.tensor(0.8), torch.tensor(0.4), torch.tensor(0.5))
    tensor(0.)
    """
    return p_now * g_now + (1 - p_now) * g_old - g_mixed


def linear_loss(now: Tensor, previous: Tensor, first: Tensor) -> Tensor:
    """Return the loss of Eq. 8 for prompts (L, 2, n, D).

    The cosine is over the width, averaged over layers, keys and values, and rows.

    >>> import torch
    >>> first = torch.zeros(1, 2, 1, 3)
    >>> round(float(linear_loss(first + 2, first + 1, first)), 6)
    0.0
    """
    return 1 - F.cosine_similarity(now - first.detach(), previous.detach() - first.detach(), dim=-1).mean()


@register("caprompt")
class CAPrompt(Method):
    """Task prompts, mixed per image by task probabilities that are refined in cycles."""

    summary = "task prompts mixed per image, weights refined in cycles (AAAI 2025)"
    options_class = CAPromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**Method.check_options, "length": 4, "align_epochs": 3, "projections": 100}
    check_variants: ClassVar = (
        {"cycles": "auto"},
        {"cycles": 3},
        {"first_pass": "query"},
        {"classifier": "aligned"},
        {"aggregation": False},
        {"training_prompt": "mixture"},
        {"training_prompt": "mixture", "training_head": "linear", "alpha": 5.0, "beta": 0.2},
        {"training_head": "linear"},
        {"modulation": 0.0},
        {"ridge_strength": "held-out"},
        {"keep_features": True},
        {"readout_blocks": 2, "mirror": False},
        {"crops": False},
        {"kept_change": 1.0},
    )
    options: CAPromptOptions
    head: LinearHead | CosineHead
    earlier: Tensor  # prompts of the earlier tasks, frozen: (T - 1, L, 2, n, D)
    before_training: Tensor  # the newest prompt before its training, (1, L, 2, n, D), in a call that keeps a part of the change
    strength_evidence: Tensor  # what `make_evidence` found in all calls, (3, S); only where the strength is selected
    selected_blocks: Tensor  # number of last blocks that the regression reads; only with readout_blocks='auto'
    reads_whole: Tensor  # whether images are read whole, and not with the usual crop; only with test_crop='auto'

    def __init__(self, vit: ViT, options: CAPromptOptions) -> None:
        super().__init__(vit, options, CosineHead(vit.config.width) if options.training_head == "cosine" else None)
        self.layers = resolve_layers(vit.config, options)
        prompt = self.draw_prompt(torch.Generator())
        self.prompt = nn.Parameter(prompt)  # of the newest task, (L, 2, n, D)
        self.register_buffer("earlier", prompt.new_empty(0, *prompt.shape))
        if options.kept_change != 1:
            self.register_buffer("before_training", prompt.new_empty(0, *prompt.shape))
        width, aligned = vit.config.width, options.classifier == "aligned"
        self.statistics = alignment.build_statistics(options, width) if aligned else Statistics(width)
        strength = None if options.ridge_strength == "held-out" else self.given_strength
        keep = options.keep_features
        dtype = torch.float64 if options.exact_sums else torch.float32
        self.ridge = None if aligned else RandomRidge(width, options.projections, strength, keep_features=keep, dtype=dtype)
        if self.selects_strength:
            self.register_buffer("strength_evidence", torch.zeros(3, len(STRENGTHS), dtype=torch.float64))
        self.images_of_class = math.inf  # on average, in the current call
        self.num_blocks = 1 if options.readout_blocks == "auto" else options.readout_blocks  # K
        if self.num_blocks > vit.config.depth:
            raise OptionError(f"option 'readout_blocks' is {self.num_blocks}, but this backbone has {vit.config.depth} blocks")
        if options.readout_blocks == "auto":
            self.register_buffer("selected_blocks", torch.tensor(1))
        self.set_num_blocks(self.num_blocks)
        self.crop = options.eval_crop
        if options.test_crop == "auto":
            self.register_buffer("reads_whole", torch.tensor(0, dtype=torch.uint8))

    @property
    def input_options(self) -> CAPromptOptions:
        """The options, with the crop that was selected."""
        return self.options.model_copy(update={"test_crop": self.crop}) if self.options.test_crop == "auto" else self.options

    @property
    def can_compile_step(self) -> bool:
        """Where every block has a prompt: in blocks without one, compiled attention was wrong on an H200 (docs/performance.md)."""
        return len(self.layers) == self.vit.config.depth

    @property
    def default_learning_rate(self) -> float:
        """The wider the backbone, the more each step of a prompt changes its features."""
        return RATE_TIMES_WIDTH / self.vit.config.width

    @property
    def min_trained_images(self) -> int:
        """The regression needs no trained prompt; the paper's head is itself trained."""
        return 0 if self.ridge is None else MIN_TRAINED_IMAGES

    @property
    def given_strength(self) -> float:
        """The regression's strength for a single row of an image: the given one, or the usual one where it is selected."""
        return self.options.ridge_strength if isinstance(self.options.ridge_strength, float) else USUAL

    @property
    def selects_strength(self) -> bool:
        """Whether images that are left out select the strength of the regression.

        Not where the result must not depend on how images are divided among calls, nor on images that are taken out again.
        """
        is_free = not (self.options.exact_sums or self.options.keep_features)
        return self.options.classifier == "ridge" and self.options.ridge_strength == "auto" and is_free

    @property
    def has_few_images(self) -> bool:
        """Whether the current call has few images of a class, on average."""
        return self.images_of_class < MAX_CROPPED_IMAGES

    @property
    def kept_change(self) -> float:
        """Share of what training changes in the prompt that is kept in the current call."""
        if self.options.kept_change != "auto":
            return self.options.kept_change
        return self.images_of_class / (self.images_of_class + HALF_KEPT_IMAGES) if self.has_few_images else 1.0

    def choose_effort(self, num_images: int, num_classes: int) -> None:
        """Choose the effort of training, and what else depends on the number of images of a class."""
        super().choose_effort(num_images, num_classes)
        self.images_of_class = num_images / num_classes

    def describe_choices(self, num_images: int) -> str:
        """Return also how the regression reads the images, as far as that was chosen."""
        effort = super().describe_choices(num_images)
        if not effort:
            return ""
        choices = [effort]
        few = ["crops of them are learned, too"] if self.fits_crops and self.options.crops == "auto" else []
        if self.has_few_images and self.epochs and self.options.kept_change == "auto":
            few.append(f"{100 * self.kept_change:.0f} % of what training changes is kept")
        if few:
            choices.append(f"fewer than {MAX_CROPPED_IMAGES} of a class, so {', and '.join(few)}")
        is_first = len(self.task_sizes) == 1
        if is_first and self.crop == 1.0 and self.options.test_crop == "auto":
            choices.append("small, so they are read whole")
        if is_first and self.num_blocks > 1 and self.options.readout_blocks == "auto":
            choices.append(f"by the error on images left out, the last {self.num_blocks} blocks are read")
        return "; ".join(choices)

    def set_num_blocks(self, count: int) -> None:
        """Let the regression read that many blocks; before the first images."""
        self.num_blocks = count
        if self.options.readout_blocks == "auto":
            self.selected_blocks.fill_(count)
        if self.ridge is not None:
            self.ridge.set_width(count * self.vit.config.width)

    def set_crop(self, reads_whole: bool) -> None:
        """Read images whole, or with the usual crop."""
        self.reads_whole.fill_(reads_whole)
        self.crop = 1.0 if reads_whole else USUAL_CROP

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Give the regression its width before its own state is loaded."""
        if f"{prefix}selected_blocks" in state:
            self.set_num_blocks(int(state[f"{prefix}selected_blocks"]))
        if f"{prefix}reads_whole" in state and self.options.test_crop == "auto":
            self.set_crop(reads_whole=bool(state[f"{prefix}reads_whole"]))
        if f"{prefix}before_training" in state and self.options.kept_change != 1:
            self.before_training = self.before_training.new_empty(state[f"{prefix}before_training"].shape)
        super()._load_from_state_dict(state, prefix, *rest)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The class statistics; with the regression also its sums, and the head, which then only trains prompts."""
        started = ("before_training",) if self.options.kept_change != 1 else ()
        if self.ridge is None:
            return ("statistics", *started)
        evidence = ("strength_evidence",) if self.selects_strength else ()
        return ("statistics", "head", *started, *evidence, *(f"ridge.{name}" for name in self.ridge.learning_state))

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Freeze the newest prompt and add a new one, initialized as a copy of it."""
        super().begin_task(num_classes, generator)
        self.statistics.grow(num_classes)
        if self.ridge is not None:
            self.ridge.grow(num_classes, generator)
        if len(self.task_sizes) == 1:
            self.prompt.data.copy_(self.draw_prompt(generator))
        else:
            self.earlier = torch.cat([self.earlier, self.prompt.detach().unsqueeze(0)])
            self.prompt = nn.Parameter(self.prompt.detach().clone())

    def draw_prompt(self, generator: torch.Generator) -> Tensor:
        """Draw the first prompt: (L, 2, n, D). Scales and shifts are further rows, of zeros."""
        prompt = draw_prompt(self.vit.config, self.options, generator)
        return F.pad(prompt, (0, 0, 0, len(PLACES))) if self.options.modulation else prompt

    @property
    def prompts(self) -> list[Tensor]:
        """Prompts of all tasks, (L, 2, n, D) each."""
        return [*self.earlier, self.prompt]

    # -- forward passes ----------------------------------------------------------------------------------------------------

    def extract_features(self, stem: Stem, *prompts: Tensor) -> Tensor:
        """Compute f(x, phi) with a prompt per image: (L, 2, B, n, D) -> (B, D).

        With k prompts per image, all go through the ViT as one batch: (k B, D).
        """
        if self.options.protocol == "released":
            prompts = tuple(mix_batch(rows) for rows in prompts)
        rows = torch.cat(prompts, dim=2) if len(prompts) > 1 else prompts[0]
        features: Tensor = self.vit(stem.repeat(len(prompts)), self.build_adaptation(rows.to(self.vit.dtype)))
        return features

    def extract_mixture(self, stem: Stem, weights: Tensor) -> Tensor:
        """Compute features with the prompts of all tasks mixed by these weights: (B, T) -> (B, D)."""
        return self.extract_features(stem, self.aggregate_prompts(weights))

    def build_adaptation(self, rows: Tensor) -> Prefix:
        """Return prompts of images (L, 2, B, n, D) as an adaptation of the ViT."""
        factor = self.options.modulation
        return ModulatedPrefix(rows, self.layers, factor) if factor else Prefix(rows, self.layers)

    def aggregate_prompts(self, weights: Tensor) -> Tensor:
        """Mix the prompts of all tasks for each image, Eq. 2: (B, T) -> (L, 2, B, n, D)."""
        return mix_prompts(weights, torch.cat([self.earlier, self.prompt.unsqueeze(0)]))

    def expand_prompt(self, prompt: Tensor, stem: Stem) -> Tensor:
        """Use the same prompt for every image: (L, 2, n, D) -> (L, 2, B, n, D)."""
        return prompt.unsqueeze(2).expand(-1, -1, stem.tokens.shape[0], -1, -1)

    def classify(self, features: Tensor) -> Tensor:
        """Compute logits from the features of any pass: (B, K D) -> (B, C)."""
        logits: Tensor = self.head(features) if self.ridge is None else self.options.ridge_scale * self.ridge(features)
        return logits

    def compute_logits(self, stem: Stem, weights: Tensor, first: Tensor | None = None) -> Tensor:
        """Run one pass with prompts mixed by these weights: (B, T) -> (B, C).

        `first` are the features of the first pass (B, K D); they are computed if needed and not given.
        """
        last = self.extract_mixture(stem, weights)
        if self.num_blocks > 1 and first is None:
            first = self.extract_first_features(stem)
        return self.classify(last if first is None else replace_last_block(first, last))

    def compute_task_weights(self, logits: Tensor) -> Tensor:
        """Compute task probabilities from class logits, Eq. 9: (B, C) -> (B, T)."""
        return self.sum_by_task(logits.softmax(dim=1))

    def select_weights(self, weights: Tensor) -> Tensor:
        """Return the weights (B, T), or without aggregation the most probable task one-hot."""
        return weights if self.options.aggregation else F.one_hot(weights.argmax(dim=1), weights.shape[1]).to(weights)

    @property
    def has_query_pass(self) -> bool:
        """Whether the first pass is a query pass, that is, without a prompt."""
        return self.options.first_pass == "query" or (self.ridge is None and not self.options.aggregation)

    def extract_first_features(self, stem: Stem) -> Tensor:
        """Run the first pass, before any task probabilities are known: (B, K D).

        It has no prompt (Eq. 1), all prompts equally mixed (Algorithm 1), or with the ridge
        regression the first task's prompt: features are only ever added to the regression, so they
        must not change later, and that prompt is frozen after its task. Blocks before the last are
        read in this pass only, so that what they say does not depend on the task weights.
        """
        if self.has_query_pass:
            return self.extract_unprompted(stem)
        prompt = (self.earlier.sum(dim=0) + self.prompt) / len(self.task_sizes) if self.ridge is None else self.prompts[0]
        rows = self.expand_prompt(prompt, stem)
        if self.num_blocks == 1:
            return self.extract_features(stem, rows)
        features: Tensor = self.vit(stem, self.build_adaptation(rows.to(self.vit.dtype)), self.num_blocks)
        return features

    def extract_unprompted(self, stem: Stem) -> Tensor:
        """Compute features without a prompt, f(x): (B, K D)."""
        features: Tensor = self.vit(stem, num_blocks=self.num_blocks)
        return features

    def compute_first_logits(self, stem: Stem) -> Tensor:
        """Compute the logits of the first pass: (B, C)."""
        return self.classify(self.extract_first_features(stem))

    def make_first_weights(self, logits: Tensor) -> Tensor:
        """Return the task weights of the first pass: all on the first task, or equal; (B, T)."""
        num_tasks = len(self.task_sizes)
        if self.ridge is None or self.has_query_pass:
            return logits.new_full((logits.shape[0], num_tasks), 1 / num_tasks)
        return F.one_hot(torch.zeros_like(logits[:, 0], dtype=torch.long), num_tasks).to(logits)

    # -- training ----------------------------------------------------------------------------------------------------------

    @property
    def trains_mixture(self) -> bool:
        """Whether the newest task is trained with the mixture of all tasks' prompts, and not with its own alone."""
        return len(self.task_sizes) > 1 and self.options.aggregation and self.options.training_prompt != "own"

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return cross entropy (Eq. 3), and for the mixture alpha x concave loss (Eq. 7) and beta x linear loss (Eq. 8)."""
        options, stem = self.options, self.vit.stem(images)
        if not self.trains_mixture:
            features = self.extract_features(stem, self.expand_prompt(self.prompt, stem))
            return {"ce": self.masked_cross_entropy(self.head(features), labels)}

        with torch.no_grad():
            weights = self.compute_task_weights(self.compute_first_logits(stem))  # p, (B, T)
            earlier = mix_prompts(weights[:, :-1], self.earlier)
        mixed = earlier + weights[:, -1, None, None] * self.prompt.unsqueeze(2)  # Eq. 2
        if options.alpha:
            features, concave = self.run_concave_pass(stem, labels, weights, earlier, mixed)
            losses = {"ce": self.masked_cross_entropy(self.head(features), labels), "concave": options.alpha * concave}
        else:
            losses = {"ce": self.masked_cross_entropy(self.head(self.extract_features(stem, mixed)), labels)}
        # At the second task the reference direction phi_1 - phi_1 is zero.
        if options.beta and len(self.task_sizes) > 2:
            losses["linear"] = options.beta * linear_loss(self.prompt, self.earlier[-1], self.earlier[0])
        return losses

    def run_concave_pass(
        self, stem: Stem, labels: Tensor, weights: Tensor, earlier: Tensor, mixed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the features with the mixed prompts and the concave loss, Eq. 7.

        The mixed and the newest prompt go through the ViT as one batch.
        """
        with torch.no_grad():  # first, while no activations are stored for the backward pass yet
            earlier_weight = weights[:, :-1].sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)  # (B,)
            g_old = self.compute_probability(self.extract_features(stem, earlier / earlier_weight[:, None, None]), labels)
        features = self.extract_features(stem, mixed, self.expand_prompt(self.prompt, stem))  # (2 B, D)
        g_mixed, g_now = self.compute_probability(features, torch.cat([labels, labels])).chunk(2)
        gap = concave_gap(weights[:, -1], g_now, g_old, g_mixed)
        return features[: len(labels)], gap.clamp_min(0).mean()

    def compute_probability(self, features: Tensor, labels: Tensor) -> Tensor:
        """Compute g(x, y, phi), the probability of the true class: (B,).

        Gradients reach only the prompts: the head and the logits of old classes are detached. With
        the ridge regression the head's rows of different tasks are never made comparable, so g is
        the probability among the task's classes.
        """
        assert isinstance(self.head, LinearHead)  # the options allow no constraint with another
        logits = F.linear(features, self.head.weight.detach(), self.head.bias.detach())
        if self.ridge is None:
            logits = torch.cat([logits[:, : self.num_known_classes].detach(), logits[:, self.num_known_classes :]], dim=1)
        else:
            logits, labels = logits[:, self.num_known_classes :], labels - self.num_known_classes
        return logits.softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)

    # -- before and after training on a task -------------------------------------------------------------------------------

    @torch.no_grad()
    def choose_by_images(self, batches: Batches, generator: torch.Generator) -> None:
        """Select the crop by the size of the first task's images, and the number of blocks to read by their features."""
        if len(self.task_sizes) > 1:
            return
        if self.options.test_crop == "auto" and isinstance(batches, CroppableBatches):
            self.set_crop(reads_whole=batches.measure_short_side() < SMALL_SHARE * self.vit.config.image_size)
            batches = batches.crop(self.crop) if self.crop != USUAL_CROP else batches
        candidates = list_candidates(self.vit.config.depth)
        if self.ridge is None or self.options.readout_blocks != "auto" or len(candidates) == 1:
            return
        features, labels = self.read_blocks(batches, candidates[-1], generator)
        blocks = features.unflatten(1, (-1, self.vit.config.width))
        self.selected_blocks.fill_(select_num_blocks(blocks, labels, self.given_strength, candidates))
        get_communicator().copy_from_first(self.selected_blocks)  # unlike devices may round a near tie differently
        self.set_num_blocks(int(self.selected_blocks))

    def read_blocks(self, batches: Batches, num_blocks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the frozen backbone's features of some images, (n, num_blocks D), and their classes (n,)."""
        assert self.ridge is not None
        pairs = [(self.vit(images, num_blocks=num_blocks), labels) for images, labels in batches]
        shared = SharedRows([len(labels) for _, labels in pairs], get_communicator())
        chosen = torch.randperm(shared.total, generator=generator)[:MAX_SCORED]
        features, labels = shared.gather(self.ridge.join(pairs, num_blocks * self.vit.config.width), chosen)
        return features, labels

    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Start the cosine head at class means, remember the prompt, and fit the regression to the first pass.

        The last only where training needs it, for the weights of the mixture; otherwise `consolidate` does it.
        """
        if self.options.training_head == "cosine":
            self.start_at_means(batches)
        if self.kept_change < 1:
            self.before_training = self.prompt.detach().clone().unsqueeze(0)
        if self.ridge is not None and self.trains_mixture:
            views = self.extract_first_views(batches)
            self.fit_regression(views, sum(len(labels) for _, labels in views[0]), generator)

    @property
    def fits_mirrored(self) -> bool:
        """Whether the regression is fitted to mirrored images as well, as the prompt is if training mirrors images.

        Not where some images are held out of it to select lambda: their mirror images would not be.
        """
        return bool(self.options.mirror and self.options.flip) and self.options.ridge_strength != "held-out"

    @property
    def fits_crops(self) -> bool:
        """Whether the regression is fitted to crops as well.

        By itself not where sums must not depend on how images are divided among calls, nor where features are kept, which
        would take three times the space.
        """
        if self.options.ridge_strength == "held-out":
            return False
        if self.options.crops == "auto":
            return self.has_few_images and not (self.options.exact_sums or self.options.keep_features)
        return self.options.crops

    def list_sources(self, batches: Batches) -> list[Batches]:
        """Return the images as at prediction, and if the regression is fitted to crops, these; for images that can be cropped."""
        if not self.fits_crops or not isinstance(batches, CroppableBatches):
            return [batches]
        return [batches, *(batches.crop(share) for share in (1.0, ZOOM * self.crop) if share != self.crop)]

    @torch.no_grad()
    def extract_views(
        self, sources: Sequence[Batches], extract: Callable[..., Tensor], earlier: Sequence[LabeledFeatures] = ()
    ) -> list[LabeledFeatures]:
        """Compute the features of all views of the images: for each view, features and labels by batch.

        The first view is that at prediction. `extract` gets the stem of some images and, if given, their `earlier` features.
        """
        views: list[LabeledFeatures] = []
        for source in sources:
            own: list[LabeledFeatures] = [[] for _ in range(2 if self.fits_mirrored else 1)]
            for number, (images, labels) in enumerate(source):
                for place, view in enumerate([images, images.flip(-1)][: len(own)]):
                    rows = [earlier[len(views) + place][number][0]] if earlier else []
                    own[place].append((self.extract_by_stem(extract, view, *rows), labels))
            views += own
        return views

    def extract_by_stem(self, extract: Callable[..., Tensor], images: Tensor, *others: Tensor) -> Tensor:
        """Compute features of images by a function of their stem and of what else belongs to each."""
        if self.options.protocol == "released":
            return extract(self.vit.stem(images), *others)  # which images are a batch matters
        return self.vit.map_images(lambda part, *rest: extract(self.vit.stem(part), *rest), images, *others)

    @torch.no_grad()
    def start_at_means(self, batches: Batches) -> None:
        """Set the head's rows of new classes to the means of their features, with the prompt that training starts from."""
        sums, counts = torch.zeros_like(self.head.weight, dtype=torch.float64), self.head.weight.new_zeros(self.num_classes)
        for images, labels in batches:
            features = self.extract_by_stem(lambda stem: self.extract_features(stem, self.expand_prompt(self.prompt, stem)), images)
            sums.index_add_(0, labels, features.double())
            counts.index_add_(0, labels, torch.ones_like(labels, dtype=counts.dtype))
        if self.divides_passes:
            get_communicator().add_up(sums)
            get_communicator().add_up(counts)
        means = (sums / counts.clamp_min(1).unsqueeze(1)).to(self.head.weight)
        # Without a selection of rows, for which a GPU would have to be waited for: it computes this while training is prepared.
        self.head.weight.copy_(torch.where(counts.unsqueeze(1) > 0, means, self.head.weight))

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Update the class statistics; align the head (Algorithm 1) or update the regression."""
        self.take_back_change()
        is_known = self.statistics.count > 0  # (C,)
        if self.ridge is None:
            self.statistics.observe_batches((self.extract_own_features(images, labels), labels) for images, labels in batches)
            if is_known.any():
                alignment.align_head(self.head, self.statistics, self.options, int(is_known.sum()), generator)
            return
        # `prepare` has added the first pass over new classes where training needed it.
        needs_first_pass = is_known if self.trains_mixture else torch.ones_like(is_known)
        first, communicator = self.extract_first_views(batches), get_communicator()
        if self.selects_strength and self.has_few_images:
            self.compare_strengths(first, batches, generator)
        missing = [[(each[needs_first_pass[own]], own[needs_first_pass[own]]) for each, own in view] for view in first]
        self.fit_regression(missing, sum(len(labels) for _, labels in missing[0]), generator)
        second = self.extract_second_views(batches, first)
        self.statistics.observe_means(
            [(features[:, -self.vit.config.width :], labels) for features, labels in second[0]], communicator
        )
        factor = self.fit_regression(second, 0, generator)
        if factor is not None and self.options.ridge_strength != "held-out":
            shared = SharedRows([len(labels) for _, labels in second[0]], communicator)
            rows = [self.ridge.join(part)[0] for view in zip(first, second, strict=True) for part in view]
            labels = self.ridge.join(second[0])[1]
            trained_first = len(self.task_sizes) == 1 and not bool(is_known.any())
            self.honest_scores = self.score_honestly(factor, rows, labels, trained_first, batches, shared, generator)

    @torch.no_grad()
    def take_back_change(self) -> None:
        """Keep only a part of what training changed in the prompt.

        What a prompt learns from few images holds in part for these images alone, the more so the fewer they are. Between the
        prompts before and after training, less of that is left, and most of what holds for other images (Wortsman et al., Robust
        fine-tuning of zero-shot models, CVPR 2022).
        """
        if self.options.kept_change != 1 and len(self.before_training):
            self.prompt.lerp_(self.before_training[0], 1 - self.kept_change)
            self.before_training = self.before_training[:0]

    def fit_regression(self, views: Sequence[LabeledFeatures], num_images: int, generator: torch.Generator) -> Tensor | None:
        """Add views to the regression, of so many images that are not part of it yet, and return what its `partial_fit` does."""
        assert self.ridge is not None
        communicator = get_communicator()
        pairs = [pair for view in views for pair in view]
        if not self.selects_strength:
            return self.ridge.partial_fit(pairs, generator, communicator)
        self.select_strength(sum(communicator.gather(num_images)))
        return self.ridge.partial_fit(pairs, generator, communicator, num_images)

    def select_strength(self, num_added: int = 0) -> None:
        """Select the strength of the regression by all images that have been left out, if it is of few images with those added."""
        if self.ridge is not None and self.selects_strength:
            has_few = int(self.ridge.ridge.count) + num_added < MAX_CROPPED_IMAGES * self.num_classes
            self.ridge.ridge.relative_strength = select_strength(self.strength_evidence) if has_few else MANY_STRENGTH

    @torch.no_grad()
    def compare_strengths(self, first: list[LabeledFeatures], batches: Batches, generator: torch.Generator) -> None:
        """Compare strengths of the regression on images that are left out, with features that were not trained on them.

        Those are of the first pass, or in the first task, whose prompt that pass uses, of the frozen backbone.
        """
        assert self.ridge is not None
        if len(self.task_sizes) == 1:
            first = self.extract_views(self.list_sources(batches), self.extract_unprompted)
        shared = SharedRows([len(labels) for _, labels in first[0]], get_communicator())
        (labels,) = shared.gather([self.ridge.join(first[0])[1]], torch.arange(shared.total))
        chosen = choose_images(labels.cpu(), len(first), generator)
        if len(chosen):
            views = shared.gather([self.ridge.join(view)[0] for view in first], chosen)
            self.strength_evidence += make_evidence(views, labels[chosen.to(labels.device)].unique(return_inverse=True)[1])
            get_communicator().copy_from_first(self.strength_evidence)  # as for the number of blocks

    def extract_first_views(self, batches: Batches) -> list[LabeledFeatures]:
        """Run the first pass over all views of the images."""
        return self.extract_views(self.list_sources(batches), self.extract_first_features)

    def extract_second_views(self, batches: Batches, first: Sequence[LabeledFeatures]) -> list[LabeledFeatures]:
        """Run the second pass over the same views, given the features of the first."""
        return self.extract_views(self.list_sources(batches), self.extract_second_features, first)

    @torch.no_grad()
    def score_honestly(
        self,
        factor: Tensor,
        own_rows: Sequence[Tensor],
        own_labels: Tensor,
        trained_first: bool,
        batches: Batches,
        shared: SharedRows,
        generator: torch.Generator,
    ) -> HonestScores:
        """Score some images of the call as if they were left out of the regression.

        The prompt of the first pass was not trained on them. The second pass takes its task weights from the outputs of that one,
        so that it goes astray as often as for new images, though the prompt of their own task was trained on them. In the first
        task, one pass is without a prompt, and the regression on these images alone. docs/calibration.md says why this works.
        `own_rows` are the features of all images of the call in this process, (n, K D) each: of the first and the second pass
        over each of their views; `own_labels` are their classes. `trained_first` says that the call trained the prompt
        of the first task.
        """
        assert self.ridge is not None
        chosen = torch.randperm(shared.total, generator=generator)[: min(MAX_SCORED, MAX_SCORED_ROWS // len(own_rows))]
        *rows, labels = shared.gather([*own_rows, own_labels], chosen)
        scale, predict_left_out = self.options.ridge_scale, self.ridge.leave_out(factor, rows, labels)
        if trained_first:
            unprompted = self.extract_views([batches], self.extract_unprompted)
            views = shared.gather([self.ridge.join(view)[0] for view in unprompted], chosen)
            strength = self.ridge.ridge.relative_strength or 0.0
            honest = self.ridge.compute_left_out_alone(views, labels, strength * (len(views) if self.selects_strength else 1))
            return HonestScores(scale * honest, labels, scale * predict_left_out(rows[1]))
        first = predict_left_out(rows[0])
        weights = rows[0].new_zeros(shared.total, len(self.task_sizes))
        weights[chosen.to(weights.device)] = self.select_weights(self.compute_task_weights(scale * first)).to(weights)
        (mixed,) = shared.gather([self.extract_mixed(batches, weights[shared.places.to(weights.device)])], chosen)
        second = predict_left_out(replace_last_block(rows[0], mixed))
        return HonestScores(scale * second, labels)

    def extract_mixed(self, batches: Batches, weights: Tensor) -> Tensor:
        """Compute the features of all images with prompts mixed by the given weights: (n, T) -> (n, D)."""
        features, start = [weights.new_zeros(0, self.vit.config.width)], 0
        for images, labels in batches:
            own = weights[start : start + len(labels)]
            features.append(self.extract_by_stem(self.extract_mixture, images, own))
            start += len(labels)
        return torch.cat(features)

    def subtract_class(self, index: int, batches: Batches | None) -> None:
        """Drop the class's kept features from the regression."""
        if self.ridge is not None and self.options.keep_features:
            self.ridge.forget_kept(index)

    def refit(self) -> None:
        """Solve the regression again."""
        if self.ridge is not None:
            self.select_strength()
            self.ridge.refit()

    # -- several processes, several models ---------------------------------------------------------------------------------

    @property
    def divides_passes(self) -> bool:
        """With the regression all passes end in sums; the aligned head needs the features of all images."""
        return self.ridge is not None

    @property
    def common_state(self) -> dict[str, str]:
        """The regressions add up if their inputs are the same."""
        selected = [name for name in ("selected_blocks", "reads_whole") if hasattr(self, name)]
        return {"ridge.seed": OTHER_PROJECTION, **dict.fromkeys(("prompt", "earlier", "head", *selected), OTHER_TRAINING)}

    def explain_unmergeable(self) -> str | None:
        """Refuse what is not a regression with a single prompt; with two, its inputs depend on what was learned before."""
        if self.ridge is None:
            return "the head of classifier='aligned' is trained on all classes, and two heads cannot be added up"
        if len(self.task_sizes) > 1:
            return f"it has trained prompts for {len(self.task_sizes)} tasks, and only models with the prompt of one task add up"
        if self.options.ridge_strength == "held-out":
            return "its ridge_strength was selected by held-out images of each call, which two models do not have in common"
        return None

    def merge(self, other: Method, classes: Tensor, num_images: int, sign: int = 1) -> None:
        """Add the sums and class means of another model, or take them out again."""
        assert isinstance(other, CAPrompt)
        assert self.ridge is not None
        assert other.ridge is not None
        self.ridge.merge(other.ridge, classes, num_images, sign)
        if self.selects_strength:
            self.strength_evidence.add_(other.strength_evidence, alpha=sign)
        self.statistics.merge(other.statistics, classes, sign)

    def finish_merge(self) -> None:
        """Solve the regression."""
        self.refit()

    @torch.no_grad()
    def extract_own_features(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute features (B, D) of labeled images, each with the prompt of its own task."""
        weights = F.one_hot(self.task_of_class[labels], len(self.task_sizes)).to(self.prompt.dtype)
        return self.extract_by_stem(self.extract_mixture, images, weights)

    @torch.no_grad()
    def extract_second_features(self, stem: Stem, first: Tensor) -> Tensor:
        """Run the second pass with the task weights that follow from the first: (B, K D) -> (B, K D)."""
        weights = self.select_weights(self.compute_task_weights(self.classify(first)))
        return replace_last_block(first, self.extract_mixture(stem, weights))

    # -- prediction --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Predict as in Algorithm 1.

        With `true_tasks` (B,), run a single pass with the prompt of each image's true task.
        """
        stem = self.vit.stem(images)
        if true_tasks is not None:
            weights = F.one_hot(true_tasks, len(self.task_sizes)).to(self.prompt.dtype)
            return MethodOutput(self.compute_logits(stem, weights), weights, torch.ones_like(true_tasks))
        if self.options.cycles == "auto":
            return self.predict_until_converged(stem)
        first = self.extract_first_features(stem)
        logits = self.classify(first)
        weights = self.make_first_weights(logits)
        for _ in range(self.options.cycles - 1):
            weights = self.select_weights(self.compute_task_weights(logits))
            logits = self.compute_logits(stem, weights, first)
        return MethodOutput(logits, weights, torch.full_like(logits[:, 0], self.options.cycles, dtype=torch.long))

    @property
    def can_capture_predict(self) -> bool:
        """False if images differ in the number of passes, or if predictions depend on the batch."""
        return self.options.cycles != "auto" and self.options.protocol == "honest"

    def predict_until_converged(self, stem: Stem) -> MethodOutput:
        """Run as many cycles as each image needs; converged images leave the batch."""
        first = self.extract_first_features(stem)
        logits = self.classify(first)
        weights = self.make_first_weights(logits)
        passes = torch.ones_like(weights[:, 0], dtype=torch.long)
        active, previous = torch.arange(len(logits), device=logits.device), torch.full_like(passes, -1)
        for cycle in range(1, self.options.max_cycles):
            proposed = self.select_weights(self.compute_task_weights(logits[active]))
            is_active = ~self.has_converged(logits[active], previous[active], proposed - weights[active])
            if cycle == 1 and self.has_query_pass:
                is_active[:] = True  # a query pass is never the last one
            active, proposed = active[is_active], proposed[is_active]
            previous[active] = logits[active].argmax(dim=1)
            if not len(active):
                break
            weights[active] = proposed
            logits[active] = self.compute_logits(stem.select(active), proposed, first[active])
            passes[active] += 1
        return MethodOutput(logits, weights, passes)

    def has_converged(self, logits: Tensor, previous: Tensor, change: Tensor) -> Tensor:
        """Return which images need no further pass: (N,).

        `logits` are (N, C), `previous` (N,) the classes predicted before, `change` (N, T) that of
        the weights. The ridge regression is fitted to first and second passes alike, so with it a
        confident prediction is final, and so is one that equals that of the previous pass.
        """
        converged = change.abs().amax(dim=1) < self.options.settled
        top = logits.softmax(dim=1).max(dim=1)
        return converged if self.ridge is None else converged | (top.values >= self.options.sure) | (top.indices == previous)
