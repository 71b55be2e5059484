"""The image without an engine: its steps carried out in a root file system of their own, and what runs in it contained.

Its base is not to be had without a registry: this machine's own system takes its place, read-only. All that the
Dockerfile says is done as it stands there, below ``/``: what is copied, built and made, by whom it is run, and how.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.processes import PATIENCE_SECONDS, clean_environment, wait_until
from tests.support import REPOSITORY, missing

_SYSTEM: Final = ("usr",)
"""What the base gives, of the folders of a root."""
_LINKS: Final = ("bin", "lib", "lib64", "sbin")
_OWN: Final = {"opt", "src", "wheels", "tools", "proc", "sys", "lost+found"}
"""Folders of the build stage that are not this machine's."""


class Dockerfile(NamedTuple):
    """What the tests need of the file, as it stands there."""

    copies: list[list[str]]  # of the build stage: sources, and the target
    builds: list[str]  # RUN lines of the build stage
    steps: list[str]  # RUN lines of the stage that runs
    environment: dict[str, str]
    user: str
    volume: str
    ports: list[str]
    health: list[str]
    entry: list[str]


def read() -> Dockerfile:
    """The repository's."""
    text = re.sub(r"^#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    build, run = re.split(r"^FROM .*$", text, flags=re.MULTILINE)[1:]
    variables = re.findall(r"^ENV (.*)$", run, re.MULTILINE)[0].split()
    return Dockerfile(
        copies=[line.split() for line in re.findall(r"^COPY (.*)$", build, re.MULTILINE)],
        builds=re.findall(r"^RUN (.*)$", build, re.MULTILINE),
        steps=re.findall(r"^RUN (.*)$", run, re.MULTILINE),
        environment=dict(variable.split("=", 1) for variable in variables),
        user=re.findall(r"^USER (\S+)$", run, re.MULTILINE)[0],
        volume=re.findall(r"^VOLUME (\S+)$", run, re.MULTILINE)[0],
        ports=re.findall(r"^EXPOSE (.*)$", run, re.MULTILINE)[0].split(),
        health=json.loads(re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", run, re.MULTILINE)[0]),
        entry=json.loads(re.findall(r"^ENTRYPOINT (\[.*\])$", run, re.MULTILINE)[0]),
    )


def _python() -> str:
    """An interpreter of the system, 3.11 or newer, as the base has one."""
    for candidate in ("/usr/local/bin/python3", "/usr/bin/python3"):
        checks = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
        is_there = Path(candidate).exists() and Path(candidate).resolve().is_relative_to("/usr")
        if is_there and subprocess.run([candidate, "-c", checks], check=False, capture_output=True).returncode == 0:
            return candidate
    missing("python: no interpreter below /usr that has venv and is 3.11 or newer")
    raise AssertionError


def _needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            missing(f"{program}: not on this machine")


def build(folder: Path, dockerfile: Dockerfile) -> Path:
    """Carry out both stages; the root file system of the second."""
    _needed("unshare", "nsenter", "setpriv", "chroot", "ip", "useradd")
    stage, root = folder / "build", folder / "root"
    for name in _OWN - {"lost+found"}:
        (stage / name).mkdir(parents=True)
    for *names, target in dockerfile.copies:
        for name in names:
            if (REPOSITORY / name).is_dir():
                copied = stage / "src" / target
                shutil.copytree(REPOSITORY / name, copied, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(REPOSITORY / name, stage / "src" / target)
    inside = clean_environment(
        PATH=f"/tools/bin:{os.environ['PATH']}", SEGLOG_BUILD="sources", PIP_DISABLE_PIP_VERSION_CHECK="1"
    )
    del inside["PYTHONPATH"]  # the packages of this checkout
    machine = [entry.name for entry in Path("/").iterdir() if entry.name not in _OWN and not entry.is_symlink()]
    for step in (f"{_python()} -m venv /tools", *dockerfile.builds):
        _carried_out(stage, machine, f"cd /src && {step}", inside)
    for name in (*_SYSTEM, "proc", "dev", "tmp", "opt"):
        (root / name).mkdir(parents=True)
    shutil.move(stage / "opt" / "seglog", root / "opt" / "seglog")
    shutil.copytree("/etc", root / "etc", symlinks=True, ignore_dangling_symlinks=True)
    _link(root)
    for step in dockerfile.steps:
        _carried_out(root, [*_SYSTEM, "dev"], step, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"})
    shutil.rmtree(stage)
    return root


def _link(root: Path) -> None:
    for name in _LINKS:
        if Path("/", name).is_symlink() and not (root / name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())


def _carried_out(root: Path, machine: list[str], step: str, environment: Mapping[str, str]) -> None:
    """A step of a stage, in which folders of this machine are seen beside the stage's own."""
    _link(root)
    mounts = ["set -e", "mount --make-rprivate /"]
    for name in machine:
        place = root / name
        if Path("/", name).is_dir():
            place.mkdir(exist_ok=True)
            mounts.append(f"mount --rbind /{name} {place}")
    mounts.append(f'exec chroot {root} /bin/sh -c "$1"')
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "\n".join(mounts), "sh", step],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"


_CONTAINED: Final = """set -e
mount --make-rprivate /
mount --bind "$1" "$1"
for name in {system}; do
  mount --bind "/$name" "$1/$name"
  mount -o remount,bind,ro "$1/$name"
done
mount --bind "$2" "$1$3"
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -o remount,bind,ro "$1"
ip link set lo up
shift 3
exec "$@"
"""


class Container:
    """What runs in a root file system: as any user, without a capability, on a network of its own.

    The root is read-only; nothing but the volume can be written to, not even ``/tmp``.
    """

    def __init__(self, root: Path, user: tuple[int, int], environment: Mapping[str, str]) -> None:
        self.root = root
        self.user = user
        self.environment = environment
        self.logged: list[dict[str, Any]] = []
        self._log = root.parent / "log"
        self._outer: subprocess.Popen[bytes] | None = None

    def start(self, entry: list[str], volume: Path, place: str) -> None:
        """Return when the broker in it is ready."""
        script = _CONTAINED.format(system=" ".join(_SYSTEM))
        spaces = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        command = [*spaces, "sh", "-c", script, "sh", str(self.root), str(volume), place]
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                [*command, *self._entered(), *entry], env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._is_ready, "the broker in its container")

    def _is_ready(self) -> bool:
        assert self._outer is not None
        text = self._log.read_text()
        assert self._outer.poll() is None, text
        self.logged = [json.loads(line) for line in text.splitlines(keepends=True) if line[:1] + line[-1:] == "{\n"]
        return any(line["event"] == "broker_ready" for line in self.logged)

    def _entered(self) -> list[str]:
        """The command that becomes another one inside, as the user."""
        uid, gid = self.user
        rights = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        own = ["chroot", str(self.root), "setpriv", f"--reuid={uid}", f"--regid={gid}", *rights]
        return [*own, "env", "--ignore-environment", *variables]

    @property
    def pid(self) -> int:
        """Of the first process in it, as seen from outside."""
        assert self._outer is not None
        listed = ["ps", "-o", "pid=", "--ppid", str(self._outer.pid)]
        return int(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Another command in it, as `docker exec` runs one."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--ipc", "--uts"]
        return subprocess.run(
            [*enter, *self._entered(), *command],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def stop(self) -> int:
        """SIGTERM for the first process in it; its exit code."""
        assert self._outer is not None
        os.kill(self.pid, 15)
        return self._outer.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._outer is not None and self._outer.poll() is None:
            self._outer.kill()
            self._outer.wait()


@contextmanager
def contained(
    root: Path, dockerfile: Dockerfile, volume: Path, user: tuple[int, int], **variables: str
) -> Iterator[Container]:
    """The image, running; gone afterwards."""
    container = Container(root, user, dockerfile.environment | {"PATH": _path(dockerfile)} | variables)
    try:
        container.start(dockerfile.entry, volume, dockerfile.volume)
        yield container
    finally:
        container.kill()


def _path(dockerfile: Dockerfile) -> str:
    return dockerfile.environment["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
