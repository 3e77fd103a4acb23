from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caprompt.data import images
from caprompt.data.images import decode, hash_image, read_jpeg, read_size
from caprompt.errors import DataError, StorageError


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="needs a regular file that cannot be read")
def test_what_the_storage_fails_at_is_told_from_damage(tmp_path: Path, noise) -> None:
    (tmp_path / "io.png").symlink_to("/proc/self/mem")
    (tmp_path / "text.png").write_bytes(b"no image")
    (tmp_path / "folder.png").mkdir()
    Image.fromarray(noise()).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:-300])
    for name in ("io.png", "unmounted/a.png"):
        with pytest.raises(StorageError):
            decode(tmp_path / name)
    for name in ("text.png", "folder.png", "cut.png", "none.png", "whole.png/a.png"):
        with pytest.raises(DataError) as caught:
            decode(tmp_path / name)
        assert not isinstance(caught.value, StorageError), name


def get_corner(image: images.ImageInput) -> tuple[int, ...]:
    return tuple(decode(image)[0, 0].tolist())


def test_rgb_files_arrays_and_pillow_images_are_bit_exact(tmp_path: Path, noise) -> None:
    pixels = noise()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for image in (tmp_path / "a.png", pixels, Image.fromarray(pixels)):
        decoded = decode(image)
        assert decoded.dtype == np.uint8
        np.testing.assert_array_equal(decoded, pixels)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), (255, 0, 0)),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("LA", (9, 0), (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (255, 128, 128), (255, 255, 255)),
        ("I;16", 257 * 40, (40, 40, 40)),
        ("I", 257 * 40, (40, 40, 40)),
        ("I", 70_000, (255, 255, 255)),
        ("F", 0.2, (51, 51, 51)),
    ],
)
def test_every_mode_is_converted_to_rgb(mode: str, color, expected: tuple[int, ...]) -> None:
    image = Image.new(mode, (3, 2), color)
    assert decode(image).shape == (2, 3, 3)
    assert get_corner(image) == expected


@pytest.mark.parametrize(("transparency", "expected"), [(None, (10, 20, 30)), (0, (255, 255, 255)), (b"\x80", (132, 137, 142))])
def test_palettes_with_and_without_transparency(tmp_path: Path, transparency, expected: tuple[int, ...]) -> None:
    image = Image.new("P", (3, 2), 0)
    image.putpalette([10, 20, 30])
    image.save(tmp_path / "p.png", **({} if transparency is None else {"transparency": transparency}))
    assert get_corner(tmp_path / "p.png") == expected


def test_transparent_color_becomes_white(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "t.png", transparency=(1, 2, 3))
    assert get_corner(tmp_path / "t.png") == (255, 255, 255)


def test_sixteen_bit_png_is_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 30_000, 65_535]], dtype=np.uint16)).save(tmp_path / "deep.png")
    assert decode(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 117, 255]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 4), (5, 6, 7, 0), np.uint8), (255, 255, 255)),
        (np.full((2, 3, 3), 257 * 9, np.uint16), (9, 9, 9)),
        (np.full((2, 3, 3), 257 * 9, ">u2"), (9, 9, 9)),
        (np.full((2, 3), 0.6, np.float32), (153, 153, 153)),
        (np.full((2, 3, 3), 1.0), (255, 255, 255)),
    ],
)
def test_arrays_of_every_dtype(array, expected: tuple[int, ...]) -> None:
    assert decode(array).shape == (2, 3, 3)
    assert get_corner(array) == expected


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), "channels"),
        (np.zeros((8,), np.uint8), "channels"),
        (np.zeros((0, 8, 3), np.uint8), "channels"),
        (np.zeros((8, 8), np.int64), "int64"),
        (np.full((8, 8), 200.0), "0..1"),
        (np.full((8, 8), np.nan), "0..1"),
        (np.zeros((1, 500), np.uint8), "200 times"),
    ],
)
def test_invalid_arrays_raise(array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(array)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 3), "black")
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    image.save(tmp_path / "rotated.png", exif=exif)
    pixels = decode(tmp_path / "rotated.png")
    assert pixels.shape == (6, 3, 3)
    assert pixels[0, 2, 0] == 255


