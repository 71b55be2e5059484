"""The leader epochs of a log's batches, and their comparison with ``leader-epoch-checkpoint``."""

from typing import NamedTuple

from seglog_broker.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from seglog_protocol.header_scan import LocatedBatch


class EpochRun(NamedTuple):
    """Consecutive batches of one epoch; the first of them is at ``position`` of ``segment``."""

    epoch: int
    start_offset: int
    last_offset: int
    segment: int
    position: int
    end_position: int


class EpochsSeen:
    """Collects the changes of the epoch from the batches in order."""

    def __init__(self) -> None:
        self.runs: list[EpochRun] = []

    def add(self, segment: int, found: LocatedBatch) -> None:
        """Add the next batch."""
        header = found.header
        last = self.runs[-1] if self.runs else None
        if last is not None and last.epoch == header.leader_epoch:
            self.runs[-1] = last._replace(last_offset=header.last_offset)
        else:
            place = (segment, found.position, found.end)
            self.runs.append(EpochRun(header.leader_epoch, header.base_offset, header.last_offset, *place))

    def entries(self) -> list[EpochEntry] | None:
        """The checkpoint entries of these batches; None when the batches contradict each other."""
        found: list[EpochEntry] = []
        for run in self.runs:
            if run.epoch < 0 or (found and run.epoch <= found[-1].epoch):
                return None
            found.append(EpochEntry(run.epoch, run.start_offset))
        return found

    def contradicting(self, known: LeaderEpochs, log_start: int) -> list[EpochRun]:
        """The runs whose epoch differs from that of ``known`` for their offsets, from ``log_start`` on.

        ``known`` has every epoch: the checkpoint is written and synced before the first batch of an epoch.
        """
        first = max(log_start, known.entries[0].start_offset) if known.entries else log_start
        return [
            run
            for run in self.runs
            if run.last_offset >= first
            and {run.epoch} != {known.epoch_for(max(run.start_offset, first)), known.epoch_for(run.last_offset)}
        ]
