"""What a broker in tests runs as: a process of its own, which can be killed, or a thread of this process.

Beside them: what only the one in a thread can be made to suffer, and a client without that.
"""

import json
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, Final, Self

from seglog.access import Access, LinkBase
from seglog.client import Client
from seglog.core.dialing import CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.link import Dialer
from seglog.testing.configuration import config_of
from seglog.testing.errors import BrokerStoppedError, NotPossibleError
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.disks import MachineDisk, MemoryDisk, TestDisk
from seglog_broker.testing.forgetful import POWER_LOSS, RANDOM
from seglog_broker.testing.in_process import LINES_MAX, NOT_RUNNING, BrokerThread
from seglog_broker.testing.request_faults import RequestFaults

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0

CLIENT_ID: Final = "seglog-testing"
"""Of the client that a broker in tests has for itself."""


class Daemon:
    """One run of `seglogd`."""

    def __init__(self) -> None:
        self.fs = PosixFileSystem()
        """Where it keeps its data."""
        self._lines: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process. Raises BrokerStoppedError."""
        if self._process is None or not self.is_running:
            raise BrokerStoppedError(NOT_RUNNING)
        return self._process.pid

    def now_ms(self) -> None:
        """Its time is the machine's."""

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far: each line an event and its facts."""
        return list(self._lines)

    def start(self, flags: Mapping[str, str], log_dir: str, listen: str, kafka: str) -> tuple[str, str]:
        """Start it with these listeners, ``PROTOCOL://HOST:PORT``, and return their addresses when it is ready.

        Raises BrokerStoppedError with what it said when it did not start.
        """
        settings = [part for name, value in flags.items() for part in ("--set", f"{name}={value}")]
        places = ["--data", log_dir, "--listen", listen, "--kafka", kafka]
        self._process = subprocess.Popen(  # noqa: S603 - the daemon of this installation
            [sys.executable, "-m", "seglog_broker", *places, "--log-format", "json", *settings],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        started: Future[dict[str, Any]] = Future()  # of this run: the end of the log of one that was killed may be late
        self._reader = threading.Thread(
            target=self._read, args=(self._process, started), name="seglogd's log", daemon=True
        )
        self._reader.start()
        facts = started.result() if wait([started], START_SECONDS_MAX).done else {}
        if not facts:
            self.crash()
            said = "\n".join(str(line.get("reason") or line.get("event")) for line in list(self._lines)[-5:])
            raise BrokerStoppedError(f"seglogd did not start:\n{said}")
        return str(facts["listen"]), str(facts["kafka"])

    def stop(self) -> None:
        """SIGTERM, a stop in order."""
        if self._process is not None:
            self._process.terminate()
            self._wait()

    def crash(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process = None

    def _read(self, process: "subprocess.Popen[str]", started: Future[dict[str, Any]]) -> None:
        """Keep the lines of its log; ``started`` is the one that says where it listens, or is empty."""
        assert process.stderr is not None
        with process.stderr as stderr:
            for text in stderr:
                try:
                    line = json.loads(text)
                except ValueError:
                    line = {"event": text.rstrip()}
                self._lines.append(line)
                if line["event"] == "broker_ready" and not started.done():
                    started.set_result(line)
        if not started.done():
            started.set_result({})


class InThread(BrokerThread):
    """One run after the other of a broker, on one disk."""

    def __init__(self, *, in_memory: bool, is_temporary: bool, seed: int) -> None:
        super().__init__()
        self.faults = RequestFaults()
        self.fs: TestDisk = MemoryDisk(self._clock) if in_memory else MachineDisk(is_temporary=is_temporary)
        """Where it keeps its data."""
        self._seed = seed
        self._power_cuts = 0

    def start(self, flags: Mapping[str, str], log_dir: str, listen: str, kafka: str) -> tuple[str, str]:
        """Start it with these listeners, ``PROTOCOL://HOST:PORT``, and return their addresses when it is ready."""
        serving = self.run(config_of(flags, log_dir, listen, kafka), self.fs, self.faults)
        return serving.addresses[0], serving.kafka_addresses[0]

    def crash(self) -> None:
        """An end as by SIGKILL."""
        self.call(self.faults.cut_connections)
        super().crash()

    def power_cut(self, *, random: bool) -> None:
        """An end as by a power cut. Raises NotPossibleError for a disk that is not in memory."""
        if not isinstance(self.fs, MemoryDisk):
            raise NotPossibleError(
                "a power cut takes what was never synced, which only a disk in memory knows: Broker(memory=True)"
            )
        self._power_cuts += 1
        policy = RANDOM(self._seed * 1_000 + self._power_cuts) if random else POWER_LOSS
        found = self.call(self.fs.found_after, policy)
        self.crash()
        self.fs = found

    def full_disk(self, *, is_full: bool) -> None:
        """The disk has no room, or has room again."""
        if self.fs.is_full == is_full:
            return  # nothing for the broker to see: ``heal`` after each test of a suite costs no more than a request
        self.fs.is_full = is_full
        if self.is_running:  # it sees how much room there is, and puts the mode of a full disk on or off
            self.call(self.serving.broker.directory.space.refresh)
            self.settle()


class _ExemptDialer(Dialer):
    """Names the port of each of its connections to the faults before it connects."""

    def __init__(self, access: Access, faults: RequestFaults | None) -> None:
        super().__init__(access, CLIENT_ID)
        self._faults = faults

    def bound_to(self, link: LinkBase) -> Self:
        """See Dialer. A broker that comes back after a power cut may have another identity."""
        del link
        return self

    def connect(self, timeout: float) -> socket.socket:
        """See Dialer."""
        connected = socket.socket()
        try:
            connected.bind(("127.0.0.1", 0))
            if self._faults is not None:
                self._faults.exempt("{}:{}".format(*connected.getsockname()))
            connected.settimeout(timeout)
            connected.connect(self.access.address)
        except BaseException:
            connected.close()
            raise
        return connected


def connect_exempt(access: Access, faults: RequestFaults | None) -> Client:
    """A client of the broker to which there is ``access``, which ``faults`` do not concern."""
    dialer = _ExemptDialer(access, faults)
    return Client(dialer, dialer.dial(CONNECT_TIMEOUT_SECONDS), CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS)
