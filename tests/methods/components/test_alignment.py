from __future__ import annotations

import typing

import pytest
import torch

from caprompt.errors import OptionError
from caprompt.methods import get_method
from caprompt.methods.components import alignment
from caprompt.methods.components.heads import LinearHead
from caprompt.methods.components.statistics import Statistics
from caprompt.methods.options import validate_options

KINDS = typing.get_args(alignment.ReplayOptions.model_fields["replay"].annotation)


def make_options(**values: object) -> alignment.ReplayOptions:
    return alignment.ReplayOptions(batch_size=4, align_epochs=20, align_rate=0.1, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_alignment_makes_classes_of_different_tasks_comparable(kind: str) -> None:
    """Three well separated classes; the head is initially strongly biased towards the last one."""
    statistics = alignment.build_statistics(make_options(replay=kind), 4)
    statistics.grow(3)
    centers = 3 * torch.eye(4, dtype=torch.float64)[:3]
    for label in range(3):
        noise = torch.randn(30, 4, generator=torch.Generator().manual_seed(label), dtype=torch.float64)
        statistics.observe(label, centers[label] + 0.3 * noise)
    head = LinearHead(4)
    head.grow(3, torch.Generator().manual_seed(0))
    head.bias.data[2] = 4
    assert head(centers.float()).argmax(dim=1).tolist() != [0, 1, 2]
    alignment.align_head(head, statistics, make_options(replay=kind), num_old_classes=2, generator=torch.Generator().manual_seed(1))
    assert head(centers.float()).argmax(dim=1).tolist() == [0, 1, 2]


def test_number_and_size_of_alignment_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch takes one step per old class, with `align_draws` batches of features each."""
    settings = make_options(replay="mean", align_draws=5)
    statistics = alignment.build_statistics(settings, 4)
    statistics.grow(6)
    for label in range(6):
        statistics.observe(label, torch.full((1, 4), float(label), dtype=torch.float64))
    head = LinearHead(4)
    head.grow(6, torch.Generator().manual_seed(0))
    sizes: list[int] = []
    cross_entropy = torch.nn.functional.cross_entropy

    def record_size(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(labels))
        return cross_entropy(logits, labels)

    monkeypatch.setattr(alignment.F, "cross_entropy", record_size)
    alignment.align_head(head, statistics, settings, num_old_classes=4, generator=torch.Generator().manual_seed(1))
    assert sizes == [5 * 4] * (20 * 4)


def test_a_method_can_pass_its_own_sampler() -> None:
    """The statistics are empty, so the head can only have learned from the sampler."""
    settings = make_options(replay="mean")
    statistics = alignment.build_statistics(settings, 4)
    statistics.grow(2)
    head = LinearHead(4)
    head.grow(2, torch.Generator().manual_seed(0))
    samples = torch.eye(4)[:2]
    generator = torch.Generator().manual_seed(1)
    alignment.align_head(head, statistics, settings, 2, generator, sample=lambda each, _: samples.unsqueeze(1).expand(-1, each, -1))
    assert (head(samples).softmax(dim=1).diagonal() > 0.8).all()


def test_zero_epochs_leave_the_head_unchanged() -> None:
    settings = alignment.ReplayOptions(align_epochs=0)
    statistics = alignment.build_statistics(settings, 4)
    statistics.grow(2)
    head = LinearHead(4)
    head.grow(2, torch.Generator().manual_seed(0))
    before = head.weight.detach().clone()
    alignment.align_head(head, statistics, settings, num_old_classes=1, generator=torch.Generator())
    assert torch.equal(head.weight, before)


def test_sampled_means_of_earlier_tasks_are_shrunk() -> None:
    statistics = Statistics(3)
    statistics.grow(5)
    statistics.observe_batches([(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5))])
    samples = alignment.make_shrunk_sampler(statistics, torch.tensor([0, 0, 1, 2, 3]))(2, torch.Generator())  # (C, each, D)
    for label, factor in enumerate((0.925, 0.925, 0.95, 0.975, 1.0)):
        torch.testing.assert_close(samples[label, 1], factor * statistics.mean[label])


@pytest.mark.parametrize(
    "options", [{"batch_size": 1_000_000}, {"align_draws": 1_000_000}, {"batch_size": 1000, "align_draws": 101}]
)
@pytest.mark.parametrize("method", ["hide-prompt", "ssiat", "tuna", "caprompt"])
def test_more_sampled_features_than_memory_has_room_for_are_refused(method: str, options: dict[str, int]) -> None:
    options_class = get_method(method).options_class
    with pytest.raises(
        OptionError, match=rf"^option 'align_draws' of {method} cannot be '\d+': align_draws times batch_size should"
    ):
        validate_options(options_class, options, method)
    validate_options(options_class, {"batch_size": 1000, "align_draws": 100}, method)
