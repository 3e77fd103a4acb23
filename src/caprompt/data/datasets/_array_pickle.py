"""Pickles of numpy arrays, read without running anything they say.

A pickle is a program: it names functions and calls them. Here the few names that an array's pickle uses stand for stubs of
our own, which take down what they are given; every other name is refused before anything is called.
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
    """The lists, dictionaries, numbers, strings and arrays in the file; Python 2's strings come as bytes."""
    try:
        with path.open("rb") as file:
            return _plain(_ArraysOnly(file, encoding="bytes").load())
    except (DataError, OSError):
        raise
    except Exception as error:  # cut or altered, a pickle fails in whatever way its next byte happens to mean
        raise DataError(f"'{path}' is damaged or incomplete: it is not a whole pickle of arrays; get it anew") from error


class _ArraysOnly(pickle.Unpickler):
    """Knows the names in arrays' pickles of numpy 1 and 2, and the two by which Python 3 spells bytes for Python 2."""

    def __init__(self, file: Any, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.path = file.name

    def find_class(self, module: str, name: str) -> Any:
        stub = _STUBS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stub is None:
            raise DataError(
                f"'{self.path}' is refused: a pickle of arrays has no use for '{module}.{name}'; get it from its makers"
            )
        return stub


class _Stub:
    """A stand-in without state: a pickle may call it and can change nothing of it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a stand-in takes no state")


class _Type(_Stub):
    """numpy's ndarray: only ever named, as what is to be rebuilt."""

    __slots__ = ()


class _MakeDtype(_Stub):
    __slots__ = ()

    def __call__(self, code: str | bytes, *_: object) -> _Dtype:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        if name not in _CODES:
            raise pickle.UnpicklingError(f"an array of type {name!r}")
        return _Dtype(name)


class _Dtype:
    """A type of numbers; its state tells the order of bytes."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = np.dtype(f"<{code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order in (">", b">"):
            self.code = self.code.newbyteorder(">")
        elif order not in ("<", b"<", "|", b"|"):
            raise pickle.UnpicklingError(f"an order of bytes {order!r}")


class _MakeArray(_Stub):
    """`_reconstruct(ndarray, (0,), b"b")`: an empty array, to be filled by its state."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _FromBuffer(_Stub):
    """`_frombuffer(bytes, dtype, shape, order)`: how protocol 5 spells an array."""

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
            raise pickle.UnpicklingError(f"bytes spelled in {encoding!r}")
        return text.encode("latin1")


class _NoBytes(_Stub):
    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


_STUBS: dict[tuple[str, str], _Stub] = {
    ("numpy", "ndarray"): _Type(),
    ("numpy", "dtype"): _MakeDtype(),
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer(),
    ("_codecs", "encode"): _Encode(),
    ("__builtin__", "bytes"): _NoBytes(),
    ("builtins", "bytes"): _NoBytes(),
}


def _plain(value: Any, depth: int = 0) -> Any:
    """The same with arrays in place of our stand-ins; CIFAR's files nest two deep."""
    if depth > 8:
        raise pickle.UnpicklingError("too deep")
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without content")
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, depth + 1) for item in value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__}")
