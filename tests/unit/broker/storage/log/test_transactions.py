"""Transactions that seglog itself writes into a log: which batches are taken, markers, the last stable offset."""

import errno
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, CrashPolicy, Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    DiskFullError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    PartitionReadOnlyError,
    SeglogError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from seglog_protocol.record_batch import iter_batches, verify_crc
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import segment_file_name
from seglog_protocol.transaction_files import END_MARKER_SIZE, AbortedTransaction, EndMarker, decode_end_marker
from tests.logs import DIRECTORY, LogOnDisk, append_one
from tests.support import each_case
from tests.unit.broker.storage.log.transactions import Model, append_in_transaction, end_transaction, read_committed

PRODUCER: Final = 7
OTHER: Final = 8


def opened(config: TopicConfig | None = None) -> LogOnDisk:
    """An empty log at the time of the records that are appended, so that markers begin no segment by their age."""
    disk = LogOnDisk(config)
    disk.clock.now = 5_000
    return disk


def append(disk: LogOnDisk, producer_id: int, sequence: int, *, epoch: int = 0, transactional: bool = True) -> int:
    """A batch of one record as a client sends it; its offset."""
    batch = encode_batch(
        [(-1, None, b"v", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return append_one(disk.log, batch).base_offset


def end(
    disk: LogOnDisk, producer_id: int, *, epoch: int = 0, commit: bool = False, version: int = 1, coordinator: int = 0
) -> int:
    """A marker; its offset."""
    return disk.log.append_marker(TransactionEnd(producer_id, epoch, coordinator, commit, version)).base_offset


def committed(disk: LogOnDisk) -> list[int]:
    """The offsets that a reader of committed records gets."""
    return [record.offset for record, _ in read_committed(disk.log, 1 << 20)]


def index_file(disk: LogOnDisk, base: int = 0) -> bytes:
    """The transaction index of a segment, empty without one."""
    path = f"{DIRECTORY}/{segment_file_name(base, '.txnindex')}"
    return read_file(disk.fs, path) if disk.fs.exists(path) else b""


# --- Which batches are taken ------------------------------------------------------------------------------------------


Outcome = int | tuple[type[SeglogError], dict[str, int]]
Step = Callable[[LogOnDisk], object]

_UNEXPECTED: Outcome = (InvalidTransactionStateError, {"producer_id": PRODUCER})
_FENCED: Outcome = (InvalidProducerEpochError, {})


def expects(epoch: int, *, begins_at_zero: bool = False) -> Step:
    """The coordinator has added the partition to a transaction."""
    return lambda disk: disk.log.producers.expect(PRODUCER, epoch, begins_at_zero=begins_at_zero)


def comes(attempt: Callable[[LogOnDisk], int], outcome: Outcome) -> Step:
    """A batch or a marker gets this offset, or this error."""

    def step(disk: LogOnDisk) -> None:
        if isinstance(outcome, int):
            assert attempt(disk) == outcome
            return
        end_offset = disk.log.log_end_offset
        with pytest.raises(outcome[0]) as caught:
            attempt(disk)
        assert {name: getattr(caught.value, name) for name in outcome[1]} == outcome[1]
        assert disk.log.log_end_offset == end_offset

    return step


def sends(sequence: int, outcome: Outcome, *, epoch: int = 0, transactional: bool = True) -> Step:
    return comes(lambda disk: append(disk, PRODUCER, sequence, epoch=epoch, transactional=transactional), outcome)


def ends(outcome: Outcome, **fields: Any) -> Step:
    return comes(lambda disk: end(disk, PRODUCER, **fields), outcome)


@each_case(
    "steps",
    [
        [
            sends(0, _UNEXPECTED),
            expects(0),
            sends(0, 0),
            sends(1, 1),
            lambda disk: disk.log.producers._expected.pop(PRODUCER),
            sends(2, 2),  # the transaction is open in this partition
        ],
        # After a marker the partition has to be expected again; a batch that is repeated by then is found.
        [expects(0), sends(0, 0), ends(1, commit=True), sends(1, _UNEXPECTED), sends(0, 0), expects(0), sends(1, 2)],
        # An epoch below the expected one is refused.
        [
            expects(3),
            sends(0, (InvalidProducerEpochError, {"current_epoch": 3}), epoch=2),
            sends(0, (InvalidProducerEpochError, {"current_epoch": 3}), epoch=2, transactional=False),
            sends(0, _UNEXPECTED, epoch=4),
            sends(0, 0, epoch=3),
        ],
        # A batch outside of the transaction waits until it has ended; one of a higher epoch is not expected.
        [
            expects(0),
            sends(0, 0),
            sends(0, _UNEXPECTED, epoch=1),
            sends(1, (InvalidTransactionStateError, {"first_offset": 0}), transactional=False),
            ends(1),
            sends(1, 2, transactional=False),
        ],
        # By version 2 a higher sequence of an unknown producer means that a batch before it was not taken.
        [expects(5, begins_at_zero=True), sends(1, (OutOfOrderSequenceError, {}), epoch=5), sends(0, 0, epoch=5)],
        [expects(5), sends(1, 0, epoch=5)],
        # By version 2 a marker has the epoch of the next transaction; it may come again while nothing is open.
        [
            expects(0, begins_at_zero=True),
            sends(0, 0),
            ends(_FENCED, epoch=0, version=2),
            ends(1, epoch=1, version=2, commit=True),
            ends(2, epoch=1, version=2, commit=True),
            expects(1, begins_at_zero=True),
            ends(_FENCED, epoch=1, version=2, commit=True),
            sends(1, _FENCED, epoch=0),
            sends(0, 3, epoch=1),
        ],
        # A marker of an older epoch is refused; one with a higher epoch fences the producer.
        [expects(3), sends(0, 0, epoch=3), ends(_FENCED, epoch=2), sends(1, 1, epoch=3)],
        [expects(0), sends(0, 0), ends(1, epoch=1), sends(1, _FENCED)],
        # A marker of an older coordinator is refused.
        [
            expects(0),
            sends(0, 0),
            ends(1, coordinator=2),
            ends((TransactionCoordinatorFencedError, {"coordinator_epoch": 1, "current_epoch": 2}), coordinator=1),
        ],
    ],
)
def test_what_a_partition_takes_of_a_producer(steps: list[Step]) -> None:
    disk = opened()
    for step in steps:
        step(disk)


def test_batches_of_one_request_are_each_held_against_the_transaction() -> None:
    """What may be written together is decided by the transaction, too, and not by sequences alone."""
    disk = opened()
    disk.append(b"first")  # into an empty segment no two are written together
    views = []
    for sequence, transactional in enumerate((False, True, True)):
        batch = encode_batch(
            [(-1, None, b"v", ())],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        views.append(memoryview(bytearray(batch)))
    outcomes = disk.log.append(views, [header for view in views for header, _ in iter_batches(view)])
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Appended",
        "InvalidTransactionStateError",
        "InvalidTransactionStateError",
    ]


def test_a_coordinator_writes_for_a_producer_without_counting_sequences() -> None:
    """Offsets committed in a transaction: each commit is a batch that begins at sequence 0."""
    disk = opened()
    batch = encode_batch(
        [(-1, b"k", b"v", ())], producer_id=PRODUCER, producer_epoch=1, base_sequence=0, transactional=True
    )

    def write() -> object:
        view = memoryview(bytearray(batch))
        return disk.log.append([view], [header for header, _ in iter_batches(view)], by_coordinator=True)[0]

    assert isinstance(write(), InvalidTransactionStateError)
    disk.log.producers.expect(PRODUCER, 1)
    write()
    write()
    assert disk.log.log_end_offset == 2
    disk.log.producers.expect(PRODUCER, 2)
    assert isinstance(write(), InvalidProducerEpochError)


# --- Markers ----------------------------------------------------------------------------------------------------------


@each_case("commit", [True, False])
@each_case("timestamps", ["CreateTime", "LogAppendTime"])
def test_a_marker_is_a_batch_as_kafka_writes_it(commit: bool, timestamps: str) -> None:
    disk = opened(TopicConfig(message_timestamp_type=timestamps))
    disk.append(b"before")
    disk.log.producers.expect(PRODUCER, 4)
    append(disk, PRODUCER, 0, epoch=4)
    assert end(disk, PRODUCER, epoch=4, commit=commit, coordinator=9) == 2
    found = disk.log.read(2, 1 << 20)
    assert found is not None
    data = found.file.pread(found.size, found.position)
    found.release()
    [(header, view)] = iter_batches(data)
    assert len(data) == END_MARKER_SIZE
    assert header.attributes == 0x30 | (8 if timestamps == "LogAppendTime" else 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER, 4, -1)
    assert (header.base_offset, header.record_count, header.max_timestamp) == (2, 1, disk.clock.now)
    assert header.leader_epoch == disk.log.leader_epoch
    assert verify_crc(data, 0, header)
    [record] = decode_records(header, view)
    assert decode_end_marker(record.key, record.value) == EndMarker("COMMIT" if commit else "ABORT", 9)


def test_an_aborted_transaction_is_entered_in_the_index_of_the_segment_with_its_marker() -> None:
    disk = opened()
    append_in_transaction(disk.log, PRODUCER)
    append_in_transaction(disk.log, OTHER)
    end_transaction(disk.log, PRODUCER, "ABORT")
    end_transaction(disk.log, OTHER, "ABORT")
    assert disk.log.transactions.find(0, 0, 99) == [
        AbortedTransaction(0, PRODUCER, 0, 2, 1),
        AbortedTransaction(0, OTHER, 1, 3, 4),
    ]
    assert len(index_file(disk)) == 2 * 34


# --- A disk that fails or forgets -------------------------------------------------------------------------------------


def _closed_by_a_roll(disk: LogOnDisk) -> None:
    append_in_transaction(disk.log, PRODUCER)
    disk.log.flusher.flush()
    end_transaction(disk.log, PRODUCER, "ABORT")
    while len(disk.log.segments) < 2:
        disk.append(b"v" * 60)


def _written_by_a_killed_process(disk: LogOnDisk) -> None:
    """Recovery finds the entries right in memory; they have to be on the disk before a start skips the segment."""
    append_in_transaction(disk.log, PRODUCER)
    end_transaction(disk.log, PRODUCER, "ABORT")
    disk.restart_unclean()


@each_case("prepare", [_closed_by_a_roll, _written_by_a_killed_process])
def test_the_transaction_index_and_its_name_are_on_the_disk_before_a_start_skips_its_segment(prepare: Step) -> None:
    """After a checkpoint a start reads nothing below it."""
    disk = opened(TopicConfig(segment_bytes=400))
    prepare(disk)
    disk.log.flusher.flush_deep()
    point, before = disk.log.log_end_offset, committed(disk)
    disk.crash(POWER_LOSS, recovery_point=point)
    assert committed(disk) == before
    assert 0 not in before
    assert len(index_file(disk)) == 34
    assert [entry.first_offset for entry in disk.log.transactions.find(0, 0, 1)] == [0]


@each_case("operation", ["open", "pwritev"])
@each_case("written", [".txnindex", ".log"])
def test_a_full_disk_leaves_neither_the_marker_nor_its_entry(written: str, operation: str) -> None:
    """The coordinator tries again, and readers see nothing of it before."""
    disk = opened()
    append_in_transaction(disk.log, PRODUCER)
    end_transaction(disk.log, PRODUCER, "ABORT")
    append_in_transaction(disk.log, OTHER)
    disk.log.flusher.flush()
    disk.log.release_writers()
    disk.log._log.files.handles.forget_in(DIRECTORY)  # so that each file has to be opened again
    disk.log.active.log.activate()
    before = index_file(disk), disk.log.active.size
    disk.double.inject(Fault(operation, written, error=errno.ENOSPC))
    with pytest.raises(DiskFullError):
        end_transaction(disk.log, OTHER, "ABORT")
    assert (index_file(disk), disk.fs.stat(disk.log.active.log_path).size) == before
    assert disk.log.last_stable_offset == 2
    assert len(disk.log.transactions.find(0, 0, 99)) == 1
    end_transaction(disk.log, OTHER, "ABORT")
    assert disk.log.last_stable_offset == 4
    assert len(disk.log.transactions.find(0, 0, 99)) == 2
    disk.reopen()
    assert committed(disk) == []


def test_an_entry_that_cannot_be_removed_again_makes_the_partition_read_only() -> None:
    """It would stand in the way of the next one; after a start the index is built from the log."""
    disk = opened()
    append_in_transaction(disk.log, PRODUCER)
    append_in_transaction(disk.log, OTHER)
    end_transaction(disk.log, OTHER, "ABORT")
    disk.log.flusher.flush()
    before = index_file(disk)
    disk.double.inject(Fault("pwritev", ".log", error=errno.ENOSPC))
    disk.double.inject(Fault("truncate", ".txnindex", error=errno.EIO))
    with pytest.raises(StorageError):
        end_transaction(disk.log, PRODUCER, "ABORT")
    with pytest.raises(PartitionReadOnlyError, match="txnindex"):
        end_transaction(disk.log, PRODUCER, "ABORT")
    assert disk.log.last_stable_offset == 0
    disk.restart_unclean()
    assert index_file(disk) == before
    assert disk.log.last_stable_offset == 0


@each_case("policy", [POWER_LOSS, PROCESS_KILL])
@each_case("seed", range(3))
def test_a_crash_at_any_operation_leaves_whole_transactions(policy: CrashPolicy, seed: int) -> None:
    """After each of them a start finds the same committed records and aborted transactions as a plain model.

    Nothing that was durable is gone, no end without its entry, no entry without its end.
    """
    dice = random.Random(seed)
    disk = opened(TopicConfig(segment_bytes=700, index_interval_bytes=100))
    log, model = disk.log, Model()
    found: list[tuple[ForgetfulFileSystem, int, int]] = []
    recovery_point = 0

    def note(_: object) -> None:
        found.append((disk.double.found_after(policy), recovery_point, log.durable_end_offset))

    disk.double.on_operation = note
    for _ in range(60):
        producer_id = dice.randrange(3)
        match dice.choice(("data", "data", "data", "ABORT", "ABORT", "COMMIT", "flush", "checkpoint", "deep")):
            case "data":
                model.batches.append(append_in_transaction(log, producer_id, dice.randrange(1, 4)))
            case "flush":
                log.flusher.flush()
            case "checkpoint":
                flush = log.flusher.prepare_checkpoint()
                flush.run()
                recovery_point = max(recovery_point, log.flusher.settle_flush(flush, None))
            case "deep":
                log.flusher.flush_deep()
                recovery_point = log.log_end_offset
            case marker:
                model.batches.append(end_transaction(log, producer_id, marker, version=dice.choice((1, 2))))
    disk.double.on_operation = None
    assert len(log.segments) > 2
    assert len(model.transactions()[1]) > 1
    for after, point, durable in found:
        crashed = LogOnDisk(disk.config, fs=after, recovery_point=point)
        start = crashed.log
        end_offset = start.log_end_offset
        assert end_offset >= durable
        until = Model([batch for batch in model.batches if batch.next_offset <= end_offset])
        assert committed(crashed) == until.committed_offsets(0, end_offset)
        assert start.last_stable_offset == until.last_stable_offset(0, end_offset)
        entries = start.transactions.find(0, 0, end_offset + 1)
        assert [(each.producer_id, each.first_offset, each.last_offset) for each in entries] == until.transactions()[1]
        start.release()
