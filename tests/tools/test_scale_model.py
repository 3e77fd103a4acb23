"""docs/scale.md shows what the formulas give for the measured constants."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_model", ROOT / "tools" / "scale_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_model"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def make_device(tool: ModuleType, **rates: float) -> dict[str, Any]:
    """Return measurements as a device of these rates would give them."""
    costs = {"gram": 1e12, "sums": 2e12, "factor": 3e12, "weights": 4e12, "scores": 5e12, "bandwidth": 1e9, "latency": 1e-3} | rates
    sums = [
        {"projections": m, "classes": c, "seconds_per_image": tool.count_gram(m) / costs["gram"] + 2 * m * c / costs["sums"]}
        for m in (1000, 2000)
        for c in (10, 1000)
    ]
    solve = []
    for m in (1000, 2000):
        for c in (10, 1000):
            factor, weights = tool.count_solve(m, c)
            solve.append({"projections": m, "classes": c, "seconds": factor / costs["factor"] + weights / costs["weights"]})
    head = [{"projections": 1000, "classes": c, "seconds_per_image": 2000 * c / costs["scores"]} for c in (10, 100)]
    moved = [
        {"workers": w, "megabytes": mb, "seconds": costs["latency"] + tool.count_moved(mb * 1e6, w) / costs["bandwidth"]}
        for w in (2, 4)
        for mb in (1, 100)
    ]
    return {"forward": {"seconds_per_image": 0.01}, "sums": sums, "solve": solve, "head": head, "addition": moved}


def test_constants_are_recovered_from_what_they_cause(tool: ModuleType) -> None:
    costs = tool.fit_costs(make_device(tool))
    fitted = (costs.gram, costs.class_sums, costs.factor, costs.weights, costs.scores, costs.bandwidth, costs.latency)
    assert fitted == pytest.approx((1e12, 2e12, 3e12, 4e12, 5e12, 1e9, 1e-3), rel=1e-6)


def test_workers_share_the_images_and_dividing_classes_shares_the_rest(tool: ModuleType) -> None:
    costs = tool.fit_costs(make_device(tool))
    alone, many, divided = (
        tool.compute_seconds(tool.Setting(workers, 100_000, 10**7, divided=divided), costs)
        for workers, divided in ((1, False), (100, False), (100, True))
    )
    assert alone["network"] == 0
    assert many["forward"] == pytest.approx(alone["forward"] / 100)
    assert many["solution"] == alone["solution"]
    assert divided["solution"] < many["solution"] / 10
    assert divided["network"] < many["network"]
    memory = [tool.compute_memory(tool.Setting(100, 10**6, 0, divided=divided)) for divided in (False, True)]
    assert memory[0] > 160e9
    assert memory[1] < 4e9


def test_page_has_the_tables_of_the_measurements(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- (\w+) -->", text)) - {"end"} == set(tool.FORMATTERS)
    result = json.loads(tool.RESULT.read_text(encoding="utf-8"))
    assert tool.fill_page(text, result) == text, "write it again with python tools/scale_model.py"
