"""Rolling: when and how a log closes its active segment and begins another."""

from contextlib import suppress

from seglog_broker.config import TopicConfig
from seglog_broker.config.values import LONG_MAX
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.core import LogCore
from seglog_broker.storage.log.roll_policy import RollReason, draw_segment_age
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names


class LogRolling(LogCore):
    """A log that begins a new segment when one is due."""

    def _roll_reason(self, size: int, last_offset: int, max_timestamp: int, now: int) -> RollReason | None:
        """Whether, and why, a batch goes to a new segment. Source: Kafka's LogSegment.shouldRoll."""
        if self._unfinished_roll is not None:
            return self._unfinished_roll
        active = self._segments.last
        if active.size > self.config.segment_bytes - size:
            return RollReason.SIZE
        if active.size > 0:
            first = active.first_timestamp
            waited = max_timestamp - first if first >= 0 else now - (self.state.first_append_ms or now)
            if waited > self._segment_ms_max:
                return RollReason.TIME
        if active.offset_index.is_full:
            return RollReason.OFFSET_INDEX_FULL
        if active.time_index.is_full:
            return RollReason.TIME_INDEX_FULL
        if last_offset - active.base_offset > names.RELATIVE_OFFSET_MAX:
            return RollReason.OFFSET_RANGE
        return None

    def _roll(self, base_offset: int, reason: RollReason) -> bool:
        """Close the active segment and begin one at ``base_offset``; False when there is nothing to close.

        OSError leaves the old segment active and the log as it was.
        """
        old = self.active
        if old.size == 0 and old.base_offset == base_offset:
            return False  # its index is too small to hold anything: another segment at the same place would not help
        new = self._segment(base_offset, ())
        try:
            new.create()  # first, so that with no room for it the old one goes on
        except OSError:
            new.release()
            raise
        try:
            old.close()
        except OSError:
            self._indexes_unsaved = True  # derived data: what is in memory serves, the next checkpoint tries again
        try:
            old.checksum.save()
        except OSError:
            self._indexes_unsaved = True
        self._adopt(new)
        with suppress(OSError):  # a start then has more to read
            self._snapshots.take(base_offset, sync=False)
        self._unfinished_roll = None
        self.state.note_roll(old.base_offset, reason, self._clock.now_ms())
        self.state.first_append_ms = None
        self._state_unsaved = True
        return True

    def _roll_or_note(self, base_offset: int, reason: RollReason) -> bool:
        """As ``_roll``; StorageError when the new segment could not be begun, which the next append then tries again.

        What was begun may already be there, and a start would append to it: so must we, sooner or later.
        """
        try:
            return self._roll(base_offset, reason)
        except OSError as error:
            self._unfinished_roll = reason
            raise storage_error(f"a new segment could not be begun in {self.directory}: {why(error)}", error) from error

    def roll_if_idle(self) -> bool:
        """Close the active segment if the wall time since its first append exceeds its age; say whether it was.

        Raises StorageError when the new one could not be begun; it is tried again, at the latest by the next append.
        """
        if not self.active.size:
            return False
        now = self._clock.now_ms()
        first = self.state.first_append_ms
        if first is None or first > now:  # not known, or the clock was set back: counted from now on
            self.state.first_append_ms, self.state.active_segment = now, self.active.base_offset
            self._state_unsaved = True
            return False
        if self.state.read_only is not None or now - first <= self._segment_ms_max:
            return False
        return self._roll_or_note(self.log_end_offset, RollReason.IDLE)

    @property
    def idle_roll_ms(self) -> int | None:
        """The wall time (ms) at which the idle timer closes the active segment; None: nothing is in it, or never."""
        first = self.state.first_append_ms
        if first is None or not self.active.size or first + self._segment_ms_max > LONG_MAX:
            return None
        return first + self._segment_ms_max

    def _add_segment(self, base_offset: int) -> None:
        segment = self._segment(base_offset, ())
        segment.create()
        self._adopt(segment)

    def _adopt(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._directory_is_dirty = True
        self._draw_segment_age()

    def reconfigure(self, config: TopicConfig) -> None:
        """Take another configuration: limits hold from the next append on, index settings from the next roll."""
        self.config = config
        self._draw_segment_age()

    def _draw_segment_age(self) -> None:
        self._segment_ms_max = draw_segment_age(self.config, self._random)
