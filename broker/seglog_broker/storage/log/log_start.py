"""The log start offset: several files store it, and these functions choose the one to trust.

``log-start-offset-checkpoint`` has no checksum, so one flipped bit in it must neither hide records nor get their files
deleted. ``seglog-partition.json`` has a checksum and is written before the checkpoint. If Kafka moved the log start,
the first leader epoch moved with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT


class LogStart(NamedTuple):
    """``offset`` is the log start, perhaps below the first segment; ``problem`` names a value that was ignored."""

    offset: int
    problem: str | None = None


class GoneRecords(NamedTuple):
    """Offsets [start, end) at the beginning of the log that no file holds any more, by the file ``source``."""

    start: int
    end: int
    source: str


def believed_start(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int, *, is_empty: bool
) -> LogStart:
    """The log start to trust; the checkpoint says ``claimed``, 0 without an entry.

    ``epochs`` are those of Kafka's file. ``is_empty``: no segment has a byte, so nothing can be lost.
    """
    known = max(state.deleted_before, state.log_start or 0)
    if claimed <= max(known, first_base):
        return LogStart(max(claimed, known))
    if state.log_start is None and (is_empty or (epochs and epochs[0].start_offset >= claimed)):
        return LogStart(claimed)  # moved by Kafka, which trims its epochs before it writes the checkpoint
    if epochs and epochs[0].start_offset == claimed:
        return LogStart(claimed)
    begins = max(known, first_base)
    return LogStart(
        known,
        f"{LOG_START_CHECKPOINT} says {claimed}, but nothing says that the records from {begins} on were deleted: it "
        "is ignored, and they are served",
    )


def records_gone(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int
) -> GoneRecords | None:
    """The records missing at the beginning of a log whose first segment has ``first_base``; None if none are known.

    The log start is saved before files below it are removed. Pass no ``epochs`` where they may be older than that.
    """
    if state.log_start is not None:
        start, source = max(state.log_start, state.deleted_before), PARTITION_STATE_FILE
    elif epochs:
        start, source = max(epochs[0].start_offset, state.deleted_before), LEADER_EPOCH_CHECKPOINT
    else:
        return None
    if claimed <= first_base:
        start = max(start, claimed)
    return GoneRecords(start, first_base, source) if start < first_base else None
