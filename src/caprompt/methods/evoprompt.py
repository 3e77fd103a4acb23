"""EvoPrompt: evolving parameterized prompt memory (Kurniawan et al., AAAI 2024).

Prompts are not stored but generated. Block l has a small network that turns the image's query
q(x), the class token of the un-prompted ViT before its last norm, into n tokens, which are
prepended to the block's input and kept by the later blocks:

    tokens_l(x) = up_l relu(down_l q(x)),     down_l (h, D),  up_l (n D, h)

One set of generators serves all tasks. After a task the trained weights W are fused with the
weights R from before it:

    neurons of W are aligned with those of R by optimal transport, first of `down`, then of `up`
    R <- R + w (W - R),     w = alpha + alpha (I_new - I_old) for each neuron

The importance I of a neuron is its mean positive activation on correctly classified images. I_old
is its maximum over the earlier tasks, and both are scaled to [0, 1] in each matrix (`importance`).
The head rows of new classes are initialized as mixtures of the old rows, per group of features,
with weights softmax(cos(new prototype, old prototype) / 0.05).

Alignment: a neuron is a row of a weight matrix. The cost of moving row i of W to row j of R is the
squared distance of their directions,

    cost_ij = |w_i / |w_i| - r_j / |r_j||^2

and the transport plan of least total cost determines which new neurons make up each neuron of R.
There are two solvers (option `transport`):

    exact       the mass of a neuron is its share of the L1 norms; solved exactly by the POT library
    matching    all neurons have equal mass; the optimal plan is then a permutation, found as an
                assignment problem (SciPy)

For a plan of 3,840 x 3,840 `matching` takes a fraction of the time and needs no further package;
benchmarks/transport.py measures how the results differ.

Shapes: B images, L blocks, n tokens per block, h hidden neurons, D width, C classes,
G = D / 4 groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

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
from caprompt.methods.options import PromptOptions
from caprompt.methods.registry import register
from caprompt.methods.templates import OwnTaskMethod

__all__ = [
    "EvoPrompt",
    "EvoPromptOptions",
    "Transport",
    "align_neurons",
    "check_transport_available",
    "compose_head_rows",
    "min_max_scale",
    "solve_exact_plan",
    "solve_matching_plan",
]

GROUP = 4  # features of a new head row that are composed together
TEMPERATURE = 0.05  # of the softmax over old classes

# -- alignment of neurons --------------------------------------------------------------------------

Transport = Literal["matching", "exact"]


def check_transport_available(transport: Transport) -> None:
    """Raise an error if a solver needs a package that is not installed."""
    if transport == "exact":
        try:
            import ot  # noqa: F401
        except ImportError as error:
            raise OptionError(
                "transport='exact' needs the package POT; install it with: pip install 'caprompt[transport]', or use 'matching'"
            ) from error


def align_neurons(rows: Tensor, reference: Tensor, transport: Transport, mass: Tensor | None = None) -> Tensor:
    """Compute the plan (n, m) between n new and m reference rows, with columns that sum to one.

    The transpose of the plan times any per-neuron quantity of the new rows puts it into the order
    of the reference. `mass` (n,) replaces the L1 norms of the new rows.

    >>> align_neurons(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.eye(2), "matching")
    tensor([[0., 1.],
            [1., 0.]])
    """
    directions, targets = F.normalize(rows.double(), dim=1), F.normalize(reference.double(), dim=1)
    cost = (directions.square().sum(dim=1, keepdim=True) + targets.square().sum(dim=1) - 2 * directions @ targets.T).clamp_min(0)
    if transport == "matching":
        plan = solve_matching_plan(cost)
    else:
        plan = solve_exact_plan(cost, rows.abs().sum(dim=1) if mass is None else mass, reference.abs().sum(dim=1))
    return (plan / plan.sum(dim=0).clamp_min(torch.finfo(plan.dtype).tiny)).to(rows)


def solve_matching_plan(cost: Tensor) -> Tensor:
    """Return the one-to-one assignment of least cost as a permutation matrix (n, n)."""
    from scipy.optimize import linear_sum_assignment

    new, matched = linear_sum_assignment(cost.cpu().numpy())
    plan = torch.zeros_like(cost)
    plan[torch.from_numpy(new), torch.from_numpy(matched)] = 1
    return plan


def solve_exact_plan(cost: Tensor, mass: Tensor, reference_mass: Tensor) -> Tensor:
    """Return the optimal transport plan (n, m) between two masses, each scaled to sum to one."""
    import ot

    source, target = (part.double().cpu() / part.double().sum().cpu() for part in (mass, reference_mass))
    plan = ot.emd(source.numpy(), target.numpy(), cost.cpu().numpy(), numItermax=10_000_000)
    return torch.from_numpy(plan).to(cost)


# -- method ----------------------------------------------------------------------------------------


class EvoPromptOptions(PromptOptions):
    """Options of the generators and of their fusion."""

    length: int = Field(5, ge=1, description="tokens generated for each block")
    hidden: int = Field(16, ge=1, description="hidden neurons of each block's generator")
    alpha: float = Field(0.5, ge=0, le=0.5, description="fusion weight of a task's changes, before importance")
    transport: Transport = Field(
        "matching",
        description="alignment of neurons: one to one, or optimal transport weighted by their norms ('exact', needs POT)",
    )
    importance: Literal["raw", "scaled"] = Field(
        "raw", description="importance whose maximum over tasks is kept: as measured (scaled when used), or scaled in every task"
    )

    before_added: ClassVar[Mapping[str, Any]] = MappingProxyType({"importance": "scaled"})


@register("evoprompt")
class EvoPrompt(OwnTaskMethod):
    """Generated prompts; the generators of successive tasks are fused neuron by neuron."""

    summary = "prompts generated from the image, generators fused by optimal transport after a task (AAAI 2024)"
    options_class = EvoPromptOptions
    can_train_in_threads = True
    check_options: ClassVar = {**OwnTaskMethod.check_options, "length": 4}
    check_variants: ClassVar = ({"alpha": 0.0}, {"importance": "scaled"})
    options: EvoPromptOptions
    head: LinearHead
    feature_statistics: ClassVar = ("importance_down", "importance_up")  # means of activations over images

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

    reference_down: Tensor  # R, the weights after the last call, (L, h, D)
    reference_up: Tensor  # (L, n D, h)
    importance_down: Tensor  # the maximum over earlier tasks behind I_old, (L, h)
    importance_up: Tensor  # (L, n D)

    @property
    def learning_state(self) -> tuple[str, ...]:
        """The class means, and the generators and importances that the next task is fused with."""
        return ("prototypes", "reference_down", "reference_up", *self.feature_statistics)

    def begin_task(self, num_classes: int, generator: torch.Generator) -> None:
        """Add head rows; the generators are initialized with the first task."""
        super().begin_task(num_classes, generator)
        self.prototypes.grow(num_classes)
        if len(self.task_sizes) == 1:
            for weight in (self.down, self.up):
                weight.data.copy_(linear_init(weight.shape, weight.shape[2], generator))

    # -- forward -----------------------------------------------------------------------------------

    @torch.no_grad()
    def query(self, stem: Stem) -> Tensor:
        """Compute q(x), (B, D) in float32."""
        return self.vit.forward_class_token(stem).to(self.down.dtype)

    def activations(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Compute hidden and output activations of all generators: (L, B, h), (L, B, n D)."""
        hidden = torch.einsum("bd,lhd->lbh", query, self.down).relu()
        return hidden, torch.einsum("lbh,loh->lbo", hidden, self.up)

    def logits_with_tokens(self, stem: Stem, outputs: Tensor) -> Tensor:
        """Compute logits with the generated tokens: (L, B, n D) -> (B, C)."""
        rows = outputs.unflatten(2, (self.options.length, -1))  # (L, B, n, D)
        logits: Tensor = self.head(self.vit(stem, Tokens(rows, layers=range(len(rows)))))
        return logits

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, C): one pass for the query, one with the generated tokens."""
        stem = self.vit.stem(images)
        return self.logits_with_tokens(stem, self.activations(self.query(stem))[1])

    # -- before and after training -----------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, batches: Batches, generator: torch.Generator) -> None:
        """Add the images to the prototypes, and compose head rows of new classes from old ones."""
        check_transport_available(self.options.transport)
        is_old = self.prototypes.count > 0  # (C,)
        self.prototypes.observe_batches((self.vit(images), labels) for images, labels in batches)
        if is_old.any():
            means, rows = self.prototypes.mean, self.head.weight
            rows.data[~is_old] = compose_head_rows(means[~is_old], means[is_old], rows[is_old])

    @torch.no_grad()
    def consolidate(self, batches: Batches, generator: torch.Generator) -> None:
        """Fuse the generators with the reference, if there is one, into the next reference."""
        importance = self.measure_importance(batches)
        has_reference = bool(self.reference_down.any())
        for layer, (down, up) in enumerate(zip(*importance, strict=True)):
            if has_reference:
                down, up = self.fuse(layer, down, up)
            for kept, new in ((self.importance_down[layer], down), (self.importance_up[layer], up)):
                torch.maximum(kept, min_max_scale(new) if self.options.importance == "scaled" else new, out=kept)
        self.reference_down.copy_(self.down)
        self.reference_up.copy_(self.up)

    def measure_importance(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Compute the mean positive activation on correctly classified images: (L, h), (L, n D)."""
        sums = (torch.zeros_like(self.importance_down), torch.zeros_like(self.importance_up))
        count = 0
        for images, labels in batches:
            stem = self.vit.stem(images)
            hidden, outputs = self.activations(self.query(stem))
            correct = self.logits_with_tokens(stem, outputs).argmax(dim=1) == labels  # (B,)
            for total, activation in zip(sums, (hidden, outputs), strict=True):
                total += activation[:, correct].relu().sum(dim=1)
            count += int(correct.sum())
        return sums[0] / max(count, 1), sums[1] / max(count, 1)

    def fuse(self, layer: int, importance_down: Tensor, importance_up: Tensor) -> tuple[Tensor, Tensor]:
        """Align a block's generator with the reference and fuse them.

        Return the importances in the order of the reference.
        """
        transport, down, up = self.options.transport, self.down[layer], self.up[layer]
        first = align_neurons(down, self.reference_down[layer], transport)  # (h, h)
        reordered = up @ first  # its inputs in the reference's order, (n D, h)
        second = align_neurons(reordered, self.reference_up[layer], transport, mass=up.abs().sum(dim=1))  # (n D, n D)
        importance_down, importance_up = first.T @ importance_down, second.T @ importance_up
        for weight, aligned, reference, new, old in (
            (down, first.T @ down, self.reference_down, importance_down, self.importance_down),
            (up, second.T @ reordered, self.reference_up, importance_up, self.importance_up),
        ):
            old_scaled = old[layer] if self.options.importance == "scaled" else min_max_scale(old[layer])
            fusion_weight = self.options.alpha * (1 + min_max_scale(new) - old_scaled)  # w, one per neuron
            weight.copy_(reference[layer] + fusion_weight.unsqueeze(1) * (aligned - reference[layer]))
        return importance_down, importance_up

    @property
    def passes(self) -> int:
        return 2


def min_max_scale(values: Tensor) -> Tensor:
    """Scale values linearly to [0, 1]; return zeros if all are equal.

    >>> min_max_scale(torch.tensor([2.0, 4.0, 3.0])), min_max_scale(torch.tensor([7.0, 7.0]))
    (tensor([0.0000, 1.0000, 0.5000]), tensor([0., 0.]))
    """
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)


def compose_head_rows(new: Tensor, old: Tensor, old_rows: Tensor) -> Tensor:
    """Compose initial head rows (c, D) of new classes from old rows (k, D).

    `new` (c, D) and `old` (k, D) are the prototypes of the classes.
    """
    grouped_new, grouped_old = (F.normalize(part.unflatten(1, (-1, GROUP)), dim=2) for part in (new, old))  # (c or k, G, 4)
    attention = (torch.einsum("cgx,kgx->cgk", grouped_new, grouped_old) / TEMPERATURE).softmax(dim=2)
    return torch.einsum("cgk,kgx->cgx", attention, old_rows.unflatten(1, (-1, GROUP))).flatten(1)
