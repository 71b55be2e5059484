"""Ranges of a log that cannot be read: measured where they are met, remembered, told, forgotten when they go."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from seglog_broker.storage.io.handle_pool import TurnWantedError
from seglog_broker.storage.log.state import LogWithState
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.seek_trace import SeekTrace
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError


class LogWithDamage(LogWithState):
    """A log that knows which of its ranges are damaged, so that readers step around them."""

    def note_damage(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Serve around ranges that somebody who read a closed segment met; those nobody knew of."""
        news = []
        for damage in found:
            known = [d for d in self.state.damaged if d.segment == damage.segment and d.reason == damage.reason]
            if any(d.position <= damage.position and damage.end_position <= d.end_position for d in known):
                continue
            within = [d for d in known if damage.position <= d.position and d.end_position <= damage.end_position]
            self.state.damaged = [*(d for d in self.state.damaged if d not in within), damage]
            segment = self._segments.at(damage.segment)
            if segment is not None:
                segment.damaged = [d for d in segment.damaged if d not in within]
            self._take_note_of(damage)
            news.append(damage)
        if news:
            self._state_unsaved = True
        return news

    def _measure(self, number: int, error: CorruptRecordError, trace: SeekTrace | None = None) -> None:
        """Damage met while reading: find out how far it goes, remember it, so that the next reader steps around.

        Raises the error itself when there are no bytes to step over, which would be a bug; and TurnWantedError where a
        look-up is to be asked for again.
        """
        segment = self._segments[number]
        next_base = self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset
        position, start_offset = error.position, error.start_offset
        if position > 0:  # what led there may be wrong itself: a length, which hides those that follow it
            flaw = segment.flaw_before(position, start_offset, next_base, trace)
            position, start_offset = flaw or (position, start_offset)
        damage = segment.measure_damage(
            position, start_offset, next_base, trace, compacted_before=self.state.compacted_before
        )
        if damage.end_position <= damage.position:
            raise error
        self.state.damaged.append(damage)
        with suppress(OSError):  # it will be found again
            self._save_state()
        if self._handles.only_warm.is_on:
            raise TurnWantedError  # there may be more of it

    def _damage_error(self, damage: DamagedRange) -> CorruptRecordError:
        path = f"{self.directory}/{names.segment_file_name(damage.segment, names.LOG_SUFFIX)}"
        return CorruptRecordError(
            f"offsets {damage.start_offset} to {damage.end_offset - 1} are damaged on disk ({path}, bytes "
            f"{damage.position} to {damage.end_position - 1}); reading can go on at offset {damage.end_offset}",
            path=path,
            position=damage.position,
            start_offset=damage.start_offset,
            next_offset=damage.end_offset,
        )

    def _take_note_of(self, damage: DamagedRange) -> None:
        if damage.reason == "damaged":
            segment = self._segments.at(damage.segment)
            if segment is not None:
                segment.damaged = sorted([*segment.damaged, damage], key=lambda d: d.position)

    def _forget_expired_damage(self) -> None:
        """Damaged bytes of a segment that is still there stay known, also where no offset is left for them.

        Those of a segment that went are forgotten: where they reached into the next one, that has damage of its own.
        Of offsets that are missing those below the first segment are not missing any more: the log begins there.
        """
        first = self._bases[0]
        self.state.damaged = [
            replace(damage, start_offset=max(damage.start_offset, first)) if damage.reason == "missing" else damage
            for damage in self.state.damaged
            if (damage.segment >= first if damage.reason == "damaged" else damage.end_offset > first)
        ]

    def _forget_damage_that_went(self) -> None:
        """Bytes that were cut off may come again, and be sound."""
        kept = []
        for damage in self.state.damaged:
            segment = self._segments.at(damage.segment)
            if segment is not None and damage.end_position <= segment.size:
                kept.append(damage)
        if kept != self.state.damaged:
            self.state.damaged = kept
            self._save_state()
