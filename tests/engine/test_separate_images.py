from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from helpers import squares

from caprompt import ContinualClassifier
from caprompt.engine.inference import Predictor
from caprompt.engine.separate_images import count_predicting_threads, is_small, predict_separately
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.options import Options
from caprompt.utils.threads import use_threads

NAMES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def model() -> ContinualClassifier:
    """Return a model of the embedded backbone, whose products are large enough to be computed in several ways."""
    model = ContinualClassifier("ridge", device="cpu", projections=500)
    images, labels = squares(NAMES, each=5)
    model.learn((images, labels))
    return model


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_bit_depends_on_the_batch_or_the_threads(model: ContinualClassifier, threads: int) -> None:
    images = torch.randn(10, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    predictor = Predictor(model.method, 64)
    alone = torch.cat([predictor(image[None]).logits for image in images])
    with use_threads(threads):
        for order in (torch.arange(10), torch.arange(10).flip(0)):
            for size in (1, 3, 7, 10):
                together = torch.cat([predictor(images[part]).logits for part in order.split(size)])
                assert torch.equal(together, alone[order])
        assert torch.get_num_threads() == threads


def test_products_of_a_batch_do_round_differently(model: ContinualClassifier) -> None:
    images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    together, alone = model.method.predict(images).logits, Predictor(model.method, 8)(images).logits
    assert torch.allclose(together, alone, atol=1e-3)
    if torch.equal(together, alone):
        pytest.skip("the matrix products of this machine round a row alike in every batch")


class Recorder(Method):
    """A method that returns what it is given, and fails for a task that does not exist."""

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def predict(self, images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> MethodOutput:
        assert len(images) == 1
        assert not torch.is_grad_enabled()
        if true_tasks is None:
            raise RuntimeError("broken")
        return MethodOutput(images.flatten(1)[:, :2], true_tasks[:, None].float(), true_tasks)


@pytest.fixture
def recorder(model: ContinualClassifier) -> Recorder:
    return Recorder(model.method.vit, Options())


def test_true_tasks_go_with_their_images(recorder: Recorder) -> None:
    images = torch.arange(24.0).reshape(6, 1, 2, 2)
    output = predict_separately(recorder, images, torch.arange(6))
    assert output.logits.tolist() == images.flatten(1)[:, :2].tolist()
    assert output.passes.tolist() == list(range(6))


class Meeting(Recorder):
    """A method whose predictions wait until three of them run at the same time."""

    def meet(self) -> None:
        self.barrier, self.threads = threading.Barrier(3), set[int]()

    def predict(self, images: torch.Tensor, true_tasks: torch.Tensor | None = None) -> MethodOutput:
        self.threads.add(threading.get_ident())
        self.barrier.wait(timeout=20)
        return super().predict(images, true_tasks)


def test_as_many_images_are_predicted_at_a_time_as_was_chosen(model: ContinualClassifier) -> None:
    method = Meeting(model.method.vit, Options())
    method.meet()
    with use_threads(8):
        predict_separately(method, torch.zeros(12, 3, 8, 8), torch.zeros(12, dtype=torch.long))
    assert len(method.threads) == 3


def test_an_error_in_a_thread_is_raised(recorder: Recorder) -> None:
    with use_threads(2):
        with pytest.raises(RuntimeError, match="broken"):
            predict_separately(recorder, torch.zeros(4, 3, 8, 8), None)
        assert torch.get_num_threads() == 2


def test_the_embedded_backbone_is_small(model: ContinualClassifier) -> None:
    assert is_small(model.backbone.config)


def test_a_large_backbone_predicts_one_image_after_the_other(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.engine.separate_images.MAX_SMALL_MACS", 0.0)
    model = ContinualClassifier("ncm", backbone, device="cpu")
    images, labels = squares(NAMES, each=3)
    model.learn((images, labels))
    assert [model.predict_one(image) for image in images] == model.predict(images)


def test_few_threads_predict_with_a_tiny_network(model: ContinualClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    with use_threads(8):
        assert count_predicting_threads(model.method) == 3
        monkeypatch.setattr("caprompt.engine.separate_images.MAX_TINY_MACS", 0.0)
        assert count_predicting_threads(model.method) == 8
        monkeypatch.setattr(type(model.method), "can_predict_in_threads", False)
        assert count_predicting_threads(model.method) == 1
