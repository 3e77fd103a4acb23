"""What the tests start with torchrun: train one step, or learn a folder and stop or die on the way.

torchrun --nproc-per-node 2 worker.py step gradients.safetensors
torchrun --nproc-per-node 2 worker.py learn MODEL SOURCE BACKBONE [stop | die]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from caprompt import ContinualClassifier
from caprompt.callbacks.events import EpochEnded, Event
from caprompt.distributed.processes import join_processes
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import SharedTrainingStep, TrainingStep
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.testing.tiny import TINY, tiny_vit
from caprompt.utils.communication import choose_share, get_communicator

OPTIONS = {"epochs": 4, "batch_size": 16, "length": 4, "projections": 100, "exact_sums": True, "crops": True}


def make_method() -> Method:
    """Return a method in its second task, which trains the mixture of two prompts with all terms of the paper's loss."""
    options = {"training_prompt": "mixture", "training_head": "linear", "alpha": 5.0, "beta": 0.2, "modulation": 0.0}
    method = build_method("caprompt", tiny_vit(), {"length": 4, "clip": 0.0, **options})
    for _ in range(2):
        method.begin_task(2, torch.Generator().manual_seed(0))
    return method


def train_one_step(output: Path) -> None:
    """Save the gradients of a batch of ten images: by all processes together, and by one."""
    images = torch.randn(10, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([2, 3]).repeat(5)
    communicator, together, alone = get_communicator(), make_method(), make_method()
    own = choose_share(10, communicator)
    SharedTrainingStep(together, build_optimizer(together), communicator)(images[own], labels[own])
    TrainingStep(alone, build_optimizer(alone))(images, labels)
    if communicator.rank == 0:
        gradients = {
            f"{name}.{key}": parameter.grad
            for name, method in (("together", together), ("alone", alone))
            for key, parameter in method.named_parameters()
            if parameter.grad is not None
        }
        save_file({key: gradient.contiguous().clone() for key, gradient in gradients.items()}, output)


def learn(model: Path, source: Path, backbone: Path, end: str = "") -> None:
    """Learn a source; with "stop", stop after two epochs, and with "die", the second process is killed then."""

    def end_early(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 1:
            if end == "stop":
                raise KeyboardInterrupt
            if end == "die" and get_communicator().rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    classifier = ContinualClassifier("caprompt", backbone, device="cpu", **OPTIONS)
    classifier.learn(source, checkpoint_dir=model, callbacks=end_early)


if __name__ == "__main__":
    with join_processes("cpu"):
        command, *words = sys.argv[1:]
        if command == "step":
            train_one_step(Path(words[0]))
        else:
            learn(*map(Path, words[:3]), *words[3:])
