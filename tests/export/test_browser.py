"""The exported page: in a real browser, offline and opened from a disk, it gives the labels of the model."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import find_violations, open_browsers
from helpers import ROOT, square
from numpy.typing import NDArray
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.errors import InputError
from caprompt.export import export_browser
from caprompt.export.browser import BINARY, MODULE, RUNTIME, SCRIPT, read_runtime

pytest.importorskip("onnxscript", reason="onnxscript is not installed")

WIDTHS = (390, 1440)
CAMERA = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
FILES = {SCRIPT: b"/*! ONNX Runtime Web v9.9.9 */", MODULE: b"module", BINARY: b"binary" * 100}


# -- the runtime ---------------------------------------------------------------------------------------------------------------


def write_runtime(folder: Path, without: str = "") -> Path:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        if name != without:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("below", ["", "dist", "package/dist", "node_modules/onnxruntime-web/dist"])
def test_runtime_is_found_in_a_folder(tmp_path: Path, below: str) -> None:
    write_runtime(tmp_path / "npm" / below)
    runtime = read_runtime(tmp_path / "npm")
    assert (runtime.script, runtime.module, runtime.binary) == tuple(FILES.values())
    assert runtime.version == "9.9.9"


def test_folder_without_the_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no ort.wasm.min.js in '.*'; give the folder of the npm package onnxruntime-web"):
        read_runtime(tmp_path)
    with pytest.raises(InputError, match=f"has no {BINARY}; version .* of onnxruntime-web has"):
        read_runtime(write_runtime(tmp_path / "half", without=BINARY))


def test_without_npm_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"npm is not installed; install it, or give the folder of .* with runtime=\.\.\."):
        read_runtime(None)


@dataclass(frozen=True)
class Registry:
    """A registry of npm: its address, and its files by path."""

    url: str
    files: dict[str, bytes]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Serve files as the registry that npm downloads from."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setenv("npm_config_registry", url)
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    yield Registry(url, files)
    server.shutdown()


def publish(registry: Registry, without: str = "") -> None:
    """Put the runtime into the registry, as npm expects a package."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as package:
        for name, content in {"package.json": b"{}", **{f"dist/{name}": content for name, content in FILES.items()}}.items():
            if not without or not name.endswith(without):
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(content)
                package.addfile(member, io.BytesIO(content))
    content = archive.getvalue()
    name, _, version = RUNTIME.partition("@")
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
    entry = {"name": name, "version": version, "dist": {"tarball": f"{registry.url}{name}.tgz", "integrity": integrity}}
    package_info = {"name": name, "dist-tags": {"latest": version}, "versions": {version: entry}}
    registry.files.update({f"/{name}": json.dumps(package_info).encode(), f"/{name}.tgz": content})


def test_npm_downloads_the_runtime(registry: Registry) -> None:
    publish(registry)
    runtime = read_runtime(None)
    assert (runtime.script, runtime.module, runtime.binary) == tuple(FILES.values())


def test_download_that_fails_is_one_sentence(registry: Registry) -> None:
    with pytest.raises(InputError, match=r"^npm cannot download onnxruntime-web@[\d.]+ \(E404\); check the network, or give the"):
        read_runtime(None)
    publish(registry, without=MODULE)
    with pytest.raises(InputError, match=f"npm's {RUNTIME} has no {MODULE}"):
        read_runtime(None)


# -- the folder ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(ncm: ContinualClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported folder whose runtime is not a real one."""
    root = tmp_path_factory.mktemp("folder")
    return export_browser(ncm, root / "page", name="Colors", runtime=write_runtime(root / "npm")).path


def unpack(script: str, name: str) -> bytes:
    parts = re.findall(rf'capromptFiles\.{name}\.push\("(.*)"\);', script)
    return gzip.decompress(b"".join(map(base64.b64decode, parts)))


def test_folder_has_all_files(folder: Path, ncm: ContinualClassifier) -> None:
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "index.html",
        "labels.js",
        "model.js",
        "page.css",
        "page.js",
        "runtime/README.txt",
        "runtime/files.js",
        "runtime/ort.wasm.min.js",
    ]
    labels = json.loads((folder / "labels.js").read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))
    assert labels["classes"] == ncm.classes
    assert (labels["name"], labels["imageSize"]) == ("Colors", 16)
    assert (folder / "runtime" / SCRIPT).read_bytes() == FILES[SCRIPT]
    script = (folder / "runtime" / "files.js").read_text(encoding="utf-8")
    assert (unpack(script, "module"), unpack(script, "binary")) == (FILES[MODULE], FILES[BINARY])
    assert b"network_input" in unpack((folder / "model.js").read_text(encoding="utf-8"), "model")
    assert "9.9.9" in (folder / "runtime" / "README.txt").read_text(encoding="utf-8")


