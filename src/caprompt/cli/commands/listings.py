"""The commands `methods`, `backbones` and `datasets`, which list what is available."""

from __future__ import annotations

from caprompt.cli.console import err, out

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


def backbones() -> None:
    """List the backbones known by name and weights tag; the weights file of any plain ViT can be given by its path."""
    from caprompt.backbones.weights import count_parameters, list_backbones
    from caprompt.cli.tables import make_table

    rows = [
        (name, f"{count_parameters(c) / 1e6:.1f} M", f"{c.image_size}, {c.patch_size}", where)
        for name, c, where in list_backbones()
    ]
    out.print(make_table("backbones", ["name.tag", "size", "px, patch", "present"], rows))
    out.print("hub: downloaded when first used; by hand: the error message says which file to put where", soft_wrap=True)


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
