"""Build a release, check it as its users will get it, and sign it.

    python tools/release.py --key ~/.ssh/id_ed25519      # an SSH key (a file), or else the name of a GPG key
    python tools/release.py --only sbom                  # the bill of materials alone

In dist/: sdist and wheel, `caprompt-VERSION.cdx.json` (CycloneDX: what a user's environment contains), SHA256SUMS, its signature.
The wheel is installed into a new environment, where the smoke suite (tools/smoke.py) runs without the source tree.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
NAMESPACE = "file"  # of signatures by ssh-keygen
NO_KEY = "the release is built and checked, but not signed; name a key: make release KEY=~/.ssh/id_ed25519, or a GPG key's name"


def run(words: Sequence[str | Path], folder: Path = ROOT) -> None:
    """Run a command, which must succeed."""
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], cwd=folder, check=True)


def build(dist: Path) -> Path:
    """Build sdist and wheel into an empty folder; return the wheel, which is built from the sdist."""
    shutil.rmtree(dist, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack files that are no longer there
    run([sys.executable, "-m", "build", "--outdir", dist])
    (wheel,) = dist.glob("*.whl")
    return wheel


def check_contents(dist: Path) -> None:
    """Check metadata and contents of the packages."""
    packages = sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])
    run([sys.executable, "-m", "twine", "check", "--strict", *packages])
    run([Path(sys.executable).with_name("check-wheel-contents"), "--toplevel", "caprompt", *dist.glob("*.whl")])


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel and its dependencies, as pinned, into a new environment; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel])
    return python


def write_sbom(python: Path, path: Path) -> None:
    """Write the bill of materials of an environment, without the tools that every new environment has."""
    run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip"])
    words = ["environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-format", "JSON"]
    run([sys.executable, "-m", "cyclonedx_py", *words, "--output-file", path, python])


def compute_sums(paths: Sequence[Path]) -> str:
    """Return the lines that `sha256sum --check` reads, sorted by name."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths))


def make_signing_command(key: str, path: Path) -> list[str]:
    """Return the command that signs a file: an SSH key is a file, any other name is for GPG.

    >>> make_signing_command("release@example.org", Path("SHA256SUMS"))
    ['gpg', '--batch', '--yes', '--armor', '--local-user', 'release@example.org', '--detach-sign', 'SHA256SUMS']
    """
    file = Path(key).expanduser()
    if file.is_file():
        return ["ssh-keygen", "-Y", "sign", "-f", str(file), "-n", NAMESPACE, str(path)]
    return ["gpg", "--batch", "--yes", "--armor", "--local-user", key, "--detach-sign", str(path)]


def main() -> int:
    """Build, check, sign; return 2 without a key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", help="path of an SSH key, or name of a GPG key")
    parser.add_argument("--only", choices=["sbom"], help="build and install the wheel, and write the bill of materials alone")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    dist = args.dist.resolve()
    try:
        wheel = build(dist)
        sbom = dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if args.only is None:
                check_contents(dist)
            python = install(wheel, folder / "environment")
            if args.only is None:
                script = shutil.copy(ROOT / "tools" / "smoke.py", folder)
                run([python, script], folder)
            write_sbom(python, sbom)
        if args.only is not None:
            return 0
        sums = dist / SUMS
        sums.write_text(compute_sums([path for path in dist.iterdir() if path.name != SUMS]), encoding="utf-8")
        if not args.key:
            print(NO_KEY, file=sys.stderr)
            return 2
        run(make_signing_command(args.key, sums))
    except subprocess.CalledProcessError as error:
        print(f"stopped: {Path(error.cmd[0]).name} ended with status {error.returncode}", file=sys.stderr)
        return 1
    print(f"signed: {dist}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
