"""A log at one moment, for a copy of it that opens like a log after a clean stop.

Closed segments do not change, the active one only grows, and all but the last small files are replaced as a whole. So
the copy is made of second names of the files, the lengths of those that grow, and the small files as a clean stop would
write them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT


class FrozenLog(NamedTuple):
    """What a copy of a log consists of, as long as its segments are neither renamed nor removed."""

    directory: str
    log_start: int
    log_end: int
    is_sound: bool
    """Whether it is known what is on the disk: False after a failed fsync."""
    bases: Sequence[int]
    """Of its segments, ascending; the last one is active."""
    lengths: Mapping[str, int]
    """Bytes of the files of the active segment, by name: those behind them are of later appends."""
    contents: Sequence[tuple[str, bytes]]
    """Small files by name, as a clean stop would write them."""

    def linked(self, found: Sequence[str]) -> list[str]:
        """Those of the names ``found`` in the directory that the copy has as they are."""
        closed, active = set(self.bases[:-1]), self.bases[-1]
        written = {name for name, _ in self.contents}

        def is_linked(name: str) -> bool:
            parsed = names.parse_segment_file_name(name)
            if parsed is None:
                return name == PARTITION_METADATA_FILE
            base, suffix = parsed
            is_snapshot = suffix == names.SNAPSHOT_SUFFIX and (base in closed or base == active)
            return name in self.lengths or is_snapshot or (base in closed and suffix in names.SEGMENT_SUFFIXES)

        return [name for name in found if name not in written and is_linked(name)]


def freeze(log: LoadedLog) -> FrozenLog:
    """The content of a copy of the log at this moment, as after a clean stop.

    Raises OSError when index entries that are in memory cannot be written.
    """
    active = log.segments.active
    active.offset_index.write_pending()
    active.time_index.write_pending()
    lengths = {
        names.segment_file_name(active.base_offset, suffix): size
        for suffix, size in (
            (names.LOG_SUFFIX, active.size),
            (names.OFFSET_INDEX_SUFFIX, active.offset_index.size),
            (names.TIME_INDEX_SUFFIX, active.time_index.size),
        )
    }
    transactions = names.segment_file_name(active.base_offset, names.TXN_INDEX_SUFFIX)
    if log.files.fs.exists(f"{log.files.directory}/{transactions}"):
        lengths[transactions] = log.files.fs.stat(f"{log.files.directory}/{transactions}").size
    contents = [
        (PARTITION_STATE_FILE, log.state_file.encoded_as_stopped()),
        (LEADER_EPOCH_CHECKPOINT, log.epochs.file[1]),
    ]
    snapshot = log.snapshots.file_at(log.offsets.end)
    if snapshot is not None:
        contents.append((names.segment_file_name(log.offsets.end, names.SNAPSHOT_SUFFIX), snapshot[1]))
    return FrozenLog(
        log.files.directory,
        log.offsets.start,
        log.offsets.end,
        log.state_file.state.read_only is None,
        tuple(log.segments.bases),
        lengths,
        contents,
    )