def test_damaged_exif_is_ignored(tmp_path: Path, noise) -> None:
    Image.fromarray(noise()).save(tmp_path / "e.png", exif=b"Exif\x00\x00rubbish that is no TIFF")
    np.testing.assert_array_equal(decode(tmp_path / "e.png"), noise())


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert get_corner(tmp_path / "a.gif") == (255, 0, 0)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_large_images_are_shrunk_and_small_ones_are_not(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    large = np.broadcast_to(ramp[None, :, None], (400, 800, 3))
    Image.fromarray(np.ascontiguousarray(large)).save(tmp_path / f"a.{suffix}")
    shrunk = decode(tmp_path / f"a.{suffix}", shrink_to=50)
    assert shrunk.shape == (50, 100, 3)
    expected = large[4::8, 4::8]
    assert np.abs(shrunk.astype(int) - expected).max() <= 3
    for side in (400, 401, 900):
        np.testing.assert_array_equal(decode(tmp_path / f"a.{suffix}", shrink_to=side), decode(tmp_path / f"a.{suffix}"))


def test_arrays_are_shrunk(noise) -> None:
    assert decode(noise(0, 30, 60), shrink_to=10).shape == (10, 20, 3)
    np.testing.assert_array_equal(decode(noise(0, 10, 60), shrink_to=10), noise(0, 10, 60))


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_corrupt_files_raise(tmp_path: Path, noise, content: bytes | None) -> None:
    path = tmp_path / "bad.jpg"
    if content is None:
        buffer = io.BytesIO()
        Image.fromarray(noise(0, 64, 64)).save(buffer, "JPEG")
        content = buffer.getvalue()[: len(buffer.getvalue()) // 2]
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.jpg' is not a readable image \(.+\); remove it, or skip unreadable images"):
        decode(path)


def test_missing_file_and_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no image file '.*none.png'"):
        decode(tmp_path / "none.png")
    with pytest.raises(DataError, match="directory"):
        decode(tmp_path)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_500, 14_000])  # above Pillow's warning, above Pillow's error
def test_decompression_bombs_raise(tmp_path: Path, side: int) -> None:
    header = f"P5 {side} {side} 255\n".encode()
    (tmp_path / "bomb.pgm").write_bytes(header)  # claims its size; the pixels would follow
    with pytest.raises(DataError, match="decompression bomb: more than 89 million pixels"):
        decode(tmp_path / "bomb.pgm")
    assert Image.MAX_IMAGE_PIXELS == images.MAX_PIXELS


def test_hash_depends_on_the_content(tmp_path: Path, noise) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        Image.fromarray(noise(seed)).save(tmp_path / f"{name}.png")
    a, b, c = (hash_image(tmp_path / f"{name}.png") for name in "abc")
    assert a == b != c
    assert hash_image(Image.fromarray(noise(1))) == hash_image(noise(1)) != hash_image(noise(2))
    assert hash_image(np.zeros((2, 8), np.uint8)) != hash_image(np.zeros((8, 2), np.uint8))


def test_only_listed_formats_are_parsed_whatever_the_name(tmp_path: Path) -> None:
    """Pillow would render an EPS by starting Ghostscript."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n%%EOF\n"
    (tmp_path / "cat.jpg").write_bytes(eps)
    with pytest.raises(DataError, match="not a readable image"):
        decode(tmp_path / "cat.jpg")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "cat.tga")
    (tmp_path / "cat.tga").rename(tmp_path / "other.jpg")
    with pytest.raises(DataError, match="not a readable image"):
        decode(tmp_path / "other.jpg")


@pytest.mark.parametrize("suffix", [".bmp", ".gif", ".jpg", ".png", ".ppm", ".tif", ".webp"])
def test_listed_formats_are_parsed(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (4, 4), "white").save(tmp_path / f"image{suffix}")
    assert decode(tmp_path / f"image{suffix}").min() == 255


# -- formats -------------------------------------------------------------------------------------------------------------------


def write_heic(path: Path) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (16, 16), "white").save(path, "HEIF")


@pytest.mark.parametrize("name", ["photo.heic", "photo.jpg", "photo"])
def test_heic_is_read_with_the_extra(tmp_path: Path, name: str) -> None:
    write_heic(tmp_path / name)
    assert decode(tmp_path / name).shape == (16, 16, 3)
    assert decode(tmp_path / name).min() > 250


def test_messages_of_the_heic_library_become_one_line(tmp_path: Path) -> None:
    write_heic(tmp_path / "photo.heic")
    content = (tmp_path / "photo.heic").read_bytes()
    (tmp_path / "photo.heic").write_bytes(content[:-10])
    with pytest.raises(DataError, match="is not a readable image") as error:
        decode(tmp_path / "photo.heic")
    assert len(str(error.value).splitlines()) == 1


def test_heic_without_the_extra_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_heic(tmp_path / "photo.heic")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as if it were not installed
    with pytest.raises(
        DataError, match=r"photo\.heic' is not a readable image \(HEIC needs an extra: pip install 'caprompt\[heic\]'\)"
    ):
        decode(tmp_path / "photo.heic")


@pytest.mark.parametrize("suffix", [".jp2", ".tga", ".pbm", ".dib"])
def test_less_usual_formats_are_read(tmp_path: Path, suffix: str) -> None:
    Image.new("1" if suffix == ".pbm" else "RGB", (16, 16), "white").save(tmp_path / f"image{suffix}")
    assert decode(tmp_path / f"image{suffix}").min() == 255


# -- files that are not regular ------------------------------------------------------------------------------------------------


def test_fifo_and_devices_are_not_opened(tmp_path: Path) -> None:
    for suffix in (".png", ".jpg"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
        (tmp_path / f"endless{suffix}").symlink_to("/dev/zero")
        for name in (f"pipe{suffix}", f"endless{suffix}"):
            for function in (decode, hash_image):
                with pytest.raises(DataError, match=rf"{name}' .*it is not a regular file"):
                    function(tmp_path / name)


def test_what_is_no_plain_jpeg_file_is_none_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    writer = os.open(tmp_path / "pipe.jpg", os.O_RDWR)  # which writes nothing
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    (tmp_path / "folder.jpg").mkdir()
    for name in ("pipe.jpg", "endless.jpg", "folder.jpg", "missing.jpg"):
        assert read_jpeg(tmp_path / name) is None
    os.close(writer)


def test_dangling_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=r"there is no image file '.*a\.png' \(it is a link to a file that does not exist\)"):
        decode(tmp_path / "a.png")


# -- large images --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16", "CMYK"])
@pytest.mark.parametrize("shrink_to", [None, 40])
def test_large_images_are_converted_in_strips_to_the_same_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise, mode: str, shrink_to: int | None
) -> None:
    """Up to twice the final size nothing is reduced before the resize, so that every bit is the same."""
    image = Image.fromarray(noise(0, 75, 97)).convert("L" if mode == "I;16" else "RGBA" if mode in ("LA", "RGBA") else "RGB")
    image = image.convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(noise(1, 75, 97)[:, :, 0]))
    image.save(tmp_path / "a.tif")
    whole = decode(tmp_path / "a.tif", shrink_to)
    monkeypatch.setattr(images, "LARGE_PIXELS", 1000)
    monkeypatch.setattr(images, "STRIP_PIXELS", 500)
    np.testing.assert_array_equal(decode(tmp_path / "a.tif", shrink_to), whole)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_large_images_are_reduced_and_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orientation: int) -> None:
    rows, columns = np.mgrid[0:400, 0:700]
    pixels = np.stack([rows * 255 // 400, columns * 255 // 700, (rows + columns) % 256 // 2], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    whole = decode(tmp_path / "a.png", 50)
    monkeypatch.setattr(images, "LARGE_PIXELS", 1000)
    reduced = decode(tmp_path / "a.png", 50)
    assert reduced.shape == whole.shape
    assert np.abs(reduced[2:-2, 2:-2, :2].astype(int) - whole[2:-2, 2:-2, :2]).max() <= 3


MEASURE = """
import re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from caprompt.data.images import decode

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1024

