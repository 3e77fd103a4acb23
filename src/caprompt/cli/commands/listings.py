"""The commands that list what there is: methods and their options, backbones, data sets."""

from __future__ import annotations

from caprompt.cli.console import err, out

__all__ = ["backbones", "datasets", "methods"]


def methods(name: str | None = None, /) -> None:
    """List the methods, or with a name all options of one: `caprompt methods caprompt`.

    Parameters
    ----------
    name
        The method whose options are wanted.
    """
    from caprompt.cli.tables import listing
    from caprompt.methods import get_method, list_methods
    from caprompt.methods.options import describe_options

    if name is None:
        out.print(listing("methods", ["name", "what it is"], [[key, method.summary] for key, method in list_methods().items()]))
        out.print("joint (all classes at once, the upper bound of each): caprompt run --joint --method NAME", soft_wrap=True)
    else:
        rows = [list(row) for row in describe_options(get_method(name).options_class)]
        out.print(listing(f"options of {name}, for --set", ["option", "values", "default", "meaning"], rows))


def backbones() -> None:
    """List the backbones known by name and weights tag; any plain ViT's weights file works by its path."""
    from caprompt.backbones.weights import count_parameters, list_backbones
    from caprompt.cli.tables import listing

    shapes = [
        (name, f"{count_parameters(c) / 1e6:.1f} M", f"{c.image_size}, {c.patch_size}", where)
        for name, c, where in list_backbones()
    ]
    out.print(listing("backbones", ["name.tag", "size", "px, patch", "present"], shapes))
    out.print("hub: fetched when first used; by hand: use one to be told which file to put where", soft_wrap=True)


def datasets(*, download: str | None = None) -> None:
    """List the data sets known by name and where they lie; any folder with a sub-folder per class works by its path.

    Parameters
    ----------
    download
        Get this one from its makers first, into the folder $CAPROMPT_DATA or else ~/.cache/caprompt/data.
    """
    from rich.progress import DownloadColumn, Progress

    from caprompt.cli.tables import listing
    from caprompt.data.datasets.registry import DATASETS, download_dataset

    if download is not None:
        with Progress(*Progress.get_default_columns(), DownloadColumn(), console=err, transient=True) as bar:
            task = bar.add_task(download, total=None)
            download_dataset(download, lambda here, total: bar.update(task, completed=here, total=total or None))
    rows = [[name, info.description, info.whereabouts()] for name, info in DATASETS.items()]
    out.print(listing("data sets", ["name", "what it is", "where"], rows))
