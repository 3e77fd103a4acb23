"""The files in deploy/: what they promise about safety, and commands that this version accepts."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT

from caprompt.client import Client

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def read_instructions() -> list[tuple[str, str]]:
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], " ".join(line.split(maxsplit=1)[1:]).strip()) for line in lines.splitlines() if line.strip()
    ]


def test_the_image_is_not_run_by_root_and_says_how_healthy_it_is() -> None:
    instructions = read_instructions()
    last_stage = instructions[max(index for index, (name, _) in enumerate(instructions) if name == "FROM") :]
    users = [value for name, value in last_stage if name == "USER"]
    assert users == ["10001:10001"]
    assert [name for name, _ in last_stage].index("USER") > max(i for i, (name, _) in enumerate(last_stage) if name == "RUN")
    assert any(name == "HEALTHCHECK" for name, _ in last_stage)
    assert not any(name == "ADD" for name, _ in instructions)
    for name, value in instructions:
        if name == "FROM":
            assert re.fullmatch(r"python:\d\.\d+-slim( AS \w+)?", value)
        if name == "RUN" and "pip install" in value:
            assert "--no-cache-dir" in value
            assert "--constraint constraints.txt" in value


def test_every_file_that_is_copied_exists() -> None:
    for name, value in read_instructions():
        if name == "COPY" and not value.startswith("--from"):
            for source in value.split()[:-1]:
                assert (ROOT / source).exists(), source


def test_the_container_has_nothing_to_write_to_but_the_models() -> None:
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["caprompt"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"] == ["models:/models"]
    assert service["tmpfs"] == ["/tmp"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def list_commands() -> dict[str, list[str]]:
    yaml = pytest.importorskip("yaml")
    entry = json.loads(next(value for name, value in read_instructions() if name == "ENTRYPOINT"))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["caprompt"]["command"]
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "caprompt.service")
    return {"image": entry, "compose": [*entry, *compose], "systemd": shlex.split(unit["Service"]["ExecStart"])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image", "compose", "systemd"])
def test_the_command_starts_a_healthy_server(name: str, tmp_path: Path) -> None:
    words = list_commands()[name]
    assert Path(words[0]).name == "caprompt"
    folder, port = words.index("--models") + 1, words.index("--port") + 1
    words[folder], words[port] = str(tmp_path / "models"), "0"
    process = subprocess.Popen([sys.executable, "-m", "caprompt", *words[1:]], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found
        check = next(value for name, value in read_instructions() if name == "HEALTHCHECK").partition("CMD ")[2]
        script = json.loads(check)[2].replace(":8000", f":{found[1]}")
        for _ in range(50):
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            time.sleep(0.1)
        assert done.returncode == 0, done.stderr
        with Client(f"http://127.0.0.1:{found[1]}") as client:
            assert client.health()["models"] == 0
    finally:
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "caprompt.service"
    unit.write_text((DEPLOY / "caprompt.service").read_text().replace("/opt/caprompt/bin/caprompt", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "caprompt.service" not in done.stderr, done.stderr
