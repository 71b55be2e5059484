"""The checkpoint files of a log directory: what a start reads from them, and their current content."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.small_files import keep_copy, read_offsets
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.steps import Steps

LOGS_A_TURN: Final = 500
"""Logs whose offsets are gathered before other tasks run."""


class OffsetCheckpoints:
    """Recovery points, log starts and the cleaner's offsets of all partitions, including those without a loaded log.

    ``is_stale``: the files still have entries of deleted topics, and must be written before a topic of such a name is
    created.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        """``path`` is the log directory; nothing is read yet."""
        self.is_stale = False
        self._fs = fs
        self._path = path
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}  # after ``settle``: of partitions without a log
        self._cleaned: dict[TopicPartition, int] = {}  # the cleaner's offsets, of the same
        self._high_watermarks: dict[TopicPartition, int] = {}  # of the last clean stop; see ``LogMarks``
        self._clean_ends: dict[TopicPartition, int] = {}  # of partitions closed cleanly while others were not
        self._has_cleaned = False  # there is a cleaner checkpoint, so it must be kept up to date

    def read(self, name: str, problems: list[str]) -> dict[TopicPartition, int]:
        """The offsets in one file; a malformed one counts as empty, is named in ``problems``, and kept."""
        try:
            return read_offsets(self._fs, self._file(name))
        except checkpoints.MalformedCheckpointError as error:
            problems.append(f"{name} is taken as empty: {error}; {keep_copy(self._fs, self._file(name))}")
            return {}

    def load(self, found: Collection[str], problems: list[str], *, is_clean: bool) -> None:
        """Read all files; ``found`` are the names in the directory."""
        self._recovery_points = self.read(checkpoints.RECOVERY_POINT_CHECKPOINT, problems)
        self._log_starts = self.read(checkpoints.LOG_START_CHECKPOINT, problems)
        self._cleaned = self.read(checkpoints.CLEANER_CHECKPOINT, problems)
        if is_clean:  # after an unclean stop it may be old
            self._high_watermarks = self.read(checkpoints.HIGH_WATERMARK_CHECKPOINT, problems)
        self._has_cleaned = checkpoints.CLEANER_CHECKPOINT in found

    def load_clean_ends(self, problems: list[str]) -> None:
        """Read which partitions were closed cleanly when others were not."""
        self._clean_ends = self.read(filenames.CLEAN_PARTITIONS_FILE, problems)

    def settle(self, logs: Iterable[TopicPartition], without_log: Collection[TopicPartition]) -> None:
        """All partitions are loaded except those ``without_log``. Drop other entries; with any, the files are stale."""
        named = self._recovery_points.keys() | self._log_starts.keys() | self._cleaned.keys()
        self._log_starts = {key: offset for key, offset in self._log_starts.items() if key in without_log}
        self._cleaned = {key: offset for key, offset in self._cleaned.items() if key in without_log}
        there = {*logs, *without_log}
        if not there >= named:
            # entries of a deleted topic must not be used for a later one of that name
            self._recovery_points = {key: offset for key, offset in self._recovery_points.items() if key in there}
            self.is_stale = True

    def recovery_point(self, key: TopicPartition) -> int:
        """Everything below it is on the disk, indexes included; 0 if unknown."""
        return self._recovery_points.get(key, 0)

    def log_start(self, key: TopicPartition) -> int:
        """The log start in the file; 0 without an entry."""
        return self._log_starts.get(key, 0)

    def first_dirty(self, key: TopicPartition) -> int | None:
        """Where the last round of compaction ended, None before the first."""
        return self._cleaned.get(key)

    def high_watermark(self, key: TopicPartition) -> int | None:
        """The log end at the last clean stop, by the file."""
        return self._high_watermarks.get(key)

    def stopped_clean(self, key: TopicPartition) -> bool:
        """Whether it was closed cleanly when others were not, and its end has not moved since."""
        end = self._clean_ends.get(key)
        return end is not None and end == self.recovery_point(key)

    def begin_without_records(self, key: TopicPartition) -> None:
        """Its files are lost: it begins at the highest offset known, so that no offset is used twice."""
        self._log_starts[key] = max(self.log_start(key), self.recovery_point(key))
        self._recovery_points.pop(key, None)

    def limit_recovery_point(self, key: TopicPartition, log_end: int) -> None:
        """Limit its recovery point to the log end."""
        self._recovery_points[key] = min(self.recovery_point(key), log_end)

    def note_recovery_point(self, key: TopicPartition, offset: int, log_end: int) -> None:
        """Everything below ``offset`` is on the disk; a higher recovery point is kept."""
        self._recovery_points[key] = max(min(self.recovery_point(key), log_end), offset)

    def note_log(self, key: TopicPartition) -> None:
        """Its log is loaded, and from now on has its log start and cleaner offset."""
        self._log_starts.pop(key, None)
        self._cleaned.pop(key, None)

    def forget(self, key: TopicPartition) -> None:
        """Drop the entries of a partition whose topic is deleted."""
        self._recovery_points.pop(key, None)
        self.note_log(key)

    def gathering_offsets(
        self, logs: Mapping[TopicPartition, PartitionLog], without_log: Collection[TopicPartition]
    ) -> Steps[list[tuple[str, dict[TopicPartition, int]]]]:
        """(path, offsets) of each file, up to date; yields after every LOGS_A_TURN logs."""
        starts = dict(self._log_starts)
        cleaned = dict(self._cleaned)
        for number, key in enumerate(list(logs), start=1):  # of pairs the garbage collector would look at each
            if number % LOGS_A_TURN == 0:
                yield
            log = logs.get(key)
            if log is None:
                continue  # its topic was deleted between two steps
            start = min(log.log_start_offset, log.state_file.proven_start)  # a start ignores any other
            if start > log.truncation.first_base_on_disk:  # otherwise it follows from the segments
                starts[key] = start
            first_dirty = log.cleaning.first_dirty_offset
            if first_dirty is not None:
                cleaned[key] = first_dirty
        yield
        points = {key: at for key, at in self._recovery_points.items() if key in logs or key in without_log}
        wanted = [(checkpoints.RECOVERY_POINT_CHECKPOINT, points), (checkpoints.LOG_START_CHECKPOINT, starts)]
        if cleaned or self._has_cleaned:
            self._has_cleaned = True
            wanted.append((checkpoints.CLEANER_CHECKPOINT, cleaned))
        return [(self._file(name), offsets) for name, offsets in wanted]

    def note_written(self) -> None:
        """The files were written with the content of ``gathering_offsets``."""
        self.is_stale = False

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"
