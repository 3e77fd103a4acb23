from __future__ import annotations

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.task_adapters import TaskAdapters

OPTIONS = AdapterOptions(bottleneck=4, adapter_scale=0.3)


def random_images(count: int) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))


def make_adapters(tasks: int) -> TaskAdapters:
    """Build adapters of so many tasks, each changed as training would."""
    adapters = TaskAdapters(TINY, OPTIONS)
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        adapters.begin_task(generator)
        for rows in adapters.rows:
            rows.newest.data.add_(torch.randn(rows.newest.shape, generator=generator))
    return adapters


def test_first_adapter_changes_nothing_and_the_next_starts_as_a_copy() -> None:
    adapters, vit, images = TaskAdapters(TINY, OPTIONS), tiny_vit(), random_images(2)
    adapters.begin_task(torch.Generator().manual_seed(0))
    torch.testing.assert_close(vit(images, adapters.newest_branches()), vit(images))
    assert adapters.down.newest.std() > 0
    adapters.up.newest.data.normal_(generator=torch.Generator().manual_seed(1))
    adapters.begin_task(torch.Generator().manual_seed(2))
    assert all(torch.equal(rows.newest, rows.earlier) for rows in adapters.rows)


def test_branches_equal_those_of_a_single_adapter() -> None:
    adapters, vit, images = make_adapters(2), tiny_vit(), random_images(3)
    single = Adapter(TINY, OPTIONS)
    for task, branches in enumerate(adapters.branches()):
        for parameter, weights in zip((single.down, single.down_bias, single.up, single.up_bias), adapters.weights(), strict=True):
            parameter.data.copy_(weights[task])
        torch.testing.assert_close(vit(images, branches), vit(images, single.branches()))
    torch.testing.assert_close(vit(images, adapters.newest_branches()), vit(images, single.branches()))


def test_each_image_passes_through_the_adapter_of_its_task() -> None:
    adapters, vit, images = make_adapters(3), tiny_vit(), random_images(4)
    tasks = torch.tensor([2, 0, 1, 2])
    selected = vit(images, adapters.select(tasks))
    each = [vit(images, branches) for branches in adapters.branches()]
    torch.testing.assert_close(selected, torch.stack([each[task][row] for row, task in enumerate(tasks)]))
    assert (each[0] - each[1]).norm() > 0.1
