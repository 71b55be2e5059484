"""Brokers for tests: on a forgetful disk, with a clock that is moved by hand, and everything on the loop."""

from seglog_broker.api.broker import IN_LINE_BYTES, Broker
from seglog_broker.config import load_config
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from tests.logs import ManualClock


def open_broker(
    fs: FileSystem | None = None,
    *flags: str,
    clock: Clock | None = None,
    offload: Offload | None = None,
    in_line_bytes: int = IN_LINE_BYTES,
) -> Broker:
    """A broker with the keys of ``flags`` set; what is left out is new."""
    config, _ = load_config(None, "", {}, ["log.dir=/data", *flags])
    fs, clock, offload = fs or ForgetfulFileSystem(), clock or ManualClock(), offload or InlineOffload()
    return Broker.open(config, fs, clock, offload, in_line_bytes=in_line_bytes)


class Stopwatch:
    """A clock that the test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
