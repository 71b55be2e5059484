"""A broker as a process of its own: `seglogd`, for tests that kill it."""

import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, Final

from seglog.testing.configuration import in_words_of_a_test
from seglog.testing.errors import BrokerStoppedError
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.in_process import LINES_MAX, NOT_RUNNING

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0


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
            raise BrokerStoppedError(in_words_of_a_test(f"seglogd did not start:\n{said}"))
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
