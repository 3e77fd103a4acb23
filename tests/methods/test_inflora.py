from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine.training_step import get_trainable_parameters
from caprompt.methods.inflora import InfLoRA, InfLoRAOptions, KeyValueUpdate, ProtectedSubspaces, find_missing_directions

SIZE = TINY.image_size
RANK = 3


def random_images(seed: int, count: int = 12) -> Tensor:
    """Return images that share one pattern, plus noise."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, SIZE, SIZE, generator=generator) + 0.3 * torch.randn(count, 3, SIZE, SIZE, generator=generator)


def make_method(**options: float) -> InfLoRA:
    return InfLoRA(tiny_vit(), InfLoRAOptions(rank=RANK, **options))  # type: ignore[arg-type]


def train_task(method: InfLoRA, seed: int) -> Tensor:
    """Train on a task of two classes in a few large steps; return B before it is merged."""
    method.begin_task(2, torch.Generator().manual_seed(seed))
    images, labels = random_images(seed), method.num_known_classes + torch.arange(12) % 2
    batches = [(images[:8], labels[:8]), (images[8:], labels[8:])]
    method.prepare(batches, torch.Generator())
    optimizer = torch.optim.SGD(get_trainable_parameters(method), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        method.loss(images, labels)["ce"].backward()
        optimizer.step()
    trained_up = method.up.detach().clone()
    method.consolidate(batches, torch.Generator())
    return trained_up


def first_layer_inputs(images: Tensor) -> Tensor:
    """Compute the inputs of the first attention layer, (tokens, D); no update changes them."""
    first = tiny_vit().stem(images).first
    assert first is not None
    return first[0].flatten(0, 1)


def test_update_equals_a_change_of_the_key_and_value_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, width = TINY.depth, TINY.width
    merged, up = (torch.randn(layers, 2 * width, size, generator=generator) * 0.05 for size in (width, RANK))
    down = torch.randn(layers, RANK, width, generator=generator) * 0.05
    changed = tiny_vit()
    for layer, block in enumerate(changed.blocks):
        block.attn.qkv.weight[width:] += merged[layer] + up[layer] @ down[layer]
    images = random_images(0)
    expected = changed(images)
    torch.testing.assert_close(tiny_vit()(images, KeyValueUpdate(merged, up, down)), expected, rtol=1e-4, atol=1e-4)
    assert (expected - tiny_vit()(images)).abs().max() > 0.01


def test_directions_of_the_first_task_are_principal_directions_of_its_inputs() -> None:
    method = make_method()
    method.begin_task(2, torch.Generator())
    images = random_images(1)
    method.prepare([(images[:5], torch.zeros(5)), (images[5:], torch.zeros(7))], torch.Generator())
    inputs = first_layer_inputs(images).double()
    principal = torch.linalg.svd(inputs, full_matrices=False).Vh[:RANK]  # right singular vectors of the inputs themselves
    directions = method.down[0].double() * 3**0.5
    torch.testing.assert_close((directions @ principal.T).abs(), torch.eye(RANK, dtype=torch.float64), rtol=0, atol=1e-4)


def test_prepare_and_merge_do_not_change_predictions() -> None:
    method = make_method()
    train_task(method, 0)
    method.begin_task(2, torch.Generator().manual_seed(1))
    before = method.predict(random_images(0)).logits
    batches = [(random_images(1), torch.arange(12) % 2 + 2)]
    method.prepare(batches, torch.Generator())
    torch.testing.assert_close(method.predict(random_images(0)).logits, before, rtol=0, atol=0)
    with torch.no_grad():
        method.up.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    trained = method.predict(random_images(0)).logits
    method.consolidate(batches, torch.Generator())
    assert not method.up.any()
    torch.testing.assert_close(method.predict(random_images(0)).logits, trained, rtol=1e-4, atol=1e-4)
    assert (trained - before).abs().max() > 1e-3


def test_later_task_hardly_changes_outputs_of_old_inputs() -> None:
    """The mean squared change of keys and values is at most |B|² r^½ (1 - threshold)^½ |G| / 3.

    G is that of the old inputs.
    """
    method = make_method(threshold=0.99)
    train_task(method, 0)
    before = method.merged[0].clone()
    up = train_task(method, 1)[0]
    change = method.merged[0] - before
    old, new = first_layer_inputs(random_images(0)), first_layer_inputs(random_images(1))
    moment = old.T @ old / len(old)
    mean_change = F.linear(old, change).square().sum(dim=1).mean()
    bound = torch.linalg.matrix_norm(up, 2) ** 2 * (RANK * (1 - 0.99)) ** 0.5 * moment.norm() / 3
    assert 0 < mean_change < bound
    assert mean_change < 0.2 * F.linear(new, change).square().sum(dim=1).mean()


def test_without_protection_outputs_of_old_inputs_change() -> None:
    """The bound above is due to the protection, not to small steps."""
    protected, free = make_method(threshold=0.99), make_method(threshold=0.99)
    changes = []
    for method in (protected, free):
        train_task(method, 0)
        if method is free:
            method.protected = ProtectedSubspaces(TINY.depth, TINY.width)
        before = method.merged[0].clone()
        train_task(method, 1)
        changes.append(F.linear(first_layer_inputs(random_images(0)), method.merged[0] - before).square().sum())
    assert changes[0] < 0.2 * changes[1]


def list_protected_shares(method: InfLoRA, tasks: int) -> list[float]:
    shares = []
    for _ in range(tasks):
        method.begin_task(1, torch.Generator())
        shares.append(method.protected_share)
    return shares


def test_protected_share_rises_linearly_over_the_planned_tasks() -> None:
    """threshold + (1 - threshold) t / T: for ten tasks from 0.95 to 0.995; further tasks get the last share."""
    shares = list_protected_shares(make_method(), 12)
    assert shares[:10] == pytest.approx([0.95 + 0.05 * task / 10 for task in range(10)])
    assert shares[9:] == pytest.approx([0.995] * 3)
    assert list_protected_shares(make_method(planned_tasks=2, threshold=0.9), 2) == pytest.approx([0.9, 0.95])


def test_protected_share_approaches_one_for_an_unknown_number_of_tasks() -> None:
    shares = list_protected_shares(make_method(threshold=0.9, approach=0.5, planned_tasks=0), 4)
    assert shares == pytest.approx([0.9, 0.95, 0.975, 0.9875])


def test_models_saved_before_planned_tasks_do_not_plan() -> None:
    assert InfLoRAOptions.complete_saved({})["planned_tasks"] == 0
    assert InfLoRAOptions().schedule == "quarter-cosine"


def test_state_does_not_grow_with_tasks() -> None:
    method = make_method()
    shapes = {name: tensor.shape for name, tensor in method.state().items() if not name.startswith("head.")}
    for task in range(12):
        train_task(method, task)
    assert {name: tensor.shape for name, tensor in method.state().items() if not name.startswith("head.")} == shapes
    assert method.predict(random_images(0)).logits.isfinite().all()
    assert {id(parameter) for parameter in get_trainable_parameters(method)} == {
        id(p) for p in (method.up, method.head.weight, method.head.bias)
    }


# -- protected subspaces ---------------------------------------------------------------------------


def axis_projector(*axes: int, width: int) -> Tensor:
    """Return the projector onto some axes."""
    diagonal = torch.zeros(width, dtype=torch.float64)
    diagonal[list(axes)] = 1
    return diagonal.diag()


def diagonal_matrix(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).diag()


def random_moments(width: int, seed: int) -> Tensor:
    """Return G of inputs with a few strong directions."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(200, width, generator=generator, dtype=torch.float64) * torch.logspace(0, -2, width, dtype=torch.float64)
    inputs = inputs @ torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    return inputs.T @ inputs


