"""Where a log starts, of which several files speak: which of them is believed, and what contradicts it.

``log-start-offset-checkpoint`` has no checksum, so one flipped bit in it must neither hide records nor have their files
deleted. ``seglog-partition.json`` has one, and says where the start was before the checkpoint can say so; where Kafka
moved it, the first leader epoch has moved along.
"""

from collections.abc import Sequence
from typing import NamedTuple

from seglog_broker.storage.io.checkpoints import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState


class LogStart(NamedTuple):
    """``offset`` is the believed one, it may lie below the first segment; ``problem``: what is not, as a sentence."""

    offset: int
    problem: str | None = None


class GoneRecords(NamedTuple):
    """Offsets [start, end) that the log began with and that no file holds, by the file ``source``."""

    start: int
    end: int
    source: str


def believed_start(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int, *, is_empty: bool
) -> LogStart:
    """Where the log starts, of which the checkpoint says ``claimed``, 0 where it says nothing.

    ``epochs`` are those of Kafka's file, ``is_empty``: there is no byte in any segment, so that nothing can be lost.
    """
    known = max(state.deleted_before, state.log_start or 0)
    if claimed <= max(known, first_base):
        return LogStart(max(claimed, known))
    if state.log_start is None and (is_empty or (epochs and epochs[0].start_offset >= claimed)):
        return LogStart(claimed)  # nothing of ours speaks of it: Kafka trims its epochs first, the checkpoint later
    if epochs and epochs[0].start_offset == claimed:
        return LogStart(claimed)
    begins = max(known, first_base)
    return LogStart(
        known,
        f"{LOG_START_CHECKPOINT} says {claimed}, but nothing says that the records from {begins} on were deleted: it "
        "is not believed, and they are served",
    )


def records_gone(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int
) -> GoneRecords | None:
    """What is missing at the beginning of a log whose first segment has ``first_base``; None: nothing is known to be.

    The start is remembered before the files below it go. ``epochs`` are to be empty where they may be older than that.
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
