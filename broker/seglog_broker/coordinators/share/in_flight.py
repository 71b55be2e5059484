"""Records of a partition in the hands of a share group: which are available, who has acquired which, until when.

Offsets from ``start_offset`` to before ``end_offset`` are in flight. Source: KIP-932 and Kafka's SharePartition.
"""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.coordinators.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, Run, Runs
from seglog_broker.coordinators.share.settings import ShareSettings
from seglog_protocol.dead_letters import COUNT_EXCEEDED, REJECTED
from seglog_protocol.errors import InvalidRecordStateError, InvalidRequestError

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Types of acknowledgements; a gap is an offset that has no record."""

NO_OFFSET: Final = -1
"""The start of a share partition that begins where ``share.auto.offset.reset`` says."""

_STALE_MIN: Final = 64
"""Locks that may be stale before it is worth making a new heap."""


class Acquired(NamedTuple):
    """Offsets ``first`` to ``last``, given to a member for the ``delivery_count``-th time."""

    first: int
    last: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """The word of a member about the offsets ``first`` to ``last``: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class StateBatch(NamedTuple):
    """Offsets as a record has them: their state, and how often they were delivered."""

    first: int
    last: int
    state: int
    delivery_count: int


def append_batch(batches: list[StateBatch], first: int, last: int, state: int, count: int) -> None:
    """Append a batch, or make it a part of the last one."""
    if batches:
        before = batches[-1]
        if before[1] + 1 == first and before[2] == state and before[3] == count:
            batches[-1] = StateBatch(before[0], last, state, count)
            return
    batches.append(StateBatch(first, last, state, count))


class Decision:
    """Changes by a request: the batches that a record is to have, and by cause those that became ARCHIVING."""

    __slots__ = ("batches", "dead_letters", "has_available")

    def __init__(self) -> None:
        self.batches: list[StateBatch] = []
        self.dead_letters: dict[str, list[StateBatch]] = {}
        self.has_available = False

    def note(self, run: Run, cause: str) -> None:
        """Note that a run has changed, and became ARCHIVING if there is a cause."""
        append_batch(self.batches, run.first, run.last, run.state, run.count)
        if cause:
            append_batch(self.dead_letters.setdefault(cause, []), run.first, run.last, run.state, run.count)


TALLIED: Final = ("accepted", "exceeded", "expired", "redelivered", "rejected", "released")


class Tally:
    """Records by what became of them, since the start of the broker; one that was delivered twice counts twice.

    ``released`` also when a session ended, ``expired`` when a lock ran out, ``exceeded`` when it was the last delivery.
    """

    __slots__ = TALLIED

    def __init__(self) -> None:
        self.accepted = self.released = self.rejected = self.expired = self.exceeded = self.redelivered = 0


