from __future__ import annotations

import socket
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from caprompt.distributed import ray_cluster
from caprompt.distributed.ray_cluster import connect, import_ray
from caprompt.errors import InputError


def test_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"a cluster needs the package ray: pip install 'caprompt\[cluster\]'"):
        import_ray()


@pytest.mark.slow
def test_other_service_at_the_address_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the package ray is not installed (the extra caprompt[cluster])")
    monkeypatch.setattr(ray_cluster, "HEALTH_TIMEOUT", 5.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(InputError, match=f"what answers at '{address}' is no Ray cluster"), connect(address):
            pass
        server.shutdown()


@pytest.mark.parametrize("scheme", ["ray://", ""])
def test_address_where_nobody_answers_is_a_sentence(scheme: str) -> None:
    pytest.importorskip("ray", reason="the package ray is not installed (the extra caprompt[cluster])")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"  # bound, but nobody listens
        with pytest.raises(InputError, match=f"no Ray cluster answers at '{address}'"), connect(address):
            pass
