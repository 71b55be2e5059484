"""Reads single records of a log, for copies in dead letters: each of their batches is read once, and opened once."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import Record, RecordReader

BYTES_AT_A_TIME: Final = 256 * 1024
"""Bytes of a log that are read at a time; a larger batch at once."""

RECORD_COST: Final = 1.5
"""Microseconds to read a record."""

Copy = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


async def read_copies(
    scheduler: Scheduler, offload: Offload, log: PartitionLog, offsets: Sequence[int], room: int
) -> tuple[dict[int, Copy | None], int]:
    """Copies of the records at ``offsets``, which rise, and the offset below which these are all.

    They have about ``room`` bytes, and there is at least one. A record that expired, was deleted or is damaged has no
    copy; where the log has a control batch, and never had a record, there is None. Raises StorageError and OSError for
    a log that cannot be read now.
    """
    found: dict[int, Copy | None] = {}
    turns = budget.Turns(scheduler.turn)
    at = 0
    while at < len(offsets):
        offset = offsets[at]
        following = offset + 1
        try:
            data = await scheduler.read_batches(log, offset, BYTES_AT_A_TIME)
            following = following if data else offsets[-1] + 1
            for header, batch in iter_batches(data):
                first = bisect_left(offsets, header.base_offset, at)
                wanted = set(offsets[first : bisect_left(offsets, header.next_offset, first)])
                if header.is_control:
                    found |= dict.fromkeys(wanted)
                elif wanted:
                    # In a thread: a few compressed bytes may open to 64 MiB.
                    reader = await offload.cold_read(RecordReader, header, batch, Record)
                    while not reader.is_finished and not wanted <= found.keys():
                        records = reader.read()
                        await turns.spend(RECORD_COST * len(records))
                        for record in records:
                            if record.offset in wanted:
                                found[record.offset] = record.key, record.value
                                room -= len(record.key or b"") + len(record.value or b"")
                                if room <= 0:
                                    return found, record.offset + 1
                following = max(following, header.next_offset)
        except OffsetOutOfRangeError as error:
            following = max(following, error.earliest)
        except CorruptRecordError as error:
            following = max(following, error.next_offset)
        at = bisect_left(offsets, following, at)
    return found, offsets[-1] + 1
