"""How many cores a process may use: the files of control groups, and a real group with a quota where one can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from caprompt.utils.cores import GROUPS, count_bound_cores, count_cores, read_quota


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        pytest.param("0::/", {"cpu.max": "150000 100000\n"}, 1.5, id="container"),
        pytest.param("0::/", {"cpu.max": "max 100000\n"}, None, id="no quota"),
        pytest.param("0::/", {}, None, id="root of a machine"),
        pytest.param(
            "0::/system.slice/caprompt.service", {"system.slice/caprompt.service/cpu.max": "50000 100000"}, 0.5, id="service"
        ),
        pytest.param(
            "0::/a/b",
            {"cpu.max": "max 1", "a/cpu.max": "300000 100000", "a/b/cpu.max": "400000 100000"},
            3,
            id="the group around it",
        ),
        pytest.param("0::/docker/outside", {"cpu.max": "200000 100000"}, 2, id="path outside of the container"),
        pytest.param(
            "3:cpuset:/\n2:cpu,cpuacct:/docker/1\n1:name=systemd:/\n0::/",
            {"cpu/docker/1/cpu.cfs_quota_us": "250000\n", "cpu/docker/1/cpu.cfs_period_us": "100000\n"},
            2.5,
            id="version 1",
        ),
        pytest.param(
            "1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None, id="version 1, no quota"
        ),
        pytest.param("1:cpuset:/", {"cpuset/cpu.max": "100000 100000"}, None, id="another controller"),
    ],
)
def test_quota_of_control_groups(tmp_path: Path, membership: str, files: dict[str, str], quota: float | None) -> None:
    write_files(tmp_path, {"self": membership, **{f"groups/{name}": content for name, content in files.items()}})
    assert read_quota(tmp_path / "self", tmp_path / "groups") == quota


def test_system_without_control_groups(tmp_path: Path) -> None:
    assert read_quota(tmp_path / "self", tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (0.2, 1), (1.5, 2), (3.0, 3), (8.0, 4)])
def test_fewer_cores_than_those_it_is_bound_to(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr("caprompt.utils.cores.read_quota", lambda: quota)
    monkeypatch.setattr("caprompt.utils.cores.count_bound_cores", lambda: 4)
    assert count_cores() == cores


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a new control group whose processes get the time of one core."""
    hierarchy = next((path for path in (GROUPS / "cpu", GROUPS) if path.is_dir()), GROUPS)
    folder = hierarchy / f"caprompt-{uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror})")
    try:
        quota = next((folder / name for name in ("cpu.cfs_quota_us", "cpu.max") if (folder / name).exists()), None)
        if quota is None:
            pytest.skip("control groups have no quotas here")
        quota.write_text("100000")
        yield folder
    finally:
        folder.rmdir()


def test_command_in_a_group_with_a_quota(group: Path) -> None:
    if count_bound_cores() == 1:
        pytest.skip("there is one core here, of which there can be no fewer")
    program = (
        f"import contextlib, os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "from caprompt.__main__ import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "import torch; print('threads', torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", program, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-2:] == ["threads", "1"]
