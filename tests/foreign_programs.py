"""Programs of others that tests run: installed from their registries, below ``build/``, where their pins do not change.

Where a toolchain is absent, or a registry cannot be reached, the test is skipped by name.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support import REPOSITORY, missing

INSTALLED: Final = REPOSITORY / "build" / "interop"

_INSTALL_SECONDS: Final = 1_200
"""For the largest, 1.6 GB in 130 packages, on a busy machine."""
_TRIES: Final = 2


class AbsentError(Exception):
    """What cannot be had here, and why."""


@contextmanager
def skipped_where_absent(what: str) -> Iterator[None]:
    """Skips the test where something that it needs raises AbsentError."""
    try:
        yield
    except AbsentError as error:
        missing(f"{what}: {error}")
        raise


def tools(*names: str) -> None:
    """Raises AbsentError unless these programs are on the machine."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        raise AbsentError(f"no {', '.join(absent)}")


def installed(name: str, pins: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` fills, once for the same ``pins``. Raises AbsentError when it failed twice.

    Of processes that want it at once, one makes it and the others wait.
    """
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(INSTALLED / name, pins, make)


def _installed(folder: Path, pins: Sequence[Path], make: Callable[[Path], None]) -> Path:
    wanted = hashlib.sha256(b"\0".join(path.read_bytes() for path in (Path(__file__), *pins))).hexdigest()
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    why = ""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            make(folder)
        except subprocess.CalledProcessError as error:
            why = f"{error.cmd[0]} ended with {error.returncode}: {(error.stderr or error.stdout)[-500:]}"
        except subprocess.TimeoutExpired as error:
            why = f"{error.cmd[0]} took more than {error.timeout} s"
            break
        else:
            stamp.write_text(wanted)
            return folder
    raise AbsentError(f"could not be installed: {why}")


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """What a command of an installation prints. Raises CalledProcessError and TimeoutExpired."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=True,
    )
    return done.stdout


def debian_package(name: str, *, dependencies: bool = True) -> Path:
    """A package of Debian's, unpacked into a folder of its own; by default with what it needs. Raises AbsentError.

    Nothing of it is installed on the machine.
    """

    def make(folder: Path) -> None:
        debs = folder / "archives"
        (debs / "partial").mkdir(parents=True)
        if dependencies:
            options = ["-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={debs}"]
            command = ["apt-get", "install", "--download-only", "--yes", "--no-install-recommends", *options, name]
        else:
            command = ["apt-get", "download", name]
        try:
            run(*command, cwd=debs)
        except subprocess.CalledProcessError:
            run("apt-get", "update")  # without lists there is no package of that name
            run(*command, cwd=debs)
        for deb in debs.glob("*.deb"):
            run("dpkg", "-x", deb, folder)
        shutil.rmtree(debs)

    tools("apt-get", "dpkg")
    return installed(name, [], make)
