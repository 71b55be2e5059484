"""A share partition as a table with a row for each offset: slow, and simple enough to be read beside Kafka's rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from seglog_broker.coordinators.share.in_flight import ACCEPT, REJECT, RELEASE, RENEW, Acquired
from seglog_broker.coordinators.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE
from seglog_broker.coordinators.share.settings import ShareSettings

Written = dict[int, tuple[int, int]]
"""State and delivery count by offset, as records have them."""


@dataclass
class Row:
    """One offset; ``batch`` is the first offset of what came into flight with it, of which there were ``size``."""

    state: int
    count: int
    batch: int
    size: int
    member: str = ""
    deadline_ms: int = 0


@dataclass
class Table:
    """The rows in flight. ``gaps`` are offsets of which nothing was written, and which may have records."""

    start: int = -1
    end: int = -1
    rows: dict[int, Row] = field(default_factory=dict)
    gaps: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    """Offsets that the last request has changed, as a record is to say."""
    has_available: bool = False
    """True if it has made one available."""

    # --- What is written ----------------------------------------------------------------------------------------------

    @classmethod
    def loaded(cls, start: int, written: Written) -> "Table":
        table = cls(start, max(written, default=start - 1) + 1)
        batch = -1
        for offset, (state, count) in sorted(written.items()):
            if written.get(offset - 1) != (state, count):
                batch = offset
            table.rows[offset] = Row(state, count, batch, 0)
        for row in table.rows.values():
            row.size = sum(other.batch == row.batch for other in table.rows.values())
        table.gaps = {offset for offset in range(start, table.end) if offset not in table.rows}
        table.move_start()
        return table

    def written(self) -> Written:
        """The rows as a record may have them: who has acquired one is not written."""
        as_before = {
            offset: (AVAILABLE, row.count - 1) if row.state == ACQUIRED else (row.state, row.count)
            for offset, row in self.rows.items()
        }
        return {offset: each for offset, each in as_before.items() if each != (AVAILABLE, 0)}

    # --- What is next -------------------------------------------------------------------------------------------------

    def next_offset(self, settings: ShareSettings) -> int | None:
        for offset in range(self.start, self.end):
            if offset in self.gaps or (offset in self.rows and self.rows[offset].state == AVAILABLE):
                return offset
        return self.end if self.end - self.start < settings.record_locks_max else None

    def deadline_ms(self) -> int | None:
        return min((row.deadline_ms for row in self.rows.values() if row.state == ACQUIRED), default=None)

    # --- Acquire ------------------------------------------------------------------------------------------------------

    def acquire(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        fetch_offset: int,
        max_records: int,
        batch_size: int,
        is_record_limit: bool,
        deadline_ms: int,
        settings: ShareSettings,
    ) -> list[Acquired]:
        given: list[tuple[int, int]] = []  # offset and batch
        room = min(max_records, settings.record_locks_max - (self.end - self.start))
        last = batches[-1][1]
        if room <= 0:
            room, last = min(max_records, self.end - fetch_offset), min(last, self.end - 1)
        for offset in range(fetch_offset, batches[0][0]):
            if offset in self.rows and self.rows[offset].state == AVAILABLE:
                self.rows[offset].state = ARCHIVED
        self.move_start()

        def give(offset: int) -> None:
            row = self.rows[offset]
            row.state, row.count, row.member, row.deadline_ms = ACQUIRED, row.count + 1, member, deadline_ms
            given.append((offset, row.batch))

        def give_new(first: int, last: int) -> int:
            wanted = first + room - len(given) - 1
            end = last
            if wanted < last:
                end = min(last, next((last for base, last in batches if base <= wanted <= last), wanted))
            batch = first
            for offset in range(first, end + 1):
                is_base = any(base == offset for base, _ in batches)
                if is_base and offset - batch >= batch_size and not is_record_limit:
                    batch = offset
                self.rows[offset] = Row(AVAILABLE, 0, batch, 0)
            for offset in range(first, end + 1):
                self.rows[offset].size = sum(row.batch == self.rows[offset].batch for row in self.rows.values())
                if offset <= wanted or not is_record_limit:
                    give(offset)
            self.end = max(self.end, end + 1)
            return end + 1

        offset = max(batches[0][0], self.start if self.rows else self.end)
        while offset <= last and len(given) < room:
            known = [other for other in self.rows if offset <= other <= last]
            if offset in self.rows and self.rows[offset].state == AVAILABLE:
                batch = self.rows[offset].batch
                behind = batch + self.rows[offset].size
                some = [each for each in range(offset, min(behind, last + 1)) if self._is(each, AVAILABLE)]
                is_throttled, chosen = self._choose(some, room - len(given) if is_record_limit else len(some), settings)
                if is_throttled and given:
                    break
                for each in chosen:
                    give(each)
                if is_throttled:
                    break
                offset = behind
            elif offset in self.rows:
                offset += 1
            elif not known:
                offset = give_new(offset, last)
            elif offset in self.gaps:
                offset = give_new(offset, min(known) - 1)
            else:
                offset += 1
        self.gaps = {each for each in self.gaps if each >= offset and each not in self.rows}
        self.move_start()
        return list(_acquired(given, self.rows))

    def _is(self, offset: int, state: int) -> bool:
        return offset in self.rows and self.rows[offset].state == state

    def _choose(self, offsets: Sequence[int], room: int, settings: ShareSettings) -> tuple[bool, list[int]]:
        """Kafka's choice of available records of a batch, one after the other."""
        most = settings.delivery_count_max
        throttled_from = max(2, -(-most // 2))
        is_throttled = max(self.rows[offset].count for offset in offsets) >= throttled_from
        chosen: list[int] = []
        quota = -1
        for offset in offsets:
            row = self.rows[offset]
            is_last = most > 2 and row.count == most - 1
            if is_last and chosen:
                break
            if row.count >= throttled_from and quota < 0:
                quota = max(1, row.size >> (row.count - throttled_from + 1))
            chosen.append(offset)
            if is_last or len(chosen) in (room, quota):
                break
        return is_throttled, chosen

    # --- What becomes of them -----------------------------------------------------------------------------------------

    def acknowledge(self, offset: int, kind: int, deadline_ms: int, settings: ShareSettings) -> None:
        if kind == RENEW:
            self.rows[offset].deadline_ms = deadline_ms
        elif kind == RELEASE:
            self.release(offset, settings)
        elif kind == ACCEPT:
            self._put(offset, ACKNOWLEDGED)
        else:
            self._put(offset, ARCHIVING if kind == REJECT and settings.dead_letter_topic else ARCHIVED)

    def release(self, offset: int, settings: ShareSettings) -> None:
        if self.rows[offset].count >= settings.delivery_count_max:
            self._put(offset, ARCHIVING if settings.dead_letter_topic else ARCHIVED)
        else:
            self._put(offset, AVAILABLE)
            self.has_available = True

    def end_archiving(self, offset: int) -> None:
        if self._is(offset, ARCHIVING):
            self._put(offset, ARCHIVED)

    def _put(self, offset: int, state: int) -> None:
        row = self.rows[offset]
        row.state, row.member, row.deadline_ms = state, "", 0
        self.changed.add(offset)

    def archive(self, first: int, last: int) -> None:
        """Archive what was acquired or is available; nothing is written of that."""
        for offset, row in self.rows.items():
            if first <= offset <= last and row.state in (AVAILABLE, ACQUIRED):
                row.state, row.member, row.deadline_ms = ARCHIVED, "", 0

    def move_start(self) -> None:
        """Pass what is finished, and offsets without a row, but for those that may have records."""
        while self.start < self.end and self.start not in self.gaps:
            if self.start in self.rows and self.rows[self.start].state not in (ACKNOWLEDGED, ARCHIVED):
                return
            self.rows.pop(self.start, None)
            self.start += 1

    def forget_before(self, offset: int) -> None:
        self.rows = {each: row for each, row in self.rows.items() if each >= offset}
        self.gaps = {each for each in self.gaps if each >= offset}
        self.start, self.end = offset, max(self.end, offset)
        self.move_start()


def _acquired(given: Sequence[tuple[int, int]], rows: dict[int, Row]) -> Iterator[Acquired]:
    """Neighbours of one batch with one delivery count are told as one."""
    first = 0
    for place, (offset, batch) in enumerate(given):
        count = rows[offset].count
        if place + 1 < len(given):
            following, its_batch = given[place + 1]
            if following == offset + 1 and its_batch == batch and rows[following].count == count:
                continue
        yield Acquired(given[first][0], offset, count)
        first = place + 1
