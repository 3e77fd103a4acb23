from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Adaptation
from caprompt.errors import OptionError
from caprompt.methods import build_method
from caprompt.methods.l2p import L2P, L2POptions

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 4, 3, 2])  # of the second task


def make_method(**options: object) -> L2P:
    method = L2P(tiny_vit(), L2POptions(**{"length": 3, "top": 2, "pool": 6, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


class PrependedTokens(Adaptation):
    """Tokens (n, D) prepended to the first block's input, for a batch of one image."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        return self.rows.unsqueeze(0) if layer == 0 else None


def reference_logits(method: L2P, image: Tensor) -> tuple[Tensor, list[float]]:
    """Compute the logits of one image and the cosines of its selected keys."""
    query = method.vit(image.unsqueeze(0))[0]
    cosines = [float(F.cosine_similarity(query, key, dim=0)) for key in method.keys.detach()]
    selected = sorted(range(len(cosines)), key=lambda m: -cosines[m])[: method.options.top]
    rows = torch.cat([method.prompts[m] for m in selected])
    tokens = method.vit.encode(image.unsqueeze(0), PrependedTokens(rows))[0]
    return method.head(sum(tokens[: len(rows)]) / len(rows)), [cosines[m] for m in selected]


def test_each_image_gets_the_prompts_with_the_nearest_keys() -> None:
    method = make_method(top=1)
    queries = method.vit(IMAGES)
    method.keys.data[:4] = 7 * queries.flip(0)  # image b's own query is the key of prompt 3 - b
    cosines, indices = method.select_prompts(method.vit.stem(IMAGES))
    assert indices.tolist() == [[3], [2], [1], [0]]
    torch.testing.assert_close(cosines, torch.ones(4, 1))


def test_logits_and_losses_match_reference() -> None:
    method = make_method()
    references = [reference_logits(method, image) for image in IMAGES]
    torch.testing.assert_close(
        method.predict(IMAGES).logits, torch.stack([logits for logits, _ in references]), rtol=1e-4, atol=1e-5
    )
    losses = method.loss(IMAGES, LABELS)
    entropies = [-logits[2:].log_softmax(dim=0)[label - 2] for (logits, _), label in zip(references, LABELS, strict=True)]
    torch.testing.assert_close(losses["ce"], torch.stack(entropies).mean(), rtol=1e-4, atol=1e-5)
    pull = -0.1 * torch.tensor([sum(cosines) for _, cosines in references]).mean()
    torch.testing.assert_close(losses["pull"], pull)


def test_only_the_pull_trains_keys_and_only_selected_ones() -> None:
    method = make_method(top=1)
    losses = method.loss(IMAGES, LABELS)
    (by_ce,) = torch.autograd.grad(losses["ce"], method.keys, retain_graph=True, allow_unused=True)
    assert by_ce is None
    losses["pull"].backward()
    assert method.keys.grad is not None
    selected = set(method.select_prompts(method.vit.stem(IMAGES))[1].flatten().tolist())
    trained = set(method.keys.grad.abs().sum(dim=1).nonzero().flatten().tolist())
    assert trained == selected
    assert selected != set(range(6))


def test_new_task_does_not_change_the_pool() -> None:
    method = make_method()
    prompts, keys = method.prompts.detach().clone(), method.keys.detach().clone()
    method.begin_task(2, torch.Generator().manual_seed(9))
    assert torch.equal(method.prompts, prompts)
    assert torch.equal(method.keys, keys)
    assert 0.5 < float(prompts.std()) < 0.65  # U(-1, 1): 0.577


def test_top_is_limited_by_pool() -> None:
    with pytest.raises(OptionError, match="option 'top' of l2p cannot be '4'"):
        build_method("l2p", tiny_vit(), {"pool": 3, "top": 4})
    with pytest.raises(OptionError, match="must not exceed 'pool'"):
        build_method("l2p", tiny_vit(), {"pool": 3})


def test_head_can_read_the_class_token() -> None:
    method = make_method(read="class-token")
    stem = method.vit.stem(IMAGES)
    selected = method.select_prompts(stem)[1]
    for image, indices, logits in zip(IMAGES, selected, method.predict(IMAGES).logits, strict=True):
        rows = torch.cat([method.prompts[m] for m in indices])
        tokens = method.vit.encode(image.unsqueeze(0), PrependedTokens(rows))[0]
        torch.testing.assert_close(logits, method.head(tokens[len(rows)]), rtol=1e-4, atol=1e-5)
