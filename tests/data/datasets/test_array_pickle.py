from __future__ import annotations

import os
import pickle
import resource
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caprompt.data.datasets._array_pickle import read_array_pickle
from caprompt.errors import DataError

CONTENT = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), b"fine_labels": [0, 1, 2], b"none": b""}


def is_equal(actual: Any, expected: Any) -> bool:
    return actual.keys() == expected.keys() and all(np.array_equal(actual[key], expected[key]) for key in expected)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_protocol(tmp_path: Path, protocol: int, order: Any) -> None:
    content = {**CONTENT, b"data": np.asarray(CONTENT[b"data"], order=order)}
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    assert is_equal(read_array_pickle(path), content)


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_module_names_of_numpy_1_and_2(tmp_path: Path, module: bytes) -> None:
    written = pickle.dumps(CONTENT, protocol=2)
    for name in (b"numpy._core.multiarray", b"numpy.core.multiarray"):
        written = written.replace(b"c" + name + b"\n", b"c" + module + b"\n")
    assert b"c" + module in written
    (tmp_path / "file").write_bytes(written)
    assert is_equal(read_array_pickle(tmp_path / "file"), CONTENT)


def test_python_2_pickle(tmp_path: Path) -> None:
    """The official files are of this kind: strings and array contents are bytes."""
    data = bytes(range(250, 256))
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01K\x02K\x03\x86" + dtype + b"\x89T" + struct.pack("<I", len(data)) + data + b"tb"
    (tmp_path / "file").write_bytes(b"\x80\x02}(U\x04data" + array + state + b"U\x04nameU\x05apple" + b"u.")
    content = read_array_pickle(tmp_path / "file")
    assert content[b"name"] == b"apple"
    assert content[b"data"].tolist() == [[250, 251, 252], [253, 254, 255]]


@pytest.mark.parametrize("dtype", ["<f4", ">i8", "?", ">u2"])
def test_other_dtypes(tmp_path: Path, dtype: str) -> None:
    array = np.array([0, 1, 1], dtype=dtype)
    (tmp_path / "file").write_bytes(pickle.dumps({"a": array}, protocol=2))
    content = read_array_pickle(tmp_path / "file")["a"]
    assert content.dtype == array.dtype
    assert np.array_equal(content, array)


class Calls:
    """An object that is pickled as a function call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_with_code_raises_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    evil = [Calls(os.mkdir, str(trace)), Calls(exec, f"open({str(trace)!r}, 'w')"), Calls(eval, "1"), Calls(getattr, "", "join")]
    for number, call in enumerate(evil):
        path = tmp_path / f"evil{number}"
        path.write_bytes(pickle.dumps({b"data": CONTENT[b"data"], b"x": call}, protocol=protocol))
        with pytest.raises(DataError, match=r"is refused: a pickle of arrays must not use '\w+\.\w+'"):
            read_array_pickle(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["numpy\nload", "numpy\nfromfile", "numpy.core.multiarray\nfromfile", "numpy._core.records\nrecarray"]
)
def test_other_numpy_functions_raise(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(f"c{name}\n.".encode())
    with pytest.raises(DataError, match="is refused"):
        read_array_pickle(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nndarray\n.",  # a bare type
        b"cnumpy\ndtype\n}U\x08__call__K\x01sb.",  # setting an attribute of a stub
        b"cnumpy\nndarray\n)\x81.",  # making an instance of it
        b"cnumpy\ndtype\nU\x02O8\x85R.",  # an array of objects
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R.",  # an array that is never filled
        b"",
        b"\xff\xfe",
    ],
)
def test_misuse_of_the_allowed_names_raises(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match="damaged or incomplete"):
        read_array_pickle(tmp_path / "file")


def test_object_arrays_and_deep_nesting_raise(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    for content in (np.array([1, "a"], dtype=object), np.zeros(2, dtype="i4,f4"), deep, {1, 2}):
        (tmp_path / "file").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(DataError):
            read_array_pickle(tmp_path / "file")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_file_raises(tmp_path: Path, share: float) -> None:
    complete = pickle.dumps(CONTENT, protocol=2)
    (tmp_path / "file").write_bytes(complete[: int(share * len(complete))])
    with pytest.raises(DataError, match="damaged or incomplete"):
        read_array_pickle(tmp_path / "file")


def get_peak_memory() -> int:
    """Return the most memory that this process has used, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def make_loop() -> Any:
    loop: list[Any] = []
    loop += [loop] * 200
    return loop


def make_lists_of_lists() -> Any:
    value: Any = [0] * 50
    for _ in range(6):
        value = [value] * 50  # 50 ** 7 zeros in the end
    return value


U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
HUGE = {
    "contains itself": pickle.dumps(make_loop(), protocol=2),
    "repeats its values": pickle.dumps(make_lists_of_lists(), protocol=2),
    "memorizes at a huge index": b"\x80\x02Nr\xff\xff\xff\x1f",
    "announces a huge text": b"\x80\x04\x8d" + struct.pack("<Q", 2**36) + b"abc.",
    "announces huge bytes": b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b"abc.",
    "an array of a number": b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(J\x00\x00\x00\x70"
    + U1
    + b"J\x00\x00\x00\x70\x85U\x01CtR.",
    "encodes one text many times": b"\x80\x02X"
    + struct.pack("<I", 10**5)
    + b"a" * 10**5
    + b"q\x000("
    + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 20_000
    + b"l.",
}


@pytest.mark.parametrize("content", HUGE.values(), ids=HUGE.keys())
def test_small_files_of_huge_content_raise_before_time_and_memory_are_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    before, start = get_peak_memory(), time.monotonic()
    with pytest.raises(DataError, match="damaged or incomplete"):
        read_array_pickle(tmp_path / "file")
    assert get_peak_memory() - before < 200
    assert time.monotonic() - start < 5


def test_names_of_functions_in_messages_are_short_and_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x80\x02c" + b"x\x0b\x1b[31m" + b"y" * 5000 + b"\nz\n.")
    with pytest.raises(DataError, match="must not use") as error:
        read_array_pickle(tmp_path / "file")
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 400
    assert "\x1b" not in str(error.value)
