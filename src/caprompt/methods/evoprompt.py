"""EvoPrompt: evolving parameterised prompt memory (Kurniawan et al., AAAI 2024).

Prompts are not stored but generated. Block l has a small network that turns the image's query q(x), the class token of the
un-prompted ViT before its last norm, into n tokens, put in front of the block's input, where they stay:

    tokens_l(x) = up_l relu(down_l q(x)),     down_l (h, D),  up_l (n D, h)

One set of networks serves all tasks. After a task the trained weights W are fused with those from before it, R:

    neurons of W are brought into R's order by optimal transport (`transport.py`), first of `down`, then of `up`
    R <- R + w (W - R),     w = alpha + alpha (I_new - I_old) for each neuron

where a neuron's importance I is its mean positive activation on the images that are classified rightly, scaled to [0, 1] in each
matrix; I_old is its maximum over the earlier tasks. The head's rows of new classes start as mixtures of the old rows, group of
features by group, with weights softmax(cos(new prototype, old prototype) / 0.05).

Shapes: B images, L blocks, n tokens a block, h hidden neurons, D width, C classes, G = D / 4 groups.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from caprompt.backbones.vit import Stem, ViT
from caprompt.errors import OptionError
from caprompt.methods.base import Batches
from caprompt.methods.components.heads import LinearHead, linear_init
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.options import Options
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = [
    "EvoPrompt",
    "EvoPromptOptions",
    "Route",
    "alignment",
    "composed_rows",
    "exact_plan",
    "matching_plan",
    "require",
    "scaled",
]

GROUP = 4  # features that are composed together in a new head row
SHARPNESS = 0.05

Route = Literal["matching", "exact"]


def require(route: Route) -> None:
    """Say what to install where a route needs a package that is not there."""
    if route == "exact":
        try:
            import ot  # noqa: F401
        except ImportError as error:
            raise OptionError(
                "transport='exact' needs the package POT; install it with: pip install 'caprompt[transport]', or use 'matching'"
            ) from error


def alignment(rows: Tensor, reference: Tensor, route: Route, mass: Tensor | None = None) -> Tensor:
    """The plan (n, m) between n new rows and m of the reference, its columns scaled to sum to one.

    Its transpose times anything per new neuron puts that in the reference's places. `mass` (n,) weighs the rows, where it should
    not be their own L1 norms.

    >>> alignment(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.eye(2), "matching")
    tensor([[0., 1.],
            [1., 0.]])
    """
    directions, targets = F.normalize(rows.double(), dim=1), F.normalize(reference.double(), dim=1)
    cost = (directions.square().sum(dim=1, keepdim=True) + targets.square().sum(dim=1) - 2 * directions @ targets.T).clamp_min(0)
    if route == "matching":
        plan = matching_plan(cost)
    else:
        plan = exact_plan(cost, rows.abs().sum(dim=1) if mass is None else mass, reference.abs().sum(dim=1))
    return (plan / plan.sum(dim=0).clamp_min(torch.finfo(plan.dtype).tiny)).to(rows)


def matching_plan(cost: Tensor) -> Tensor:
    """Which new neuron goes to which place, one to one: (n, n), ones and zeros."""
    from scipy.optimize import linear_sum_assignment

    new, place = linear_sum_assignment(cost.cpu().numpy())
    plan = torch.zeros_like(cost)
    plan[torch.from_numpy(new), torch.from_numpy(place)] = 1
    return plan


def exact_plan(cost: Tensor, mass: Tensor, reference_mass: Tensor) -> Tensor:
    """The cheapest way to move the one mass onto the other, each scaled to sum to one: (n, m)."""
    import ot

    source, target = (part.double().cpu() / part.double().sum().cpu() for part in (mass, reference_mass))
    plan = ot.emd(source.numpy(), target.numpy(), cost.cpu().numpy(), numItermax=10_000_000)
    return torch.from_numpy(plan).to(cost)


class EvoPromptOptions(Options):
    """The generators and their fusion."""

    length: int = Field(5, ge=1, description="tokens generated for each block")
    hidden: int = Field(16, ge=1, description="hidden neurons of each block's generator")
    alpha: float = Field(0.5, ge=0, le=0.5, description="how much of what a task changed is kept, before importance")
    transport: Route = Field(
        "matching", description="how neurons are aligned: one to one, or weighted by their norms ('exact', needs POT)"
    )


@register("evoprompt")
class EvoPrompt(OwnTaskMethod):
    """Generated prompts; generators of successive tasks are fused neuron by neuron."""

    summary = "prompts generated from the image, generators fused by optimal transport after a task (AAAI 2024)"
    options_class = EvoPromptOptions
    options: EvoPromptOptions
    head: LinearHead

    def __init__(self, vit: ViT, options: EvoPromptOptions) -> None:
        super().__init__(vit, options)
        blocks, width, hidden = vit.config.depth, vit.config.width, options.hidden
        outputs = options.length * width
        self.down = nn.Parameter(torch.zeros(blocks, hidden, width))
        self.up = nn.Parameter(torch.zeros(blocks, outputs, hidden))
        for name, weight in (("down", self.down), ("up", self.up)):
            self.register_buffer(f"reference_{name}", torch.zeros_like(weight))
            self.register_buffer(f"importance_{name}", torch.zeros(weight.shape[:2]))
        self.prototypes = Statistics(width)  # of un-prompted features

    reference_down: Tensor  # R, the weights as the last call left them
    reference_up: Tensor
    importance_down: Tensor  # I_old, (L, h)
    importance_up: Tensor  # (L, n D)

    def begin_task(self, classes: int, generator: torch.Generator) -> None:
        """Further head rows; the generators get their random start with the first task."""
        super().begin_task(classes, generator)
        self.prototypes.grow(classes)
        if len(self.task_sizes) == 1:
            for weight in (self.down, self.up):
                weight.data.copy_(linear_init(weight.shape, weight.shape[2], generator))

    # -- passes ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def query(self, stem: Stem) -> Tensor:
        """q(x), (B, D) in float32."""
        return self.vit.class_token(stem).to(self.down.dtype)

    def activations(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden and output activations of every block's generator: (L, B, h), (L, B, n D)."""
        hidden = torch.einsum("bd,lhd->lbh", query, self.down).relu()
        return hidden, torch.einsum("lbh,loh->lbo", hidden, self.up)

    def logits_with(self, stem: Stem, outputs: Tensor) -> Tensor:
        """Logits under generated tokens, (L, B, n D) -> (B, C)."""
        rows = outputs.unflatten(2, (self.options.length, -1))  # (L, B, n, D)
        logits: Tensor = self.head(self.vit(stem, Tokens(rows, layers=range(len(rows)))))
        return logits

    def logits(self, images: Tensor) -> Tensor:
        """A query pass and a prompted pass: (B, C)."""
        stem = self.vit.stem(images)
        return self.logits_with(stem, self.activations(self.query(stem))[1])

    # -- learning ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Prototypes of the classes at hand; the head rows of new classes are composed of the old ones."""
        require(self.options.transport)
        old = self.prototypes.count > 0  # (C,)
        self.prototypes.observe_all((self.vit(images), labels) for images, labels in batches)
        if old.any():
            means, rows = self.prototypes.mean, self.head.weight
            rows.data[~old] = composed_rows(means[~old], means[old], rows[old])

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Fuse what was learned into what was known, where anything was; the result is the next call's reference."""
        importance = self.measure_importance(batches)
        fuse = bool(self.reference_down.any())
        for layer, (down, up) in enumerate(zip(*importance, strict=True)):
            if fuse:
                down, up = self.fuse(layer, down, up)
            torch.maximum(self.importance_down[layer], scaled(down), out=self.importance_down[layer])
            torch.maximum(self.importance_up[layer], scaled(up), out=self.importance_up[layer])
        self.reference_down.copy_(self.down)
        self.reference_up.copy_(self.up)

    def measure_importance(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Each neuron's mean positive activation on the images that are classified rightly: (L, h), (L, n D)."""
        sums = (torch.zeros_like(self.importance_down), torch.zeros_like(self.importance_up))
        count = 0
        for images, labels in batches:
            stem = self.vit.stem(images)
            hidden, outputs = self.activations(self.query(stem))
            right = self.logits_with(stem, outputs).argmax(dim=1) == labels  # (B,)
            for total, activation in zip(sums, (hidden, outputs), strict=True):
                total += activation[:, right].relu().sum(dim=1)
            count += int(right.sum())
        return sums[0] / max(count, 1), sums[1] / max(count, 1)

    def fuse(self, layer: int, importance_down: Tensor, importance_up: Tensor) -> tuple[Tensor, Tensor]:
        """Align a block's generator with the reference and fuse them; gives the importances in the reference's order."""
        route, down, up = self.options.transport, self.down[layer], self.up[layer]
        first = alignment(down, self.reference_down[layer], route)  # (h, h)
        reordered = up @ first  # its inputs in the reference's order, (n D, h)
        second = alignment(reordered, self.reference_up[layer], route, mass=up.abs().sum(dim=1))  # (n D, n D)
        importance_down, importance_up = first.T @ importance_down, second.T @ importance_up
        for weight, aligned, reference, new, old in (
            (down, first.T @ down, self.reference_down, importance_down, self.importance_down),
            (up, second.T @ reordered, self.reference_up, importance_up, self.importance_up),
        ):
            kept = self.options.alpha * (1 + scaled(new) - old[layer])  # w, one for each neuron
            weight.copy_(reference[layer] + kept.unsqueeze(1) * (aligned - reference[layer]))
        return importance_down, importance_up

    @property
    def passes(self) -> int:
        return 2


def scaled(values: Tensor) -> Tensor:
    """Stretched to [0, 1]; zeros where all are equal.

    >>> scaled(torch.tensor([2.0, 4.0, 3.0])), scaled(torch.tensor([7.0, 7.0]))
    (tensor([0.0000, 1.0000, 0.5000]), tensor([0., 0.]))
    """
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)


def composed_rows(new: Tensor, old: Tensor, old_rows: Tensor) -> Tensor:
    """First head rows of new classes, (c, D), from prototypes of new (c, D) and old classes (k, D) and the old rows (k, D)."""
    grouped_new, grouped_old = (F.normalize(part.unflatten(1, (-1, GROUP)), dim=2) for part in (new, old))  # (c or k, G, 4)
    attention = (torch.einsum("cgx,kgx->cgk", grouped_new, grouped_old) / SHARPNESS).softmax(dim=2)
    return torch.einsum("cgk,kgx->cgx", attention, old_rows.unflatten(1, (-1, GROUP))).flatten(1)
