"""Real servers of objects, from their registries: Versity's gateway for S3, Azurite for Azure's protocol."""

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.foreign_programs import installed, run, skipped_where_absent, tools
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


class CuttingLink:
    """Forwards to a port of this machine. After ``cut_after`` bytes from clients it cuts all connections, once.

    From then on it refuses new ones, where ``stays_down``.
    """

    def __init__(self, port: int) -> None:
        self.cut_after: int | None = None
        self.stays_down = False
        self.cuts = 0
        self._port = port
        self._passed = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, after: int, *, stays_down: bool) -> None:
        """Cut after so many bytes more."""
        with self._lock:
            self._passed, self.cut_after, self.stays_down = 0, after, stays_down

    def cut_now(self) -> None:
        """Cut, and refuse new connections."""
        with self._lock:
            self.cut_after, self.stays_down = None, True
        self._cut_all()

    def mend(self) -> None:
        """Let everything pass."""
        with self._lock:
            self.cut_after, self.stays_down = None, False

    def close(self) -> None:
        """Accept no more, and cut what there is."""
        self.cut_now()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.stays_down and self.cut_after is None:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                with self._lock:
                    self._open += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if counts and self._is_time(len(data)):
                    self._cut_all()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()

    def _is_time(self, size: int) -> bool:
        with self._lock:
            self._passed += size
            if self.cut_after is None or self._passed < self.cut_after:
                return False
            self.cut_after = None
            self.cuts += 1
            return True

    def _cut_all(self) -> None:
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_link(port: int) -> Iterator[CuttingLink]:
    """A link to a port, which passes everything on until it is told to cut."""
    link = CuttingLink(port)
    try:
        yield link
    finally:
        link.close()
