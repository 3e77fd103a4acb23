"""Runs as the command line starts them: flat settings, several seeds, and where each run is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from caprompt import methods
from caprompt.callbacks.events import Listener, together
from caprompt.callbacks.progress_bar import Display
from caprompt.callbacks.tensorboard import Board
from caprompt.callbacks.terminal_curve import Watch
from caprompt.cli import arguments
from caprompt.cli.console import err, tell_skipped, tell_warnings
from caprompt.cli.tables import run_table, seeds_table
from caprompt.errors import InputError, OptionError
from caprompt.experiments.execution import Results, RunConfig, read_plan, run
from caprompt.experiments.presets import preset
from caprompt.methods.components.batch_leak import ReleasedOptions
from caprompt.methods.options import check
from caprompt.protocols import kind, single

__all__ = ["run_config", "run_seeds"]

RUNS = Path("runs")


def run_seeds(
    given: Mapping[str, Any],
    preset_name: str,
    seeds: int,
    folder: Path | None,
    resume: bool,
    skip_bad: bool,
    device: str,
    console: Console,
    *,
    watch: bool = False,
    tensorboard: bool = False,
) -> list[Results]:
    """Run one experiment per seed and print what came out; with `watch` also the accuracy curve after each task."""
    if seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    config = run_config({**preset_settings(preset_name, given), **given})
    found: dict[int, Results] = {}
    for seed in range(config.seed, config.seed + seeds):
        seeded = config.model_copy(update={"seed": seed})
        home = run_folder(seeded, folder, resume, several=seeds > 1)
        others: list[Listener] = [Watch(console)] if watch else []
        if tensorboard:
            others.append(Board(home / "tensorboard"))
        with Display(err) as display:
            listen = together(display, *others)
            found[seed] = run(seeded, home, resume=resume, skip_bad=skip_bad, device=device, listen=listen)
        plan = read_plan(home)
        tell_skipped(plan["skipped"])
        tell_warnings(plan.get("warnings", []))
        console.print(run_table(found[seed]))
        console.print(f"saved in {home}", soft_wrap=True)
    console.print(seeds_table(found))
    console.print(f"{title(config)} on {config.dataset}, backbone {config.backbone}", soft_wrap=True)
    protocol = single(results.protocol for results in found.values())
    console.print(f"protocol {protocol}", style="dim" if kind(protocol) == "honest" else "bold yellow")
    return list(found.values())


def preset_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset says where these settings are given."""
    usual = RunConfig()
    method, dataset, backbone = (str(given.get(key, getattr(usual, key))) for key in ("method", "dataset", "backbone"))
    return preset(name, method, dataset, backbone, given)


def run_config(given: Mapping[str, Any]) -> RunConfig:
    """The configuration of a run from flat settings: a run's own, and options of its method."""
    method = str(given.get("method", RunConfig.model_fields["method"].default))
    given = checked_protocol(given, method)
    own = [name for name in RunConfig.model_fields if name != "options"]
    chosen, options = arguments.divided(given, own, list(methods.find(method).options_class.model_fields), owner=method)
    check(methods.find(method).options_class, options, owner=method)
    return check(RunConfig, {**chosen, "options": options}, owner="run")


def checked_protocol(given: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Settings whose protocol the method has; one without a leaking program is honest in any case."""
    leaking = [name for name, each in methods.registered().items() if issubclass(each.options_class, ReleasedOptions)]
    if method in leaking or "protocol" not in given:
        return given
    if given["protocol"] != "honest":
        raise OptionError(f"{method} is always honest; the protocol '{given['protocol']}' is there for: {', '.join(leaking)}")
    return {name: value for name, value in given.items() if name != "protocol"}


def run_folder(config: RunConfig, given: Path | None, resume: bool, several: bool) -> Path:
    """Where a run is kept: the given folder, or one named after the run, numbered where that is taken.

    With `resume`, the unfinished run like this; among several seeds also a finished one (there is nothing left to do)
    or, for a seed that was not begun, a new one.
    """
    if given is not None:
        return given / f"seed{config.seed}" if several else given
    earlier: list[Path] = []
    for place in places(config):
        if not place.exists():
            break
        if same_run(place, config):
            earlier.append(place)
    if not resume:
        return place
    unfinished = [folder for folder in earlier if not Results.load(folder).finished]
    if unfinished:
        return unfinished[-1]
    if not several:
        raise InputError(f"there is no unfinished run like this under '{RUNS}'; start it without --resume")
    return earlier[-1] if earlier else place


def places(config: RunConfig) -> Iterator[Path]:
    """The names that runs like this get, one after another."""
    backbone = Path(config.backbone).name.removesuffix(".safetensors")
    name = f"{Path(config.dataset).stem}-{title(config)}-{backbone}-seed{config.seed}"
    yield RUNS / name
    for number in count(2):
        yield RUNS / f"{name}-{number}"


def title(config: RunConfig) -> str:
    """The method of a run, whether it leaks, and whether it is the joint upper bound."""
    marks = {"released": config.options.get("protocol") == "released", "joint": config.joint}
    return "-".join([config.method, *(mark for mark, holds in marks.items() if holds)])


def same_run(folder: Path, config: RunConfig) -> bool:
    """Was the run in this folder started with this configuration?"""
    try:
        before = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(before == json.loads(config.model_dump_json()))
