"""Export as a web page: a folder with everything that is needed to classify images in a browser, offline.

    index.html, page.css, page.js    the page: images by drag and drop or from the camera
    labels.js                        class names and provenance
    model.js                         the ONNX model
    runtime/                         ONNX Runtime Web, which runs it

The page can be opened from a disk, without a web server. Browsers let such a page load scripts but read no other file, so the model
and the runtime are scripts that contain compressed data.

ONNX Runtime Web is not part of this package. It is read from a folder that has the npm package, or downloaded by npm.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from caprompt import __version__
from caprompt.classifier import ContinualClassifier
from caprompt.errors import InputError
from caprompt.export.onnx_graph import DEFAULT_OPSET, Exported, check_output, check_request, encode_onnx
from caprompt.export.quantization import Weights
from caprompt.export.verification import check_folder, verify_onnx
from caprompt.utils.files import commit
from caprompt.utils.paths import expand_user

__all__ = ["RUNTIME", "WebRuntime", "export_browser", "read_runtime"]

PACKAGE = "onnxruntime-web"
RUNTIME = f"{PACKAGE}@1.30.0"  # what npm downloads
SCRIPT, MODULE, BINARY = "ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"  # in its folder `dist`
TIMEOUT = 600  # seconds for npm
PAGE = ("index.html", "page.css", "page.js")
CHUNK = 3 << 23  # bytes in one string of a script; a multiple of 3, so that base64 needs no padding in between


@dataclass(frozen=True)
class WebRuntime:
    """The files of ONNX Runtime Web."""

    script: bytes
    module: bytes
    binary: bytes

    @property
    def version(self) -> str:
        """The version that the script's first lines state."""
        found = re.search(rb"Web v([\w.-]+)", self.script[:400])
        return found[1].decode() if found else "of unknown version"


def export_browser(
    model: ContinualClassifier,
    folder: str | Path,
    *,
    name: str = "Image classifier",
    weights: Weights = "fp32",
    opset: int = DEFAULT_OPSET,
    runtime: str | Path | None = None,
    verify: str | Path | None = None,
    **options: Any,
) -> Exported:
    """Write a folder with a web page that classifies images; the folder must be new or empty.

    `name` is the title of the page. `runtime` is the folder of the npm package onnxruntime-web; by default npm downloads it. The
    other arguments are those of `export_onnx`.
    """
    folder = check_output(folder, may_be_empty=True)
    if verify is not None:
        check_folder(verify)
    check_request(model, weights, opset, **options)
    web_runtime = read_runtime(runtime)
    content = encode_onnx(model, weights=weights, opset=opset, **options)
    agreement = None if verify is None else verify_onnx(model, content, verify, **options)
    files = {
        **{file: (package_files("caprompt.export") / "templates" / "browser" / file).read_bytes() for file in PAGE},
        "labels.js": _make_labels(model, name),
        "model.js": _make_script({"model": content}),
        f"runtime/{SCRIPT}": web_runtime.script,
        "runtime/files.js": _make_script({"module": web_runtime.module, "binary": web_runtime.binary}),
        "runtime/README.txt": _describe_runtime(web_runtime),
    }
    commit(folder, files)
    return Exported(folder, sum(map(len, files.values())), agreement)


def _make_labels(model: ContinualClassifier, name: str) -> bytes:
    origin = f"Made with caprompt {__version__}: {model.method.name} on {model.backbone.name}."
    labels = {"name": name, "classes": model.classes, "imageSize": model.backbone.config.image_size, "origin": origin}
    return f"globalThis.capromptLabels = {json.dumps(labels)};\n".encode()


def _make_script(contents: dict[str, bytes]) -> bytes:
    """Return a script that holds files: compressed, in base64, in strings of a length that browsers can handle."""
    lines = ["globalThis.capromptFiles ??= {};"]
    for name, content in contents.items():
        compressed = gzip.compress(content, compresslevel=6, mtime=0)
        parts = (base64.b64encode(compressed[start : start + CHUNK]).decode() for start in range(0, len(compressed), CHUNK))
        lines += [f"globalThis.capromptFiles.{name} = [];", *(f'globalThis.capromptFiles.{name}.push("{part}");' for part in parts)]
    return "\n".join([*lines, ""]).encode()


def _describe_runtime(runtime: WebRuntime) -> bytes:
    text = (
        f"ONNX Runtime Web {runtime.version}, Copyright (c) Microsoft Corporation, MIT License.\n"
        f"{SCRIPT} is unchanged; files.js holds {MODULE} and {BINARY}, compressed.\n"
    )
    return text.encode()


# -- the runtime ---------------------------------------------------------------------------------------------------------------


def read_runtime(folder: str | Path | None) -> WebRuntime:
    """Read ONNX Runtime Web from a folder that has the npm package, or let npm download it."""
    if folder is None:
        return _download_runtime()
    root = expand_user(folder)
    places = [root, root / "dist", root / "package" / "dist", root / "node_modules" / PACKAGE / "dist"]
    place = next((each for each in places if (each / SCRIPT).is_file()), None)
    if place is None:
        raise InputError(f"there is no {SCRIPT} in '{root}'; give the folder of the npm package {PACKAGE}")
    return _collect(lambda name: (place / name).read_bytes() if (place / name).is_file() else None, f"'{place}'")


def _collect(read: Callable[[str], bytes | None], where: str) -> WebRuntime:
    found = {name: read(name) for name in (SCRIPT, MODULE, BINARY)}
    present = [content for content in found.values() if content is not None]
    if len(present) < len(found):
        missing = next(name for name, content in found.items() if content is None)
        raise InputError(f"{where} has no {missing}; version {RUNTIME.rpartition('@')[2]} of {PACKAGE} has")
    return WebRuntime(*present)


def _download_runtime() -> WebRuntime:
    """Download the package with npm, from where npm is configured to."""
    remedy = f"give the folder of the npm package {PACKAGE} with runtime=..."
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(f"the page needs {PACKAGE}, which npm downloads, and npm is not installed; install it, or {remedy}")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", RUNTIME, "--loglevel=error", "--prefer-offline", "--ignore-scripts", "--pack-destination", folder]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise InputError(f"npm has not downloaded {RUNTIME} within {TIMEOUT} seconds; {remedy}") from None
        archive = next(Path(folder).glob("*.tgz"), None)
        if done.returncode or archive is None:
            raise InputError(f"npm cannot download {RUNTIME}{_find_cause(done.stderr)}; check the network, or {remedy}")
        with tarfile.open(archive) as package:
            return _collect(lambda name: _read_member(package, f"package/dist/{name}"), f"npm's {RUNTIME}")


def _find_cause(messages: str) -> str:
    """Return the code of npm's error in brackets, if it states one.

    >>> _find_cause("npm error code E404\\nnpm error 404 Not Found")
    ' (E404)'
    >>> _find_cause("")
    ''
    """
    found = re.search(r"code (\w+)", messages)
    return f" ({found[1]})" if found else ""


def _read_member(package: tarfile.TarFile, name: str) -> bytes | None:
    """Return the content of a file of an archive; nothing is written to disk."""
    try:
        file = package.extractfile(name)
    except KeyError:
        return None
    return None if file is None else file.read()
