"""Labeled images: reading, validation, splitting into tasks, and batching.

The path of an image through the package:

1. `sources.read_source` (folder, CSV file, export of a labeling tool, arrays, datasets of other
   libraries) or `datasets.registry.load_dataset` (benchmark by name) lists images and labels as
   `Samples`; files are not opened yet.
2. `validation.validate_images` decodes every image once and reports or skips the unreadable ones.
3. `tasks` orders the classes, splits them into tasks, and holds out validation or test images.
4. `loader` yields batches of tensors. It reads decoded pixels through an `image_cache.ImageCache`,
   so that a file is decoded once, and applies a transform: with Pillow on the CPU (`transforms`), or
   in batches on a GPU (`gpu_transforms`, from a `gpu_cache.GPUImageCache`).

Only `loader`, `gpu_cache` and `gpu_transforms` import torch.
"""

from __future__ import annotations

from caprompt.data.datasets.registry import Dataset, list_datasets, load_dataset
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source

__all__ = ["Dataset", "Samples", "list_datasets", "load_dataset", "read_source"]
