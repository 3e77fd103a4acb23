from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, features

from caprompt.data.formats import FORMATS, IMAGE_SUFFIXES, identify_format, is_image_name, list_pillow_formats

SIGNED = [each for each in FORMATS if each.signature]


def encode(name: str) -> bytes:
    """Return a small image in a format."""
    if name == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if name == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow writes AVIF since 11.3")
    content = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(content, name)
    return content.getvalue()


@pytest.mark.parametrize("name", [each.name for each in SIGNED])
@pytest.mark.parametrize("file_name", ["photo.dat", "photo"])
def test_formats_are_identified_by_content(tmp_path: Path, name: str, file_name: str) -> None:
    (tmp_path / file_name).write_bytes(encode(name))
    image_format = identify_format(tmp_path / file_name)
    assert image_format is not None
    assert image_format.name == name


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, this is a text",
        b"BMW is a car",
        b"P1 is the first problem",
        b"%PDF-1.7",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"\0\0\0\x14ftypqt  \0\0\0\0",  # a video
        b"\0\0\x01\0\x01\0\x10\x10\0\0",  # an icon
        b"RIFF\0\0\0\0WAVEfmt ",
    ],
)
def test_other_files_are_not_images(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.dat").write_bytes(content)
    assert identify_format(tmp_path / "file.dat") is None


def test_a_format_without_signature_is_identified_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.tga").write_bytes(encode("TGA"))
    (tmp_path / "a.dat").write_bytes(encode("TGA"))
    image_format = identify_format(tmp_path / "a.tga")
    assert image_format is not None
    assert image_format.name == "TGA"
    assert identify_format(tmp_path / "a.dat") is None


def test_raw_photos_are_not_taken_for_tiff_images(tmp_path: Path) -> None:
    (tmp_path / "a.NEF").write_bytes(encode("TIFF"))
    assert identify_format(tmp_path / "a.NEF") is None
    assert not is_image_name("a.NEF")


def test_suffixes_are_those_of_one_format_each() -> None:
    assert len(IMAGE_SUFFIXES) == sum(len(each.suffixes) for each in FORMATS)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in IMAGE_SUFFIXES)


def test_pillow_parses_no_format_that_starts_programs_or_has_no_signature() -> None:
    assert {"BMP", "GIF", "JPEG", "JPEG2000", "PNG", "TIFF", "WEBP"} <= set(list_pillow_formats())
    assert not {"EPS", "HEIF", "TGA", "PDF", "FPX", "WMF"} & set(list_pillow_formats())
