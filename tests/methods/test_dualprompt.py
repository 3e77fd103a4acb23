from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Adaptation, ViTConfig
from caprompt.methods.dualprompt import DualPrompt, DualPromptOptions

FOUR_LAYERS = ViTConfig(image_size=16, patch_size=4, width=32, depth=4, heads=2, mlp_width=64)
IMAGES = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([3, 5, 4])  # of the third task


def make_method(config: ViTConfig = FOUR_LAYERS, **options: object) -> DualPrompt:
    """Build a method with three tasks and distinct random prompts."""
    method_options = DualPromptOptions(**{"length": 4, "general_length": 6, "layers": "first-3", **options})  # type: ignore[arg-type]
    method = DualPrompt(tiny_vit(config=config), method_options)
    for number, classes in enumerate((2, 1, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompts.newest.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    return method


class FixedPrefixes(Adaptation):
    """Prefixes by layer for a batch of one image: (keys, values), (n, D) each."""

    def __init__(self, prefixes: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.prefixes = prefixes

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return (self.prefixes[layer][0].unsqueeze(0), self.prefixes[layer][1].unsqueeze(0)) if layer in self.prefixes else None


def reference_features(method: DualPrompt, image: Tensor, task: int) -> Tensor:
    """Compute the features of one image: general prompt in layers 0 and 1, task's in layer 2."""
    general, own = method.general, method.prompts()[task]
    prefixes = {0: (general[0, 0], general[0, 1]), 1: (general[1, 0], general[1, 1]), 2: (own[0, 0], own[0, 1])}
    features: Tensor = method.vit(image.unsqueeze(0), FixedPrefixes(prefixes))[0]
    return features


def test_each_image_uses_keys_and_values_of_its_own_task() -> None:
    method = make_method()
    tasks = torch.tensor([2, 0, 1])
    expected = torch.stack([reference_features(method, image, int(task)) for image, task in zip(IMAGES, tasks, strict=True)])
    torch.testing.assert_close(method.extract_features(method.vit.stem(IMAGES), tasks), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.predict(IMAGES, tasks).logits, method.head(expected), rtol=1e-4, atol=1e-5)


def test_task_with_the_nearest_key_is_selected() -> None:
    method = make_method()
    queries = method.vit(IMAGES)
    method.keys.earlier.copy_(torch.stack([queries[2], 5 * queries[0]]))
    method.keys.newest.data.copy_(queries[1:2])
    output = method.predict(IMAGES)
    assert output.task_weights.argmax(dim=1).tolist() == [1, 2, 0]
    expected = torch.stack([reference_features(method, image, task) for image, task in zip(IMAGES, [1, 2, 0], strict=True)])
    torch.testing.assert_close(output.logits, method.head(expected), rtol=1e-4, atol=1e-5)


def test_losses_match_reference() -> None:
    method = make_method(pull=0.7)
    logits = torch.stack([method.head(reference_features(method, image, 2)) for image in IMAGES])
    losses = method.loss(IMAGES, LABELS)
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits[:, 3:], LABELS - 3), rtol=1e-4, atol=1e-5)
    cosines = [F.cosine_similarity(query, method.keys()[2], dim=0) for query in method.vit(IMAGES)]
    torch.testing.assert_close(losses["pull"], -0.7 * torch.stack(cosines).mean())


def test_images_of_known_classes_use_their_own_prompt() -> None:
    method = make_method()
    labels = torch.tensor([2, 0, 5])
    logits = [method.head(reference_features(method, image, task)) for image, task in zip(IMAGES, (1, 0, 2), strict=True)]
    entropies = [-logits[0][2:3].log_softmax(0)[0], -logits[1][:2].log_softmax(0)[0], -logits[2][3:].log_softmax(0)[2]]
    torch.testing.assert_close(method.loss(IMAGES, labels)["ce"], torch.stack(entropies).mean(), rtol=1e-4, atol=1e-5)


def test_new_prompt_is_initialized_with_the_previous_one_but_its_key_is_not() -> None:
    method = make_method()
    prompt, key, general = method.prompts.newest.detach().clone(), method.keys.newest.detach().clone(), method.general.clone()
    method.begin_task(1, torch.Generator().manual_seed(9))
    assert torch.equal(method.prompts.newest, prompt)
    assert torch.equal(method.prompts.earlier[-1:], prompt)
    assert not torch.equal(method.keys.newest, key)
    assert torch.equal(method.keys.earlier[-1:], key)
    assert torch.equal(method.general, general)


def test_shallow_backbone_keeps_a_layer_for_task_prompts() -> None:
    method = make_method(config=TINY, layers="first-5")
    assert (method.general_layers, method.task_layers) == ((0,), (1,))
    deep = make_method(layers="first-5")
    assert (deep.general_layers, deep.task_layers) == ((0, 1), (2, 3))
    named = make_method(layers=[1, 3], general_layers=1)
    assert (named.general_layers, named.task_layers) == ((1,), (3,))


def test_without_general_prompt_all_layers_have_task_prompts() -> None:
    method = make_method(general_layers=0)
    assert (method.general_layers, method.task_layers) == ((), (0, 1, 2))
    assert method.predict(IMAGES).logits.isfinite().all()
