from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.coda_prompt import CODAPrompt, CODAPromptOptions, attended_cosine_similarity, orthogonality_penalty
from caprompt.methods.components.prefix import Prefix

IMAGES = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 4, 3])  # of the second task


def make_method(**options: object) -> CODAPrompt:
    """Build a method with two tasks whose components are no longer orthogonal."""
    method = CODAPrompt(tiny_vit(), CODAPromptOptions(**{"length": 4, "components": 3, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        for rows in (method.components, method.keys, method.attention):
            rows.newest.data += 0.1 * torch.randn(rows.newest.shape, generator=torch.Generator().manual_seed(number))
    return method


def reference_logits(method: CODAPrompt, image: Tensor) -> Tensor:
    """Compute the logits of one image in loops over components and layers."""
    query = method.vit(image.unsqueeze(0))[0]
    prompt = torch.zeros(TINY.depth, 2, 1, 2, TINY.width)
    for p, attention, key in zip(method.components(), method.attention(), method.keys(), strict=True):
        for layer in range(TINY.depth):
            weight = F.cosine_similarity(query * attention[layer], key[layer], dim=0)
            prompt[layer, :, 0] += weight * p[layer]
    logits: Tensor = method.head(method.vit(image.unsqueeze(0), Prefix(prompt, range(TINY.depth))))[0]
    return logits


def test_logits_and_loss_match_reference() -> None:
    method = make_method()
    logits = torch.stack([reference_logits(method, image) for image in IMAGES])
    torch.testing.assert_close(method.predict(IMAGES).logits, logits, rtol=1e-4, atol=1e-5)
    losses = method.loss(IMAGES, LABELS)
    assert losses.keys() == {"ce"}
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits[:, 2:], LABELS - 2), rtol=1e-4, atol=1e-5)


def test_attended_cosine_similarity_of_every_component_and_layer() -> None:
    query, attention, keys = torch.randn(4, 5), torch.randn(6, 2, 5), torch.randn(6, 2, 5)
    result = attended_cosine_similarity(query, attention, keys)
    for b in range(4):
        for m in range(6):
            for layer in range(2):
                masked = query[b] * attention[m, layer]
                expected = torch.dot(masked, keys[m, layer]) / masked.norm() / keys[m, layer].norm()
                torch.testing.assert_close(result[b, m, layer], expected)


def test_zero_query_has_zero_weights() -> None:
    weights = attended_cosine_similarity(torch.zeros(1, 5), torch.randn(2, 1, 5), torch.randn(2, 1, 5))
    assert torch.equal(weights, torch.zeros(1, 2, 1))


def test_new_components_are_orthonormal_and_orthogonal_to_earlier_ones() -> None:
    method = make_method()
    method.begin_task(1, torch.Generator().manual_seed(5))
    for rows in (method.components, method.keys, method.attention):
        assert rows.earlier.shape[0] == 6
        for layer in range(TINY.depth):
            new, old = rows.newest[:, layer].flatten(1), rows.earlier[:, layer].flatten(1)
            torch.testing.assert_close(new @ new.T, torch.eye(3))
            torch.testing.assert_close(new @ old.T, torch.zeros(3, 6), rtol=0, atol=1e-5)


def test_components_can_outnumber_features() -> None:
    """Eleven tasks of three components exceed the 32 features."""
    method = make_method()
    for number in range(9):
        method.begin_task(1, torch.Generator().manual_seed(number))
    assert method.keys().shape == (33, TINY.depth, TINY.width)
    torch.testing.assert_close(method.keys.newest.norm(dim=2), torch.ones(3, TINY.depth))
    assert method.predict(IMAGES).logits.isfinite().all()


def test_orthogonality_penalty_matches_manual_computation() -> None:
    rows = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [1.0, -1.0]]])  # 2 components, 2 layers
    # layer 0: [[1, 0], [0, 4]] - I has squares 0, 0, 0, 9
    # layer 1: [[2, 0], [0, 2]] - I has squares 1, 0, 0, 1
    torch.testing.assert_close(orthogonality_penalty(rows), torch.tensor(9 / 4 + 2 / 4))
    method = make_method(orthogonality=0.5)
    penalties = [orthogonality_penalty(part().flatten(2)) for part in (method.keys, method.attention, method.components)]
    torch.testing.assert_close(method.loss(IMAGES, LABELS)["orthogonality"], 0.5 * torch.stack(penalties).sum())


def test_schedule_is_that_of_the_public_code() -> None:
    assert CODAPromptOptions().schedule == "quarter-cosine"


def test_first_layers_are_prompted() -> None:
    assert list(make_method().layers) == [0, 1]
    assert list(make_method(prompted=1).layers) == [0]
