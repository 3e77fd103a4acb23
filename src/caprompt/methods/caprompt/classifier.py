"""CAPrompt as a whole: the mixture of prompts, and what every task adds to its classifier.

That is a closed-form regression, fitted to the features of both passes over the task's images, or with `classifier="aligned"` the
paper's head, aligned with replayed features. Shapes: as in `mixture`, and N images of a task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.methods.base import Batches, CroppableBatches, HonestScores, Method
from caprompt.methods.caprompt.mixture import PromptMixture, replace_last_block
from caprompt.methods.caprompt.options import CAPromptOptions
from caprompt.methods.components import alignment
from caprompt.methods.components.exact_sums import OTHER_PROJECTION, OTHER_TRAINING
from caprompt.methods.components.readout import list_candidates, select_num_blocks
from caprompt.methods.components.ridge import MAX_SCORED, RandomRidge
from caprompt.methods.components.shared_rows import SharedRows
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.components.strength import STRENGTHS, USUAL, choose_images, make_evidence, select_strength
from caprompt.methods.options import USUAL_CROP
from caprompt.methods.registry import register
from caprompt.utils.communication import get_communicator

__all__ = ["ZOOM", "CAPrompt"]

MIN_TRAINED_IMAGES = 2  # of a class; a prompt that is trained on single images may be worse than none (docs/experiments.md)
MAX_CROPPED_IMAGES = 50  # of a class; with more, crops of them teach the regression little (docs/experiments.md)
MANY_STRENGTH = 0.025  # of the regression with that many images or more: 0.1 for each of two passes over two views
HALF_KEPT_IMAGES = 6  # of a class; with so many, half of what training changes in a prompt is kept (docs/experiments.md)
SMALL_SHARE = 0.5  # of the side of the network's input; smaller images are read whole (docs/experiments.md)
ZOOM = 0.8  # side of the narrow crop, relative to that at prediction
MAX_SCORED_ROWS = 6 * MAX_SCORED  # of the regression, for all images that are scored as if they were left out

LabeledFeatures: TypeAlias = list[tuple[Tensor, Tensor]]  # batches of features (N, K D) and classes (N,)


def build_regression(width: int, options: CAPromptOptions) -> RandomRidge:
    """Return the regression without any images, for features of a width."""
    strength = None if options.ridge_strength == "held-out" else get_strength(options)
    dtype = torch.float64 if options.exact_sums else torch.float32
    return RandomRidge(width, options.projections, strength, keep_features=options.keep_features, dtype=dtype)


def get_strength(options: CAPromptOptions) -> float:
    """Return the regression's strength for a single row of an image: the given one, or the usual one where it is selected."""
    return options.ridge_strength if isinstance(options.ridge_strength, float) else USUAL


