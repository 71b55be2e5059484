"""A broker in a thread of this process, what only such a broker can be made to suffer, and a client without that."""

import socket
from collections.abc import Mapping
from typing import Final, Self

from seglog.access import Access, LinkBase
from seglog.client import Client
from seglog.core.dialing import CONNECT_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from seglog.link import Dialer
from seglog.testing.configuration import config_of, reworded
from seglog.testing.errors import BrokerStoppedError, NotPossibleError
from seglog_broker.testing.disks import MemoryDisk, TestDisk, disk_of
from seglog_broker.testing.forgetful import POWER_LOSS, RANDOM
from seglog_broker.testing.in_process import NOT_RUNNING, BrokerThread, KeptLog, MovableClock
from seglog_broker.testing.request_faults import RequestFaults
from seglog_protocol.errors import SeglogError

CLIENT_ID: Final = "seglog-testing"
"""Of the client that a broker in tests has for itself."""


class InThread:
    """One run after the other of a broker, on one disk."""

    def __init__(self, *, in_memory: bool, is_temporary: bool, seed: int) -> None:
        self.faults = RequestFaults()
        self._seed = seed
        self._clock = MovableClock()
        self._log = KeptLog()
        self.fs: TestDisk = disk_of(self._clock, in_memory=in_memory, is_temporary=is_temporary)
        """Where it keeps its data."""
        self.now_ms = self._clock.now_ms
        """The broker's time, which a jump has moved."""
        self.lines = self._log.lines
        """The log so far: each line an event and its facts."""
        self._power_cuts = 0
        self._thread: BrokerThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_serving

    @property
    def thread(self) -> BrokerThread:
        """The running broker. Raises BrokerStoppedError."""
        if self._thread is None or not self._thread.is_serving:
            raise BrokerStoppedError(NOT_RUNNING)
        return self._thread

    def start(self, flags: Mapping[str, str], log_dir: str, listen: str, kafka: str) -> tuple[str, str]:
        """Start it with these listeners, ``PROTOCOL://HOST:PORT``, and return their addresses when it is ready."""
        config = config_of(flags, log_dir, listen, kafka)
        self._thread = BrokerThread(config, self.fs, self._clock, self._log)
        try:
            serving = self._thread.start(faults=self.faults)
        except SeglogError as error:
            raise reworded(error) from None
        return serving.addresses[0], serving.kafka_addresses[0]

    def stop(self) -> None:
        """A stop in order."""
        if self._thread is not None:
            self._thread.stop()

    def crash(self) -> None:
        """An end as by SIGKILL."""
        self.thread.call(self.faults.cut_connections)
        self.thread.crash()

    def power_cut(self, *, random: bool) -> None:
        """An end as by a power cut. Raises NotPossibleError for a disk that is not in memory."""
        if not isinstance(self.fs, MemoryDisk):
            raise NotPossibleError(
                "a power cut takes what was never synced, which only a disk in memory knows: Broker(memory=True)"
            )
        thread, disk = self.thread, self.fs
        self._power_cuts += 1
        policy = RANDOM(self._seed * 1_000 + self._power_cuts) if random else POWER_LOSS
        found = thread.call(disk.found_after, policy)
        self.crash()
        self.fs = found

    def full_disk(self, *, is_full: bool) -> None:
        """The disk has no room, or has room again."""
        if self.fs.is_full == is_full:
            return  # nothing for the broker to see: ``heal`` after each test of a suite costs no more than a request
        self.fs.is_full = is_full
        if self.is_running:
            self.thread.look_at_disk()


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