before = peak()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda path: decode(Path(path), shrink_to=256), sys.argv[1:]))
print(peak() - before)
"""


def measure_megabytes(paths: list[Path]) -> float:
    """Return by how much decoding these files in four threads raises the peak memory of a process."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is measured on Linux only")
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, paths)], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.slow
def test_memory_is_bounded_for_tiny_files_of_huge_images_in_threads(tmp_path: Path) -> None:
    """44 bytes that claim 88 million pixels: converted at once they would take 1.4 GB, in each thread."""
    screen = b"GIF89a" + struct.pack("<HH", 9400, 9400) + b"\x80\0\0" + b"\xff\0\0\0\0\xff"
    frame = b"!\xf9\x04\x01\0\0\0\0\0," + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0\x02\x02D\x01\0;"
    for name in ("a.gif", "b.gif", "c.gif"):
        (tmp_path / name).write_bytes(screen + frame)
    assert measure_megabytes(sorted(tmp_path.iterdir())) < 600


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_memory_is_bounded_for_huge_png_files_in_threads(tmp_path: Path, mode: str) -> None:
    options = {"transparency": b"\x80"} if mode == "P" else {}
    Image.new(mode, (9000, 9000), 0).save(tmp_path / "0.png", **options)
    for number in range(1, 4):
        os.link(tmp_path / "0.png", tmp_path / f"{number}.png")
    assert measure_megabytes(sorted(tmp_path.iterdir())) < 600


def test_the_size_of_a_file_is_read_without_its_pixels(tmp_path: Path) -> None:
    Image.new("L", (300, 20)).save(tmp_path / "a.png")
    cut = (tmp_path / "a.png").read_bytes()[:45]
    (tmp_path / "cut.png").write_bytes(cut)
    assert read_size(tmp_path / "a.png") == read_size(tmp_path / "cut.png") == (300, 20)
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"'.*bad.png' is not a readable image"):
        read_size(tmp_path / "bad.png")


def test_pillow_images_in_memory_are_rotated_and_shrunk_as_well(noise) -> None:
    image = Image.fromarray(noise(0, 30, 40))
    np.testing.assert_array_equal(decode(image), noise(0, 30, 40))
    assert decode(image, shrink_to=15).shape == (15, 20, 3)
    image.getexif()[0x0112] = 6
    assert decode(image).shape == (40, 30, 3)
    image.getexif()[0x0112] = 1
    assert decode(image).shape == (30, 40, 3)
    transparent = Image.new("RGB", (3, 2), (1, 2, 3))
    transparent.info["transparency"] = (1, 2, 3)
    assert get_corner(transparent) == (255, 255, 255)
