"""Search spaces of hyperparameter studies: which options of a method are varied, and between which values.

A domain is derived from an option's type, bounds and default:
    bool, Literal          every value
    int                    a quarter of the default to four times the default
    float with two bounds  everything between them
    other float            a tenth of the default to ten times the default, on a log scale
and stays within the bounds. Where the default is "auto", that of `Options` stands in. `search_spaces.toml` lists the options that
are searched for each method, and has domains where these rules find none or a poor one. The caller can override both.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic.fields import FieldInfo

from caprompt.errors import OptionError, UnknownOptionError
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.methods import get_method
from caprompt.methods.options import Options, validate_options
from caprompt.utils.files import read_toml

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Choices", "Domain", "Range", "Spec", "build_space"]

TABLES = Path(__file__).with_name("search_spaces.toml")
EVERY_METHOD, SEARCHED = "*", "options"
DIGITS = 3  # significant digits of a float; more are noise
#: Options that change no prediction, or what is measured; they are not searched unless they are named.
NOT_SEARCHED = {"protocol", "scale", "ridge_scale", "keep_features"}

Spec = Mapping[str, Any]  # {"low": 1, "high": 8} or {"choices": [1, 2, 4]}


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    integer: bool = False
    log: bool = False
    step: int = 1  # of integers

    def make_distribution(self) -> BaseDistribution:
        """Return the distribution that Optuna samples from."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=self.step)
        return FloatDistribution(self.low, self.high, log=self.log)

    def contains(self, value: object) -> bool:
        """Return whether a value is one of these numbers."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        return not self.integer or (value - self.low) % self.step == 0

    def decode(self, parameter: Any) -> Any:
        """Return the value of an option for a number that Optuna has sampled: a float is rounded.

        >>> Range(0.001, 0.1).decode(0.0123456), Range(2, 8, integer=True).decode(4)
        (0.0123, 4)
        """
        if self.integer:
            return int(parameter)
        return min(max(_round(parameter), self.low), self.high)

    def encode(self, value: Any) -> Any:
        """Return the number that Optuna stores for the value of an option."""
        return value

    def widen(self, value: object) -> Range:
        """Return the smallest range that also has this value, if it is a number.

        >>> Range(500, 10_000, integer=True, log=True).widen(200), Range(0.0, 0.3).widen("auto")
        (Range(low=200, high=10000, integer=True, log=True, step=1), Range(low=0.0, high=0.3, integer=False, log=False, step=1))
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)) or self.contains(value):
            return self
        low, high = min(self.low, value), max(self.high, value)
        return replace(self, low=low, high=high, log=self.log and low > 0)

    def describe(self) -> str:
        """Return the range as text.

        >>> Range(0.0003, 0.03, log=True).describe(), Range(2, 8, integer=True, step=2).describe()
        ('0.0003 to 0.03, log scale', '2 to 8 in steps of 2')
        """
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{self.low:g} to {self.high:g}{steps}{', log scale' if self.log else ''}"


