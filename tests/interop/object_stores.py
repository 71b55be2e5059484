"""Real servers of objects, from their registries: Versity's gateway for S3, Azurite for Azure's protocol."""

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.foreign_programs import installed, run, skipped_where_absent, tools
from tests.process.faults.links import Link
from tests.processes import free_port

GATEWAY: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

ACCESS_KEY: Final = "reader-and-writer"
SECRET_KEY: Final = "what-nobody-is-to-see"

AZURITE: Final = "azurite@3.35.0"
AZURE_ACCOUNT: Final = "seglog"
AZURE_KEY: Final = base64.b64encode(b"what-nobody-is-to-see").decode()

_WAITS: Final = 300


def gateway_program() -> Path:
    """The program, built once. Skips the test where there is no Go, or it cannot be had."""

    def make(folder: Path) -> None:
        run("go", "install", GATEWAY, GOBIN=str(folder), GOTOOLCHAIN="local")

    with skipped_where_absent("versitygw"):
        tools("go")
        return installed("versitygw", [Path(__file__)], make) / "versitygw"


class Gateway:
    """A server with one bucket, ``backups``; it can be killed and started again."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.port = free_port()
        self.objects = folder / "objects" / "backups"
        self.objects.mkdir(parents=True)
        (folder / "metadata").mkdir()
        given = ["--port", f"127.0.0.1:{self.port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--quiet"]
        self._command = [str(program), *given, "posix", "--sidecar", f"{folder}/metadata", f"{folder}/objects"]
        self._output = folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and return when it answers."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        for _ in range(_WAITS):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, self._output.read_text()
            time.sleep(0.05)
        raise AssertionError("the gateway never answered")

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def sizes(self) -> dict[str, int]:
        """Of all files that the gateway keeps of the bucket, parts of uploads too, by their paths."""
        files = (path for path in self.objects.rglob("*") if path.is_file())
        return {str(path.relative_to(self.objects)): path.stat().st_size for path in files}


@contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """A running gateway, with its files in ``folder``."""
    running = Gateway(gateway_program(), folder)
    running.start()
    try:
        yield running
    finally:
        running.kill()


@contextmanager
def azurite(folder: Path) -> Iterator[int]:
    """A running Azurite with an empty container, ``backups``; its port on this machine."""
    with skipped_where_absent("azurite"):
        tools("node", "npm")
        home = installed("azurite", [Path(__file__)], _install_azurite)
    port = free_port()
    given = ["--location", str(folder), "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [str(home / "node_modules" / ".bin" / "azurite-blob"), *given],
            env=os.environ | {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(_WAITS):
            with suppress(OSError):
                _make_container(port)
                break
            assert process.poll() is None, (folder / "output").read_text()
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def _install_azurite(folder: Path) -> None:
    run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", AZURITE, cwd=folder)


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


@contextmanager
def cutting_link(port: int) -> Iterator[CuttingLink]:
    """A link to a port, which passes everything on until it is told to cut."""
    link = CuttingLink(port)
    try:
        yield link
    finally:
        link.close()
