"""Two machines and a place: the first one is stopped amid appends, the second is promoted, and the first wakes up."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import seglog
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import AppendPartition, AppendReply, AppendRequest
from tests.processes import (
    PATIENCE_SECONDS,
    Lines,
    daemon,
    ended,
    finished,
    port_of,
    start_daemon,
    wait_until,
)
from tests.processes import (
    seglog as run_seglog,
)

LEASE_MS = 3000


class Appending:
    """Appends numbers to a topic, one after the other, until its connection is ended, or it is not wanted any more.

    ``acked`` has each number that was acknowledged at ``disk``, with its offset and the moment (``time.monotonic``).
    """

    def __init__(self, address: str, first: int) -> None:
        self.acked: list[tuple[int, int | None, float]] = []
        self.is_wanted = True
        self._address = address
        self._first = first
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with (
            suppress(SeglogError),
            seglog.connect(self._address, connect_timeout=1, request_timeout=PATIENCE_SECONDS) as client,
        ):
            for number in itertools.takewhile(lambda _: self.is_wanted, itertools.count(self._first)):
                batch = encode_batch([(1_700_000_000_000, None, b"%d" % number, ())])
                request = AppendRequest([AppendPartition("t", 0, len(batch))], ack="disk")
                reply, _ = client.call(request, AppendReply, [batch])
                self.acked.append((number, reply.partitions[0].base_offset, time.monotonic()))


def promote(folder: Path) -> "subprocess.CompletedProcess[str]":
    return finished([sys.executable, "-m", "seglog.cli", "promote", str(folder)])


def test_no_record_is_acknowledged_by_both_and_the_first_machine_ends_when_it_wakes_up(tmp_path: Path) -> None:
    place, second = tmp_path / "place", tmp_path / "second"
    settings = [f"seglog.backup.to={place}", f"seglog.backup.lease.ms={LEASE_MS}", "seglog.backup.lag.ms=1000"]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    with daemon(tmp_path / "first", *flags) as first:
        with seglog.connect(first.address) as client:
            client.create_topic("t")
        before = Appending(first.address, 0)
        wait_until(lambda: any((place / "backups").glob("*.json")) if place.exists() else False, "a base")
        process = start_daemon(second, subprocess.PIPE, "--standby", *flags)
        assert process.stderr is not None
        with ended(process):
            lines = Lines(process.stderr.fileno())
            lines.until("standby_follows")
            wait_until(lambda: len(before.acked) > 100, "appends")
            assert first.process is not None
            os.kill(first.process.pid, signal.SIGSTOP)
            promoted = promote(second)
            assert promoted.returncode == 0, promoted.stderr
            assert "the lease is taken over: the first machine acknowledges no more" in promoted.stdout
            address = f"127.0.0.1:{port_of(lines.until('broker_ready')[-1])}"
            after = Appending(address, 1_000_000)
            wait_until(lambda: len(after.acked) > 10, "appends to the second machine")
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(PATIENCE_SECONDS) == 1
            before.thread.join()
            after.is_wanted = False
            after.thread.join()
            assert before.acked[-1][2] < after.acked[0][2]
            there = [int(line) for line in run_seglog(address, "consume", "t").stdout.splitlines()]
            assert there == list(range(len(there) - len(after.acked))) + [n for n, _, _ in after.acked]
            assert [offset for _, offset, _ in after.acked] == list(range(len(there) - len(after.acked), len(there)))
            assert promote(second).returncode == 0  # it serves already