def test_page_refers_only_to_files_of_the_folder(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    referred = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert [name for name in referred if name != "data:," and not (folder / name).is_file()] == []
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    for name in ("index.html", "page.css", "page.js"):
        assert "http:" not in (folder / name).read_text(encoding="utf-8").replace("http-equiv", "")
        assert "https:" not in (folder / name).read_text(encoding="utf-8")


def test_page_is_valid_html(folder: Path) -> None:
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    html5lib.HTMLParser(strict=True).parse((folder / "index.html").read_text(encoding="utf-8"))


def test_large_files_are_divided(ncm: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.export.browser.CHUNK", 30)
    monkeypatch.setattr("caprompt.export.browser.encode_onnx", lambda *_, **__: bytes(range(256)) * 10)
    export_browser(ncm, tmp_path / "page", runtime=write_runtime(tmp_path / "npm"))
    script = (tmp_path / "page" / "model.js").read_text(encoding="utf-8")
    assert script.count(".push(") > 2
    assert unpack(script, "model") == bytes(range(256)) * 10


def test_existing_folder_is_refused_unless_it_is_empty(ncm: ContinualClassifier, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(InputError, match="exists already"):
        export_browser(ncm, tmp_path / "mine")
    with pytest.raises(InputError, match="there is no ort.wasm.min.js"):  # found out before anything is written
        export_browser(ncm, tmp_path / "page", runtime=tmp_path / "mine")
    assert not (tmp_path / "page").exists()


# -- in a browser --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_folder(ncm: ContinualClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exported folder with the real runtime."""
    place = os.environ.get("ONNXRUNTIME_WEB") or str(ROOT / "node_modules" / "onnxruntime-web")
    if not Path(place).is_dir():
        pytest.skip("onnxruntime-web is not installed: run 'npm install onnxruntime-web', or set ONNXRUNTIME_WEB to its folder")
    return export_browser(ncm, tmp_path_factory.mktemp("page") / "page", name="Colors", runtime=place).path


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a browser."""
    with open_browsers() as start:
        yield start


@pytest.fixture(scope="module")
def browser(launch: Callable[..., Any], page_folder: Path) -> Any:
    return launch()


def open_page(browser: Any, url: str, width: int = 1440, scheme: str = "light", offline: bool = True) -> tuple[Any, list[str]]:
    """Open a page and wait for its model; return it with a list that collects its errors, warnings and requests to servers."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda each: problems.append(each.url) if offline and each.url[:5] not in ("file:", "data:", "blob:") else None
    )
    page.goto(url)
    wait_for_status(page, "Ready.")
    return page, problems


def wait_for_status(page: Any, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#status")).to_have_text(re.compile(text), timeout=60_000)


def read_results(page: Any) -> list[tuple[str, float]]:
    """Return label and score of every result, in the order in which the images were given."""
    answers = page.locator("#results .answer").all()
    return [(each.get_attribute("data-label"), float(each.get_attribute("data-score"))) for each in reversed(answers)]


@pytest.mark.slow
def test_files_get_the_labels_of_the_model(browser: Any, page_folder: Path, ncm: ContinualClassifier, photos: Path) -> None:
    page, problems = open_page(browser, (page_folder / "index.html").as_uri())
    paths = sorted(photos.rglob("*.*"))
    page.locator("#files").set_input_files(paths)
    wait_for_status(page, "8 images classified")
    expected = ncm.predict(paths)
    for (label, score), prediction in zip(read_results(page), expected, strict=True):
        assert label == prediction.label
        assert score == pytest.approx(prediction.score, abs=0.01)  # decoders of JPEG and transparency round differently
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#results li").count() == 0
    assert problems == []


@pytest.mark.slow
def test_equal_pixels_give_equal_scores(browser: Any, page_folder: Path, ncm: ContinualClassifier, tmp_path: Path) -> None:
    for number, (color, size) in enumerate((("red", 20), ("blue", 16), ("green", 47), ("white", 100), ("cyan", 127))):
        Image.fromarray(square(color, 300 + number, size)).save(tmp_path / f"{number}.png")
    page, _ = open_page(browser, (page_folder / "index.html").as_uri())
    paths = sorted(tmp_path.iterdir())
    page.locator("#files").set_input_files(paths)
    wait_for_status(page, "5 images classified")
    for (label, score), prediction in zip(read_results(page), ncm.predict(paths), strict=True):
        assert label == prediction.label
        assert score == pytest.approx(prediction.score, abs=1e-4)


@pytest.mark.slow
def test_large_photo_is_drawn_smaller(browser: Any, page_folder: Path, ncm: ContinualClassifier, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(square("green", 8)).resize((900, 1200), Image.Resampling.BICUBIC).save(path)
    page, _ = open_page(browser, (page_folder / "index.html").as_uri())
    page.locator("#files").set_input_files(path)
    wait_for_status(page, "1 image classified")
    expected = ncm.predict_one(path)
    assert read_results(page) == [(expected.label, pytest.approx(expected.score, abs=0.05))]


@pytest.mark.slow
def test_dropped_and_unreadable_files(browser: Any, page_folder: Path, ncm: ContinualClassifier) -> None:
    page, _ = open_page(browser, (page_folder / "index.html").as_uri())
    image = io.BytesIO()
    Image.fromarray(square("blue", 5)).save(image, "PNG")
    page.evaluate(
        """async (text) => {
            const data = await (await fetch(`data:image/png;base64,${text}`)).blob();
            const transfer = new DataTransfer();
            transfer.items.add(new File([data], "blue.png", { type: "image/png" }));
            transfer.items.add(new File(["no image"], "broken.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        base64.b64encode(image.getvalue()).decode(),
    )
    wait_for_status(page, "1 image classified. This browser cannot read broken.png.")
    assert [label for label, _ in read_results(page)] == [ncm.predict_one(square("blue", 5)).label]


def write_video(path: Path, frame: NDArray[np.uint8], count: int = 3) -> None:
    """Write a frame as a YUV4MPEG2 video (4:2:0, BT.601)."""
    red, green, blue = np.moveaxis(frame.astype(np.float64), 2, 0)
    luma = 16 + 0.257 * red + 0.504 * green + 0.098 * blue
    chroma = [128 - 0.148 * red - 0.291 * green + 0.439 * blue, 128 + 0.439 * red - 0.368 * green - 0.071 * blue]
    planes = [luma, *(part.reshape(len(part) // 2, 2, -1, 2).mean(axis=(1, 3)) for part in chroma)]
    content = b"FRAME\n" + b"".join(plane.round().clip(0, 255).astype(np.uint8).tobytes() for plane in planes)
    height, width = luma.shape
    path.write_bytes(f"YUV4MPEG2 W{width} H{height} F30:1 Ip A1:1 C420\n".encode() + content * count)


@pytest.mark.slow
@pytest.mark.parametrize("color", ["red", "blue"])
def test_camera_gets_the_label_of_the_model(
    launch: Callable[..., Any], page_folder: Path, ncm: ContinualClassifier, tmp_path: Path, color: str
) -> None:
    frame = np.asarray(Image.fromarray(square(color, 6)).resize((640, 480), Image.Resampling.NEAREST))
    write_video(tmp_path / "camera.y4m", frame)
    browser = launch(*CAMERA, f"--use-file-for-fake-video-capture={tmp_path / 'camera.y4m'}")
    page, problems = open_page(browser, (page_folder / "index.html").as_uri())
    page.get_by_role("button", name="Use the camera").click()
    page.locator("#live-answer .label").wait_for(timeout=60_000)
    expected = ncm.predict_one(frame)
    assert page.locator("#live-answer").get_attribute("data-label") == expected.label
    assert float(page.locator("#live-answer").get_attribute("data-score")) == pytest.approx(expected.score, abs=0.05)
    button = page.get_by_role("button", name="Stop the camera")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert not page.locator("#live").is_visible()
    assert problems == []


@pytest.mark.slow
def test_camera_that_may_not_be_used_is_a_sentence(browser: Any, page_folder: Path) -> None:
    page, _ = open_page(browser, (page_folder / "index.html").as_uri())
    page.get_by_role("button", name="Use the camera").click()
    wait_for_status(page, "The camera may not be used|No camera was found")


@pytest.mark.slow
def test_page_works_from_a_web_server(browser: Any, page_folder: Path, ncm: ContinualClassifier, photos: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(page_folder))

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page, problems = open_page(browser, f"http://127.0.0.1:{server.server_port}/", offline=False)
        page.locator("#files").set_input_files(photos / "red" / "plain.png")
        wait_for_status(page, "1 image classified")
        assert read_results(page)[0][0] == ncm.predict_one(photos / "red" / "plain.png").label
        assert problems == []
    finally:
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_width_and_is_accessible(browser: Any, page_folder: Path, photos: Path, width: int, scheme: str) -> None:
    page, problems = open_page(browser, (page_folder / "index.html").as_uri(), width, scheme)
    page.locator("#files").set_input_files(sorted(photos.rglob("*.*")))
    wait_for_status(page, "8 images classified")
    page.get_by_text("Classes", exact=True).click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {
            "light": "rgb(255, 255, 255)",
            "dark": "rgb(16, 22, 29)",
        }[scheme]
    )
    assert problems == []  # before axe reads the style sheet, which the page does not allow
    assert find_violations(page) == []
