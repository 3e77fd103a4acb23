"""Training effort of a task: epochs, batch size and learning rate, given or chosen by one rule.

The rule counts steps, not epochs: about `STEPS` optimizer steps for a task, however many images it
has. Few images are repeated at most `MAX_EPOCHS` times, since then they have nothing more to teach;
many images are seen `MIN_EPOCHS` times at least. Batches are small where there are few images, so
that an epoch still has `STEPS_PER_EPOCH` steps. A method that can do without may leave out training
where there are too few images to generalize from. docs/experiments.md says how the constants were
selected.
"""

from __future__ import annotations

from dataclasses import dataclass

from caprompt.methods.options import Options

__all__ = ["Effort", "choose_effort"]

STEPS = 500
MIN_EPOCHS, MAX_EPOCHS = 3, 20
STEPS_PER_EPOCH = 20
BATCH_SIZES = (16, 32, 64)


@dataclass(frozen=True)
class Effort:
    """How long and how fast a task is trained."""

    epochs: int
    batch_size: int
    learning_rate: float
    chosen: bool = False  # whether epochs or batch size follow from the number of images

    def describe(self, num_images: int) -> str:
        """Return what was chosen, and why, in one line.

        >>> Effort(20, 16, 0.02, chosen=True).describe(280)
        '280 images, so 20 epochs in batches of 16 (360 steps) at learning rate 0.02'
        >>> Effort(0, 16, 0.02, chosen=True).describe(28)
        '28 images, too few of each class to train on, so no epochs; the prompt stays as it is'
        """
        steps = self.epochs * -(-num_images // self.batch_size)
        images, epochs, step_count = (
            f"{count} {noun}{'s' * (count != 1)}"
            for count, noun in ((num_images, "image"), (self.epochs, "epoch"), (steps, "step"))
        )
        if not self.epochs:
            return f"{images}, too few of each class to train on, so no epochs; the prompt stays as it is"
        return f"{images}, so {epochs} in batches of {self.batch_size} ({step_count}) at learning rate {self.learning_rate:g}"


def choose_effort(options: Options, num_images: int, default_rate: float, min_images: int = 0) -> Effort:
    """Return the effort for a task of this many images; `default_rate` is the learning rate that "auto" stands for.

    With fewer than `min_images`, automatic epochs are none.

    >>> choose_effort(Options(epochs="auto", batch_size="auto"), 392, 0.01)
    Effort(epochs=20, batch_size=16, learning_rate=0.003, chosen=True)
    >>> choose_effort(Options(epochs="auto", batch_size="auto", learning_rate="auto"), 5000, 0.01)
    Effort(epochs=6, batch_size=64, learning_rate=0.01, chosen=True)
    >>> choose_effort(Options(epochs="auto", batch_size="auto"), 28, 0.01, min_images=42)
    Effort(epochs=0, batch_size=16, learning_rate=0.003, chosen=True)
    >>> choose_effort(Options(epochs=5, batch_size=24, learning_rate=0.003), 100, 0.01)
    Effort(epochs=5, batch_size=24, learning_rate=0.003, chosen=False)
    """
    largest = max(size for size in BATCH_SIZES if size == BATCH_SIZES[0] or size * STEPS_PER_EPOCH <= num_images)
    batch_size = largest if options.batch_size == "auto" else options.batch_size
    repeats = min(max(round(STEPS * batch_size / max(1, num_images)), MIN_EPOCHS), MAX_EPOCHS) if num_images >= min_images else 0
    epochs = repeats if options.epochs == "auto" else options.epochs
    rate = default_rate if options.learning_rate == "auto" else options.learning_rate
    return Effort(epochs, batch_size, rate, chosen="auto" in (options.batch_size, options.epochs))
