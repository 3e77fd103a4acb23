from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from helpers import tiny_vit
from pydantic import Field

from caprompt.errors import OptionError
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.search_space import Choices, Range, build_space
from caprompt.methods import get_method, list_methods, registry
from caprompt.methods.options import Options
from caprompt.methods.registry import build_method

optuna = pytest.importorskip("optuna", reason="optuna is not installed: pip install 'caprompt[tune]'")


@pytest.mark.parametrize("method", list(list_methods()))
def test_every_method_has_a_space_of_valid_options_around_its_default(method: str) -> None:
    config = RunConfig(dataset="digits", method=method)
    space, defaults = build_space(config), resolve_config(config).options
    assert space
    for name, domain in space.items():
        assert domain.contains(defaults[name]) or defaults[name] == "auto", name
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    vit = tiny_vit()
    for _ in range(5):
        parameters = study.ask({name: domain.make_distribution() for name, domain in space.items()}).params
        options = {name: domain.decode(parameters[name]) for name, domain in space.items()}
        assert all(domain.contains(options[name]) for name, domain in space.items())
        built = build_method(method, vit, {**options, "projections": 50} if "projections" in defaults else options)
        assert {name: getattr(built.options, name) for name in options if name != "projections"} == {
            name: value for name, value in options.items() if name != "projections"
        }


class ExampleOptions(Options):
    width: int = Field(8, ge=1)
    even: int = Field(10, ge=2, multiple_of=2)
    share: float = Field(0.5, ge=0, lt=1)
    rate: float = Field(0.2, gt=0)
    off: float = Field(0.0, ge=0)
    kind: Literal["a", "b"] = "a"
    deep: bool = False
    scale: float = Field(20.0, gt=0)


@pytest.fixture
def example() -> Iterator[str]:
    """Register a method of another package, which has no table, and return its name."""

    class Example(get_method("linear")):  # type: ignore[misc]
        options_class = ExampleOptions

    registry.register("search-example")(Example)
    yield "search-example"
    del registry._REGISTRY["search-example"]


def test_domains_follow_from_types_bounds_and_defaults(example: str) -> None:
    space = build_space(RunConfig(method=example, options={"learning_rate": "auto"}))
    assert space == {
        "learning_rate": Range(0.0003, 0.03, log=True),  # around the default of all methods
        "epochs": Range(2, 20, integer=True, log=True),
        "crop_scale": Choices(((0.05, 1.0), (0.3, 1.0), (0.6, 1.0), (0.8, 1.0))),
        "width": Range(2, 32, integer=True, log=True),
        "even": Range(4, 40, integer=True, step=2),
        "share": Range(0.0, 0.95),
        "rate": Range(0.02, 2.0, log=True),
        "kind": Choices(("a", "b")),
        "deep": Choices((False, True)),
    }


def test_requests_replace_the_list_and_the_domains(example: str) -> None:
    requested: dict[str, Any] = {"even": {"low": 4, "high": 8}, "off": {"choices": [0, 0.5]}, "scale": None}
    space = build_space(RunConfig(method=example), requested=requested)
    assert space["even"] == Range(4, 8, integer=True, step=2)
    assert space["off"] == Choices((0.0, 0.5))
    assert space["scale"] == Range(2.0, 200.0, log=True)
    assert "width" not in space
    assert "width" not in build_space(RunConfig(method=example), fixed=["width"])


@pytest.mark.parametrize(
    ("requested", "fixed", "sentence"),
    [
        ({"wdth": None}, (), "unknown option 'wdth' for search-example .did you mean 'width'"),
        ({"off": None}, (), "no range is known for option 'off' of search-example; give one, such as off=0..1"),
        ({"kind": {"low": 0, "high": 1}}, (), "option 'kind' of search-example cannot be|is not a number"),
        ({"width": {"low": 9, "high": 3}}, (), "the range of option 'width' of search-example should start below its end"),
        ({"learning_rate": {"low": "auto", "high": 3}}, (), "should have numbers as its ends; it is auto to 3"),
        ({"width": {"low": 0, "high": 3}}, (), "option 'width' of search-example cannot be '0'"),
        ({"width": {"choices": [1, "many"]}}, (), "option 'width' of search-example cannot be 'many'"),
        ({"width": None}, ("width",), "option 'width' of search-example is both set and searched"),
        (None, tuple(ExampleOptions.model_fields), "there is nothing to search"),
    ],
)
def test_requests_that_cannot_be_searched_are_refused(
    example: str, requested: dict[str, Any] | None, fixed: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        build_space(RunConfig(method=example), fixed, requested)
