"""Makes the files of a cut a directory that opens as after a kill at that moment, by what the cut has of each log.

Files that a log directory has beside its logs were read some time after the moment: what they know of later is taken
back, and what no file of the cut says is written. All of this may be done again.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from seglog_broker.backup.store import Manifest
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, write_files_atomically
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    TopicPartition,
    encode_offsets,
)

NOT_OF_A_CUT: Final = frozenset(
    {filenames.CLEAN_SHUTDOWN_FILE, filenames.CLEAN_PARTITIONS_FILE, *filenames.OFFSET_CHECKPOINTS}
)
"""Files that say how a broker stopped, which it did not."""

_WRITTEN_TOGETHER: Final = 64


def finish_cut(fs: FileSystem, path: str, manifest: Manifest) -> None:
    """Write offsets into ``path``, which has all files of the cut. Raises OSError."""
    contents = list(_contents(fs, path, manifest))
    for first in range(0, len(contents), _WRITTEN_TOGETHER):
        write_files_atomically(fs, contents[first : first + _WRITTEN_TOGETHER])


def _contents(fs: FileSystem, path: str, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """The files to be written, and their content."""
    bases: dict[str, list[int]] = {}
    for file in manifest.files:
        directory, _, name = file.path.rpartition("/")
        parsed = names.parse_segment_file_name(name)
        if parsed is not None and parsed[1] == names.LOG_SUFFIX:
            bases.setdefault(directory, []).append(parsed[0])
    offsets: dict[str, dict[TopicPartition, int]] = {
        name: {} for name in (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
    }
    for log in manifest.logs:
        directory = filenames.partition_directory_name(log.topic, log.partition)
        if log.log_start is None or log.log_end is None or directory not in bases:
            continue
        key = (log.topic, log.partition)
        offsets[RECOVERY_POINT_CHECKPOINT][key] = max(bases[directory])  # of the active segment
        offsets[HIGH_WATERMARK_CHECKPOINT][key] = log.log_end
        if log.log_start > min(bases[directory]):
            offsets[LOG_START_CHECKPOINT][key] = log.log_start
        found = PartitionState.load(fs, f"{path}/{directory}")
        state = at_the_cut(found, log.log_start, log.log_end)
        if state != found:
            yield f"{path}/{directory}/{PARTITION_STATE_FILE}", state.encode()
    yield from ((f"{path}/{name}", encode_offsets(content)) for name, content in offsets.items())


def at_the_cut(state: PartitionState, log_start: int, log_end: int) -> PartitionState:
    """A state without what it has of later."""
    return replace(
        state,
        log_start=log_start,
        deleted_before=min(state.deleted_before, log_start),
        held_end=min(state.held_end, log_end),
        stopped=None,
    )
