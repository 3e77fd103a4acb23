"""Adaptations for some images of a batch: threads that divide it compute what one computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, ViT
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.prefix import PLACES, ModulatedPrefix, Prefix
from caprompt.methods.components.task_adapters import TaskAdapters
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.inflora import InputMomentRecorder, KeyValueUpdate
from caprompt.utils.threads import use_threads

BATCH, ROWS, RANK = 19, 3, 4
LAYERS = tuple(range(TINY.depth))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def make_adapter() -> Adaptation:
    adapter = Adapter(TINY, AdapterOptions(bottleneck=RANK))
    nn.init.normal_(adapter.up, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(adapter.down, generator=torch.Generator().manual_seed(1))
    return adapter.branches()


def make_task_adapter() -> Adaptation:
    adapters = TaskAdapters(TINY, AdapterOptions(bottleneck=RANK))
    adapters.begin_task(torch.Generator().manual_seed(0))
    nn.init.normal_(adapters.up.newest, generator=torch.Generator().manual_seed(1))
    return adapters.newest_branches()


def make_update(kind: type[KeyValueUpdate] = KeyValueUpdate) -> KeyValueUpdate:
    depth, width = TINY.depth, TINY.width
    return kind(draw(depth, 2 * width, width) / width, draw(depth, 2 * width, RANK), draw(depth, RANK, width) / width)


ADAPTATIONS: dict[str, Callable[[], Adaptation]] = {
    "prefix": lambda: Prefix(draw(TINY.depth, 2, BATCH, ROWS, TINY.width), LAYERS),
    "modulated prefix": lambda: ModulatedPrefix(draw(TINY.depth, 2, BATCH, ROWS + len(PLACES), TINY.width), LAYERS, 0.1),
    "tokens": lambda: Tokens(draw(TINY.depth, BATCH, ROWS, TINY.width), LAYERS),
    "adapter": make_adapter,
    "task adapter": make_task_adapter,
    "update of keys and values": make_update,
}


def extract(vit: ViT, adaptation: Adaptation, threads: int) -> Tensor:
    images = draw(BATCH, 3, TINY.image_size, TINY.image_size)
    with torch.no_grad(), use_threads(threads):
        features: Tensor = vit(images, adaptation)
    return features


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_features_of_divided_batches(name: str) -> None:
    vit, make = tiny_vit(), ADAPTATIONS[name]
    assert make().select(slice(0, 4)) is not None
    whole = extract(vit, make(), threads=1)
    torch.testing.assert_close(extract(vit, make(), threads=2), whole, rtol=0, atol=1e-4)
    assert not torch.allclose(extract(vit, Adaptation(), threads=1), whole, atol=1e-2), "the adaptation changes nothing"


def test_an_adaptation_that_adds_up_what_it_sees_is_not_divided() -> None:
    vit, (one, two) = tiny_vit(), (make_update(InputMomentRecorder) for _ in range(2))
    assert isinstance(one, InputMomentRecorder)
    assert isinstance(two, InputMomentRecorder)
    extract(vit, one, threads=1)
    extract(vit, two, threads=2)
    torch.testing.assert_close(one.sums, two.sums)
