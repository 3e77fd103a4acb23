"""A client for `caprompt serve`, in one file that needs only Python's standard library, so that it can be copied.

    from caprompt.client import Client

    client = Client("http://127.0.0.1:8000")                      # token="..." where the server needs one
    client.teach("pets", {"cat": ["cat1.jpg", "cat2.jpg"], "dog": ["dog1.jpg", "dog2.jpg"]})
    client.predict("pets", ["new.jpg"])[0]["label"]

Images are paths or the bytes of image files. Answers are the dictionaries that the server sends (docs/serve.md).
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

__all__ = ["Client", "ServerError"]

Image = str | Path | bytes
RETRIES = 5  # of requests that the server has refused because it was busy
CHUNK_IMAGES, CHUNK_BYTES = 50, 16_000_000  # of one request of an upload


class ServerError(Exception):
    """A refusal of the server: its HTTP status and its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """A connection to a server. It is for one thread; make one for each."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, token: str | None = None, timeout: float = 60) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is not the address of a server; it should read 'http://127.0.0.1:8000'")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._base = f"{parts.path.rstrip('/')}/api/v1"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- models ----------------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return whether the server works, its version, and its number of models."""
        return dict(self._ask("GET", "/health"))

    def models(self) -> list[dict[str, Any]]:
        """List the models."""
        return list(self._ask("GET", "/models"))

    def create(self, model: str) -> dict[str, Any]:
        """Add a model, on a server of a folder of models."""
        return dict(self._ask("POST", "/models", {"name": model}))

    def model(self, model: str) -> dict[str, Any]:
        """Return everything about a model but its classes."""
        return dict(self._ask("GET", _path(model)))

    def classes(self, model: str) -> list[dict[str, Any]]:
        """List the classes of a model."""
        return list(self._ask("GET", f"{_path(model)}/classes"))

    def undo(self, model: str) -> dict[str, Any]:
        """Undo the last lesson or edit."""
        return dict(self._ask("POST", f"{_path(model)}/undo"))

    def rename(self, model: str, old: str, new: str) -> dict[str, Any]:
        """Give a class another name."""
        return dict(self._ask("POST", f"{_path(model)}/rename", {"old": old, "new": new}))

    def join(self, model: str, names: Sequence[str], into: str) -> dict[str, Any]:
        """Make one class of several."""
        return dict(self._ask("POST", f"{_path(model)}/join", {"names": list(names), "into": into}))

    def forget(self, model: str, name: str, *, approximate: bool = False) -> dict[str, Any]:
        """Remove a class; this cannot be undone."""
        return dict(self._ask("POST", f"{_path(model)}/forget", {"name": name, "approximate": approximate}))

    def download(self, model: str, file: str | Path, *, format: str = "model") -> Path:
        """Write the model, or what `export` has made, to a zip file."""
        content = self._request("GET", f"{_path(model)}/download?{urlencode({'format': format})}")
        path = Path(file)
        path.write_bytes(content)
        return path

    # -- predictions -----------------------------------------------------------------------------------------------------------

    def predict(self, model: str, images: Sequence[Image], *, top: int = 5, coverage: float | None = None) -> list[dict[str, Any]]:
        """Predict the class of each image; one that cannot be read has an `error` instead."""
        query = urlencode({"top": top, **({} if coverage is None else {"coverage": coverage})})
        predictions: list[dict[str, Any]] = []
        for chunk in _split(images):
            body, kind = _encode_form(chunk)
            answer = self._ask("POST", f"{_path(model)}/predict?{query}", body, kind)
            predictions += answer["predictions"]
        return predictions

    # -- teaching --------------------------------------------------------------------------------------------------------------

    def teach(
        self,
        model: str,
        images: Mapping[str, Sequence[Image]],
        *,
        hold_out: float = 0.2,
        on_progress: Callable[[dict[str, Any]], None] = lambda job: None,
    ) -> dict[str, Any]:
        """Teach images by class name, and return what was learned; a share of them is held out to test with.

        `on_progress` is called with the job while it runs. Images that cannot be used are left out; `problems` lists them.
        """
        upload, problems = self.upload(model, images)
        job = self.wait(model, self.start(model, "learn", upload=upload, hold_out=hold_out)["id"], on_progress)
        return {**job["result"], "problems": problems}

    def evaluate(self, model: str, images: Mapping[str, Sequence[Image]]) -> dict[str, Any]:
        """Test a model on images by class name."""
        upload, _ = self.upload(model, images)
        job = self.wait(model, self.start(model, "evaluate", upload=upload)["id"])
        self._ask("DELETE", f"{_path(model)}/uploads/{upload}")
        return dict(job["result"])

    def export(self, model: str, *, format: str = "onnx") -> dict[str, Any]:
        """Let the server write a model as ONNX or as a web page, for `download`."""
        return dict(self.wait(model, self.start(model, "export", format=format)["id"])["result"])

    def upload(self, model: str, images: Mapping[str, Sequence[Image]]) -> tuple[str, list[dict[str, str]]]:
        """Send images by class name; return the upload, and the files that cannot be used."""
        upload = str(self._ask("POST", f"{_path(model)}/uploads")["id"])
        problems: list[dict[str, str]] = []
        for label, members in images.items():
            for chunk in _split(members):
                body, kind = _encode_form(chunk)
                answer = self._ask("POST", f"{_path(model)}/uploads/{upload}/images?{urlencode({'label': label})}", body, kind)
                problems += answer["problems"]
        return upload, problems

    # -- jobs ------------------------------------------------------------------------------------------------------------------

    def start(self, model: str, kind: str, **settings: Any) -> dict[str, Any]:
        """Start a job of kind learn, evaluate or export."""
        return dict(self._ask("POST", f"{_path(model)}/jobs", {"kind": kind, **settings}))

    def jobs(self, model: str) -> list[dict[str, Any]]:
        """List the jobs of a model, the newest last."""
        return list(self._ask("GET", f"{_path(model)}/jobs"))

    def cancel(self, model: str, job: str) -> dict[str, Any]:
        """Cancel a job; the model is then as it was."""
        return dict(self._ask("DELETE", f"{_path(model)}/jobs/{quote(job)}"))

    def resume(self, model: str, job: str) -> dict[str, Any]:
        """Go on with a job that was interrupted."""
        return dict(self._ask("POST", f"{_path(model)}/jobs/{quote(job)}/resume"))

    def wait(
        self, model: str, job: str, on_progress: Callable[[dict[str, Any]], None] = lambda job: None, *, interval: float = 0.2
    ) -> dict[str, Any]:
        """Wait until a job is done and return it; raise `ServerError` if it ends otherwise."""
        while True:
            current = dict(self._ask("GET", f"{_path(model)}/jobs/{quote(job)}"))
            on_progress(current)
            if current["state"] == "done":
                return current
            if current["state"] not in ("queued", "running"):
                raise ServerError(409, current["error"] or f"the job is {current['state']}")
            time.sleep(interval)

    # -- requests --------------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        content = self._request(method, path, json.dumps(body).encode() if isinstance(body, dict) else body, kind)
        return json.loads(content) if content else {}

    def _request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> bytes:
        headers = {**self._headers, **({"Content-Type": kind} if body is not None else {})}
        for attempt in range(RETRIES + 1):
            response, content = self._send(method, path, body, headers)
            if response.status != 503 or attempt == RETRIES:
                break
            time.sleep(float(response.headers.get("Retry-After", "1")) * 2**attempt / 4)
        if response.status >= 400:
            raise ServerError(response.status, _read_sentence(content, response))
        return content

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request; once more if the server has closed the connection since the last one."""
        was_open = self._connection.sock is not None
        try:
            self._connection.request(method, self._base + path, body, dict(headers))
            response = self._connection.getresponse()
            return response, response.read()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            self._connection.close()
            if not was_open:
                raise
            return self._send(method, path, body, headers)
        except BaseException:
            self._connection.close()  # an answer that was not read would be taken for that of the next request
            raise


def _path(model: str) -> str:
    return f"/models/{quote(model, safe='')}"


def _split(images: Sequence[Image]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the names and contents of images, in portions that fit into a request."""
    chunk: list[tuple[str, bytes]] = []
    size = 0
    for number, image in enumerate(images):
        name, content = (f"image-{number}", image) if isinstance(image, bytes) else (Path(image).name, Path(image).read_bytes())
        if chunk and (len(chunk) == CHUNK_IMAGES or size + len(content) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((name, content))
        size += len(content)
    if chunk:
        yield chunk


def _encode_form(files: Sequence[tuple[str, bytes]]) -> tuple[bytes, str]:
    """Return a form with files in its field `images`, and its content type."""
    boundary = secrets.token_hex(16)
    parts = []
    for name, content in files:
        safe = name.replace("\\", "_").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{safe}"\r\n'
        parts += [head.encode() + b"Content-Type: application/octet-stream\r\n\r\n", content, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def _read_sentence(content: bytes, response: http.client.HTTPResponse) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status} {response.reason}"