@dataclass(frozen=True)
class Choices:
    """Values without an order."""

    values: tuple[Any, ...]

    def make_distribution(self) -> BaseDistribution:
        """Return the distribution that Optuna samples from: texts, since it cannot store a tuple."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([self.encode(value) for value in self.values])

    def contains(self, value: object) -> bool:
        """Return whether a value is one of the choices."""
        return self.encode(value) in [self.encode(each) for each in self.values]

    def decode(self, parameter: Any) -> Any:
        """Return the value of an option for a text that Optuna has sampled."""
        return {self.encode(value): value for value in self.values}[parameter]

    def encode(self, value: Any) -> Any:
        """Return the text that Optuna stores for the value of an option.

        >>> Choices(((0.3, 1.0), (1.0, 1.0))).encode((0.3, 1.0)), Choices(("adam", "sgd")).encode("sgd")
        ('0.3,1.0', 'sgd')
        """
        if isinstance(value, str):
            return value
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else json.dumps(value)

    def widen(self, value: object) -> Choices:
        """Return the choices and this value."""
        return self if self.contains(value) else Choices((value, *self.values))

    def describe(self) -> str:
        """Return the choices as text.

        >>> Choices((True, False)).describe()
        'true / false'
        """
        return " / ".join(str(self.encode(value)) for value in self.values)


Domain = Range | Choices


def build_space(
    config: RunConfig, fixed: Collection[str] = (), requested: Mapping[str, Spec | None] | None = None
) -> dict[str, Domain]:
    """Return the domain of each option that a study varies.

    `fixed` are options that the caller has set, which are not searched. `requested` replaces the list of the method; None stands
    for the domain that would be taken without a request.
    """
    method = config.method
    options_class, defaults = get_method(method).options_class, resolve_config(config).options
    for name in requested or ():
        if name not in options_class.model_fields:
            raise UnknownOptionError(name, method, options_class.model_fields)
        if name in fixed:
            raise OptionError(f"option '{name}' of {method} is both set and searched; do one of them")
    names = list(requested) if requested else [name for name in _list_searched(method) if name not in fixed]
    space: dict[str, Domain] = {}
    for name in names:
        spec = (requested or {}).get(name)
        if spec is not None:
            space[name] = _make_domain(options_class, method, name, spec, config.options)
            continue
        domain = _find_domain(options_class, method, name, defaults[name])
        if domain is None and requested:
            raise OptionError(
                f"no range is known for option '{name}' of {method}; give one, such as {name}=0..1, or values as {name}=0/0.5/1"
            )
        if domain is not None:
            space[name] = domain
    if not space:
        raise OptionError(f"there is nothing to search: every option of {method} that could be searched is set")
    return space


def _list_searched(method: str) -> list[str]:
    """Return the options that are searched for a method; one that has no table has its own options besides those of all methods."""
    tables, options_class = read_toml(TABLES), get_method(method).options_class
    if method in tables:
        return list(tables[method][SEARCHED])
    own = [name for name in options_class.model_fields if name not in Options.model_fields and name not in NOT_SEARCHED]
    return [*tables[EVERY_METHOD][SEARCHED], *own]


def _find_domain(options_class: type[Options], method: str, name: str, default: Any) -> Domain | None:
    """Return the domain of an option, from the tables or by the rules; None if there is none."""
    tables = read_toml(TABLES)
    spec = tables.get(method, {}).get(name) or tables[EVERY_METHOD].get(name)
    if spec is not None:
        return _make_domain(options_class, method, name, spec, {}).widen(default)
    return _derive_domain(options_class.model_fields[name], _stand_in(name, default))


def _stand_in(name: str, default: Any) -> Any:
    """Return the default of `Options` for an option whose default, such as "auto", has no scale."""
    return Options.model_fields[name].default if isinstance(default, str) and name in Options.model_fields else default


def _make_domain(options_class: type[Options], method: str, name: str, spec: Spec, others: Mapping[str, Any]) -> Domain:
    """Return the domain of a specification; raise `OptionError` where it does not suit the option."""

    def check(value: Any) -> Any:
        return getattr(validate_options(options_class, {**others, name: value}, owner=method), name)

    if "choices" in spec:
        return Choices(tuple(dict.fromkeys(check(value) for value in spec["choices"])))
    number = _find_number(options_class.model_fields[name])
    if number is None:
        raise OptionError(f"option '{name}' of {method} is not a number; give the values to search as {name}=a/b/c")
    low, high = check(spec["low"]), check(spec["high"])
    if isinstance(low, str) or isinstance(high, str):
        raise OptionError(f"the range of option '{name}' of {method} should have numbers as its ends; it is {low} to {high}")
    if not low < high:
        raise OptionError(f"the range of option '{name}' of {method} should start below its end; it is {low} to {high}")
    return _make_range(number, low, high)


# -- derived from the declaration of an option ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Number:
    """What the type of an option says about its numbers."""

    integer: bool
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    step: int = 1


def _derive_domain(field: FieldInfo, default: Any) -> Domain | None:
    """Return the domain that follows from type, bounds and default of an option."""
    if field.annotation is bool:
        return Choices((False, True))
    if typing.get_origin(field.annotation) is Literal:
        return Choices(typing.get_args(field.annotation))
    number = _find_number(field)
    if number is None or not isinstance(default, (int, float)):
        return None
    if not number.integer and math.isfinite(number.low) and math.isfinite(number.high):
        margin = (number.high - number.low) / 20
        return Range(number.low + margin * number.open_low, number.high - margin * number.open_high)
    if default <= 0:
        return None  # 0 has no scale
    factor = 4 if number.integer else 10
    low, high = _round(default / factor), _round(default * factor)
    return _make_range(number, max(number.low, low), min(number.high, high)).widen(default)


def _make_range(number: _Number, low: float, high: float) -> Range:
    """Return a range of numbers of this type, on a log scale where it is wide."""
    if not number.integer:
        return Range(float(low), float(high), log=low > 0 and high >= 10 * low)
    low, high = math.ceil(low / number.step) * number.step, math.floor(high / number.step) * number.step
    return Range(low, high, integer=True, log=number.step == 1 and low > 0 and high >= 8 * low, step=number.step)


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _find_number(field: FieldInfo) -> _Number | None:
    """Return what an annotation such as `Annotated[int, Field(ge=1)] | Literal["auto"]` says; None where no part is a number."""
    is_union = typing.get_origin(field.annotation) in (types.UnionType, typing.Union)
    for part in typing.get_args(field.annotation) if is_union else (field.annotation,):
        kind, constraints = part, list(field.metadata)
        if typing.get_origin(part) is typing.Annotated:
            kind, *annotations = typing.get_args(part)
            constraints += [each for info in annotations if isinstance(info, FieldInfo) for each in info.metadata]
        if kind in (int, float):
            return _read_constraints(kind is int, constraints)
    return None


def _read_constraints(integer: bool, constraints: Collection[Any]) -> _Number:
    found = {
        name: getattr(each, name) for each in constraints for name in ("ge", "gt", "le", "lt", "multiple_of") if hasattr(each, name)
    }
    return _Number(
        integer,
        low=found.get("ge", found.get("gt", -math.inf)),
        high=found.get("le", found.get("lt", math.inf)),
        open_low="gt" in found,
        open_high="lt" in found,
        step=found.get("multiple_of", 1),
    )
