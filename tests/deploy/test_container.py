"""The Dockerfile does what it says: built and run where an engine answers, elsewhere its own steps in an empty root.

Without an engine the file is read, its COPY and RUN lines are carried out below a temporary folder that stands for the
root, and the entry point is started as the unprivileged user it names, with the environment it sets. There it is built
from the sources: a test installs no compiler, and ``make compiled`` tests the compiled modules.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import clean_environment, free_port
from tests.support import REPOSITORY, missing

pytestmark = pytest.mark.slow

_UID = 10001


class Dockerfile(NamedTuple):
    """What the test needs of the file, as it stands there."""

    copies: list[list[str]]  # of the build stage: sources, and the target
    builds: list[str]  # RUN lines of the build stage
    environment: dict[str, str]
    user: str
    volume: str
    health: list[str]
    entry: list[str]


def _read() -> Dockerfile:
    text = re.sub(r"^#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    build, run = re.split(r"^FROM .*$", text, flags=re.MULTILINE)[1:]
    variables = re.findall(r"^ENV (.*)$", run, re.MULTILINE)[0].split()
    return Dockerfile(
        copies=[line.split() for line in re.findall(r"^COPY (.*)$", build, re.MULTILINE)],
        builds=re.findall(r"^RUN (.*)$", build, re.MULTILINE),
        environment=dict(variable.split("=", 1) for variable in variables),
        user=re.findall(r"^USER (\S+)$", run, re.MULTILINE)[0],
        volume=re.findall(r"^VOLUME (\S+)$", run, re.MULTILINE)[0],
        health=json.loads(re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", run, re.MULTILINE)[0]),
        entry=json.loads(re.findall(r"^ENTRYPOINT (\[.*\])$", run, re.MULTILINE)[0]),
    )


def _engine_answers() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


def _python_for_everyone() -> str:
    """An interpreter, 3.11 or newer, that another user may run; this one often lies in somebody's home."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        real = Path(candidate).resolve()
        reachable = all(folder.stat().st_mode & 0o005 == 0o005 for folder in real.parents)
        if real.exists() and reachable:
            checks = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([candidate, "-c", checks], check=False, capture_output=True).returncode == 0:
                return candidate
    missing("python: no interpreter with venv that an unprivileged user can run")
    raise AssertionError


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty root that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="seglog-root-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not _engine_answers(), reason="docker: no engine answers")
def test_the_image_is_built_and_serves() -> None:
    subprocess.run(["docker", "build", "--tag", "seglog-test", str(REPOSITORY)], check=True)
    started = subprocess.run(
        ["docker", "run", "--detach", "--env", "SEGLOG_OPEN_TO_EVERYONE=true", "seglog-test"],
        check=True,
        capture_output=True,
        text=True,
    )
    container = started.stdout.strip()
    try:
        ping = ["docker", "exec", container, "seglog", "ping"]
        deadline = time.monotonic() + 60
        while subprocess.run(ping, capture_output=True, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.1)
        subprocess.run(ping, check=True)
        who = subprocess.run(["docker", "exec", container, "id", "-u"], capture_output=True, text=True, check=True)
        assert who.stdout.strip() == str(_UID)
        said = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
        assert json.loads(said.stderr.splitlines()[0])["build"] == "compiled"
        load = ["seglog", "load", "produce", "--count", "1000", "--warmup", "0"]
        subprocess.run(["docker", "exec", container, *load], check=True)
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="root: only root can start a process as another user")
def test_its_steps_make_a_daemon_that_serves_unprivileged(root: Path) -> None:
    python = _python_for_everyone()
    dockerfile = _read()
    source = root / "src"
    source.mkdir()
    for *names, target in dockerfile.copies:
        for name in names:
            if (REPOSITORY / name).is_dir():
                shutil.copytree(REPOSITORY / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(REPOSITORY / name, source / target)
    tools = root / "tools"
    subprocess.run([python, "-m", "venv", str(tools)], check=True)
    inside = {
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "SEGLOG_BUILD": "sources",
    }
    for step in dockerfile.builds:
        for path in ("/wheels", "/opt/seglog"):
            step = re.sub(rf"(?<![\w./]){path}\b", str(root) + path, step)  # noqa: PLW2901 - the same step, moved
        done = subprocess.run(
            ["/bin/sh", "-c", step],
            cwd=source,
            env=clean_environment() | inside,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    shutil.rmtree(source)  # what runs is what was installed
    volume = root / dockerfile.volume.lstrip("/")
    volume.mkdir(parents=True)
    os.chown(volume, _UID, _UID)
    environment = {
        name: value.replace(dockerfile.volume, str(volume)) for name, value in dockerfile.environment.items()
    }
    environment["PATH"] = f"{root}/opt/seglog/bin:/usr/bin:/bin"
    assert "0.0.0.0" in dockerfile.environment["SEGLOG_LISTEN"]
    environment["SEGLOG_LISTEN"] = f"0.0.0.0:{free_port()}"
    environment["SEGLOG_LISTENERS"] = f"PLAINTEXT://0.0.0.0:{free_port()}"
    environment["SEGLOG_OPEN_TO_EVERYONE"] = "true"
    daemon = subprocess.Popen(
        [f"{root}/opt/seglog/bin/{dockerfile.entry[0]}"],
        env=environment,
        cwd="/",
        user=_UID,
        group=_UID,
        extra_groups=[],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stderr is not None
        logged = (json.loads(line) for line in daemon.stderr)
        assert next(line["build"] for line in logged if line["event"] == "broker_starting") == "sources"
        assert any(line["event"] == "broker_ready" for line in logged), "the daemon ended before it was ready"
        assert (volume / "data" / "meta.properties").stat().st_uid == _UID
        load = ["seglog", "load", "produce", "--count", "1000", "--warmup", "0", "--json"]
        printed = []
        for command in (dockerfile.health, load):
            client = subprocess.run(
                [f"{root}/opt/seglog/bin/{command[0]}", *command[1:]],
                env=environment,  # the port is that of SEGLOG_LISTEN
                user=_UID,
                group=_UID,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
            assert client.returncode == 0, client.stderr
            printed.append(client.stdout)
        assert json.loads(printed[-1])["records"] == 1000
        assert not list((root / "opt/seglog").rglob("pip")), "what runs needs no pip"
        daemon.terminate()
        assert daemon.wait() == 0
    finally:
        daemon.kill()
        daemon.wait()
        assert daemon.stderr is not None
        daemon.stderr.close()
