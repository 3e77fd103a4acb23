"""CAPrompt: cyclic prompt aggregation (Li and Zhou, AAAI 2025, arXiv:2412.08929).

Every task has prefix prompts phi_i for a frozen ViT. An image's prompt is not chosen but mixed,

    phi(x) = sum_i p_i(x) phi_i                                                            (Eq. 2)

with p_i(x) the probability that x belongs to a class of task i. The first pass uses equal weights (ours by default: the first
task's prompt, `first_features`); each pass gives the class probabilities, hence the weights, of the next (Eq. 9, Algorithm 1).
Two constraints keep the mixture at least as good as a single task's prompt: the prediction should be concave along the mixture
(Eq. 6-7), and the prompts should lie on a line (Eq. 8).

Where the paper is silent or the authors' program differs, docs/decisions.md says what is done here and why. Above all:
prefixes are built per image, so that an image's answer never depends on its batch (`released.py` has the one exception).

Shapes: B images, T tasks, C classes, L prompted layers, n rows of keys (and as many of values), D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.methods.base import Batches, Method, MethodOutput
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.batch_leak import ReleasedOptions, mix_batch
from caprompt.methods.components.heads import LinearHead
from caprompt.methods.components.prefix import Prefix, PrefixOptions, prompted_layers, random_prompt
from caprompt.methods.components.ridge import RandomRidge
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.registry import register

__all__ = ["CAPrompt", "CAPromptOptions", "concave_gap", "linear_loss"]


class CAPromptOptions(ReplayOptions, PrefixOptions, ReleasedOptions):
    """How prompts are mixed, held to the constraints, and read."""

    learning_rate: float = Field(1e-2, gt=0, description="the rate for the prompts, and for the head times head_rate")

    alpha: float = Field(5.0, ge=0, description="weight of the concave constraint; 0 switches it off")
    beta: float = Field(0.2, ge=0, description="weight of the linear constraint; 0 switches it off")
    cycles: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="passes at prediction; 'auto' stops each image when it has settled"
    )
    max_cycles: int = Field(5, ge=1, description="the most passes that cycles='auto' takes")
    settled: float = Field(0.02, gt=0, description="cycles='auto': weights that all change less than this have settled")
    sure: float = Field(
        0.95, gt=0, le=1, description="cycles='auto', classifier='ridge': an answer at least this probable needs no further pass"
    )
    aggregation: bool = Field(True, description="mix prompts; if false, use the one prompt of the task that a query pass predicts")
    classifier: Literal["ridge", "aligned"] = Field(
        "ridge",
        validate_default=True,
        description="who answers: a ridge regression in closed form, or the paper's head, aligned with replayed features",
    )
    first_pass: Literal["prompted", "query"] = Field(
        "prompted",
        description="'query' has no prompt; else the first task's, or with classifier='aligned' all mixed equally",
    )
    projections: int = Field(
        5000, ge=1, description="classifier='ridge': random projections; a model's file grows with their square"
    )
    ridge_scale: float = Field(20.0, gt=0, description="classifier='ridge': logits are this times the regression")

    at_prediction: ClassVar[frozenset[str]] = PrefixOptions.at_prediction | {
        "cycles",
        "max_cycles",
        "settled",
        "sure",
        "ridge_scale",
    }

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({"patches": False})

    @field_validator("classifier")
    @classmethod
    def check_released_classifier(cls, value: str, info: ValidationInfo) -> str:
        """The released program is repeated whole: it has no regression."""
        if value == "ridge" and info.data.get("protocol") == "released":
            raise ValueError("protocol 'released' is the authors' program; it has classifier 'aligned' (see preset 'paper')")
        return value


def concave_gap(p_now: Tensor, g_now: Tensor, g_old: Tensor, g_mixed: Tensor) -> Tensor:
    """Eq. 6: how far the mixture falls short of mixing the predictions; at most zero where the prediction is concave.

    >>> import torch
    >>> concave_gap(torch.tensor(0.25), torch.tensor(0.8), torch.tensor(0.4), torch.tensor(0.5))
    tensor(0.)
    """
    return p_now * g_now + (1 - p_now) * g_old - g_mixed


def linear_loss(now: Tensor, previous: Tensor, first: Tensor) -> Tensor:
    """Eq. 8 over the full width, averaged over layers, keys and values, and rows: each prompt is (L, 2, n, D).

    >>> import torch
    >>> first = torch.zeros(1, 2, 1, 3)
    >>> round(float(linear_loss(first + 2, first + 1, first)), 6)
    0.0
    """
    return 1 - F.cosine_similarity(now - first.detach(), previous.detach() - first.detach(), dim=-1).mean()


@register("caprompt")
class CAPrompt(Method):
    """Task prompts that are mixed per image by cyclically refined task probabilities."""

    summary = "task prompts mixed per image, weights refined in cycles (AAAI 2025)"
    options_class = CAPromptOptions
    options: CAPromptOptions
    head: LinearHead

    def __init__(self, vit: ViT, options: CAPromptOptions) -> None:
        super().__init__(vit, options)
        self.layers = prompted_layers(vit.config, options)
        start = random_prompt(vit.config, options, torch.Generator())
        self.prompt = nn.Parameter(start)  # the newest task's, (L, 2, n, D)
        self.register_buffer("earlier", start.new_empty(0, *start.shape))
        width, aligned = vit.config.width, options.classifier == "aligned"
        self.statistics = alignment.build_statistics(options, width) if aligned else Statistics(width)
        self.ridge = None if aligned else RandomRidge(width, options.projections)

    earlier: Tensor  # the earlier tasks' prompts, frozen for good: (T - 1, L, 2, n, D)

    # -- growth ------------------------------------------------------------------------------------------------------------

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """A new prompt, starting from the previous one, which is frozen."""
        super().begin_task(classes, generator)
        self.statistics.grow(classes)
        if self.ridge is not None:
            self.ridge.grow(classes, generator)
        if len(self.task_sizes) == 1:
            self.prompt.data.copy_(random_prompt(self.vit.config, self.options, generator))
        else:
            self.earlier = torch.cat([self.earlier, self.prompt.detach().unsqueeze(0)])
            self.prompt = nn.Parameter(self.prompt.detach().clone())

    @property
    def prompts(self) -> list[Tensor]:
        """Every task's prompt, (L, 2, n, D) each."""
        return [*self.earlier, self.prompt]

    # -- aggregation -------------------------------------------------------------------------------------------------------

    def features_under(self, stem: Stem, *prompts: Tensor) -> Tensor:
        """f(x, phi) with each image's own prompt, (L, 2, B, n, D) -> (B, D); k prompts an image go as one batch, (k B, D)."""
        if self.options.protocol == "released":
            prompts = tuple(mix_batch(rows) for rows in prompts)
        rows = torch.cat(prompts, dim=2) if len(prompts) > 1 else prompts[0]
        features: Tensor = self.vit(stem.repeated(len(prompts)), self.prefix(rows))
        return features

    def prefix(self, rows: Tensor) -> Prefix:
        """Prompts as the ViT takes them."""
        return Prefix(rows.to(self.vit.dtype), self.layers)

    def mix(self, weights: Tensor) -> Tensor:
        """Eq. 2: each image's own mixture, (B, T) weights -> (L, 2, B, n, D)."""
        return mixture(weights, torch.cat([self.earlier, self.prompt.unsqueeze(0)]))

    def for_all(self, prompt: Tensor, stem: Stem) -> Tensor:
        """The same prompt for every image: (L, 2, n, D) -> (L, 2, B, n, D)."""
        return prompt.unsqueeze(2).expand(-1, -1, len(stem.tokens), -1, -1)

    def first_logits(self, stem: Stem) -> Tensor:
        """The first pass, before anything is known of an image: (B, C)."""
        return self.read(self.first_features(stem))

    def first_features(self, stem: Stem) -> Tensor:
        """Features without prompt (Eq. 1), under equally mixed prompts (Algorithm 1), or under the first task's: (B, D).

        A regression only ever adds images up, so what it reads may not change: it takes the first prompt, frozen after its task.
        """
        if self.starts_without_prompt:
            features: Tensor = self.vit(stem)
            return features
        prompt = (self.earlier.sum(dim=0) + self.prompt) / len(self.task_sizes) if self.ridge is None else self.prompts[0]
        return self.features_under(stem, self.for_all(prompt, stem))

    def read(self, features: Tensor) -> Tensor:
        """Logits of what any pass has seen: (B, D) -> (B, C)."""
        logits: Tensor = self.head(features) if self.ridge is None else self.options.ridge_scale * self.ridge(features)
        return logits

    @property
    def starts_without_prompt(self) -> bool:
        """Is the first pass the query pass?"""
        return self.options.first_pass == "query" or (self.ridge is None and not self.options.aggregation)

    def first_weights(self, logits: Tensor) -> Tensor:
        """How the first pass was mixed: all of the first task's prompt, or as much of each; (B, T)."""
        tasks = len(self.task_sizes)
        if self.ridge is None or self.starts_without_prompt:
            return logits.new_full((logits.shape[0], tasks), 1 / tasks)
        return F.one_hot(torch.zeros_like(logits[:, 0], dtype=torch.long), tasks).to(logits)

    def logits_under(self, stem: Stem, weights: Tensor) -> Tensor:
        """One pass with prompts mixed by these weights: (B, C)."""
        return self.read(self.features_under(stem, self.mix(weights)))

    def next_weights(self, logits: Tensor) -> Tensor:
        """Eq. 9: task probabilities from class logits, (B, C) -> (B, T)."""
        return self.sum_by_task(logits.softmax(dim=1))

    # -- training ----------------------------------------------------------------------------------------------------------

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross entropy among the task's classes (Eq. 3), alpha x concave constraint, beta x linear constraint."""
        options, stem = self.options, self.vit.stem(images)
        if len(self.task_sizes) == 1 or not options.aggregation:
            features = self.features_under(stem, self.for_all(self.prompt, stem))
            return {"ce": self.masked_cross_entropy(self.head(features), labels)}

        with torch.no_grad():
            weights = self.next_weights(self.first_logits(stem))  # p, (B, T); carries no gradient
            earlier = mixture(weights[:, :-1], self.earlier)
        mixed = earlier + weights[:, -1, None, None] * self.prompt.unsqueeze(2)  # Eq. 2
        if options.alpha:
            features, concave = self.concave_pass(stem, labels, weights, earlier, mixed)
            parts = {"ce": self.masked_cross_entropy(self.head(features), labels), "concave": options.alpha * concave}
        else:
            parts = {"ce": self.masked_cross_entropy(self.head(self.features_under(stem, mixed)), labels)}
        # At the second task phi_1 - phi_1 = 0 has no direction to follow.
        if options.beta and len(self.task_sizes) > 2:
            parts["linear"] = options.beta * linear_loss(self.prompt, self.earlier[-1], self.earlier[0])
        return parts

    def concave_pass(self, stem: Stem, labels: Tensor, weights: Tensor, earlier: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Features under the mixture, and the concave loss, Eq. 7. Mixture and own prompt go through the ViT as one batch."""
        with torch.no_grad():  # first, while nothing is kept for a gradient yet
            share = weights[:, :-1].sum(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)  # (B,)
            g_old = self.probability(self.features_under(stem, earlier / share[:, None, None]), labels)
        features = self.features_under(stem, mixed, self.for_all(self.prompt, stem))  # (2 B, D)
        g_mixed, g_own = self.probability(features, torch.cat([labels, labels])).chunk(2)
        gap = concave_gap(weights[:, -1], g_own, g_old, g_mixed)
        return features[: len(labels)], gap.clamp_min(0).mean()

    def probability(self, features: Tensor, labels: Tensor) -> Tensor:
        """g(x, y, phi), (B,). Only the prompts learn from it: the head is held fixed, and so are the logits of old classes.

        Where a regression answers, nothing keeps the head's rows of different tasks comparable: g is then among the task's classes.
        """
        logits = F.linear(features, self.head.weight.detach(), self.head.bias.detach())
        if self.ridge is None:
            logits = torch.cat([logits[:, : self.num_known_classes].detach(), logits[:, self.num_known_classes :]], dim=1)
        else:
            logits, labels = logits[:, self.num_known_classes :], labels - self.num_known_classes
        return logits.softmax(dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)

    # -- after a task ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def own_features(self, images: Tensor, labels: Tensor) -> Tensor:
        """Features of labelled images, each under the prompt of its class's own task."""
        weights = F.one_hot(self.task_of_class[labels], len(self.task_sizes)).to(self.prompt.dtype)
        return self.features_under(self.vit.stem(images), self.mix(weights))

    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """From the second task on the first prompt is frozen, so the regression knows new classes before they are trained on."""
        if self.ridge is not None and len(self.task_sizes) > 1:
            with torch.no_grad():
                self.ridge.learn(((self.first_features(self.vit.stem(images)), labels) for images, labels in batches), generator)

    @torch.no_grad()
    def both_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features as the first pass over images sees them and as the second does: (B, D) each."""
        stem = self.vit.stem(images)
        first = self.first_features(stem)
        return first, self.features_under(stem, self.mix(self.chosen(self.next_weights(self.read(first)))))

    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """What the images tell about their classes, merged with what is known of them."""
        seen = self.statistics.count > 0  # (C,)
        if self.ridge is None:
            self.statistics.observe_all((self.own_features(images, labels), labels) for images, labels in batches)
            if seen.any():
                alignment.align_head(self.head, self.statistics, self.options, int(seen.sum()), generator)
            return
        # `prepare` has shown the first pass over new classes, but for the first task, whose prompt was not there yet.
        untaught = seen if len(self.task_sizes) > 1 else torch.ones_like(seen)
        first, mixed = [], []
        for images, labels in batches:
            (before, after), chosen = self.both_features(images), untaught[labels]
            first.append((before[chosen], labels[chosen]))
            mixed.append((after, labels))
        self.statistics.observe_all(mixed)
        self.ridge.learn([(features, labels) for features, labels in first if len(labels)], generator)
        self.ridge.learn(mixed, generator)

    # -- prediction --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        """Algorithm 1, inference. With `true_tasks`, each image is seen once, under its own task's prompt."""
        stem = self.vit.stem(images)
        if true_tasks is not None:
            weights = F.one_hot(true_tasks, len(self.task_sizes)).to(self.prompt.dtype)
            return MethodOutput(self.logits_under(stem, weights), weights, torch.ones_like(true_tasks))
        if self.options.cycles == "auto":
            return self.predict_until_converged(stem)
        logits = self.first_logits(stem)
        weights = self.first_weights(logits)
        for _ in range(self.options.cycles - 1):
            weights = self.chosen(self.next_weights(logits))
            logits = self.logits_under(stem, weights)
        return MethodOutput(logits, weights, torch.full_like(logits[:, 0], self.options.cycles, dtype=torch.long))

    @property
    def can_capture_predict(self) -> bool:
        """Not where each image takes as many passes as it needs, nor where its answer depends on its batch."""
        return self.options.cycles != "auto" and self.options.protocol == "honest"

    def predict_until_converged(self, stem: Stem) -> MethodOutput:
        """As many cycles as each image needs: those that have settled leave the batch, so the rest gets cheaper."""
        logits = self.first_logits(stem)
        weights = self.first_weights(logits)
        passes = torch.ones_like(weights[:, 0], dtype=torch.long)
        active, said = torch.arange(len(logits), device=logits.device), torch.full_like(passes, -1)
        for cycle in range(1, self.options.max_cycles):
            proposed = self.chosen(self.next_weights(logits[active]))
            going_on = ~self.settled(logits[active], said[active], proposed - weights[active])
            if cycle == 1 and self.starts_without_prompt:
                going_on[:] = True  # nothing can have settled before the first prompted pass
            active, proposed = active[going_on], proposed[going_on]
            said[active] = logits[active].argmax(dim=1)
            if not len(active):
                break
            weights[active] = proposed
            logits[active] = self.logits_under(stem.only(active), proposed)
            passes[active] += 1
        return MethodOutput(logits, weights, passes)

    def settled(self, logits: Tensor, said: Tensor, change: Tensor) -> Tensor:
        """Whom another pass would tell nothing: (n, C) logits, (n,) answers before, (n, T) change of weights -> (n,).

        A regression has learned from first passes and from mixed ones: a sure answer of it is final, and so is one given twice.
        """
        settled = change.abs().amax(dim=1) < self.options.settled
        best = logits.softmax(dim=1).max(dim=1)
        return settled if self.ridge is None else settled | (best.values >= self.options.sure) | (best.indices == said)

    def chosen(self, weights: Tensor) -> Tensor:
        """The weights as they are, or without aggregation the likeliest task alone."""
        return weights if self.options.aggregation else F.one_hot(weights.argmax(dim=1), weights.shape[1]).to(weights)


def mixture(weights: Tensor, prompts: Tensor) -> Tensor:
    """Prompts summed for each image: (B, T) weights and (T, L, 2, n, D) -> (L, 2, B, n, D)."""
    return torch.einsum("bt,tlknd->lkbnd", weights, prompts)
