"""The process that backs a running broker up: ``python -m seglog_broker.backup.agent``, started by the broker.

It is a process, because its reading, checksums and encryption would slow the broker's loop down. It asks on standard
output and is answered on standard input, see ``agent_messages``. When that ends the broker has ended, and it ends at
once, also during an upload: what has no point yet is put again by the next one.
"""

import os
import platform
import signal
import sys
import threading
import time
import traceback
from functools import partial
from queue import SimpleQueue
from typing import Final, NoReturn, TypeVar

from seglog_broker.backup.agent_messages import (
    LINE_BYTES_MAX,
    Begin,
    Changes,
    ChangesWanted,
    Cut,
    CutWanted,
    FromAgent,
    LeaseLost,
    Stop,
    ToAgent,
    Trouble,
    line_of,
    to_agent,
)
from seglog_broker.backup.destination import Destination
from seglog_broker.backup.following import Follower
from seglog_broker.backup.keeping_up import ROUND_SECONDS_MIN, KeepingUp
from seglog_broker.backup.lease import Terms, forget_leases
from seglog_broker.backup.lease_thread import LeaseThread, Told
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.points import PointWriter
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem

NICENESS: Final = 5
"""What is added to the priority number: the broker comes first."""

_STDIN: Final = 0
_STDOUT: Final = 1

AnswerT = TypeVar("AnswerT", bound=ToAgent)


class Broker:
    """The broker at the other end. Any thread may tell it something, one asks."""

    def __init__(self) -> None:
        self._answers: SimpleQueue[ToAgent] = SimpleQueue()
        self._telling = threading.Lock()
        self.stop_wanted = threading.Event()
        """Set when the broker stops: it appends nothing more."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Put answers into the queue; end the process when there are no more."""
        with os.fdopen(_STDIN, "rb", closefd=False) as stdin:
            while line := stdin.readline(LINE_BYTES_MAX):
                try:
                    message = to_agent(line)
                except ValueError:
                    traceback.print_exc()
                    os._exit(1)
                if isinstance(message, Stop):
                    self.stop_wanted.set()
                else:
                    self._answers.put(message)
        os._exit(0)

    def next(self, kind: type[AnswerT]) -> AnswerT:
        """Wait for the next message, which has to be one of ``kind``. Raises TypeError."""
        answer = self._answers.get()
        if not isinstance(answer, kind):
            raise TypeError(f"{kind.__name__} was to come, and {type(answer).__name__} came")
        return answer

    def tell(self, message: FromAgent) -> None:
        """Send a message."""
        with self._telling:
            rest = memoryview(line_of(message))
            while rest:
                rest = rest[os.write(_STDOUT, rest) :]

    def cut(self, is_whole: bool) -> Cut:
        """Ask for a cut, and wait for it."""
        self.tell(CutWanted(is_whole))
        return self.next(Cut)

    def changes(self) -> Changes:
        """Ask what has changed since the last cut, and wait for the answer."""
        self.tell(ChangesWanted())
        return self.next(Changes)


def _destination(begin: Begin, throttle: Throttle | None) -> Destination:
    """The place, by another connection for each caller. Raises DestinationError."""
    return open_destination(PosixFileSystem(), begin.place, key_file=begin.key_file, throttle=throttle)


def _keep_lease(broker: Broker, message: Told) -> None:
    """Tell the broker of its lease; without one there is nothing more to do."""
    broker.tell(message)
    if isinstance(message, LeaseLost | Trouble):
        os._exit(0)


def _open_follower(begin: Begin, broker: Broker, throttle: Throttle, lease: LeaseThread) -> Follower:
    """Claim the place, begin to keep its lease, and read what it has.

    Raises BackupError, DestinationError.
    """
    destination = _destination(begin, throttle)
    try:
        writer = PointWriter(destination, begin.cluster_id, begin.directory_id)
    except BaseException:
        destination.close()
        raise
    if begin.lease_ms:
        host = platform.node()
        lease.start(Terms(begin.incarnation, begin.directory_id, writer.epoch, host, begin.lease_ms))
    else:
        forget_leases(destination)
    read = throttle.total
    return Follower(
        PosixFileSystem(),
        begin.log_dir,
        destination,
        writer,
        ask_cut=broker.cut,
        ask_changes=broker.changes,
        sent=lambda: throttle.total - read,
        keep_ms=begin.keep_ms,
    )


def main() -> NoReturn:
    """Back up until the broker stops, and then what it has appended until then.

    Signals that a terminal or a service manager sends to all processes of the broker at once are ignored, for that.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    broker = Broker()
    begin = broker.next(Begin)
    throttle = Throttle(begin.bandwidth or None, time.monotonic, time.sleep, window_seconds=0.0)
    lease = LeaseThread(partial(_destination, begin, None), partial(_keep_lease, broker))
    open_follower = partial(_open_follower, begin, broker, throttle, lease)
    rounds = KeepingUp(open_follower, broker.tell, time.monotonic, begin.lag_ms)
    seconds: float | None = 0.0
    while not broker.stop_wanted.wait(seconds):
        seconds = rounds.step()  # after None, for ever
    while seconds is not None and rounds.step() is not None and rounds.failed:
        time.sleep(ROUND_SECONDS_MIN)  # the broker ends this when it takes long
    lease.release()
    sys.exit(0)


if __name__ == "__main__":
    main()
