from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from grids import make_fake_evidence

from caprompt.metrics import MeanStd
from caprompt.reproduce.evidence import Row
from caprompt.reproduce.published import get_published
from caprompt.reproduce.scales import get_scale

HEADINGS = [
    "digits ACC",
    "digits AF",
    "CIFAR-100 ACC",
    "CIFAR-100 AF",
    "ImageNet-R ACC",
    "ImageNet-R AF",
    "CUB200 ACC",
    "CUB200 AF",
]
LABELS = {
    "table1": ["L2P", "DualPrompt", "CODA-Prompt", "HiDe-Prompt", "EvoPrompt", "ConvPrompt", "CPrompt", "CAPrompt"],
    "table2": ["InfLoRA", "EASE", "SSIAT", "CAPrompt"],
}


@pytest.mark.parametrize("name", LABELS)
def test_published_and_our_values_have_separate_lines(name: str, tmp_path: Path) -> None:
    evidence = make_fake_evidence(name, tmp_path)
    shown = evidence.target.present(evidence)
    assert shown.table.headings[3:] == HEADINGS
    *papers, recommended = shown.table.lines
    assert (recommended.labels[0], recommended.source) == ("CAPrompt with ridge", "ours")
    assert [line.labels[0] for line in papers[::2]] == LABELS[name]
    for theirs, ours in zip(papers[::2], papers[1::2], strict=True):
        assert (theirs.source, ours.source, ours.protocol) == ("published", "ours", "honest")
        assert theirs.entries[0] == ""
        assert theirs.entries[2] == get_published(name, theirs.labels[0], "cifar100", "ACC")
        assert isinstance(ours.entries[0], MeanStd)
        assert ours.entries[0].seeds == 2
        assert set(ours.entries[2:]) == {"other scale"}
    leaking = {line.labels[0] for line in shown.table.lines if line.protocol == "leaks"}
    assert leaking == {"L2P", "DualPrompt", "HiDe-Prompt", "CAPrompt"} & set(LABELS[name])
    assert shown.plots


def test_the_ablation_has_five_rows(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table3", tmp_path)
    lines = evidence.target.present(evidence).table.lines
    assert len(lines) == 10
    assert len({line.entries[0] for line in lines[1::2]}) == 5
    assert lines[0].entries[2:] == (MeanStd(74.51, None, 3), MeanStd(3.01, None, 3))


def test_given_task_has_protocol_oracle(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table-taskid", tmp_path)
    table = evidence.target.present(evidence).table
    assert [line.protocol for line in table.lines] == ["leaks", "oracle"] * 2
    leaking = make_fake_evidence("table-taskid", tmp_path, protocol="released")
    assert [line.protocol for line in leaking.target.present(leaking).table.lines] == ["leaks", "released oracle"] * 2
    assert table.lines[1].entries[0] == MeanStd(90.5, pytest.approx(0.7071, abs=1e-3), 2)
    assert table.headings[3:] == ["digits ACC", "CIFAR-100 ACC", "ImageNet-R ACC", "CUB200 ACC"]


def test_every_backbone_has_a_block(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table-backbones", tmp_path)
    lines = evidence.target.present(evidence).table.lines
    assert len(lines) == 9 + 17 + 17  # no published values for our own backbone, nor for ridge
    assert list(dict.fromkeys(line.labels[0] for line in lines)) == ["vit_mini_patch8_64.tin200_distilled", "iBOT-1k", "DINO-1k"]
    assert lines[9].entries[2] == get_published("table-backbones", "L2P", "cifar100", "ACC", "iBOT-1k")


def test_protocol_released_is_marked_in_its_line(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table1", tmp_path, protocol="released")
    lines = evidence.target.present(evidence).table.lines
    assert lines[-2].protocol == "released"
    assert {line.protocol for line in (*lines[1:-2:2], lines[-1])} == {"honest"}


def test_changes_are_added_one_by_one(tmp_path: Path) -> None:
    """Each row differs from the previous one in the options of one change only."""
    evidence = make_fake_evidence("ablation", tmp_path)
    lines = evidence.target.present(evidence).table.lines
    assert {line.source for line in lines} == {"ours"}
    assert len({line.entries[0] for line in lines}) == len(lines) == 4
    options = [get_options(row) for row in evidence.target.rows]
    changes = [{name for name in now if now[name] != before[name]} for before, now in itertools.pairwise(options)]
    of_the_head = {
        "alpha",
        "align_epochs",
        "align_rate",
    }  # from the authors' code, for its trained head only
    assert changes == [{"init", "head_rate"}, {"classifier", "ridge_strength"} | of_the_head, {"learning_rate"}]


def get_options(row: Row) -> Mapping[str, object]:
    return get_scale("small").build_cell(row.method, row.options, "cifar100", "", 0, ()).config.options
