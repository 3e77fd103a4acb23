from __future__ import annotations

import io

import pytest
from helpers import square
from PIL import Image

from caprompt.errors import DataError
from caprompt.serve.decoding import MAX_SCANS, SCAN, decode_untrusted


def write_progressive(repetitions: int) -> bytes:
    """Return a progressive JPEG file with its last scan many times."""
    file = io.BytesIO()
    Image.fromarray(square("red", 0)).save(file, "JPEG", progressive=True)
    content, end = file.getvalue()[:-2], file.getvalue()[-2:]
    return content + content[content.rindex(b"\xff\xda") :] * repetitions + end


def test_a_jpeg_with_many_scans_is_refused() -> None:
    assert 2 < len(SCAN.findall(write_progressive(0))) < 20
    assert decode_untrusted(write_progressive(20), 10_000, 16).shape[2] == 3
    with pytest.raises(DataError, match="more than 100 scans, which would take long to decode; save it as an ordinary JPEG"):
        decode_untrusted(write_progressive(MAX_SCANS), 10_000, 16)
