"""tools/release.py: checksums and signatures that the standard tools verify."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import ROOT


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "release.py")))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    (tmp_path / "dist").mkdir()
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / "dist" / name).write_text(name)
    return tmp_path / "dist"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_checksums_are_verified_and_a_changed_file_is_not(tool: SimpleNamespace, dist: Path) -> None:
    (dist / "SHA256SUMS").write_text(tool.compute_sums(list(dist.iterdir())))
    assert [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()] == ["a.tar.gz", "b.whl"]
    assert subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=dist, check=False).returncode == 0
    (dist / "b.whl").write_text("other")
    assert subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=dist, check=False).returncode == 1


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_signature_by_an_ssh_key_is_verified_and_a_changed_file_is_not(tool: SimpleNamespace, dist: Path) -> None:
    key, sums = dist.parent / "key", dist / "SHA256SUMS"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sums.write_text(tool.compute_sums(list(dist.iterdir())))
    subprocess.run(tool.make_signing_command(str(key), sums), check=True, capture_output=True)
    (dist.parent / "signers").write_text(f"caprompt {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", dist.parent / "signers", "-I", "caprompt", "-n", tool.NAMESPACE]
    verify += ["-s", dist / "SHA256SUMS.sig"]
    assert subprocess.run(verify, input=sums.read_bytes(), capture_output=True, check=False).returncode == 0
    assert subprocess.run(verify, input=b"other", capture_output=True, check=False).returncode != 0


def test_any_other_key_is_for_gpg(tool: SimpleNamespace, tmp_path: Path) -> None:
    assert tool.make_signing_command("release@example.org", tmp_path / "SHA256SUMS")[0] == "gpg"
