"""The paper's mixture of prompts: passes over images in cycles, the losses of training, and prediction.

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys and n of values, D width, K blocks
whose class tokens are read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.errors import OptionError
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.caprompt.options import CAPromptOptions
from caprompt.methods.components.batch_leak import mix_batch
from caprompt.methods.components.heads import CosineHead, LinearHead
from caprompt.methods.components.prefix import PLACES, ModulatedPrefix, Prefix, draw_prompt, resolve_layers
from caprompt.methods.components.ridge import RandomRidge

__all__ = ["RATE_TIMES_WIDTH", "PromptMixture", "concave_gap", "linear_loss", "replace_last_block"]

RATE_TIMES_WIDTH = 3.84  # a learning rate of 0.02 for a width of 192


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


class PromptMixture(Method):
    """Task prompts of a frozen ViT, mixed per image by task probabilities that are refined in cycles."""

    options: CAPromptOptions
    head: LinearHead | CosineHead
    earlier: Tensor  # prompts of the earlier tasks, frozen: (T - 1, L, 2, n, D)

    def __init__(self, vit: ViT, options: CAPromptOptions, ridge: RandomRidge | None) -> None:
        super().__init__(vit, options, CosineHead(vit.config.width) if options.training_head == "cosine" else None)
        self.layers = resolve_layers(vit.config, options)
        prompt = self.draw_prompt(torch.Generator())
        self.prompt = nn.Parameter(prompt)  # of the newest task, (L, 2, n, D)
        self.register_buffer("earlier", prompt.new_empty(0, *prompt.shape))
        self.ridge = ridge  # the classifier; without one, it is the head
        self.num_blocks = 1 if options.readout_blocks == "auto" else options.readout_blocks  # K
        if self.num_blocks > vit.config.depth:
            raise OptionError(f"option 'readout_blocks' is {self.num_blocks}, but this backbone has {vit.config.depth} blocks")

    @property
    def can_compile_step(self) -> bool:
        """Where every block has a prompt: in blocks without one, compiled attention was wrong on an H200 (docs/performance.md)."""
        return len(self.layers) == self.vit.config.depth

    @property
    def default_learning_rate(self) -> float:
        """The wider the backbone, the more each step of a prompt changes its features."""
        return RATE_TIMES_WIDTH / self.vit.config.width

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Freeze the newest prompt and add a new one, initialized as a copy of it."""
        super().begin_task(num_classes, generator)
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

    @torch.no_grad()
    def extract_second_features(self, stem: Stem, first: Tensor) -> Tensor:
        """Run the second pass with the task weights that follow from the first: (B, K D) -> (B, K D)."""
        weights = self.select_weights(self.compute_task_weights(self.classify(first)))
        return replace_last_block(first, self.extract_mixture(stem, weights))

    def extract_by_stem(self, extract: Callable[..., Tensor], images: Tensor, *others: Tensor) -> Tensor:
        """Compute features of images by a function of their stem and of what else belongs to each."""
        if self.options.protocol == "released":
            return extract(self.vit.stem(images), *others)  # which images are a batch matters
        return self.vit.map_images(lambda part, *rest: extract(self.vit.stem(part), *rest), images, *others)

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
