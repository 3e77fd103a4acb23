"""CAPrompt: cyclic prompt aggregation (Li and Zhou, AAAI 2025, https://arxiv.org/abs/2412.08929).

Every task i has prefix prompts phi_i for a frozen ViT. For an image x they are not selected but
mixed,

    phi(x) = sum_i p_i(x) phi_i                                                     (Eq. 2)

where p_i(x) is the probability that x belongs to a class of task i. The class probabilities of each
forward pass give the weights of the next one (Eq. 9, Algorithm 1). The first pass has equal weights
in the paper and with `classifier="aligned"`; by default it uses the prompt of the first task (see
`extract_first_features`).

Two constraints make the mixture at least as good as the prompt of a single task: the prediction
should be concave along the mixture (Eq. 6-7), and the prompts should lie on a line (Eq. 8). They are
part of the paper's recipe, `classifier="aligned"`. With the regression they change nothing but the
cost, so by default a task trains its own prompt alone (docs/experiments.md).

docs/decisions.md lists what the paper leaves open or the authors' code does differently, and what
is done here. Above all, prefixes are built per image, so a prediction never depends on the other
images of its batch; the exception, for comparison with published tables, is `protocol="released"`
(`components/batch_leak.py`).

`mixture` has the paper's prompts, passes, losses and prediction; `classifier` what a task adds to the
classifier, and with it the method as a whole; `options` all of its options.
"""

from __future__ import annotations

from caprompt.methods.caprompt.classifier import CAPrompt
from caprompt.methods.caprompt.mixture import concave_gap, linear_loss
from caprompt.methods.caprompt.options import CAPromptOptions

__all__ = ["CAPrompt", "CAPromptOptions", "concave_gap", "linear_loss"]