@register("caprompt")
class CAPrompt(PromptMixture):
    """Task prompts, mixed per image by task probabilities that are refined in cycles, and their classifier."""

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
    before_training: Tensor  # the newest prompt before its training, (1, L, 2, n, D), in a call that keeps a part of the change
    strength_evidence: Tensor  # what `make_evidence` found in all calls, (3, S); only where the strength is selected
    selected_blocks: Tensor  # number of last blocks that the regression reads; only with readout_blocks='auto'
    reads_whole: Tensor  # whether images are read whole, and not with the usual crop; only with test_crop='auto'

    def __init__(self, vit: ViT, options: CAPromptOptions) -> None:
        super().__init__(vit, options, None if options.classifier == "aligned" else build_regression(vit.config.width, options))
        if options.kept_change != 1:
            self.register_buffer("before_training", self.prompt.new_empty(0, *self.prompt.shape))
        width = vit.config.width
        self.statistics = alignment.build_statistics(options, width) if self.ridge is None else Statistics(width)
        if self.selects_strength:
            self.register_buffer("strength_evidence", torch.zeros(3, len(STRENGTHS), dtype=torch.float64))
        self.images_of_class = math.inf  # on average, in the current call
        if options.readout_blocks == "auto":
            self.register_buffer("selected_blocks", torch.tensor(1))
        self.set_num_blocks(self.num_blocks)
        self.crop = options.eval_crop
        if options.test_crop == "auto":
            self.register_buffer("reads_whole", torch.tensor(0, dtype=torch.uint8))

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
        """Add a prompt, and room for the statistics of new classes."""
        super().begin_task(num_classes, generator)
        self.statistics.grow(num_classes)

    # -- what the images of a task decide ----------------------------------------------------------------------------------

    @property
    def input_options(self) -> CAPromptOptions:
        """The options, with the crop that was selected."""
        return self.options.model_copy(update={"test_crop": self.crop}) if self.options.test_crop == "auto" else self.options

    @property
    def min_trained_images(self) -> int:
        """The regression needs no trained prompt; the paper's head is itself trained."""
        return 0 if self.ridge is None else MIN_TRAINED_IMAGES

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

    def choose_effort(self, num_images: int, num_classes: int) -> None:
        """Choose the effort of training, and what else depends on the number of images of a class."""
        super().choose_effort(num_images, num_classes)
        self.images_of_class = num_images / num_classes

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
        self.selected_blocks.fill_(select_num_blocks(blocks, labels, get_strength(self.options), candidates))
        get_communicator().copy_from_first(self.selected_blocks)  # unlike devices may round a near tie differently
        self.set_num_blocks(int(self.selected_blocks))

    def read_blocks(self, batches: Batches, num_blocks: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the frozen backbone's features of some images, (N, num_blocks D), and their classes (N,)."""
        assert self.ridge is not None
        pairs = [(self.vit(images, num_blocks=num_blocks), labels) for images, labels in batches]
        shared = SharedRows([len(labels) for _, labels in pairs], get_communicator())
        chosen = torch.randperm(shared.total, generator=generator)[:MAX_SCORED]
        features, labels = shared.gather(self.ridge.join(pairs, num_blocks * self.vit.config.width), chosen)
        return features, labels

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

    # -- before and after training on a task -------------------------------------------------------------------------------

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
        `own_rows` are the features of all images of the call in this process, (N, K D) each: of the first and the second pass
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
        (mixed,) = shared.gather([self.extract_by_weights(batches, weights[shared.places.to(weights.device)])], chosen)
        second = predict_left_out(replace_last_block(rows[0], mixed))
        return HonestScores(scale * second, labels)

    def subtract_class(self, index: int, batches: Batches | None) -> None:
        """Drop the class's kept features from the regression."""
        if self.ridge is not None and self.options.keep_features:
            self.ridge.forget_kept(index)

    def refit(self) -> None:
        """Solve the regression again."""
        if self.ridge is not None:
            self.select_strength()
            self.ridge.refit()

    # -- features of the images of a task ----------------------------------------------------------------------------------

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

    def extract_first_views(self, batches: Batches) -> list[LabeledFeatures]:
        """Run the first pass over all views of the images."""
        return self.extract_views(self.list_sources(batches), self.extract_first_features)

    def extract_second_views(self, batches: Batches, first: Sequence[LabeledFeatures]) -> list[LabeledFeatures]:
        """Run the second pass over the same views, given the features of the first."""
        return self.extract_views(self.list_sources(batches), self.extract_second_features, first)

    def extract_by_weights(self, batches: Batches, weights: Tensor) -> Tensor:
        """Compute the features of all images with prompts mixed by the given weights: (N, T) -> (N, D)."""
        features, start = [weights.new_zeros(0, self.vit.config.width)], 0
        for images, labels in batches:
            own = weights[start : start + len(labels)]
            features.append(self.extract_by_stem(self.extract_mixture, images, own))
            start += len(labels)
        return torch.cat(features)

    @torch.no_grad()
    def extract_own_features(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute features (B, D) of labeled images, each with the prompt of its own task."""
        weights = F.one_hot(self.task_of_class[labels], len(self.task_sizes)).to(self.prompt.dtype)
        return self.extract_by_stem(self.extract_mixture, images, weights)

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
