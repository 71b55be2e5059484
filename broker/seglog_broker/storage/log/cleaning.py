"""Compaction of one log: finds what is cleanable, plans the job, and replaces segments with cleaned ones."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.storage.compaction.cleanable import Cleanable, find_cleanable
from seglog_broker.storage.compaction.cleaned_segment import SegmentSwap
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult, SourceSegment
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.io.pauses import TurnWantedError
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX

LOOKS_A_TURN: Final = 200
"""Segments whose files are read for a time before the loop serves others."""


@dataclass(slots=True, eq=False)
class LogCleaning:
    """Plans rounds of compaction of one log and installs their results; package ``compaction`` does the work."""

    _log: LoadedLog
    first_dirty_offset: int | None
    """Where the last round ended; None before the first."""
    _looked_into: dict[tuple[int, str], None] = field(default_factory=dict, init=False)  # an empty set has 216 bytes
    """Reads of ``find_cleanable`` so far: what they found is in memory."""

    def find_cleanable(self) -> Cleanable:
        """What a round of compaction could do now. May raise ColdReadError, and TurnWantedError after LOOKS_A_TURN."""
        segments, looks = self._log.segments, 0

        def looked_into(number: int, what: str) -> Segment:
            """A segment whose files may be read for ``what``: it may be necessary to look into all of them."""
            nonlocal looks
            segment = segments[number]
            is_known = segment.is_time_known if what == "largest" else segment.is_first_time_known
            if not is_known and (segment.base_offset, what) not in self._looked_into:
                if looks == LOOKS_A_TURN and self._log.files.handles.only_warm.is_on:
                    raise TurnWantedError
                looks += 1
                self._looked_into[segment.base_offset, what] = None
            return segment

        found = find_cleanable(
            segments.bases,
            segments.size_between,
            lambda number: looked_into(number, "largest").largest_timestamp,
            lambda number: looked_into(number, "first").first_timestamp,
            self._log.settings.config,
            log_start_offset=self._log.offsets.start,
            log_end_offset=self._log.offsets.end,
            last_stable_offset=self._log.offsets.stable_end(self._log.producers.first_unstable_offset),
            checkpoint=self.first_dirty_offset,
            tombstones_due_ms=self._log.state_file.state.cleaner.tombstones_due_ms,
            now_ms=self._log.clock.now_ms(),
        )
        self._looked_into.clear()
        return found

    def plan_cleaning(self, cleanable: Cleanable, broker: BrokerConfig, *, dry_run: bool = False) -> CleaningJob:
        """The job that compacts what ``cleanable`` describes, for a worker process."""
        bases = self._log.segments.bases
        below = self._log.segments.first_from(cleanable.until_offset)
        threads = max(1, broker.log_cleaner_threads)
        rate = broker.log_cleaner_io_max_bytes_per_second / threads
        return CleaningJob(
            self._log.files.directory,
            tuple(SourceSegment(base, self._log.damage.in_segment(base)) for base in bases[:below]),
            tuple(bases[below:]),
            first_dirty=max(self._log.segments.bases[0], min(cleanable.first_dirty_offset, cleanable.until_offset)),
            upper_bound=cleanable.until_offset,
            now_ms=self._log.clock.now_ms(),
            delete_retention_ms=self._log.settings.config.delete_retention_ms,
            segment_bytes=self._log.settings.config.segment_bytes,
            segment_index_bytes=self._log.settings.config.segment_index_bytes,
            index_interval_bytes=self._log.settings.config.index_interval_bytes,
            map_bytes=broker.log_cleaner_dedupe_buffer_size // threads,
            map_load_factor=broker.log_cleaner_io_buffer_load_factor,
            decompressed_batch_bytes_max=DECOMPRESSED_BATCH_BYTES_MAX,
            producer_id_expiration_ms=broker.producer_id_expiration_ms,
            bytes_per_second=rate if rate < sys.float_info.max / threads else None,
            dry_run=dry_run,
        )

    def note_compacted(self, before: int) -> None:
        """From now on gaps below ``before`` count as compacted. Save the state before any record is removed."""
        self._log.state_file.state.compacted_before = max(self._log.state_file.state.compacted_before, before)
        self._log.state_file.mark_dirty()

    def finish_cleaning(self, result: CleaningResult) -> None:
        """Record the result of a round whose segments are all installed."""
        self.first_dirty_offset = result.first_dirty
        cleaner = self._log.state_file.state.cleaner
        cleaner.last_run_ms = self._log.clock.now_ms()
        cleaner.bytes_before = sum(group.bytes_before for group in result.groups)
        cleaner.bytes_after = sum(group.bytes_after for group in result.groups)
        cleaner.keyless_dropped += result.keyless
        cleaner.tombstones_due_ms = result.tombstones_due_ms
        self._log.state_file.mark_dirty()

    def note_cleaner_error(self, reason: str | None) -> None:
        """Record why the last round failed, None if it succeeded."""
        if self._log.state_file.state.cleaner.last_error != reason:
            self._log.state_file.state.cleaner.last_error = reason
            self._log.state_file.mark_dirty()

    def install_cleaned(self, swap: SegmentSwap, damaged: Sequence[DamagedRange]) -> DeletedSegments:
        """Replace the sources of ``swap`` with their cleaned, promoted segment; return them, to be removed later.

        ``damaged`` are the ranges in it that could not be read. StorageError: the log is unchanged.
        """
        first = self._log.segments.first_from(swap.base_offset)
        end = first + len(swap.sources)
        sources = self._log.segments[first:end]
        bases = tuple(self._log.segments.bases[first:end])
        assert bases == swap.sources, "the log has changed under a round of compaction"
        for segment in sources:
            segment.forget()
        try:
            swap.install()
        except OSError as error:
            raise storage_error(
                f"compacted files could not be put in place in {self._log.files.directory}: {why(error)}", error
            ) from error
        suffixes = [suffix for suffix in names.SEGMENT_SUFFIXES if suffix != names.AWAITED_SUFFIX]
        existing = [names.segment_file_name(swap.base_offset, suffix) for suffix in suffixes]
        self._log.damage.replace_segments(swap.sources, damaged)
        self._log.segments.replace(first, end, self._log.segments.make(swap.base_offset, existing))
        self._log.transactions.note_compacted(swap.sources, swap.base_offset)
        for base in swap.sources:
            self._log.state_file.state.rolls.pop(base, None)
        with suppress(OSError):  # a start removes what is out of place
            self._log.snapshots.drop(swap.sources[1:])
        self._log.state_file.state.note_roll(swap.base_offset, "compaction", self._log.clock.now_ms())
        self._log.state_file.mark_dirty()
        return DeletedSegments(self._log.files.fs, self._log.files.directory, swap.sources)
