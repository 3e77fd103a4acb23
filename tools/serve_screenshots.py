"""Make the screenshots of the page that `caprompt serve` opens, docs/images/serve-*.png.

    python tools/serve_screenshots.py                # needs the extra serve, playwright and Chromium

It teaches a model fruit that it draws itself, in a real browser with a fake camera, and takes pictures on the way:
serve-{light,dark}-{390,1440}.png show a lesson that is prepared, serve-try.png and serve-manage.png the other views.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SIZES = {390: 844, 1440: 900}  # width -> height of the window, in pixels
CAMERA = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
FRUIT = {  # color, height by width, waist (a pear is narrower on top), stem
    "Lemon": ((244, 208, 40), 0.72, 0.1, False),
    "Tomato": ((214, 44, 30), 0.9, 0.0, True),
    "Plum": ((92, 40, 110), 1.1, 0.0, True),
    "Pear": ((176, 190, 60), 1.35, 0.45, True),
    "Orange": ((240, 130, 20), 1.0, 0.0, False),
}
TABLES = ((206, 178, 142), (120, 84, 58), (208, 214, 216), (74, 92, 104), (226, 222, 212))


def draw_fruit(name: str, seed: int, size: int = 192) -> NDArray[np.uint8]:
    """Return an image (size, size, 3) of a fruit on a table; the seed determines its place, size, turn, table and light."""
    color, ratio, waist, stem = FRUIT[name]
    rng = np.random.default_rng([seed, *color])
    y, x = np.mgrid[0:size, 0:size] / size
    image = _draw_table(np.array(TABLES[rng.integers(len(TABLES))], float), x, y, rng)
    center, radius, turn = rng.uniform(0.4, 0.6, 2), rng.uniform(0.24, 0.34), rng.uniform(-0.9, 0.9)
    shadow = ((x - center[0]) / radius) ** 2 + ((y - center[1] - 0.8 * radius) / (0.45 * radius)) ** 2
    image *= (1 - 0.45 * np.exp(-shadow))[..., None]
    u = ((x - center[0]) * np.cos(turn) + (y - center[1]) * np.sin(turn)) / radius
    v = (-(x - center[0]) * np.sin(turn) + (y - center[1]) * np.cos(turn)) / (radius * ratio)
    u = u / (1 - waist * np.clip(-v, 0, 1) ** 1.5)
    depth = np.clip(1 - u**2 - v**2, 0, None)
    light = 0.35 + 0.75 * np.clip(-0.45 * u - 0.5 * v + 0.74 * np.sqrt(depth), 0, None)
    gloss = np.clip(-0.42 * u - 0.5 * v + 0.76 * np.sqrt(depth), 0, 1) ** 40
    skin = np.array(color, float) * rng.uniform(0.9, 1.1, 3) * light[..., None] + 150 * gloss[..., None]
    cover = np.clip(depth * size * radius / 2, 0, 1)[..., None]
    image = image * (1 - cover) + (skin + rng.normal(0, 3, skin.shape)) * cover
    if stem:
        twig = (np.abs(u - 0.15 * (v + 1)) < 0.06) & (v > -1.3) & (v < -0.85)
        image[twig] = (70, 96, 40)
    drawn: NDArray[np.uint8] = np.clip(image, 0, 255).astype(np.uint8)
    return drawn


def _draw_table(color: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64], rng: np.random.Generator) -> Any:
    grain = np.sin(2 * np.pi * (y * rng.uniform(5, 11) + 0.3 * np.sin(2 * np.pi * (x * rng.uniform(0.6, 1.6) + rng.uniform()))))
    shade = 1 + 0.05 * grain + 0.12 * (0.5 - y) + rng.normal(0, 0.015, x.shape)
    return color * shade[..., None]


def write_fruit(folder: Path, names: Sequence[str], each: int, start: int = 0) -> Path:
    """Write images of fruit, a sub-folder per class."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for seed in range(start, start + each):
            Image.fromarray(draw_fruit(name, seed)).save(folder / name / f"{name.lower()} {seed + 1}.jpg", quality=90)
    return folder


def write_video(path: Path, name: str, count: int = 30) -> Path:
    """Write images of a fruit as a YUV4MPEG2 video (4:2:0, BT.601), for the camera."""
    size, frames = 480, []
    for seed in range(count):
        red, green, blue = np.moveaxis(draw_fruit(name, 500 + seed // 15, size).astype(np.float64), 2, 0)
        luma = 16 + 0.257 * red + 0.504 * green + 0.098 * blue
        chroma = [128 - 0.148 * red - 0.291 * green + 0.439 * blue, 128 + 0.439 * red - 0.368 * green - 0.071 * blue]
        planes = [luma, *(part.reshape(size // 2, 2, size // 2, 2).mean(axis=(1, 3)) for part in chroma)]
        frames.append(b"FRAME\n" + b"".join(plane.round().clip(0, 255).astype(np.uint8).tobytes() for plane in planes))
    path.write_bytes(f"YUV4MPEG2 W{size} H{size} F10:1 Ip A1:1 C420\n".encode() + b"".join(frames))
    return path


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a new model of a folder; return the address."""
    words = [sys.executable, "-m", "caprompt", "serve", str(folder), "--port", "0", "--no-open", "--set", "epochs=8"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


def teach(page: Any) -> None:
    """Press Teach once the images are checked, and wait for the end of the lesson."""
    page.locator("button.large:enabled").click(timeout=30_000)
    page.locator(".result").wait_for(timeout=300_000)


def take_everywhere(page: Any, name: str) -> None:
    """Take a picture in light and dark, narrow and wide."""
    for width, height in SIZES.items():
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            take(page, f"{name}-{scheme}-{width}")


def take(page: Any, name: str) -> None:
    """Take a picture of the top of the page once its images are there."""
    page.locator(".blank").first.wait_for(state="detached")
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.wait_for_timeout(500)  # until bars have reached their widths
    page.screenshot(path=IMAGES / f"{name}.png")


def visit(page: Any, address: str, folder: Path) -> None:
    """Teach, try and change a model, and take the pictures."""
    page.goto(address)
    page.locator(".new-class input[type=file]").set_input_files(write_fruit(folder / "week1", ["Lemon", "Tomato", "Plum"], 22))
    teach(page)
    page.get_by_role("button", name="Close").click()
    page.locator(".new-class input[type=file]").set_input_files(write_fruit(folder / "week2", ["Pear", "Orange"], 15))
    page.locator("button.large:enabled").wait_for(timeout=30_000)
    take_everywhere(page, "serve")
    page.set_viewport_size({"width": 1440, "height": SIZES[1440]})
    page.emulate_media(color_scheme="light")
    teach(page)
    page.get_by_role("link", name="Try it now").click()
    page.get_by_role("button", name="Use the camera").click()
    page.locator(".live .answer").wait_for(timeout=30_000)
    page.wait_for_timeout(1500)
    take(page, "serve-try")
    page.get_by_role("link", name="Manage").click()
    page.emulate_media(color_scheme="dark")
    take(page, "serve-manage")


def main() -> None:
    """Make all screenshots."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as name, serve(Path(name) / "kitchen") as address, sync_playwright() as playwright:
        camera = f"--use-file-for-fake-video-capture={write_video(Path(name) / 'camera.y4m', 'Pear')}"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *CAMERA, camera])
        visit(browser.new_page(viewport={"width": 1440, "height": SIZES[1440]}), address, Path(name))
        browser.close()


if __name__ == "__main__":
    main()
