from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from helpers import TINY, tiny_vit
from scipy.optimize import linprog
from torch import Tensor

from caprompt.backbones.vit import Adaptation
from caprompt.errors import OptionError
from caprompt.methods.evoprompt import (
    EvoPrompt,
    EvoPromptOptions,
    align_neurons,
    check_transport_available,
    compose_head_rows,
    min_max_scale,
    solve_exact_plan,
    solve_matching_plan,
)

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


def make_method(tasks: tuple[int, ...] = (2,), **options: object) -> EvoPrompt:
    method = EvoPrompt(tiny_vit(), EvoPromptOptions(length=2, hidden=3, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def test_tokens_are_generated_from_the_class_token_before_the_final_norm() -> None:
    method = make_method()
    query = method.query(method.vit.stem(IMAGES))
    torch.testing.assert_close(method.vit.apply_final_norm(query), method.vit(IMAGES))
    assert not torch.allclose(query, method.vit(IMAGES))

    class ReferenceTokens(Adaptation):
        def tokens(self, layer: int, x: Tensor) -> Tensor:
            rows = [(method.up[layer] @ (method.down[layer] @ q).clamp_min(0)).reshape(2, TINY.width) for q in query]
            return torch.stack(rows)

    torch.testing.assert_close(method.logits(IMAGES), method.head(method.vit(IMAGES, ReferenceTokens())))


def test_compose_head_rows_matches_reference() -> None:
    """Two old classes and one new, eight features in two groups: compare with a loop in NumPy."""
    rng = np.random.default_rng(0)
    new, old, rows = rng.normal(size=8), rng.normal(size=(2, 8)), rng.normal(size=(2, 8))
    expected = np.zeros(8)
    for part in (slice(0, 4), slice(4, 8)):
        cosines = [new[part] @ o[part] / (np.linalg.norm(new[part]) * np.linalg.norm(o[part])) for o in old]
        shares = [math.exp(c / 0.05) / sum(math.exp(d / 0.05) for d in cosines) for c in cosines]
        expected[part] = shares[0] * rows[0, part] + shares[1] * rows[1, part]
    result = compose_head_rows(torch.tensor(new)[None], torch.tensor(old), torch.tensor(rows))
    np.testing.assert_allclose(result[0].numpy(), expected, rtol=1e-9)


def test_prepare_composes_only_rows_of_new_classes() -> None:
    method = make_method((2,))
    first = method.head.weight.detach().clone()
    method.prepare([(IMAGES, LABELS)], torch.Generator())
    assert torch.equal(method.head.weight, first), "the first task has no old rows to compose from"
    torch.testing.assert_close(method.prototypes.mean[0], method.vit(IMAGES[0::2]).mean(dim=0))
    method.begin_task(1, torch.Generator().manual_seed(1))
    method.prepare([(IMAGES + 1, torch.full((6,), 2))], torch.Generator())
    assert torch.equal(method.head.weight[:2], first)
    means = method.prototypes.mean
    torch.testing.assert_close(method.head.weight[2:].detach(), compose_head_rows(means[2:], means[:2], first))


def test_importance_is_the_mean_activation_on_correctly_classified_images() -> None:
    method = make_method()
    method.head.weight.data.mul_(30)
    correct = (method.logits(IMAGES).argmax(dim=1) == LABELS).tolist()
    assert 0 < sum(correct) < 6, "some but not all predictions should be correct"
    hidden, outputs = method.activations(method.query(method.vit.stem(IMAGES)))
    down, up = method.measure_importance([(IMAGES[:4], LABELS[:4]), (IMAGES[4:], LABELS[4:])])
    indices = [i for i, ok in enumerate(correct) if ok]
    torch.testing.assert_close(down, sum(hidden[:, i] for i in indices) / len(indices))
    torch.testing.assert_close(up, sum(outputs[:, i].clamp_min(0) for i in indices) / len(indices))


@pytest.mark.parametrize("importance_kind", ["raw", "scaled"])
@pytest.mark.parametrize("transport", ["matching", "exact"])
def test_fusion_matches_reference(transport: str, importance_kind: str) -> None:
    """Compare one block's fusion with plans from POT and the formula in NumPy."""
    ot = pytest.importorskip("ot")
    method = make_method(transport=transport, importance=importance_kind)
    generator = torch.Generator().manual_seed(3)
    for buffer in (method.reference_down, method.reference_up):
        buffer.normal_(generator=generator)
    for buffer in (method.importance_down, method.importance_up):
        buffer.uniform_(generator=generator)
    importance = (torch.rand(3, generator=generator), torch.rand(2 * TINY.width, generator=generator))
    before = {name: tensor.detach().double().numpy().copy() for name, tensor in method.state().items()}

    def columns(plan: np.ndarray) -> np.ndarray:
        return plan / plan.sum(axis=0)

    def reference_plan(rows: np.ndarray, mass: np.ndarray, reference: np.ndarray) -> np.ndarray:
        cost = ot.dist(*(part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows, reference)))
        target = np.abs(reference).sum(axis=1)
        if transport == "matching":
            mass, target = np.ones_like(mass), np.ones_like(target)
        return columns(ot.emd(mass / mass.sum(), target / target.sum(), cost))

    def reference_fusion(aligned: np.ndarray, reference: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        new = (new - new.min()) / (new.max() - new.min())
        if importance_kind == "raw":
            old = (old - old.min()) / (old.max() - old.min())
        return reference + (0.5 + 0.5 * (new - old))[:, None] * (aligned - reference)

    down, up = before["down"][1], before["up"][1]
    first = reference_plan(down, np.abs(down).sum(axis=1), before["reference_down"][1])
    second = reference_plan(up @ first, np.abs(up).sum(axis=1), before["reference_up"][1])
    new_down, new_up = first.T @ importance[0].double().numpy(), second.T @ importance[1].double().numpy()
    with torch.no_grad():
        result = method.fuse(1, *importance)
    np.testing.assert_allclose(result[0].numpy(), new_down, atol=1e-5)
    np.testing.assert_allclose(result[1].numpy(), new_up, atol=1e-5)
    expected_down = reference_fusion(first.T @ down, before["reference_down"][1], new_down, before["importance_down"][1])
    expected_up = reference_fusion(second.T @ up @ first, before["reference_up"][1], new_up, before["importance_up"][1])
    np.testing.assert_allclose(method.down[1].detach().numpy(), expected_down, atol=1e-5)
    np.testing.assert_allclose(method.up[1].detach().numpy(), expected_up, atol=1e-5)
    np.testing.assert_array_equal(method.up[0].detach().numpy(), before["up"][0])


def test_fusion_starts_with_the_second_call() -> None:
    method = make_method()
    trained = method.down.detach().clone()
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    assert torch.equal(method.down, trained)
    assert torch.equal(method.reference_down, trained)
    method.down.data.add_(0.1)
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    change = method.down - trained
    assert 0 < float(change.detach().mean()) < 0.1, "weights should be between the reference and the trained ones"
    assert torch.equal(method.reference_down, method.down)


@pytest.mark.parametrize("importance", ["raw", "scaled"])
def test_importance_is_the_maximum_over_tasks(importance: str) -> None:
    """The maximum of what was measured, or of what was measured and then scaled to [0, 1] in every task."""
    method = make_method(importance=importance, alpha=0.0)  # without fusion: the order of the neurons alone may change
    first = method.measure_importance([(IMAGES, LABELS)])[1]
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    kept = torch.stack([min_max_scale(row) for row in first]) if importance == "scaled" else first
    torch.testing.assert_close(method.importance_up, kept)
    before = method.importance_up.clone()
    method.up.data.mul_(-1)
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    assert (method.importance_up >= before).all()
    assert (method.importance_up > before).any()
    assert importance == "raw" or float(method.importance_up.max()) <= 1


def test_models_saved_before_raw_importances_keep_scaled_ones() -> None:
    assert EvoPromptOptions().importance == "raw"
    assert EvoPromptOptions.complete_saved({})["importance"] == "scaled"


def test_cross_entropy_is_among_classes_of_the_own_task() -> None:
    method = make_method((2, 1, 2))
    labels = torch.tensor([3, 4, 0, 1, 2, 3])
    logits = method.logits(IMAGES)
    spans = {0: (0, 2), 1: (0, 2), 2: (2, 3), 3: (3, 5), 4: (3, 5)}
    losses = [
        torch.logsumexp(row[slice(*spans[label])], dim=0) - row[label] for row, label in zip(logits, labels.tolist(), strict=True)
    ]
    torch.testing.assert_close(method.loss(IMAGES, labels)["ce"], torch.stack(losses).mean())


# -- alignment of neurons --------------------------------------------------------------------------


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_matching_inverts_a_permutation_at_any_scale() -> None:
    reference, order = random_tensor(7, 4, seed=0), torch.randperm(7, generator=torch.Generator().manual_seed(1))
    scale = torch.linspace(0.5, 3, 7).unsqueeze(1)
    shuffled = (scale * reference)[order]
    plan = align_neurons(shuffled, reference, "matching")
    torch.testing.assert_close(plan.T @ shuffled, scale * reference)


def test_cost_is_the_squared_distance_of_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, reference = random_tensor(3, 4, seed=2), random_tensor(3, 4, seed=3)
    costs: list[Tensor] = []
    monkeypatch.setattr("caprompt.methods.evoprompt.solve_matching_plan", lambda cost: costs.append(cost) or torch.eye(3))
    align_neurons(rows, reference, "matching")
    for i in range(3):
        for j in range(3):
            expected = (rows[i] / rows[i].norm() - reference[j] / reference[j].norm()).square().sum()
            assert float(costs[0][i, j]) == pytest.approx(float(expected), abs=1e-6)


def test_exact_plan_with_equal_masses_is_the_matching() -> None:
    pytest.importorskip("ot")
    cost = random_tensor(12, 12, seed=4).double().square()
    torch.testing.assert_close(12 * solve_exact_plan(cost, torch.ones(12), torch.ones(12)), solve_matching_plan(cost))


def test_exact_plan_has_minimal_cost() -> None:
    """Compare with the linear program solved by SciPy."""
    pytest.importorskip("ot")
    cost, mass, target = (
        random_tensor(5, 5, seed=5).double().square(),
        random_tensor(5, seed=6).abs(),
        random_tensor(5, seed=7).abs(),
    )
    plan = solve_exact_plan(cost, mass, target).numpy()
    marginals = np.concatenate(
        [mass.double().numpy() / mass.double().sum().item(), target.double().numpy() / target.double().sum().item()]
    )
    sums = np.concatenate([np.kron(np.eye(5), np.ones(5)), np.kron(np.ones(5), np.eye(5))])  # of rows, of columns
    best = linprog(cost.numpy().ravel(), A_eq=sums, b_eq=marginals).fun
    np.testing.assert_allclose(sums @ plan.ravel(), marginals, atol=1e-9)
    assert float((plan * cost.numpy()).sum()) == pytest.approx(best, abs=1e-9)


def test_exact_alignment_weights_neurons_by_norm_and_scales_columns() -> None:
    pytest.importorskip("ot")
    rows, reference, mass = random_tensor(6, 4, seed=8), random_tensor(6, 4, seed=9), random_tensor(6, seed=10).abs()
    directions = [part.double() / part.double().norm(dim=1, keepdim=True) for part in (rows, reference)]
    cost = torch.cdist(*directions).square()
    for mass_argument, expected_mass in ((None, rows.abs().sum(dim=1)), (mass, mass)):
        plan = solve_exact_plan(cost, expected_mass, reference.abs().sum(dim=1))
        torch.testing.assert_close(align_neurons(rows, reference, "exact", mass=mass_argument), (plan / plan.sum(dim=0)).float())


def test_alignment_of_zero_neurons_is_finite() -> None:
    rows, reference = random_tensor(4, 3, seed=11), random_tensor(4, 3, seed=12)
    rows[1] = 0
    reference[2] = 0
    for transport in ("matching", "exact"):
        if transport == "exact":
            pytest.importorskip("ot")
        assert align_neurons(rows, reference, transport).isfinite().all()  # type: ignore[arg-type]


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    check_transport_available("matching")
    with pytest.raises(OptionError, match=r"needs the package POT; install it with: pip install 'caprompt\[transport\]'"):
        check_transport_available("exact")
