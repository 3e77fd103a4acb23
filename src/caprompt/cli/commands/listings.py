"""The commands `methods`, `backbones` and `datasets`, which list what is available."""

from __future__ import annotations

from pathlib import Path

from caprompt.cli.console import err, out, print_table

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


def datasets(*, download: str | None = None) -> None:
    """List the datasets known by name and their paths; any folder with a sub-folder per class can be given by its path.

    Parameters
    ----------
    download
        Name of a dataset to download first, into $CAPROMPT_DATA or else ~/.cache/caprompt/data.
    """
    from rich.progress import DownloadColumn, Progress

    from caprompt.cli.tables import make_table
    from caprompt.data.datasets.registry import DATASETS, download_dataset

    if download is not None:
        with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err, transient=True) as bar:
            task = bar.add_task(download, total=None)
            download_dataset(download, lambda done, total: bar.update(task, completed=done, total=total or None))
    rows = [[name, info.description, info.describe_location()] for name, info in DATASETS.items()]
    out.print(make_table("datasets", ["name", "description", "where"], rows))
