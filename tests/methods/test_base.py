from __future__ import annotations

import pytest
import torch
from helpers import quick_options, tiny_vit

from caprompt.errors import OptionError, UnknownNameError
from caprompt.methods import build_method, get_method, list_methods
from caprompt.methods.components.heads import CosineHead, LinearHead


@pytest.mark.parametrize("kind", [LinearHead, CosineHead])
def test_the_head_keeps_its_old_rows(kind: type[LinearHead | CosineHead]) -> None:
    head = kind(4)
    head.grow(2, torch.Generator().manual_seed(0))
    before = head.weight.detach().clone()
    head.grow(3, torch.Generator().manual_seed(1))
    assert head.weight.shape == (5, 4)
    assert torch.equal(head.weight[:2], before)
    assert head.weight.abs().max() <= 4**-0.5
    assert head(torch.ones(2, 4)).shape == (2, 5)


def test_methods_register_themselves() -> None:
    assert {"caprompt", "sequential-prompt"} <= list_methods().keys()
    assert all(method.name == name and method.summary for name, method in list_methods().items())
    with pytest.raises(UnknownNameError, match="there are: .*caprompt.*, sequential-prompt"):
        get_method("magic")


def test_options_are_checked_when_a_method_is_built() -> None:
    with pytest.raises(OptionError, match="unknown option 'lenght' for caprompt"):
        build_method("caprompt", tiny_vit(), {"lenght": 3})


@pytest.mark.parametrize("name", list_methods())
def test_state_holds_what_is_learned_and_not_the_backbone(name: str) -> None:
    method = build_method(name, tiny_vit(), quick_options(name))
    for classes in (2, 1):
        method.begin_task(classes, torch.Generator().manual_seed(classes))
    state = method.state()
    assert any(key.startswith("head.") for key in state)
    assert not any(key.startswith("vit.") for key in state)
    other = build_method(name, tiny_vit(), quick_options(name))
    other.restore([2, 1], state)
    assert all(torch.equal(value, other.state()[key]) for key, value in state.items())
    for lost in state:
        lacking = {key: value for key, value in state.items() if key != lost}
        with pytest.raises(RuntimeError, match=lost):
            build_method(name, tiny_vit(), quick_options(name)).restore([2, 1], lacking)


def test_task_of_class_before_and_after_the_first_task() -> None:
    method = build_method("caprompt", tiny_vit(), {"length": 4})
    assert method.task_of_class.tolist() == []
    for classes in (2, 1, 3):
        method.begin_task(classes, torch.Generator())
    assert method.task_of_class.tolist() == [0, 0, 1, 2, 2, 2]
    torch.testing.assert_close(method.sum_by_task(torch.full((1, 6), 1 / 6)), torch.tensor([[2 / 6, 1 / 6, 3 / 6]]))


def test_own_task_cross_entropy_leaves_out_the_classes_of_other_tasks() -> None:
    method = build_method("sequential-prompt", tiny_vit(), {"length": 4})
    for classes in (2, 1, 3):
        method.begin_task(classes, torch.Generator())
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    among = [torch.logsumexp(logits[row, first:last], dim=0) for row, (first, last) in enumerate([(3, 6), (0, 2), (2, 3)])]
    expected = (sum(among) - logits[0, 4] - logits[1, 0] - logits[2, 2]) / 3
    torch.testing.assert_close(method.own_task_cross_entropy(logits, torch.tensor([4, 0, 2])), expected)
