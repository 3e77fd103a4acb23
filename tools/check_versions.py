"""Run the test suite in a fresh environment with the lowest supported or the newest released versions of all dependencies.

    python tools/check_versions.py lowest                     # Python 3.10 and the lower bounds of pyproject.toml
    python tools/check_versions.py newest                     # Python 3.13 and whatever PyPI has, without constraints.txt
    python tools/check_versions.py lowest -- -m 'not slow'    # words after -- are for pytest

The environments are made by uv, which is installed beside them if it is not there, and finds or downloads the Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT = re.compile(r"""^\s*"(?P<name>[\w.-]+)(?:\[[\w,]+\])?>=(?P<version>[\d.]+)(?P<marker>\s*;[^"]*)?",?\s*(?:#.*)?$""")


@dataclass(frozen=True)
class Setting:
    """An environment to test in."""

    python: str
    resolution: str  # of uv


SETTINGS = {"lowest": Setting("3.10", "lowest-direct"), "newest": Setting("3.13", "highest")}


def read_bounds(pyproject: str) -> dict[str, str]:
    """Return the lower bound of every package that caprompt itself needs on any Python, from the text of pyproject.toml.

    >>> read_bounds('dependencies = [\\n    "torch>=2.4",\\n    "tomli>=2.0; python_version < \\'3.11\\'",\\n]\\n')
    {'torch': '2.4'}
    """
    part = re.search(r"^dependencies = \[\n(.*?)^\]", pyproject, flags=re.DOTALL | re.MULTILINE)
    found = (REQUIREMENT.match(line) for line in part[1].splitlines()) if part else ()
    return {match["name"].lower().replace("_", "-"): match["version"] for match in found if match and not match["marker"]}


def find_deviations(bounds: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return a sentence about each package that is not installed at its lower bound.

    >>> find_deviations({"torch": "2.4", "numpy": "1.26"}, {"torch": "2.4.0", "numpy": "2.0"})
    ['numpy is 2.0, not 1.26']
    """

    def normalize(version: str | None) -> str:
        return re.sub(r"(\.0)+$", "", version or "missing")

    return [
        f"{name} is {installed.get(name, 'missing')}, not {version}"
        for name, version in bounds.items()
        if normalize(installed.get(name)) != normalize(version)
    ]


def find_uv(folder: Path) -> str:
    """Return the path of uv; where there is none, install it into a folder."""
    own = folder / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.is_file() else None)
    if found is None:
        venv.create(folder / "uv", with_pip=True, clear=True)
        run([str(folder / "uv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"])
    return found or str(own)


def run(words: Sequence[str], **environment: str) -> None:
    """Run a command, which must succeed."""
    print("+", " ".join(words), flush=True)
    subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=True)


def install(uv: str, setting: Setting, python: str, target: Path) -> None:
    """Make a fresh environment with this checkout in it."""
    run([uv, "venv", "--clear", "--python", python, str(target)])
    words = [uv, "pip", "install", "--quiet", "--python", str(target), "--resolution", setting.resolution]
    # many tests start Python, which would compile torch each time where it may not write
    run([*words, "--compile-bytecode", "--editable", ".[dev]"])


def list_installed(uv: str, target: Path) -> dict[str, str]:
    """Return the versions of all packages of an environment."""
    words = [uv, "pip", "list", "--python", str(target), "--format", "json"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {package["name"]: package["version"] for package in json.loads(listed)}


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; those of pytest are all words after the first `--`."""
    usage = "%(prog)s [options] {lowest,newest} [-- ...]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", choices=SETTINGS)
    parser.add_argument("--python", help="its version or path (default: 3.10 for lowest, 3.13 for newest)")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "versions", help="folder for the environments")
    # argparse does not find positional arguments of any number after an option
    end = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:end], argparse.Namespace(pytest=list(words[end + 1 :])))


def main() -> int:
    """Install, compare with the lower bounds, test."""
    args = parse_arguments(sys.argv[1:])
    setting, target = SETTINGS[args.versions], args.environments / args.versions
    try:
        uv = find_uv(args.environments)
        install(uv, setting, args.python or setting.python, target)
        installed = list_installed(uv, target)
        bounds = read_bounds((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        print(", ".join(f"{name} {installed.get(name, 'missing')}" for name in bounds), flush=True)
        deviations = find_deviations(bounds, installed) if args.versions == "lowest" else []
        if deviations:
            print(f"these are not the lowest versions: {'; '.join(deviations)}", file=sys.stderr)
            return 2
        run([str(target / "bin" / "python"), "-m", "pytest", *args.pytest], OMP_NUM_THREADS="1")
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
