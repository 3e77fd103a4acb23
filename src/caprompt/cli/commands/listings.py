"""The commands `methods`, `backbones` and `datasets`, which list what is available."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from caprompt.cli.console import err, out, print_table
from caprompt.errors import OptionError

__all__ = ["backbones", "datasets", "methods"]


def methods(name: str | None = None, /) -> None:
    """List the methods, or with a name the options of one: `caprompt methods caprompt`.

    Parameters
    ----------
    name
        Method whose options to list.
    """
    from caprompt.cli.tables import make_table
    from caprompt.methods import get_method, list_methods
    from caprompt.methods.options import describe_options

    if name is None:
        out.print(make_table("methods", ["name", "description"], [[key, method.summary] for key, method in list_methods().items()]))
        out.print("joint (all classes at once, the upper bound of each): caprompt run --joint --method NAME", soft_wrap=True)
    else:
        rows = [list(row) for row in describe_options(get_method(name).options_class)]
        out.print(make_table(f"options of {name}, for --set", ["option", "values", "default", "meaning"], rows))


def backbones(*, download: str | None = None) -> None:
    """List the backbones known by name and weights tag; the weights file of any plain ViT can be given by its path.

    Below the list is the one that `caprompt learn` chooses on this machine for a new model without --backbone, and why.

    Parameters
    ----------
    download
        Name of a backbone to download into the cache of the Hugging Face hub; nothing is listed then.
    """
    from caprompt.backbones.recommendation import describe_rule, find_present, recommend
    from caprompt.backbones.weights import count_parameters, list_backbones
    from caprompt.cli.backbone_choice import describe_recommendation, download_backbone
    from caprompt.cli.tables import make_table
    from caprompt.utils.devices import resolve_device

    if download is not None:
        path = download_backbone(download)
        out.print(f"{download} is at '{path}' ({', '.join(describe_file(download, path))})", soft_wrap=True)
        return
    rows = [
        (name, f"{count_parameters(config) / 1e6:.1f} M", str(config.image_size), *describe_file(name), where)
        for name, config, where in list_backbones()
    ]
    table = make_table("backbones", ["name.tag", "size", "px", "file", "license", "present"], rows)
    table.columns[0].overflow = "fold"  # a name that is cut off might be any of several
    print_table(table)
    out.print(
        "hub: downloaded with --download NAME, or when first used; by hand: --download says which file to put where", soft_wrap=True
    )
    gpu = resolve_device("auto").type != "cpu"
    choice = recommend(find_present(), gpu=gpu)
    out.print(f"caprompt learn chooses {describe_recommendation(choice, gpu=gpu)}", soft_wrap=True)
    out.print(f"The rule {'with' if gpu else 'without'} a GPU: {describe_rule(gpu=gpu)}", soft_wrap=True)


def describe_file(name: str, path: Path | None = None) -> tuple[str, str]:
    """Return the size of a backbone's weights file, on this machine or else on the hub, and the license of the weights."""
    from caprompt.backbones.registry import MODELS, find_local_file
    from caprompt.backbones.weights import PACKAGED_LICENSE, list_packaged

    model = MODELS.get(name)
    path = path or (find_local_file(model) if model else list_packaged()[name])
    size = path.stat().st_size / 1e6 if path else model.megabytes if model else None
    return "" if size is None else f"{size:.0f} MB", model.license if model else PACKAGED_LICENSE


def datasets(
    name: str | None = None,
    /,
    *,
    out_folder: Annotated[Path | None, Parameter(name="--out")] = None,
    classes: str | None = None,
    per_class: int | None = None,
    download: str | None = None,
) -> None:
    """List the datasets known by name and their paths, or with a name the classes of one; --out writes its images to a folder.

    Any folder with a sub-folder per class can be given by its path, wherever a command takes a dataset.

    Examples:

        caprompt datasets
        caprompt datasets --download cub200
        caprompt datasets beetles
        caprompt datasets beetles --out photos --classes ringed,arrowed --per-class 12

    Parameters
    ----------
    name
        Dataset whose classes to list, or whose images to write.
    out_folder
        Folder to write images to, as train/CLASS/0001.png and test/CLASS/0001.png; it must be new or empty.
    classes
        Names of classes, separated by commas; by default all.
    per_class
        Number of training and of test images of each class, at most; by default all.
    download
        Name of a dataset to download first, into $CAPROMPT_DATA or else ~/.cache/caprompt/data.
    """
    from rich.progress import DownloadColumn, Progress

    from caprompt.cli.tables import make_table
    from caprompt.data.datasets.registry import DATASETS, download_dataset

    if name is None and (out_folder, classes, per_class) != (None, None, None):
        raise OptionError("these flags are for the images of one dataset; name it, as in 'caprompt datasets beetles --out photos'")
    if download is not None:
        with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err, transient=True) as bar:
            task = bar.add_task(download, total=None)
            download_dataset(download, lambda done, total: bar.update(task, completed=done, total=total or None))
    if name is not None:
        describe_images(name, out_folder, classes, per_class)
        return
    rows = [[name, info.description, info.describe_location()] for name, info in DATASETS.items()]
    out.print(make_table("datasets", ["name", "description", "where"], rows))


def describe_images(name: str, folder: Path | None, classes: str | None, per_class: int | None) -> None:
    """Print which images a dataset has, after writing them to a folder if one is given."""
    from caprompt.data.datasets.folder_copy import check_folder, select_images, write_folders
    from caprompt.data.datasets.registry import load_dataset

    if folder is not None:
        check_folder(folder)
    names = [part.strip() for part in classes.split(",")] if classes else []
    dataset = select_images(load_dataset(name), names, per_class)
    if folder is not None:
        write_folders(dataset, folder)
    train, test = len(dataset.train), len(dataset.test)
    listed = f"{len(dataset.train.classes)} classes: {', '.join(dataset.train.classes)}"
    if folder is None:
        out.print(f"{dataset.name}: {train:,} training and {test:,} test images of {listed}", soft_wrap=True)
    else:
        out.print(f"Wrote {train:,} images to '{folder / 'train'}' and {test:,} to '{folder / 'test'}', {listed}", soft_wrap=True)
