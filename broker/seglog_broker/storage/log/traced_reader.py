"""A reader of a log that records what one seek does, and says in words why it went to a segment."""

from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.reader import LogReader
from seglog_broker.storage.segment.segment import FoundTimestamp, Segment
from seglog_broker.storage.segment.traced_steps import SeekTrace, TracedSteps
from seglog_broker.texts import time_text
from seglog_protocol.header_scan import LocatedBatch


class TracedReader(LogReader):
    """For one ``seek`` or ``find_timestamp``: the code of ``LogReader``, with ``TracedSteps`` in each segment.

    ``trace`` is filled also where the seek raises. Reads (``read``) are not recorded.
    """

    def __init__(self, log: LoadedLog, trace: SeekTrace) -> None:
        """``trace`` is where to record."""
        super().__init__(log)
        self._trace = trace
        self._steps = TracedSteps(trace)
        self._largest = -1  # the largest timestamp of the segment looked at last

    def seek(self, offset: int) -> tuple[int, LocatedBatch] | None:
        """As ``LogReader.seek``."""
        self.check_offset(offset)  # before anything is recorded
        self._trace.segments = len(self._segments)
        place = super().seek(offset)
        if offset == self._offsets.end:
            self._trace.why_segment = "the offset is the end of the log: nothing is looked up, a fetch waits"
        elif place is None:
            self._trace.note_nothing_found(f"no batch from {offset} to the end of the log is left")
        return place

    def _find_in(self, number: int, segment: Segment, offset: int) -> LocatedBatch | None:
        trace, first = self._trace, max(0, self._segments.floor(offset))
        trace.segment, trace.passed_over = segment.base_offset, number - first
        trace.log_size = segment.size
        trace.why_segment = (
            f"number {number + 1} of {len(self._segments)}, the last with a base offset at or below {offset}"
            if number == first and segment.base_offset <= offset
            else f"the first one: the segments with offsets below {segment.base_offset} are missing"
            if number == first
            else f"the segment before it ends below {offset}, so the next one follows"
        )
        if segment.remembers(offset):
            trace.why_segment += (
                "; a fetch goes there at once, for where that batch begins is remembered: "
                "what follows is how it is found without that"
            )
        with self._traced(segment):
            return super()._find_in(number, segment, offset)

    def _find_batch(self, segment: Segment, offset: int) -> LocatedBatch | None:
        return segment.look_up(offset)

    def find_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """As ``LogReader.find_timestamp``."""
        trace = self._trace
        trace.segments = len(self._segments)
        found = super().find_timestamp(timestamp)
        if found is not None:
            trace.record_timestamp, trace.record_offset = found.timestamp, found.offset
        else:
            trace.passed_over = len(self._segments) - self._first_number
            trace.note_nothing_found(f"no record is at or after {time_text(timestamp)}: a fetch waits at the end")
        return found

    def _find_max_in(self, number: int, segment: Segment) -> int:
        with self._traced(segment):
            self._largest = super()._find_max_in(number, segment)
        return self._largest

    def _find_timestamp_in(self, number: int, segment: Segment, timestamp: int) -> FoundTimestamp | None:
        trace = self._trace
        trace.segment, trace.passed_over = segment.base_offset, number - self._first_number
        trace.log_size = segment.size
        trace.why_segment = (
            f"number {number + 1} of {len(self._segments)}, the first whose largest timestamp, "
            f"{time_text(self._largest)}, is at or after {time_text(timestamp)}"
        )
        with self._traced(segment):
            return super()._find_timestamp_in(number, segment, timestamp)

    def _traced(self, segment: Segment) -> "_Traced":
        return _Traced(segment, self._steps)


class _Traced:
    """A segment in which seeks are noted until the ``with`` block ends; nothing else runs meanwhile."""

    def __init__(self, segment: Segment, steps: TracedSteps) -> None:
        self._segment = segment
        self._steps = steps
        self._before = segment.log.steps

    def __enter__(self) -> None:
        self._segment.log.steps = self._steps

    def __exit__(self, *_error: object) -> None:
        self._segment.log.steps = self._before
