"""The command `pull`: copy a model from the Hugging Face hub into a folder."""

from __future__ import annotations

from pathlib import Path

from caprompt.cli.console import out

__all__ = ["pull"]


def pull(name: str, folder: Path, *, revision: str | None = None) -> None:
    """Copy a model from the Hugging Face hub into a folder.

    Only safetensors and JSON files are read; a repository with a pickle is refused. The commit is printed, and written to hub.json
    in the folder.

    Examples:

        caprompt pull me/pets pets
        caprompt pull me/pets pets --revision 0123456789abcdef0123456789abcdef01234567

    Parameters
    ----------
    name
        Repository, as owner/name.
    folder
        Folder of the model to create.
    revision
        Hash of a commit, a tag or a branch; by default the newest commit.
    """
    from caprompt.export.hub import pull_model

    download = pull_model(name, folder, revision)
    out.print(f"{name}, revision {download.revision}, is now in '{download.folder}'", soft_wrap=True)
