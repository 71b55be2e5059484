"""Idempotent producers of a partition log: repeated batches are recognised, whatever happened in between."""

import errno
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.appender import Appended
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import OutOfOrderSequenceError
from seglog_protocol.segment_files import SNAPSHOT_SUFFIX, parse_segment_file_name
from tests.logs import DIRECTORY, LogOnDisk, read_all, read_around, verify
from tests.support import examples
from tests.unit.broker.storage.steps import checkpoint


def sent(producer: int, sequence: int, count: int = 1, *, epoch: int = 0, timestamp: int = -1, text: str = "") -> bytes:
    """A batch whose records name their producer and number."""
    records = [(timestamp, None, f"{producer}:{sequence + n}{text}".encode(), ()) for n in range(count)]
    return encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def log_on_disk(config: TopicConfig | None = None) -> LogOnDisk:
    """Whose files are written by the same clock."""
    disk = LogOnDisk(config)
    disk.double.now_ms = disk.clock.now
    return disk


def snapshots(disk: LogOnDisk) -> list[int]:
    found = (parse_segment_file_name(name) for name in disk.fs.list_directory(DIRECTORY))
    return sorted(parsed[0] for parsed in found if parsed is not None and parsed[1] == SNAPSHOT_SUFFIX)


def test_a_batch_that_comes_again_is_answered_with_its_first_place_and_not_written() -> None:
    disk = log_on_disk()
    assert disk.append_batch(sent(1, 0, 3, timestamp=77)) == Appended(0, 2, None)
    disk.append(b"of another")
    assert disk.append_batch(sent(1, 0, 3, timestamp=77)) == Appended(0, 2, None, 77)
    assert disk.append_batch(sent(1, 3)) == Appended(4, 4, None)
    assert [record.value for record in read_all(disk.log)] == [b"1:0", b"1:1", b"1:2", b"of another", b"1:3"]


def test_a_failed_write_is_not_counted_so_that_its_retry_is_written() -> None:
    disk = log_on_disk()
    disk.double.inject(Fault("pwritev", ".log", error=errno.ENOSPC))
    with pytest.raises(Exception, match="could not be written"):
        disk.append_batch(sent(1, 0))
    assert disk.append_batch(sent(1, 0)) == Appended(0, 0, None)


def test_where_snapshots_stand() -> None:
    """Snapshots stand at the bases and at the end of a stopped log and an earlier end goes."""
    disk = log_on_disk(TopicConfig(segment_bytes=200))
    for sequence in range(5):
        disk.append_batch(sent(1, sequence))
    bases = [segment.base_offset for segment in disk.log.segments]
    assert snapshots(disk) == bases[1:]
    disk.reopen()
    assert snapshots(disk) == [*bases[1:], 5]
    disk.append_batch(sent(1, 5))
    disk.append_batch(sent(1, 6))
    disk.reopen()
    assert snapshots(disk) == [*[s.base_offset for s in disk.log.segments][1:], 7]


def test_a_roll_waits_for_no_disk_and_the_checkpoint_syncs_the_snapshot() -> None:
    disk = log_on_disk(TopicConfig(segment_bytes=200))
    disk.append_batch(sent(1, 0))
    disk.append_batch(sent(1, 1))
    fs = disk.double
    fs.operations.clear()
    disk.append_batch(sent(1, 2))
    rolled = [operation for operation in fs.operations if operation.name in ("fdatasync", "sync_directory")]
    assert snapshots(disk)
    assert rolled == []
    checkpoint(disk.log)
    synced = [operation.path for operation in fs.operations if operation.name == "fdatasync"]
    assert any(path.endswith(SNAPSHOT_SUFFIX) for path in synced)
    assert fs.open_files == [path for path in fs.open_files if not path.endswith(SNAPSHOT_SUFFIX)]


def test_a_snapshot_that_cannot_be_written_holds_no_roll_up() -> None:
    disk = log_on_disk(TopicConfig(segment_bytes=200))
    disk.double.inject(Fault("rename", SNAPSHOT_SUFFIX, error=errno.ENOSPC))
    for sequence in range(4):
        disk.append_batch(sent(1, sequence))
    disk.reopen()
    assert disk.append_batch(sent(1, 3)).duplicate_of is not None


class RetryingProducers(RuleBasedStateMachine):
    """Producers that keep up to five batches on the way, lose replies and send again, while the log has accidents.

    The model is what each producer has sent, in order: the log holds each record once, and in that order.
    """

    @initialize(segment_bytes=st.sampled_from([150, 400, 5000]))
    def begin(self, segment_bytes: int) -> None:
        self.disk = log_on_disk(TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=100))
        self.next = [0, 0, 0]
        self.acked = [0, 0, 0]
        self.unacked: list[list[tuple[int, int]]] = [[], [], []]  # (sequence, count) on the way, in order

    @rule(who=st.integers(0, 2), count=st.integers(1, 3), is_lost=st.booleans())
    def send(self, who: int, count: int, is_lost: bool) -> None:
        if len(self.unacked[who]) == 5 or (self.unacked[who] and not is_lost):
            return
        sequence = self.next[who]
        self.next[who] += count
        self.unacked[who].append((sequence, count))
        self.disk.append_batch(sent(who, sequence, count))
        if not is_lost:
            self._acked(who)

    @rule(who=st.integers(0, 2), keeps=st.integers(0, 5))
    def send_again(self, who: int, keeps: int) -> None:
        """Send all of them again in order, over a new connection; replies may be lost again."""
        for sequence, count in list(self.unacked[who]):
            with suppress(OutOfOrderSequenceError):  # a snapshot has only the last one; the invariant says it is there
                self.disk.append_batch(sent(who, sequence, count))
        for _ in self.unacked[who][keeps:]:
            self._acked(who)

    def _acked(self, who: int) -> None:
        sequence, count = self.unacked[who].pop(0)
        self.acked[who] = sequence + count

    @rule()
    def others_append(self) -> None:
        self.disk.append(b"-1:0")

    @rule()
    def stop_and_start(self) -> None:
        self.disk.reopen()

    @rule()
    def kill(self) -> None:
        self.disk.crash(PROCESS_KILL)

    @rule()
    def lose_power(self) -> None:
        """What was acked had been flushed; the rest is sent again, from the first that is gone on."""
        self.disk.log.flusher.flush()
        self.disk.crash(POWER_LOSS)

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.disk.log)

    @invariant()
    def each_record_is_there_once_and_in_order(self) -> None:
        if not hasattr(self, "disk"):
            return
        found = [record.value for record in read_around(self.disk.log)]
        for who, end in enumerate(self.next):
            mine = [value for value in found if value is not None and value.startswith(f"{who}:".encode())]
            assert mine == [f"{who}:{n}".encode() for n in range(end)]
        verify(self.disk.fs, self.disk.log)

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.log.release()


TestRetryingProducers = RetryingProducers.TestCase
TestRetryingProducers.settings = settings(max_examples=examples(60), stateful_step_count=30)