class InFlight:
    """The runs in flight, without what was written of them. Methods that change states may move the start."""

    __slots__ = ("_available_from", "_gap_end", "_locks", "_tally", "end_offset", "gap_from", "runs", "start_offset")

    def __init__(self, start_offset: int, tally: Tally) -> None:
        """Nothing is in flight yet; NO_OFFSET: it is not known where it begins. ``tally`` counts what becomes of it."""
        self.start_offset = start_offset
        self.end_offset = start_offset
        """The first offset that was never acquired."""
        self.runs = Runs()
        self._tally = tally
        self._available_from = start_offset  # nothing is available before it
        self.gap_from = self._gap_end = NO_OFFSET
        """Between these, offsets without a run are to be acquired yet: after a start, as nothing was written of them.

        Anywhere else the log has no records there.
        """
        self._locks: list[tuple[int, int, int]] = []
        """A heap of deadlines, each with the offsets that were acquired, or renewed, until then."""

    def load(self, batches: Sequence[StateBatch]) -> None:
        """Take over what was written: ``batches`` in order, none before the start. Each is as if acquired as one."""
        for first, last, state, count in batches:
            if self.gap_from == NO_OFFSET and first > self.end_offset:
                self.gap_from = self.end_offset
            self.runs.insert(Run(first, last, state, count, first, last - first + 1))
            self.end_offset = last + 1
        self._gap_end = self.end_offset
        self.move_start()

    @property
    def size(self) -> int:
        """How many runs and locks are kept."""
        return len(self.runs) + len(self._locks)

    @property
    def window(self) -> int:
        """Offsets in flight, as Kafka counts them: also those that are finished, behind others that are not."""
        return self.end_offset - self.start_offset

    @property
    def finished(self) -> int:
        """Offsets from the start on that are acknowledged or archived."""
        return self.runs.records[ACKNOWLEDGED] + self.runs.records[ARCHIVED]

    # --- What is next -------------------------------------------------------------------------------------------------

    def next_offset(self) -> int:
        """The first offset that can be acquired, whatever the limit."""
        gap, available = self._first_gap(), self._first_available()
        if gap != NO_OFFSET and (available == NO_OFFSET or gap < available):
            return gap
        return self.end_offset if available == NO_OFFSET else available

    def _first_available(self) -> int:
        runs = self.runs
        if runs.records[AVAILABLE] == 0:
            return NO_OFFSET
        index = runs.index(self._available_from)
        while runs[index].state != AVAILABLE:
            index += 1
        self._available_from = runs[index].first
        return self._available_from

    def note_available(self, offset: int) -> None:
        """Note that an offset has become available."""
        self._available_from = min(self._available_from, offset)

    def _first_gap(self) -> int:
        if self.gap_from != NO_OFFSET:
            for run in self.runs.within(self.gap_from, self._gap_end):
                if run.first > self.gap_from:
                    break
                self.gap_from = run.last + 1
            self.pass_gaps(self.gap_from)
        return self.gap_from

    def pass_gaps(self, offset: int) -> None:
        """Note that offsets before ``offset`` that are in no run have no records."""
        if self.gap_from != NO_OFFSET:
            self.gap_from = max(self.gap_from, offset)
            if self.gap_from >= self._gap_end:
                self.gap_from = NO_OFFSET

    # --- Locks --------------------------------------------------------------------------------------------------------

    def lock(self, deadline_ms: int, first: int, last: int) -> None:
        """Have ``expire`` look at acquired offsets at their deadline."""
        heapq.heappush(self._locks, (deadline_ms, first, last))
        if len(self._locks) > 2 * len(self.runs) + _STALE_MIN:
            self._locks = [(run.deadline_ms, run.first, run.last) for run in self.runs if run.state == ACQUIRED]
            heapq.heapify(self._locks)

    def deadline_ms(self) -> int | None:
        """When the next records are released because no member has acknowledged them in time."""
        while self._locks:
            deadline_ms, first, last = self._locks[0]
            for run in self.runs.within(first, last):
                if run.state == ACQUIRED and run.deadline_ms == deadline_ms:
                    return deadline_ms
            heapq.heappop(self._locks)
        return None

    def expire(self, now_ms: int, settings: ShareSettings) -> Decision:
        """Release what was acquired until ``now_ms`` or earlier."""
        decision = Decision()
        while self._locks and self._locks[0][0] <= now_ms:
            deadline_ms, first, last = heapq.heappop(self._locks)
            for run in self.runs.within(first, last):
                if run.state == ACQUIRED and run.deadline_ms == deadline_ms:
                    self._tally.expired += run.last - run.first + 1
                    self._release(run, decision, settings)
            self.runs.join(first, last)
        decision.batches.sort()
        self.move_start()
        return decision

    def release(self, member: str, settings: ShareSettings) -> Decision:
        """Release all that a member has."""
        decision = Decision()
        for run in self.runs:
            if run.state == ACQUIRED and run.member == member:
                self._tally.released += run.last - run.first + 1
                self._release(run, decision, settings)
        self.runs.join(self.start_offset, self.end_offset)
        self.move_start()
        return decision

    # --- What becomes of records --------------------------------------------------------------------------------------

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], deadline_ms: int, settings: ShareSettings
    ) -> Decision:
        """Take what a member says; ``deadline_ms`` is for what it renews. See ``SharePartition.acknowledge``."""
        previous = NO_OFFSET
        for each in acknowledgements:
            _check_form(each, previous)
            if each.last >= self.start_offset:
                self._check_acquired(member, each, previous, settings)
            previous = each.last
        decision = Decision()
        for first, last, types in acknowledgements:
            start = max(first, self.start_offset)
            while start <= last:
                end = last if len(types) == 1 else start
                kind = types[0] if len(types) == 1 else types[start - first]
                while end < last and types[end + 1 - first] == kind:
                    end += 1
                self._apply(start, end, kind, decision, deadline_ms, settings)
                start = end + 1
        self.move_start()
        return decision

    def _check_acquired(
        self, member: str, acknowledgement: Acknowledgement, previous: int, settings: ShareSettings
    ) -> None:
        """Check that the member has these offsets. Those that no run has, between others, are passed over."""
        first, last = max(acknowledgement.first, self.start_offset), acknowledgement.last
        if len(self.runs) == 0 or first < self.runs[0].first or first == previous:
            raise _not_acquired(first, "no member has it")
        runs = self.runs.within(first, last)
        if not runs or runs[-1].last < last:
            raise InvalidRequestError(f"offset {last} cannot be acknowledged: no member has acquired so much")
        for run in runs:
            if run.state != ACQUIRED:
                raise _not_acquired(max(first, run.first), "no member has it, or none any more")
            if run.member != member:
                raise _not_acquired(max(first, run.first), "another member has it")
        if RENEW in acknowledgement.types and not settings.may_renew:
            raise _not_acquired(first, "share.renew.acknowledge.enable of the group is false, so no lock is renewed")

    def _apply(
        self, first: int, last: int, kind: int, decision: Decision, deadline_ms: int, settings: ShareSettings
    ) -> None:
        """Do as an acknowledgement says with offsets that its member has."""
        tally = self._tally
        for run in self.runs.cut(first, last):
            size = run.last - run.first + 1
            if kind == RENEW:
                run.deadline_ms = deadline_ms
            elif kind == RELEASE:
                tally.released += size
                self._release(run, decision, settings)
            elif kind == ACCEPT:
                tally.accepted += size
                self.runs.change(run, ACKNOWLEDGED, run.count)
                decision.note(run, "")
            else:
                if kind == REJECT:
                    tally.rejected += size
                self._archive(run, decision, REJECTED if kind == REJECT and settings.dead_letter_topic else "")
        self.runs.join(first, last)
        if kind == RENEW:
            self.lock(deadline_ms, first, last)

    def _release(self, run: Run, decision: Decision, settings: ShareSettings) -> None:
        """Make an acquired run available, or archive it where it was delivered often enough."""
        if run.count >= settings.delivery_count_max:
            self._tally.exceeded += run.last - run.first + 1
            self._archive(run, decision, COUNT_EXCEEDED if settings.dead_letter_topic else "")
            return
        self.runs.change(run, AVAILABLE, run.count)
        self.note_available(run.first)
        decision.has_available = True
        decision.note(run, "")

    def _archive(self, run: Run, decision: Decision, cause: str) -> None:
        self.runs.change(run, ARCHIVING if cause else ARCHIVED, run.count)
        decision.note(run, cause)

    def archive(self, first: int, last: int, last_state: int) -> None:
        """Archive what is available of these offsets, and with ACQUIRED as ``last_state`` also what is acquired."""
        for run in self.runs.cut(first, last):
            if run.state <= last_state:
                self.runs.change(run, ARCHIVED, run.count)
        self.runs.join(first, last)
        self.move_start()

    def end_archiving(self, ranges: Sequence[tuple[int, int]]) -> Decision:
        """Archive what is ARCHIVING of these offsets, from the first to the last of each range."""
        decision = Decision()
        for first, last in ranges:
            for run in self.runs.cut(first, last):
                if run.state == ARCHIVING:
                    self._archive(run, decision, "")
            self.runs.join(first, last)
        self.move_start()
        return decision

    # --- The start ----------------------------------------------------------------------------------------------------

    def note_log_start(self, offset: int) -> None:
        """Forget what is before ``offset``: the log has it no more."""
        if NO_OFFSET < self.start_offset < offset:
            self.runs.drop_before(offset)
            self.start_offset = offset
            self.end_offset = max(self.end_offset, offset)
            self.pass_gaps(offset)
            self.move_start()

    def note_log_end(self, offset: int) -> "InFlight":
        """The same without what is at ``offset`` and behind it, as it is before anything is acquired."""
        kept = InFlight(min(self.start_offset, offset), self._tally)
        runs = self.runs.within(kept.start_offset, offset - 1)
        kept.load([StateBatch(run.first, min(run.last, offset - 1), run.state, run.count) for run in runs])
        return kept

    def move_start(self) -> None:
        """Move the start over what is finished, and over offsets that have no records."""
        gap, start = self._first_gap(), self.end_offset
        for run in self.runs:
            if gap != NO_OFFSET and gap < run.first:
                start = gap
                break
            if run.state != ACKNOWLEDGED and run.state != ARCHIVED:  # noqa: PLR1714 - a tuple is slower
                start = run.first
                break
        if start > self.start_offset:
            self.start_offset = start
            self.runs.drop_before(start)

    def written(self) -> list[StateBatch]:
        """The runs as a record may have them: an acquired one counts as it was before, as no record says otherwise.

        Those that were never delivered, or are for the first time, are in no record.
        """
        batches: list[StateBatch] = []
        for run in self.runs:
            state, count = run.state, run.count
            if state == ACQUIRED:
                state, count = AVAILABLE, count - 1
            if state != AVAILABLE or count > 0:
                append_batch(batches, run.first, run.last, state, count)
        return batches


def _check_form(acknowledgement: Acknowledgement, previous: int) -> None:
    """Raises InvalidRequestError."""
    first, last, types = acknowledgement
    if first > last or first < previous:
        raise InvalidRequestError(f"acknowledgements are in order and do not overlap: {first} to {last} is not")
    if not types or (len(types) > 1 and len(types) != last - first + 1):
        raise InvalidRequestError(f"offsets {first} to {last} have {len(types)} types: one for all, or one for each")
    if min(types) < GAP or max(types) > RENEW:
        raise InvalidRequestError(f"the types of acknowledgements are {GAP} to {RENEW}; {first} to {last} has others")


def _not_acquired(offset: int, reason: str) -> InvalidRecordStateError:
    return InvalidRecordStateError(f"offset {offset} cannot be acknowledged: {reason}", offset=offset)
