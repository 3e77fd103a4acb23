"""What the commands do beyond one call of the library: several seeds, where runs are kept, pictures in folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from caprompt import checkpoint, methods, settings
from caprompt.answers import Prediction
from caprompt.data.images import IMAGE_SUFFIXES, decode
from caprompt.errors import DataError, InputError, OptionError
from caprompt.experiment import PROTOCOL, Results, RunConfig, run
from caprompt.feeding import DECODE_FACTOR
from caprompt.learner import IN_PROGRESS, ContinualClassifier, call_was_stopped
from caprompt.options import check
from caprompt.progress import Display
from caprompt.tables import run_table, seeds_table

__all__ = ["name_pictures", "open_for_learning", "pictures_in", "run_seeds"]

RUNS = Path("runs")
CHUNK = 512  # pictures that are decoded and named together


def run_seeds(
    given: Mapping[str, Any], seeds: int, folder: Path | None, resume: bool, device: str, console: Console
) -> list[Results]:
    """Run one experiment per seed and print what came out."""
    if seeds < 1:
        raise OptionError(f"option 'seeds' must be at least 1, not {seeds}")
    config = run_config(given)
    summaries, found = {}, []
    for seed in range(config.seed, config.seed + seeds):
        seeded = config.model_copy(update={"seed": seed})
        home = run_folder(seeded, folder, resume, several=seeds > 1)
        with Display(Console(stderr=True)) as listen:
            results = run(seeded, home, resume=resume, device=device, listen=listen)
        found.append(results)
        summaries[seed] = results.summary()
        console.print(run_table(results))
        console.print(f"saved in {home}", highlight=False, soft_wrap=True)
    console.print(seeds_table(summaries))
    console.print(f"{config.method} on {config.dataset}, backbone {config.backbone}", highlight=False, soft_wrap=True)
    console.print(f"protocol {PROTOCOL}", highlight=False, style="dim")
    return found


def run_config(given: Mapping[str, Any]) -> RunConfig:
    """The configuration of a run from flat settings: a run's own, and options of its method."""
    method = str(given.get("method", RunConfig.model_fields["method"].default))
    own = [name for name in RunConfig.model_fields if name != "options"]
    chosen, options = settings.divided(given, own, list(methods.find(method).options_class.model_fields), owner=method)
    check(methods.find(method).options_class, options, owner=method)
    return check(RunConfig, {**chosen, "options": options}, owner="run")


def run_folder(config: RunConfig, given: Path | None, resume: bool, several: bool) -> Path:
    """Where a run is kept: the given folder, or one named after the run, numbered where that is taken."""
    if given is not None:
        return given / f"seed{config.seed}" if several else given
    name = (
        f"{Path(config.dataset).stem}-{config.method}-{Path(config.backbone).name.removesuffix('.safetensors')}-seed{config.seed}"
    )
    taken = [path for path in (RUNS / name, *(RUNS / f"{name}-{n}" for n in range(2, 1000))) if (path / "run.json").is_file()]
    unfinished = [path for path in taken if same_run(path, config) and not Results.load(path).finished]
    if resume:
        if not unfinished:
            raise InputError(f"there is no unfinished run like this under '{RUNS}'; start it without --resume")
        return unfinished[-1]
    return next(path for path in (RUNS / name, *(RUNS / f"{name}-{n}" for n in range(2, 1000))) if not path.exists())


def same_run(folder: Path, config: RunConfig) -> bool:
    """Was the run in this folder started with this configuration?"""
    try:
        before = json.loads((folder / "run.json").read_text())["config"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(before == json.loads(config.model_dump_json()))


def open_for_learning(folder: Path, given: Mapping[str, Any], resume: bool, restart: bool, device: str) -> ContinualClassifier:
    """The model in a folder, or a new one with these settings; settings of training belong to the model's beginning."""
    if resume:
        return resumable(folder, given, device)
    if call_was_stopped(folder) and not restart:
        raise InputError(f"learning was stopped in '{folder}'; go on with it with --resume, or give it up with --restart")
    if checkpoint.exists(folder):
        backbone = given.get("backbone")
        for name in given:
            if name != "backbone":
                raise OptionError(f"'{folder}' exists, and '{name}' can only be set when a model is begun")
        return ContinualClassifier.load(folder, backbone=backbone, device=device)
    if folder.exists() and (not folder.is_dir() or not only_leftovers(folder)):
        raise InputError(f"'{folder}' exists but is not a caprompt model; choose another name")
    method = str(given.get("method", "caprompt"))
    known = list(methods.find(method).options_class.model_fields)
    chosen, options = settings.divided(given, ["method", "backbone", "seed"], known, owner=method)
    return ContinualClassifier(device=device, **chosen, **options)


def resumable(folder: Path, given: Mapping[str, Any], device: str) -> ContinualClassifier:
    """The model whose learning was stopped."""
    if given:
        raise OptionError(f"a stopped call goes on as it began; leave out {', '.join(sorted(given))}")
    if not call_was_stopped(folder):
        raise InputError(f"nothing was stopped in '{folder}', so there is nothing to resume; learn without --resume")
    unfinished = ContinualClassifier.unfinished(folder, device=device)
    return unfinished or ContinualClassifier.load(folder, device=device)


def only_leftovers(folder: Path) -> bool:
    """Is there nothing in this folder, or only what a stopped first call left?"""
    return all(path.name in {IN_PROGRESS, ".next", ".ready"} for path in folder.iterdir())


def pictures_in(places: Sequence[Path]) -> list[Path]:
    """Image files, and those in folders at any depth."""
    if not places:
        raise InputError("no image was given; name files or folders of them")
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
            if not inside:
                raise DataError(f"there is no image in the folder '{place}'")
            found.extend(inside)
        else:
            found.append(place)
    return found


def name_pictures(
    model: ContinualClassifier, paths: Sequence[Path], top: int, skip_bad: bool, options: Mapping[str, Any]
) -> tuple[list[tuple[Path, Prediction]], list[str]]:
    """Predictions for the pictures that can be read, and a sentence about each that cannot (without `skip_bad`, an error)."""
    found: list[tuple[Path, Prediction]] = []
    skipped: list[str] = []
    for start in range(0, len(paths), CHUNK):
        good, pixels = [], []
        for path in paths[start : start + CHUNK]:
            try:
                pixels.append(decode(path, shrink_to=DECODE_FACTOR * model.backbone.config.image_size))
                good.append(path)
            except DataError as error:
                if not skip_bad:
                    raise
                skipped.append(str(error))
        if good:
            found.extend(zip(good, model.predict(pixels, top=top, **options), strict=True))
    if not found:
        raise DataError("none of the images can be read")
    return found, skipped
