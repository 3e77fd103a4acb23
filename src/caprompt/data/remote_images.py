"""Images at addresses such as s3://bucket/photos: listing and reading them, through fsspec or the file systems of pyarrow.

Options of pyarrow may follow a question mark: s3://bucket/photos?region=eu-north-1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.formats import FORMAT_LIST, is_image_name
from caprompt.errors import DataError, InputError, StorageError, first_line

__all__ = ["is_address", "list_remote_images", "read_remote_image"]


def is_address(text: str) -> bool:
    """Return whether a text is an address rather than a path.

    >>> is_address("s3://bucket/photos"), is_address("photos/s3"), is_address("C:/photos")
    (True, False, False)
    """
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.isalnum()


def list_remote_images(address: str) -> list[str]:
    """Return the addresses of all images below an address, at any depth, sorted; an image itself is returned alone."""
    system, root = _open(address)
    try:
        if system.isfile(root):
            return [address]
        names = sorted(name for name in system.find(root) if is_image_name(name.rpartition("/")[2]))
    except Exception as error:  # every file system has its own
        raise DataError(f"'{address}' cannot be listed ({first_line(error)}); check the address and your access to it") from error
    if not names:
        raise DataError(f"there is no image at '{address}'; name a place that has images ({FORMAT_LIST})")
    bare, mark, options = address.partition("?")
    return [f"{bare.rstrip('/')}{name[len(root.rstrip('/')) :]}{mark}{options}" for name in names]


def read_remote_image(address: str) -> EncodedImage:
    """Read an image file; raise `DataError` if there is none, `StorageError` if it cannot be read now."""
    system, path = _open(address)
    try:
        content = bytes(system.cat_file(path))
    except FileNotFoundError as error:
        raise DataError(f"'{address}' cannot be read ({first_line(error)})") from error
    except Exception as error:  # every file system has its own
        raise StorageError(f"'{address}' cannot be read ({first_line(error)})") from error
    return EncodedImage(lambda: content)


def _open(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    bare, _, options = address.partition("?")
    scheme, _, path = bare.partition("://")
    system, is_arrow = _connect(scheme, path.partition("/")[0], options)
    return system, path if is_arrow else str(system._strip_protocol(bare))


@lru_cache(maxsize=16)
def _connect(scheme: str, host: str, options: str) -> tuple[Any, bool]:
    """Return a file system, and whether it is one of pyarrow: where options are given, or fsspec has none installed."""
    import fsspec

    if not options:
        try:
            return fsspec.core.url_to_fs(f"{scheme}://{host}")[0], False
        except ImportError:
            pass
        except ValueError as error:
            raise InputError(f"addresses that begin with {scheme}:// cannot be read ({first_line(error)})") from error
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import FileSystem

        return ArrowFSWrapper(FileSystem.from_uri(f"{scheme}://{host}?{options}")[0]), True
    except ImportError:
        raise InputError(f"addresses that begin with {scheme}:// need an extra: pip install 'caprompt[cluster]'") from None
    except Exception as error:  # pyarrow has several
        raise InputError(f"addresses that begin with {scheme}:// cannot be read ({first_line(error)})") from error
