"""Whether an index is full before its segment: a warning with numbers when a topic is created."""

from typing import Final

from seglog_broker.config import TopicConfig
from seglog_protocol.record_batch import HEADER_SIZE
from seglog_protocol.records import RECORD_SIZE_MIN
from seglog_protocol.segment_files import OFFSET_ENTRY, TIME_ENTRY

SMALLEST_BATCH: Final = HEADER_SIZE + RECORD_SIZE_MIN
"""Bytes of a batch with one empty record, the smallest batch."""


def why_index_fills_first(config: TopicConfig) -> str | None:
    """A sentence with the numbers if an index can be full before its segment is; None if not.

    An entry is due when more than ``index.interval.bytes`` were written since the last one. The time index is full
    first: its entries are larger, and it keeps a slot for closing.
    """
    stride = max(config.index_interval_bytes + 1, SMALLEST_BATCH)
    needed = config.segment_bytes // stride
    room = min(config.segment_index_bytes // OFFSET_ENTRY.size, config.segment_index_bytes // TIME_ENTRY.size - 1)
    if needed <= room:
        return None
    return (
        f"segment.index.bytes = {config.segment_index_bytes} holds {room} entries, and with index.interval.bytes = "
        f"{config.index_interval_bytes} a segment of segment.bytes = {config.segment_bytes} can need {needed}: with "
        f"small batches a new segment is begun after about {(room + 1) * stride} bytes, because the index is full"
    )
