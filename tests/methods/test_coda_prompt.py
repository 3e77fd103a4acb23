from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.coda_prompt import CODAPrompt, CODAPromptOptions, attended_cosine, orthogonality
from caprompt.methods.components.prefix import Prefix

IMAGES = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 4, 3])  # of the second task


def made(**options: object) -> CODAPrompt:
    """A method whose components have been trained a little, so that they are no longer orthogonal."""
    method = CODAPrompt(tiny_vit(), CODAPromptOptions(**{"length": 4, "components": 3, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        for rows in (method.components, method.keys, method.attention):
            rows.newest.data += 0.1 * torch.randn(rows.newest.shape, generator=torch.Generator().manual_seed(number))
    return method


def by_hand(method: CODAPrompt, image: Tensor) -> Tensor:
    """Logits of one image, component by component and layer by layer."""
    query = method.vit(image.unsqueeze(0))[0]
    prompt = torch.zeros(TINY.depth, 2, 1, 2, TINY.width)
    for p, attention, key in zip(method.components(), method.attention(), method.keys(), strict=True):
        for layer in range(TINY.depth):
            weight = F.cosine_similarity(query * attention[layer], key[layer], dim=0)
            prompt[layer, :, 0] += weight * p[layer]
    logits: Tensor = method.head(method.vit(image.unsqueeze(0), Prefix(prompt, range(TINY.depth))))[0]
    return logits


def test_logits_and_loss_by_hand() -> None:
    method = made()
    logits = torch.stack([by_hand(method, image) for image in IMAGES])
    torch.testing.assert_close(method.predict(IMAGES).logits, logits, rtol=1e-4, atol=1e-5)
    losses = method.loss(IMAGES, LABELS)
    assert losses.keys() == {"ce"}
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits[:, 2:], LABELS - 2), rtol=1e-4, atol=1e-5)


def test_attended_cosine_of_every_component_and_layer() -> None:
    query, attention, keys = torch.randn(4, 5), torch.randn(6, 2, 5), torch.randn(6, 2, 5)
    found = attended_cosine(query, attention, keys)
    for b in range(4):
        for m in range(6):
            for layer in range(2):
                masked = query[b] * attention[m, layer]
                expected = torch.dot(masked, keys[m, layer]) / masked.norm() / keys[m, layer].norm()
                torch.testing.assert_close(found[b, m, layer], expected)


def test_a_query_that_vanishes_weighs_nothing() -> None:
    weights = attended_cosine(torch.zeros(1, 5), torch.randn(2, 1, 5), torch.randn(2, 1, 5))
    assert torch.equal(weights, torch.zeros(1, 2, 1))


def test_new_components_are_orthonormal_and_orthogonal_to_all_earlier_ones() -> None:
    method = made()
    method.begin_task(1, torch.Generator().manual_seed(5))
    for rows in (method.components, method.keys, method.attention):
        assert rows.earlier.shape[0] == 6
        for layer in range(TINY.depth):
            new, old = rows.newest[:, layer].flatten(1), rows.earlier[:, layer].flatten(1)
            torch.testing.assert_close(new @ new.T, torch.eye(3))
            torch.testing.assert_close(new @ old.T, torch.zeros(3, 6), rtol=0, atol=1e-5)


def test_components_are_added_for_as_long_as_tasks_come() -> None:
    """Eleven tasks of three components are more than 32 features have room for."""
    method = made()
    for number in range(9):
        method.begin_task(1, torch.Generator().manual_seed(number))
    assert method.keys().shape == (33, TINY.depth, TINY.width)
    torch.testing.assert_close(method.keys.newest.norm(dim=2), torch.ones(3, TINY.depth))
    assert method.predict(IMAGES).logits.isfinite().all()


def test_orthogonality_penalty_by_hand() -> None:
    rows = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [1.0, -1.0]]])  # 2 components, 2 layers
    # layer 0: [[1, 0], [0, 4]] - I has squares 0, 0, 0, 9; layer 1: [[2, 0], [0, 2]] - I has 1, 0, 0, 1
    torch.testing.assert_close(orthogonality(rows), torch.tensor(9 / 4 + 2 / 4))
    method = made(orthogonality=0.5)
    penalties = [orthogonality(part().flatten(2)) for part in (method.keys, method.attention, method.components)]
    torch.testing.assert_close(method.loss(IMAGES, LABELS)["orthogonality"], 0.5 * torch.stack(penalties).sum())


def test_the_first_layers_are_prompted() -> None:
    assert list(made().layers) == [0, 1]
    assert list(made(prompted=1).layers) == [0]
