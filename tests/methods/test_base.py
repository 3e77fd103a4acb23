from __future__ import annotations

import pytest
import torch
from helpers import tiny_vit

from caprompt.methods import build_method, get_method, list_methods
from caprompt.methods.options import validate_options


@pytest.mark.parametrize("name", list_methods())
def test_state_has_everything_learned_except_the_backbone(name: str) -> None:
    method = build_method(name, tiny_vit(), get_method(name).check_options)
    for num_classes in (2, 1):
        method.begin_task(num_classes, torch.Generator().manual_seed(num_classes))
    state = method.state()
    assert any(key.startswith("head.") for key in state)
    assert not any(key.startswith("vit.") for key in state)
    other = build_method(name, tiny_vit(), get_method(name).check_options)
    other.restore([2, 1], state)
    assert all(torch.equal(value, other.state()[key]) for key, value in state.items())
    for missing in state:
        incomplete = {key: value for key, value in state.items() if key != missing}
        with pytest.raises(RuntimeError, match=missing):
            build_method(name, tiny_vit(), get_method(name).check_options).restore([2, 1], incomplete)


@pytest.mark.parametrize("name", list_methods())
def test_check_options_and_variants_are_valid_options(name: str) -> None:
    method = get_method(name)
    assert {"epochs", "batch_size"} <= method.check_options.keys()
    for variant in ({}, *method.check_variants):
        validate_options(method.options_class, {**method.check_options, **variant}, name)


def test_task_of_class_before_and_after_the_first_task() -> None:
    method = build_method("caprompt", tiny_vit(), {"length": 4})
    assert method.task_of_class.tolist() == []
    for num_classes in (2, 1, 3):
        method.begin_task(num_classes, torch.Generator())
    assert method.task_of_class.tolist() == [0, 0, 1, 2, 2, 2]
    torch.testing.assert_close(method.sum_by_task(torch.full((1, 6), 1 / 6)), torch.tensor([[2 / 6, 1 / 6, 3 / 6]]))


def test_own_task_cross_entropy_excludes_the_classes_of_other_tasks() -> None:
    method = build_method("sequential-prompt", tiny_vit(), {"length": 4})
    for num_classes in (2, 1, 3):
        method.begin_task(num_classes, torch.Generator())
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    among = [torch.logsumexp(logits[row, first:last], dim=0) for row, (first, last) in enumerate([(3, 6), (0, 2), (2, 3)])]
    expected = (sum(among) - logits[0, 4] - logits[1, 0] - logits[2, 2]) / 3
    torch.testing.assert_close(method.own_task_cross_entropy(logits, torch.tensor([4, 0, 2])), expected)