def energy_share(projector: Tensor, moment: Tensor) -> float:
    """Compute the share of the energy of G within a subspace."""
    return float((projector @ moment).square().sum() / moment.square().sum())


def test_fewest_leading_directions_are_protected() -> None:
    """Energies 16, 9, 4, 1, of 30: 25 / 30 = 0.83."""
    subspaces = ProtectedSubspaces(2, 4)
    moments = torch.stack([diagonal_matrix(1, 4, 2, 3), diagonal_matrix(4, 3, 2, 1)])
    subspaces.protect(moments, 0.8)
    torch.testing.assert_close(subspaces.projectors(), torch.stack([axis_projector(1, 3, width=4), axis_projector(0, 1, width=4)]))
    assert subspaces.complement.tolist() == [False, False]


def test_already_protected_directions_count() -> None:
    """Axis 0 is protected and has 16 of 30; 0.5 needs no further axis, 0.8 needs axis 1."""
    projector, moment = axis_projector(0, width=4), diagonal_matrix(4, 3, 2, 1)
    assert find_missing_directions(projector, moment, 0.5).shape[1] == 0
    torch.testing.assert_close(find_missing_directions(projector, moment, 0.8).abs(), torch.eye(4, dtype=torch.float64)[:, 1:2])


def test_complement_is_stored_beyond_half_of_the_width() -> None:
    subspaces = ProtectedSubspaces(1, 5)
    subspaces.protect(diagonal_matrix(5, 4, 3, 2, 1)[None], 0.95)  # energies 25, 16, 9, 4, 1 of 55
    assert subspaces.complement.tolist() == [True]
    torch.testing.assert_close(subspaces.projectors()[0], axis_projector(0, 1, 2, 3, width=5))
    assert (subspaces.basis.abs().sum(dim=1) > 0).sum() == 1
    subspaces.protect(diagonal_matrix(0, 0, 0, 0, 1)[None], 0.5)  # now everything is protected
    torch.testing.assert_close(subspaces.projectors()[0], torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("width", [12, 13])
def test_dual_storage_matches_a_growing_basis(width: int) -> None:
    """Compare with columns appended one by one, without dual storage."""
    subspaces, columns = ProtectedSubspaces(1, width), torch.zeros(width, 0, dtype=torch.float64)
    duals = []
    for task in range(8):
        moment = random_moments(width, task)
        while energy_share(columns @ columns.T, moment) < 0.97:
            rest = moment - columns @ (columns.T @ moment)
            columns = torch.cat([columns, torch.linalg.svd(rest).U[:, :1]], dim=1)
        subspaces.protect(moment[None], 0.97)
        torch.testing.assert_close(subspaces.projectors()[0], columns @ columns.T, rtol=0, atol=1e-5)
        duals.append(bool(subspaces.complement[0]))
    assert duals[0] is False
    assert duals[-1] is True


def test_free_directions_are_the_leading_ones_outside() -> None:
    subspaces = ProtectedSubspaces(1, 4)
    subspaces.protect(diagonal_matrix(1, 0, 0, 0)[None], 0.9)
    directions = subspaces.find_free_directions(diagonal_matrix(9, 1, 3, 2)[None], 2)[0]
    torch.testing.assert_close(directions.abs(), torch.eye(4, dtype=torch.float64)[[2, 3]])


def test_free_directions_are_zero_when_none_is_left() -> None:
    subspaces = ProtectedSubspaces(1, 4)
    inputs = diagonal_matrix(1, 1, 1, 0)[None]
    subspaces.protect(inputs, 1.0)
    directions = subspaces.find_free_directions(inputs, 3)[0]
    torch.testing.assert_close(directions @ axis_projector(0, 1, 2, width=4), torch.zeros(3, 4, dtype=torch.float64))
