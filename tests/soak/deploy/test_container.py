"""The Dockerfile does what it says: built and run where an engine answers, elsewhere its own steps in a root of theirs.

Without an engine its steps make a root file system, and its entry point runs there as a container would have it: any
user, no capability, the root read-only, a network of its own. There it is built from the sources: a test installs no
compiler, and ``make compiled`` tests the compiled modules.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.deploy import image
from tests.support import REPOSITORY

_UID = 10001
_OPEN = {"SEGLOG_OPEN_TO_EVERYONE": "true"}


def _engine_answers() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _engine_answers(), reason="docker: no engine answers")
def test_the_image_is_built_and_serves() -> None:
    subprocess.run(["docker", "build", "--tag", "seglog-test", str(REPOSITORY)], check=True)
    started = subprocess.run(
        ["docker", "run", "--detach", "--read-only", "--env", "SEGLOG_OPEN_TO_EVERYONE=true", "seglog-test"],
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
        assert _build(list(map(json.loads, said.stderr.splitlines()))) == "compiled"
        load = ["seglog", "load", "produce", "--count", "1000"]
        subprocess.run(["docker", "exec", container, *load], check=True)
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True)


def _build(logged: list[dict[str, Any]]) -> str:
    """Whether the modules of a broker are compiled, by its log."""
    return str(next(event["build"] for event in logged if event["event"] == "broker_starting"))


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[image.Dockerfile, Path]]:
    """The Dockerfile, and the root file system that its steps make, in a folder that every user may enter."""
    if os.geteuid() != 0:
        pytest.skip("root: only root can make a root file system, and start a process as another user")
    folder = Path(tempfile.mkdtemp(prefix="seglog-image-"))
    folder.chmod(0o755)
    dockerfile = image.read()
    yield dockerfile, image.build(folder, dockerfile)
    shutil.rmtree(folder)


@pytest.fixture
def volume(built: tuple[image.Dockerfile, Path]) -> Iterator[Path]:
    """A fresh volume as an engine makes one: with the owner and the mode that its place has in the image."""
    dockerfile, root = built
    place = (root / dockerfile.volume.lstrip("/")).stat()
    folder = Path(tempfile.mkdtemp(prefix="seglog-volume-", dir=root.parent))
    os.chown(folder, place.st_uid, place.st_gid)
    folder.chmod(place.st_mode & 0o7777)
    yield folder
    shutil.rmtree(folder)


USERS = pytest.mark.parametrize(
    "user",
    [
        pytest.param((_UID, 0), id="its user"),
        pytest.param((12345, 0), id="any user"),  # to whom engines give group 0
    ],
)


@USERS
def test_it_serves_any_user_from_a_read_only_root(
    built: tuple[image.Dockerfile, Path], volume: Path, user: tuple[int, int]
) -> None:
    dockerfile, root = built
    with image.contained(root, dockerfile, volume, user, **_OPEN) as container:
        assert _build(container.logged) == "sources"
        ready = next(event for event in container.logged if event["event"] == "broker_ready")
        warned = [event["reason"] for event in container.logged if event["event"] == "config_warning"]
        assert all("seglog.open.to.everyone=true" in reason for reason in warned)
        assert [ready["listen"], ready["kafka"]] == ["0.0.0.0:9192", "0.0.0.0:9092"]
        assert container.run("id", "-u").stdout.strip() == str(user[0])
        status = container.run("cat", "/proc/1/status").stdout
        assert re.findall(r"^Cap(?:Prm|Eff|Bnd|Amb):\t(\w+)$", status, re.MULTILINE) == ["0" * 16] * 4
        for place in ("/opt/seglog/x", "/usr/x", "/tmp/x", "/etc/x"):
            refused = container.run("touch", place)
            assert "Read-only file system" in refused.stderr
        healthy = container.run(*dockerfile.health)
        assert healthy.returncode == 0, healthy.stderr
        load = ["seglog", "load", "produce", "kept", "--count", "1000", "--keep", "--json"]
        loaded = container.run(*load)
        assert loaded.returncode == 0, loaded.stderr
        assert json.loads(loaded.stdout)["records"] == 1000
        assert (volume / "data" / "meta.properties").stat().st_uid == user[0]
        assert container.stop() == 0
    with image.contained(root, dockerfile, volume, user, **_OPEN) as container:  # another container on the same volume
        assert "kept" in container.run("seglog", "topic", "list").stdout


def test_its_health_check_needs_no_login_and_fails_where_nobody_answers(
    built: tuple[image.Dockerfile, Path], volume: Path
) -> None:
    dockerfile, root = built
    accounts = {
        "SEGLOG_LISTEN": "SASL_PLAINTEXT://127.0.0.1:9192",
        "SEGLOG_LISTENERS": "",
        "SEGLOG_ADVERTISED_LISTENERS": "",
        "SEGLOG_SUPER_USERS": "User:admin",
    }
    with image.contained(root, dockerfile, volume, (_UID, 0), **accounts) as container:
        assert container.run("seglog", "ping").returncode != 0
        assert container.run(*dockerfile.health).returncode == 0
        assert container.stop() == 0
    with image.contained(root, dockerfile, volume, (_UID, 0), **_OPEN, SEGLOG_HTTP_LISTEN="") as container:
        assert container.run(*dockerfile.health).returncode != 0


def test_what_runs_has_no_compiler_and_no_pip(built: tuple[image.Dockerfile, Path]) -> None:
    _, root = built
    assert not list((root / "opt/seglog").rglob("pip"))
    assert not list((root / "opt/seglog").rglob("mypy"))
