"""Reading pickles of numpy arrays without executing any code of theirs.

A pickle is a program: it names functions and calls them. Here the few names that a pickled array
uses are resolved to stubs, which only record their arguments; every other name is refused before
anything is called.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caprompt.errors import DataError

__all__ = ["read_array_pickle"]

_CODES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})


def read_array_pickle(path: Path) -> Any:
    """Read a file of lists, dictionaries, scalars, strings and arrays.

    Strings of Python 2 become bytes.
    """
    try:
        with path.open("rb") as file:
            return _resolve(_ArrayUnpickler(file, encoding="bytes").load())
    except (DataError, OSError):
        raise
    except Exception as error:  # a truncated or altered pickle raises arbitrary exceptions
        raise DataError(f"'{path}' is damaged or incomplete: it is not a complete pickle of arrays; download it again") from error


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler that resolves only the names in array pickles of numpy 1 and 2.

    These include the two by which Python 3 writes bytes in protocol 2.
    """

    def __init__(self, file: Any, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.path = file.name

    def find_class(self, module: str, name: str) -> Any:
        stub = _STUBS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stub is None:
            raise DataError(f"'{self.path}' is refused: a pickle of arrays must not use '{module}.{name}'; get the official file")
        return stub


class _Stub:
    """A stateless stand-in: a pickle may call it but cannot modify it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a stub takes no state")


class _Type(_Stub):
    """`ndarray`: only named, as the type to be rebuilt."""

    __slots__ = ()


class _MakeDtype(_Stub):
    __slots__ = ()

    def __call__(self, code: str | bytes, *_: object) -> _Dtype:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        if name not in _CODES:
            raise pickle.UnpicklingError(f"an array of type {name!r}")
        return _Dtype(name)


class _Dtype:
    """A dtype; its state contains the byte order."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = np.dtype(f"<{code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order in (">", b">"):
            self.code = self.code.newbyteorder(">")
        elif order not in ("<", b"<", "|", b"|"):
            raise pickle.UnpicklingError(f"byte order {order!r}")


class _MakeArray(_Stub):
    """`_reconstruct(ndarray, (0,), b"b")`: an empty array, which is filled by its state."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _FromBuffer(_Stub):
    """`_frombuffer(bytes, dtype, shape, order)`: an array in protocol 5."""

    __slots__ = ()

    def __call__(self, data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
        array = _Array()
        array.__setstate__((1, shape, dtype, order == "F", bytes(data)))
        return array


class _Array:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data
        self.value = np.frombuffer(raw, dtype.code).reshape(shape, order="F" if fortran else "C")


class _Encode(_Stub):
    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
        return text.encode("latin1")


class _EmptyBytes(_Stub):
    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


_STUBS: dict[tuple[str, str], _Stub] = {
    ("numpy", "ndarray"): _Type(),
    ("numpy", "dtype"): _MakeDtype(),
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer(),
    ("_codecs", "encode"): _Encode(),
    ("__builtin__", "bytes"): _EmptyBytes(),
    ("builtins", "bytes"): _EmptyBytes(),
}


def _resolve(value: Any, depth: int = 0) -> Any:
    """Replace stubs by their arrays, recursively; CIFAR's files are nested two levels deep."""
    if depth > 8:
        raise pickle.UnpicklingError("nested too deeply")
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without content")
        return value.value
    if isinstance(value, dict):
        return {key: _resolve(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resolve(item, depth + 1) for item in value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__}")
