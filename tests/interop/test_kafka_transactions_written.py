"""Kafka finds nothing wrong with transactions that seglog's log wrote into a directory that has some of Kafka's own.

The directory goes Kafka -> seglog -> Kafka; committed, aborted and open transactions of both are in it. Kafka's
dump-log reads every file, transaction indexes among them, and Kafka serves the same committed records as seglog.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol.errors import InvalidProducerEpochError
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import decode_records
from tests.interop.golden import adopted, load_case, log_of, unpack
from tests.interop.handover import batch_of, begin_transaction, fetched, transaction
from tests.interop.kafka_wire import Wire
from tests.interop.make_kafka_metadata import create
from tests.interop.peer import Kafka, kafka_script
from tests.interop.test_dump_log import dump, files_of
from tests.logs import append_one
from tests.soundness import assert_directory_sound
from tests.unit.broker.storage.log.transactions import read_committed, without_aborted

FIRST: Final = 1_000_000
"""Producer ids that Kafka has not given away."""

FEW: Final = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "log.cleaner.enable=false",
    "log.retention.check.interval.ms=86400000",
)
_ENTRY: Final = re.compile(r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: \d+")


def write(log: PartitionLog) -> None:
    """Transactions of four producers over three segments: two end by version 1, two by version 2, one stays open."""
    for number, (version, ending) in enumerate(((1, "abort"), (2, "commit"), (2, "abort"), (1, "commit"), (2, None))):
        producer_id = FIRST + number
        log.producers.expect(producer_id, 0, begins_at_zero=version == 2)
        for sequence in (0, 3):
            batch = batch_of(
                f"seglog {number}",
                3,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            append_one(log, memoryview(bytearray(batch)))
            if number % 2 and not sequence:
                log.roller.roll(log.log_end_offset, RollReason.SIZE)
        if ending is not None:
            end = TransactionEnd(producer_id, version - 1, 3, ending == "commit", version)
            log.append_marker(end)
            log.append_marker(end)  # once more, as after a lost answer


def ours(logs: LogDirectory, partition: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of each committed record."""
    found = read_committed(logs.logs["ledger", partition], 1 << 20)
    return [(record.offset, record.value) for record, header in found if not header.is_control]


def theirs(wire: Wire, partition: int) -> tuple[list[tuple[int, bytes | None]], int]:
    """The same by a Kafka's answers, and the last stable offset."""
    records, _, stable, aborted = fetched(wire, "ledger", partition, isolation=1)
    named = [(each["producer_id"], each["first_offset"]) for each in aborted]
    kept = without_aborted(iter_batches(bytes.fromhex(records)), named)
    found = [record for header, view in kept if not header.is_control for record in decode_records(header, view)]
    return [(record.offset, record.value) for record in found], stable


@pytest.mark.timeout(900)
def test_kafka_reads_and_serves_transactions_that_seglog_wrote(tmp_path: Path) -> None:
    script = kafka_script()
    kafka = Kafka(script, tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka.running(*FEW), Wire(kafka.port) as wire:
        create(wire, {"ledger": {"retention.ms": "-1"}})
        transaction(wire, "t-1", "committed by Kafka", committed=True)
        transaction(wire, "t-2", "aborted by Kafka", committed=False)
        begin_transaction(wire, "t-3", "open in Kafka", timeout_ms=900_000)
    with adopted(kafka.directory) as logs:
        for partition in (0, 1):
            write(logs.logs["ledger", partition])
        committed = [ours(logs, partition) for partition in (0, 1)]
        stable = [logs.logs["ledger", partition].last_stable_offset for partition in (0, 1)]
        entries = {
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in logs.logs["ledger", 0].transactions.find(0, 0, 1_000)
        }
        logs.close()
    assert len(entries) == 3
    assert_directory_sound(PosixFileSystem(), str(kafka.directory))
    told = dump(script, [path for path in files_of(kafka.directory) if path.parent.name.startswith("ledger-")])
    assert told.complaints == []
    indexes = sorted(kafka.directory.glob("ledger-0/*.txnindex"))
    done = subprocess.run(
        [script, "dump-log", "--files", ",".join(map(str, indexes))],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert {tuple(map(int, found)) for found in _ENTRY.findall(done.stdout)} == entries
    with kafka.running(*FEW), Wire(kafka.port) as wire:
        for partition in (0, 1):
            assert theirs(wire, partition) == (committed[partition], stable[partition])


@pytest.mark.parametrize("commit", [True, False])
def test_the_open_transactions_that_kafka_left_go_on_and_end(commit: bool, tmp_path: Path) -> None:
    """The golden directory: the coordinator finds them in ``__transaction_state``, adds to them and ends them."""
    unpack(load_case("transactions"), tmp_path)
    with adopted(tmp_path) as logs:
        log = log_of(logs, "ledger-0")
        before, stable = ours(logs, 0), log.last_stable_offset
        opened = [entry for entry in log.producers.entries() if entry.current_txn_first_offset >= 0]
        assert opened
        entered = len(log.transactions.find(0, 0, 1_000))
        for entry in opened:
            with pytest.raises(InvalidProducerEpochError):
                log.append_marker(
                    TransactionEnd(entry.producer_id, entry.producer_epoch - 1, entry.coordinator_epoch, commit, 1)
                )
            batch = batch_of(
                "seglog",
                1,
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                base_sequence=entry.last_sequence + 1,
                transactional=True,
            )
            append_one(log, memoryview(bytearray(batch)))
        assert (ours(logs, 0), log.last_stable_offset) == (before, stable)
        end_offset = log.log_end_offset
        for entry in opened:
            log.append_marker(
                TransactionEnd(entry.producer_id, entry.producer_epoch, max(0, entry.coordinator_epoch), commit, 1)
            )
        assert log.last_stable_offset == log.log_end_offset == end_offset + len(opened)
        after = ours(logs, 0)
        assert after[: len(before)] == before
        mine = [value for _, value in after if value is not None and value.startswith(b"seglog ")]
        assert len(mine) == (len(opened) if commit else 0)
        assert len(log.transactions.find(0, 0, 1_000)) == entered + (0 if commit else len(opened))
        logs.close()
    assert_directory_sound(PosixFileSystem(), str(tmp_path))
    with adopted(tmp_path) as logs:
        assert ours(logs, 0) == after
