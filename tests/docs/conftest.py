"""The built site, once for all processes of a test run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from helpers import ROOT

GENERATED = shutil.ignore_patterns("reference")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` does from a copy of the pages."""
    pytest.importorskip("zensical", reason="zensical needs Python 3.11")
    base = tmp_path_factory.getbasetemp()
    project = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site-project"
    with FileLock(f"{project}.lock"):
        if not (project / "output.txt").exists():
            shutil.rmtree(project, ignore_errors=True)
            shutil.copytree(ROOT / "docs", project / "docs", ignore=GENERATED)
            shutil.copy(ROOT / "mkdocs.yml", project)
            for name in ("src", "tools"):
                (project / name).symlink_to(ROOT / name)
            command = [sys.executable, ROOT / "tools" / "build_site.py", "--project", project]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            (project / "output.txt").write_text(done.stdout + done.stderr)
    return project / "site"
