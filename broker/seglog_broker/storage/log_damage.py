"""Ranges of a log that cannot be read: measured where they are met, remembered, told, forgotten when they go."""

from collections.abc import Iterable

from seglog_broker.storage.log_state import LogWithState
from seglog_broker.storage.partition_state import DamagedRange
from seglog_broker.storage.seek_trace import SeekTrace
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
            for segment in self._segments:
                if segment.base_offset == damage.segment:
                    segment.damaged = [d for d in segment.damaged if d not in within]
            self._take_note_of(damage)
            news.append(damage)
        if news:
            self._state_unsaved = True
        return news

    def _measure(self, number: int, error: CorruptRecordError, trace: SeekTrace | None = None) -> None:
        """Damage met while reading: find out how far it goes, remember it, so that the next reader steps around.

        Raises the error itself when there are no bytes to step over, which would be a bug.
        """
        segment = self._segments[number]
        next_base = self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset
        damage = segment.measure_damage(error.position, error.start_offset, next_base, trace)
        if damage.end_position <= damage.position:
            raise error
        self.state.damaged.append(damage)
        try:
            self._save_state()
        except OSError:
            return  # it will be found again

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
            for segment in self._segments:
                if segment.base_offset == damage.segment:
                    segment.damaged = sorted([*segment.damaged, damage], key=lambda d: d.position)

    def _forget_expired_damage(self) -> None:
        """Damaged bytes of a segment that is still there stay known, also where no offset is left for them."""
        first = self._bases[0]
        self.state.damaged = [
            damage
            for damage in self.state.damaged
            if damage.end_offset > first or (damage.reason == "damaged" and damage.segment >= first)
        ]

    def _forget_damage_that_went(self) -> None:
        """Bytes that were cut off may come again, and be sound."""
        left = {segment.base_offset: segment for segment in self._segments}
        kept = [d for d in self.state.damaged if d.segment in left and d.end_position <= left[d.segment].size]
        if kept != self.state.damaged:
            self.state.damaged = kept
            self._save_state()
