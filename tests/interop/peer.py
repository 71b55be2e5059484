"""The shared folder's script that runs a real Apache Kafka and its tools; tests that need it are skipped without it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.processes import free_port
from tests.support import REPOSITORY, missing

JUDGE: Final = "4.4.0"
"""The Kafka whose answers ours are held against."""

KAFKA_VERSION: Final = os.environ.setdefault("KAFKA_VERSION", JUDGE)
"""The Kafka that is run: KAFKA_VERSION=4.3.1 chooses the one before."""


def kafka_script() -> Path:
    """The script that runs Kafka's tools. Skips the test where it is absent, or cannot get Kafka."""
    shared = Path(os.environ.get("SEGLOG_SHARED") or REPOSITORY.parent / "shared")
    script = shared / "peers" / "kafka" / "kafka"
    if not script.exists():
        missing("kafka: no peers/kafka/kafka; set SEGLOG_SHARED to the folder that has it")
    if shutil.which("java") is None:
        missing("java: Kafka needs it")
    done = subprocess.run([script, "setup"], capture_output=True, check=False, timeout=600)
    if done.returncode:
        missing(f"kafka: its jars could not be had: {done.stderr.decode(errors='replace')[-300:]}")
    return script


class Kafka:
    """A real broker on ``data``; its log directory is ``data/logs``."""

    def __init__(self, script: Path, data: Path) -> None:
        self._script = script
        self.data = data
        self.directory = data / "logs"
        self.port = free_port()

    @contextmanager
    def running(self, *settings: str, killed: bool = False) -> Iterator["Kafka"]:
        """Serve, and stop in order, or by SIGKILL."""
        self._run("start", str(self.data), str(self.port), *settings)
        try:
            yield self
        finally:
            if killed:
                os.kill(int((self.data / "pid").read_text()), 9)
            self._run("stop", str(self.data), check=not killed)

    def topics(self, *arguments: str) -> str:
        """`kafka-topics`."""
        return self._run("topics", "--bootstrap-server", self.address, *arguments)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self, *arguments: str, check: bool = True) -> str:
        environment = os.environ | {"KAFKA_HEAP": "-Xms128m -Xmx400m", "KAFKA_TOOL_HEAP": "-Xmx128m"}
        done = subprocess.run(
            [self._script, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-2000:]
        return done.stdout
