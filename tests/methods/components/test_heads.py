from __future__ import annotations

import pytest
import torch

from caprompt.errors import OptionError
from caprompt.methods.components.heads import FIRST_SCALE, CosineHead, ScoreOptions, cosines
from caprompt.methods.options import validate_options


def test_cosines_are_those_of_every_pair() -> None:
    features, rows = torch.randn(3, 5), torch.randn(4, 5)
    expected = [[float(torch.dot(f, r) / (f.norm() * r.norm())) for r in rows] for f in features]
    torch.testing.assert_close(cosines(features, rows), torch.tensor(expected))


def test_only_directions_count() -> None:
    head = CosineHead(4, scale=20.0)
    head.grow(3, torch.Generator().manual_seed(0))
    features = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    logits = head(features)
    head.weight.data.mul_(7)
    torch.testing.assert_close(head(3 * features), logits)
    torch.testing.assert_close(head(head.weight.detach()).diagonal(), torch.full((3,), 20.0))


@pytest.mark.parametrize(("scale", "learned"), [(None, ["weight", "scale"]), (20.0, ["weight"])])
def test_the_scale_is_learned_unless_given(scale: float | None, learned: list[str]) -> None:
    head = CosineHead(4, scale)
    head.grow(2, torch.Generator().manual_seed(0))
    assert [name for name, _ in head.named_parameters()] == learned
    assert torch.as_tensor(head.scale).item() == (scale or FIRST_SCALE)
    head(torch.ones(1, 4))[0, 0].backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in head.parameters())


def test_the_scale_of_scores_may_change_at_prediction() -> None:
    assert ScoreOptions.at_prediction >= {"precision", "scale"}
    with pytest.raises(OptionError, match="greater than 0"):
        validate_options(ScoreOptions, {"scale": 0}, "ncm")
