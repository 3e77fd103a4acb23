"""A small Hugging Face hub on this machine: repositories, commits, large files and downloads over HTTP, in memory.

It speaks as much of the hub's protocol as `huggingface_hub` needs to create a repository, upload to it in commits, list it and
download from it. As at the hub, tensors are large files (LFS), whose ETag is their SHA-256, and writing needs a token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from huggingface_hub import constants, file_download

__all__ = ["TOKEN", "LocalHub", "start_hub", "use_endpoint"]

TOKEN = "hf_of_this_test_only"
Files = dict[str, bytes]


@dataclass
class LocalHub:
    """The state of the hub, for tests to inspect and to prepare."""

    endpoint: str = ""
    repositories: dict[str, list[tuple[str, Files]]] = field(default_factory=dict)  # commits of each: hash and all files
    private: set[str] = field(default_factory=set)
    large_files: dict[str, bytes] = field(default_factory=dict)
    downloads: list[str] = field(default_factory=list)  # owner/name/file, in their order
    break_at: int | None = None  # bytes of the next download after which its connection breaks
    damaged: bool = False  # the first byte of every file is another one than that of its hash

    def create(self, repository: str) -> None:
        """Create a repository with an empty first commit."""
        self.repositories[repository] = []
        self.commit(repository, {})

    def commit(self, repository: str, files: Mapping[str, bytes], deleted: Sequence[str] = ()) -> str:
        """Add files to those of the newest commit, delete others, and return the hash of the commit that this makes."""
        commits = self.repositories[repository]
        contents = {**(commits[-1][1] if commits else {}), **files}
        for name in deleted:
            del contents[name]
        digest = hashlib.sha1(repr((repository, len(commits), sorted(contents.items()))).encode()).hexdigest()
        commits.append((digest, contents))
        return digest

    def get_files(self, repository: str) -> Files:
        """Return the files of the newest commit."""
        return self.repositories[repository][-1][1]


class HubError(Exception):
    """A response other than success: status and the code by which the client tells errors apart."""

    def __init__(self, status: int, code: str = "", content: bytes = b"{}") -> None:
        super().__init__(code)
        self.status, self.code, self.content = status, code, content


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.answer(self.read)

    def do_HEAD(self) -> None:
        self.answer(self.read)

    def do_POST(self) -> None:
        self.answer(self.write)

    def do_PUT(self) -> None:
        self.answer(self.write)

    def answer(self, action: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        try:
            content, headers = action(parts, body)
            self.send(200, content, headers)
        except HubError as error:
            self.send(error.status, error.content, {"X-Error-Code": error.code} if error.code else {})

    def send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else status)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        for name, value in {"Content-Length": str(len(content) - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = self.hub.break_at or len(content)
        self.wfile.write(content[start:end])
        if self.hub.break_at:
            self.hub.break_at, self.close_connection = None, True

    # -- reading -----------------------------------------------------------------------------------

    def read(self, parts: list[str], body: bytes) -> tuple[bytes, dict[str, str]]:
        if parts[:2] == ["api", "models"]:
            repository, action = "/".join(parts[2:4]), parts[4:5]
            commit, files = self.find(repository, parts[5] if len(parts) > 5 else "main")
            if action == ["tree"]:
                entries = [{"type": "file", "path": name, "size": len(each), "oid": make_oid(each)} for name, each in files.items()]
                return encode(entries), {}
            siblings = [{"rfilename": name} for name in files]
            is_private = repository in self.hub.private
            info = {"id": repository, "modelId": repository, "sha": commit, "private": is_private, "siblings": siblings, "tags": []}
            return encode(info), {}
        if len(parts) >= 5 and parts[2] == "resolve":
            repository, name = "/".join(parts[:2]), "/".join(parts[4:])
            commit, files = self.find(repository, parts[3])
            if name not in files:
                raise HubError(404, "EntryNotFound")
            if self.command == "GET":
                self.hub.downloads.append(f"{repository}/{name}")
            content = files[name]
            etag = hashlib.sha256(content).hexdigest() if name.endswith(".safetensors") else make_oid(content)
            sent = bytes([content[0] ^ 1]) + content[1:] if self.hub.damaged else content
            return sent, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        raise HubError(404)

    def find(self, repository: str, revision: str) -> tuple[str, Files]:
        commits = self.hub.repositories.get(repository)
        if not commits or (repository in self.hub.private and not self.is_authorized):
            raise HubError(401 if not self.is_authorized else 404, "RepoNotFound")
        found = [commit for commit in commits if revision in ("main", commit[0])]
        if not found:
            raise HubError(404, "RevisionNotFound")
        return found[-1]

    @property
    def is_authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    # -- writing -----------------------------------------------------------------------------------

    def write(self, parts: list[str], body: bytes) -> tuple[bytes, dict[str, str]]:
        if parts[0] == "upload":  # such an address is given out for one large file
            assert hashlib.sha256(body).hexdigest() == parts[1]
            self.hub.large_files[parts[1]] = body
            return b"", {}
        if not self.is_authorized:
            raise HubError(401)
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(body)), {}
        if parts == ["api", "validate-yaml"]:
            content = encode({"warnings": [], "errors": (errors := find_metadata_errors(json.loads(body)["content"]))})
            if errors:
                raise HubError(400, content=content)
            return content, {}
        if parts[2:] == ["info", "lfs", "objects", "batch"]:
            wanted = json.loads(body)["objects"]
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.hub.endpoint}/upload/{each['oid']}"}}}
                for each in wanted
                if each["oid"] not in self.hub.large_files
            ]
            return encode({"transfer": "basic", "objects": objects}), {"Content-Type": "application/vnd.git-lfs+json"}
        repository = "/".join(parts[2:4])
        self.find(repository, "main")
        if parts[4] == "preupload":
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            return encode({"files": [{"path": name, "uploadMode": modes[name], "shouldIgnore": False} for name in names]}), {}
        commit = self.hub.commit(repository, *self.decode_commit(body))
        url = f"{self.hub.endpoint}/{repository}/commit/{commit}"
        return encode({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}), {}

    def create(self, wanted: Mapping[str, Any]) -> bytes:
        repository = f"{wanted['organization']}/{wanted['name']}"
        content = encode({"url": f"{self.hub.endpoint}/{repository}"})
        if repository in self.hub.repositories:
            raise HubError(409, content=content)
        self.hub.create(repository)
        if wanted.get("visibility") == "private" or wanted.get("private"):
            self.hub.private.add(repository)
        return content

    def decode_commit(self, body: bytes) -> tuple[Files, list[str]]:
        files: Files = {}
        deleted = []
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large_files[value["oid"]]
            elif line["key"] == "deletedFile":
                deleted.append(value["path"])
        return files, deleted


def encode(value: Any) -> bytes:
    """Encode a value as JSON."""
    return json.dumps(value).encode()


def find_metadata_errors(card: str) -> list[dict[str, str]]:
    """Return what is wrong with the metadata of a model card, if anything."""
    metadata = yaml.safe_load(card.split("---")[1]) if card.startswith("---\n") else None
    if not isinstance(metadata, dict):
        return [{"message": "the card has no metadata"}]
    kinds = {"license": str, "library_name": str, "pipeline_tag": str, "base_model": str, "tags": list, "model-index": list}
    return [
        {"message": f"{key} is not a {kinds[key].__name__}"}
        for key in kinds & metadata.keys()
        if not isinstance(metadata[key], kinds[key])
    ]


def make_oid(content: bytes) -> str:
    """Return the hash of a file in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def start_hub() -> Iterator[LocalHub]:
    """Run a hub on a free port of this machine within the context."""
    hub = LocalHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def use_endpoint(endpoint: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `huggingface_hub` talk to this address, with an empty cache in a folder; so do child processes."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    for module in (constants, file_download):  # old releases have a copy in the second
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)  # not in old releases
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    environment = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
