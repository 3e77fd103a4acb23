"""Reading pickles of numpy arrays without executing any code of theirs.

A pickle is a program: it names functions and calls them. Here the few names that a pickled array
uses are resolved to stubs, which only record their arguments; every other name is refused before
anything is called. What a file declares takes memory only as far as the file has the bytes for it.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from caprompt.errors import DataError
from caprompt.utils.text import escape_controls

__all__ = ["read_array_pickle"]

_CODES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})


def read_array_pickle(path: Path) -> Any:
    """Read a file of lists, dictionaries, scalars, strings and arrays.

    Strings of Python 2 become bytes.
    """
    try:
        with path.open("rb") as file:
            unpickler = _ArrayUnpickler(file, path)
            return _resolve(unpickler.load(), unpickler.budget)
    except (DataError, OSError):
        raise
    except Exception as error:  # a truncated or altered pickle raises arbitrary exceptions
        raise DataError(f"'{path}' is damaged or incomplete: it is not a complete pickle of arrays; download it again") from error


class _Budget:
    """The values and bytes that may still be made of a file: a few times its size, as it can refer to one value many times."""

    def __init__(self, size: int) -> None:
        self.left = 4 * size

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise pickle.UnpicklingError("it expands to far more than its size")


class _BoundedFile:
    """A file from which no more can be requested than it has: the request alone would take the memory."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size = file, size
        self.readline = file.readline

    def read(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise pickle.UnpicklingError("it ends too early")
        return self.file.read(count)


# The unpickler in C allocates as many places for memorized values as a file says that it has; the
# one in Python stores those that come.
class _ArrayUnpickler(pickle._Unpickler):
    """An unpickler that resolves only the names in array pickles of numpy 1 and 2.

    These include the two by which Python 3 writes bytes in protocol 2.
    """

    read: Callable[[int], bytes]
    append: Callable[[object], None]

    def __init__(self, file: IO[bytes], path: Path) -> None:
        size = path.stat().st_size
        super().__init__(_BoundedFile(file, size), encoding="bytes")
        self.path, self.budget = path, _Budget(size)

    def load_bytearray8(self) -> None:
        """Read before the memory is allocated, not after."""
        (count,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(count)))

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}

    def find_class(self, module: str, name: str) -> Any:
        stub = _STUBS.get((module.replace("numpy._core.", "numpy.core."), name))
        if stub is None:
            used = escape_controls(f"{module}.{name}")[:100]
            raise DataError(f"'{self.path}' is refused: a pickle of arrays must not use '{used}'; get the official file")
        return stub(self.budget)


class _Stub:
    """A stand-in: a pickle may call it but cannot modify it."""

    __slots__ = ("budget",)

    def __init__(self, budget: _Budget) -> None:
        self.budget = budget

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
        return _Array(self.budget)


class _FromBuffer(_Stub):
    """`_frombuffer(bytes, dtype, shape, order)`: an array in protocol 5."""

    __slots__ = ()

    def __call__(self, data: Any, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
        array = _Array(self.budget)
        array.__setstate__((1, shape, dtype, order == "F", data))
        return array


class _Array:
    __slots__ = ("budget", "value")

    def __init__(self, budget: _Budget) -> None:
        self.budget = budget
        self.value: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(data, (str, bytes, bytearray)):
            raise pickle.UnpicklingError(f"an array of a {type(data).__name__}")
        self.budget.spend(len(data))
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.value = np.frombuffer(raw, dtype.code).reshape(shape, order="F" if fortran else "C")


class _Encode(_Stub):
    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
        self.budget.spend(len(text))
        return text.encode("latin1")


class _EmptyBytes(_Stub):
    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


_STUBS: dict[tuple[str, str], type[_Stub]] = {
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _MakeDtype,
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("_codecs", "encode"): _Encode,
    ("__builtin__", "bytes"): _EmptyBytes,
    ("builtins", "bytes"): _EmptyBytes,
}


def _resolve(value: Any, budget: _Budget, depth: int = 0) -> Any:
    """Replace stubs by their arrays, recursively; CIFAR's files are nested two levels deep."""
    budget.spend(1)
    if depth > 8:
        raise pickle.UnpicklingError("nested too deeply")
    if isinstance(value, _Array):
        if value.value is None:
            raise pickle.UnpicklingError("an array without content")
        return value.value
    if isinstance(value, dict):
        return {key: _resolve(item, budget, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resolve(item, budget, depth + 1) for item in value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__}")
