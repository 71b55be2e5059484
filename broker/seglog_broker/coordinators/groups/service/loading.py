"""Reads ``__consumer_offsets`` after a start: in steps, so that other requests are served meanwhile."""

from typing import Final

import structlog

from seglog_broker.coordinators.groups.replay import Replay
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.offload import Offload
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import BatchHeader, iter_batches
from seglog_protocol.records import Record, RecordReader

BYTES_AT_A_TIME: Final = 256 * 1024
"""Read, and verified, at a time; a larger batch at once."""

RECORDS_A_TURN: Final = 128
"""Records that are read before other tasks run."""

BYTES_OF_RECORD: Final = 512
"""A record with a multiple of them counts as so many more."""

log = structlog.get_logger()


async def replay_partition(partition: Partition, replay: Replay, reads: ColdReads, offload: Offload) -> None:
    """Have ``replay`` read a partition from its start to its end.

    Damaged batches are skipped, with an error in the log. Raises StorageError and OSError if the disk fails.
    """
    offset, end = partition.log.log_start_offset, partition.log.log_end_offset
    while offset < end:
        try:
            offset = await _read_some(partition, offset, replay, reads, offload)
        except CorruptRecordError as error:
            following = error.next_offset if error.next_offset > offset else end
            log.error(  # noqa: TRY400 - no failure of the program
                "committed_offsets_damaged",
                topic=partition.topic,
                partition=partition.number,
                start_offset=offset,
                next_offset=following,
                reason=error.message,
                consequence="what groups committed there counts as if it had not been",
            )
            offset = following


async def _read_some(partition: Partition, offset: int, replay: Replay, reads: ColdReads, offload: Offload) -> int:
    """Replay some batches from ``offset`` on. Returns the offset behind them."""
    found = await reads.retry_after_cold_read(lambda: partition.log.read(offset, BYTES_AT_A_TIME, verify=True))
    if found is None:
        return partition.log.log_end_offset
    try:
        data = await offload.cold_read(found.file.pread, found.size, found.position)
    finally:
        found.release()
    count = 0
    for header, batch in iter_batches(data):
        if header.next_offset > offset:
            count = await _replay_batch(header, batch, replay, reads, count)
            offset = header.next_offset
    return offset


async def _replay_batch(header: BatchHeader, batch: memoryview, replay: Replay, reads: ColdReads, count: int) -> int:
    """``count`` and the result: records read since other tasks ran. Most batches hold a few, and a turn costs more."""
    reader = RecordReader(header, batch, Record, at_once=RECORDS_A_TURN)
    while not reader.is_finished:
        for record in reader.read():
            for _ in replay.read(header, (record,)):
                await reads.turn()
            count += 1 + len(record.value or b"") // BYTES_OF_RECORD
            if count >= RECORDS_A_TURN:
                await reads.turn()
                count = 0
    return count
