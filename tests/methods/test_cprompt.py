from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Adaptation
from caprompt.engine.trainer import fit
from caprompt.methods.components.heads import LinearHead
from caprompt.methods.cprompt import CPrompt, CPromptOptions, smoothing_loss

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([3, 5, 4, 4, 3, 5])  # of the third task


def make_method(**options: object) -> CPrompt:
    """Build a method with three tasks and distinct random prompts."""
    method = CPrompt(tiny_vit(), CPromptOptions(**{"length": 2, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 1, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompts.newest.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    return method


class PrependedTokens(Adaptation):
    """Tokens (L, n, D) prepended to the blocks' inputs, for a batch of one image."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        return self.rows[layer].unsqueeze(0)


def reference_features(method: CPrompt, image: Tensor, task: int) -> Tensor:
    """Compute the class token before the last norm of one image under a task's two prompts."""
    vit, adaptation = method.vit, PrependedTokens(method.prompts()[task])
    x = vit.embed(image.unsqueeze(0))
    for block in vit.blocks:
        x = block(x, adaptation)
    return x[0, 4]  # after two rows of each layer


def stack_reference_features(method: CPrompt, tasks: list[int]) -> Tensor:
    return torch.stack([reference_features(method, image, task) for image, task in zip(IMAGES, tasks, strict=True)])


def unprompted_class_tokens(method: CPrompt) -> Tensor:
    """Compute the class tokens of IMAGES before the last norm, without prompts."""
    x = method.vit.embed(IMAGES)
    for block in method.vit.blocks:
        x = block(x, Adaptation())
    return x[:, 0]


def test_each_image_uses_the_prompts_of_its_own_task() -> None:
    method = make_method()
    tasks = [2, 0, 1, 1, 0, 2]
    features = method.extract_features(method.vit.stem(IMAGES), torch.tensor(tasks))
    torch.testing.assert_close(features, stack_reference_features(method, tasks), rtol=1e-4, atol=1e-5)


def test_task_of_the_nearest_class_key_is_selected() -> None:
    method = make_method()
    order = torch.tensor([4, 0, 5, 1, 3, 2])  # class c's key is the query of image order[c]
    keys = unprompted_class_tokens(method)[order]
    method.keys.earlier.copy_(3 * keys[:3])
    method.keys.newest.data.copy_(keys[3:])
    output = method.predict(IMAGES)
    tasks = [0, 2, 2, 2, 0, 1]  # image 0 is near class 1, image 1 near class 3, ...
    assert output.task_weights.argmax(dim=1).tolist() == tasks
    torch.testing.assert_close(output.logits, method.head(stack_reference_features(method, tasks)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_losses_match_reference(margin: float) -> None:
    method = make_method(margin=margin, smooth=0.5)
    method.head.weights.newest.data.mul_(3)  # type: ignore[union-attr]
    method.head.weights.earlier.mul_(3)  # type: ignore[union-attr]
    method.chance.counter.fill_(1)
    sampled = copy.deepcopy(method.chance).randint(3, 6).tolist()
    assert set(sampled) == {0, 1, 2}, "every prompt should be sampled"
    losses = method.loss(IMAGES, LABELS)

    own = stack_reference_features(method, [2] * 6)
    torch.testing.assert_close(losses["aux"], F.cross_entropy(method.auxiliary(own), LABELS - 3), rtol=1e-4, atol=1e-5)
    under_sampled = method.head(stack_reference_features(method, sampled))[:, 3:]
    torch.testing.assert_close(losses["ce"], F.cross_entropy(under_sampled, LABELS - 3), rtol=1e-4, atol=1e-5)
    cosines = torch.stack([F.cosine_similarity(q.unsqueeze(0), method.keys()) for q in unprompted_class_tokens(method)])
    torch.testing.assert_close(losses["key"], F.cross_entropy(cosines, LABELS), rtol=1e-4, atol=1e-5)

    total, temperatures = torch.zeros(()), set()
    for logits in method.head(own):
        newest = logits[3:]
        for old in (logits[:2], logits[2:3]):
            tau = 1.0 if newest.max() > old.max() + margin else 1.2
            temperatures.add(tau)
            total -= ((old / tau).softmax(0) * old.log_softmax(0)).sum()
    assert temperatures == {1.0, 1.2}, "both temperatures should occur"
    torch.testing.assert_close(losses["smooth"], 0.5 * total / (6 * 2), rtol=1e-4, atol=1e-5)


def test_smoothing_has_gradient_only_where_the_old_head_is_more_confident() -> None:
    old = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    newest = torch.tensor([[2.5], [1.5]])
    smoothing_loss(old, newest, temperature=2.0, margin=0.0).sum().backward()
    p, target = torch.tensor([2.0, 0.0]).softmax(0), torch.tensor([1.0, 0.0]).softmax(0)
    torch.testing.assert_close(old.grad, torch.stack([torch.zeros(2), p - target]))
    with_margin = smoothing_loss(old.detach(), newest, temperature=2.0, margin=0.6)
    torch.testing.assert_close(with_margin, -(target * p.log()).sum().expand(2))


def test_smoothing_trains_prompts_but_no_head() -> None:
    method = make_method(temperature=2.0, margin=100.0)
    smooth = method.loss(IMAGES, LABELS)["smooth"]
    prompts, *others = torch.autograd.grad(
        smooth,
        [method.prompts.newest, method.head.weights.newest, method.auxiliary.weight, method.keys.newest],  # type: ignore[union-attr]
        allow_unused=True,
    )
    assert prompts.abs().max() > 0
    assert others == [None, None, None]


def test_new_images_do_not_change_head_rows_of_earlier_tasks() -> None:
    method = make_method(old_heads="trained")
    assert isinstance(method.head, LinearHead)
    torch.stack(list(method.loss(IMAGES, LABELS).values())).sum().backward()
    assert method.head.weight.grad is not None
    assert method.head.weight.grad[:3].abs().max() == 0
    assert method.head.weight.grad[3:].abs().max() > 0


@pytest.mark.parametrize("old_heads", ["frozen", "trained"])
def test_weight_decay_shrinks_head_rows_of_earlier_tasks_only_if_they_are_trained(old_heads: str) -> None:
    method = make_method(old_heads=old_heads, optimizer="sgd", weight_decay=0.1, learning_rate=0.05, clip=0, epochs=2)
    weight, bias = method.head.weight.detach().clone(), method.head.bias.detach().clone()
    fit(method, lambda epoch: [(IMAGES, LABELS)])
    assert torch.equal(method.head.weight[:3], weight[:3]) == (old_heads == "frozen")
    assert torch.equal(method.head.bias[:3], bias[:3]) == (old_heads == "frozen")
    assert not torch.equal(method.head.weight[3:], weight[3:])


def test_models_saved_before_heads_were_frozen_train_them() -> None:
    assert CPromptOptions().old_heads == "frozen"
    assert CPromptOptions.complete_saved({})["old_heads"] == "trained"


def test_known_classes_are_excluded_from_losses_of_the_newest_prompt() -> None:
    """Images of known classes in a batch do not contribute to `aux` and `smooth`."""
    method = make_method()
    labels = torch.tensor([0, 5, 4, 4, 3, 2])
    mixed, new = method.loss(IMAGES, labels), method.loss(IMAGES[1:5], labels[1:5])
    for name in ("aux", "smooth"):
        torch.testing.assert_close(mixed[name], new[name] * 4 / 6, rtol=1e-4, atol=1e-5)
    only_known = method.loss(IMAGES[:1], labels[:1])
    assert only_known["aux"] == only_known["smooth"] == 0
    assert only_known["ce"] > 0


def test_first_task_has_no_smoothing_loss() -> None:
    method = CPrompt(tiny_vit(), CPromptOptions(length=2))
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.loss(IMAGES, LABELS % 2).keys() == {"aux", "key", "ce"}


def test_new_task_adds_prompts_keys_and_auxiliary_head() -> None:
    method = make_method()
    prompts, keys = method.prompts.newest.detach().clone(), method.keys().detach()
    method.begin_task(4, torch.Generator().manual_seed(9))
    assert torch.equal(method.prompts.newest, prompts)
    assert torch.equal(method.keys.earlier, keys)
    torch.testing.assert_close(method.keys() @ method.keys().T, torch.eye(10))  # untrained, all are still orthogonal
    assert method.auxiliary.weight.shape == (4, TINY.width)
    assert method.layers == [0, 1]  # the second is the last of this shallow backbone
