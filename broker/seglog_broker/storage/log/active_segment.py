"""Restores the active segment's running checksum and append times, at a start or after a truncation."""

from typing import Final

from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.log.log_files import LogFiles
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.state_file import StateFile
from seglog_broker.storage.segment.checksum import NO_BYTES, SegmentChecksum

CHECKSUM_CATCH_UP_BYTES: Final = 16 * 1024 * 1024
"""At most so many bytes are read at a clean start for an unknown checksum; the scrub covers a larger segment."""


def restore_checksum(
    files: LogFiles,
    segments: SegmentList,
    state_file: StateFile,
    *,
    bytes_max: int = CHECKSUM_CATCH_UP_BYTES,
    is_sound: bool = True,
) -> None:
    """Continue the active segment's checksum from its last known size, if at most ``bytes_max`` must be read.

    Unless ``is_sound``, which says that the bytes are those that were counted, it starts at zero. A checksum of bytes
    that were cut off or have changed is removed from the disk before anything is appended.
    """
    active, known = segments.active, state_file.state.checksum
    if active.checksum.running is not None:
        return  # the segment is new
    if known is not None and known.segment != active.base_offset:
        known = None
    so_far = NO_BYTES
    for found in (active.checksum.read(), known and SegmentChecksum(known.size, known.crc)):
        if found is not None and is_sound and so_far.size < found.size <= active.size:
            so_far = found
    if active.checksum.drop():
        files.fs.sync_directory(files.directory)
    if active.size - so_far.size <= bytes_max:
        active.checksum.begin(active.log.measure(so_far))
    if known is not None and so_far.size < known.size:
        state_file.state.checksum = None
        state_file.save()


def restore_append_times(files: LogFiles, segments: SegmentList, state_file: StateFile, *, clean: bool) -> None:
    """Restore the times of the active segment's first and last append; after a crash the first is an estimate.

    The estimate is its first timestamp, limited to the time between the segment's creation and its last write.
    """
    state, active = state_file.state, segments.active
    closed = set(segments.bases[:-1])
    state.rolls = {base: roll for base, roll in state.rolls.items() if base in closed}
    if not clean:
        state.last_append_ms = None  # the file's modification time is more recent
    if not active.size:
        state.first_append_ms = None  # what was appended is gone
    elif state.active_segment != active.base_offset or state.first_append_ms is None:
        begun = f"{files.directory}/{PARTITION_METADATA_FILE}"
        not_before = segments[-2].log.modified_ms if len(segments) > 1 else files.fs.stat(begun).mtime_ms
        state.first_append_ms = min(max(not_before, active.first_timestamp), active.log.modified_ms)
        state.active_segment = active.base_offset
        state_file.mark_dirty()
