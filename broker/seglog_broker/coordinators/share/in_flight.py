"""Records of a partition in the hands of a share group: which are available, who has acquired which, until when.

Offsets from ``start_offset`` to before ``end_offset`` are in flight. Source: KIP-932, KIP-1206, Kafka's SharePartition.
"""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.coordinators.share.runs import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    Run,
    Runs,
)
from seglog_protocol.errors import InvalidRecordStateError, InvalidRequestError

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Types of acknowledgements; a gap is an offset that has no record."""

NO_OFFSET: Final = -1

THROTTLED_FROM: Final = 2
"""Deliveries of a record after which it is never held back, whatever the limit."""

COUNT_MAX: Final = 32_767
"""Deliveries are counted no further: a record has an int16 for them."""

_STALE_MIN: Final = 64


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


class Limits(NamedTuple):
    """The settings that count now: of the broker, or of the group."""

    lock_ms: int
    """How long a member has what it acquires."""
    delivery_count_max: int
    record_locks_max: int
    """Offsets that may be in flight before no further ones are acquired."""
    has_dead_letters: bool
    updates_per_snapshot: int
    may_renew: bool


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
    """Changes by a request: the batches that a record is to have, and those that became ARCHIVING."""

    __slots__ = ("batches", "exceeded", "has_available", "rejected")

    def __init__(self) -> None:
        self.batches: list[StateBatch] = []
        self.rejected: list[StateBatch] = []
        """ARCHIVING because a member says so."""
        self.exceeded: list[StateBatch] = []
        """ARCHIVING because they were delivered too often."""
        self.has_available = False


class InFlight:
    """The records in flight, without what was written of them.

    Methods that change states return a Decision, and may move the start.
    """

    __slots__ = ("_available_from", "_gap_end", "_gap_from", "_locks", "end_offset", "runs", "start_offset")

    def __init__(self) -> None:
        self.start_offset = NO_OFFSET
        self.end_offset = NO_OFFSET
        """The first offset that was never acquired."""
        self.runs = Runs()
        self._available_from = 0  # nothing is available before it
        self._gap_from = NO_OFFSET
        self._gap_end = NO_OFFSET
        """Between these, offsets without a run are to be acquired yet: after a start, as nothing was written of them.

        Anywhere else the log has no records there.
        """
        self._locks: list[tuple[int, int, int]] = []
        """A heap of deadlines, each with the offsets that were acquired, or renewed, until then."""

    def begin(self, start_offset: int) -> None:
        """Begin at an offset, with nothing in flight."""
        self.runs.clear()
        self._locks.clear()
        self.start_offset = self.end_offset = start_offset
        self._available_from = start_offset
        self._gap_from = self._gap_end = NO_OFFSET

    def load(self, batches: Sequence[StateBatch]) -> None:
        """Take over what was written: ``batches`` in order, none before the start. Each is as if acquired as one."""
        for batch in batches:
            if self._gap_from == NO_OFFSET and batch.first > self.end_offset:
                self._gap_from = self.end_offset
            size = batch.last - batch.first + 1
            self.runs.insert(Run(batch.first, batch.last, batch.state, batch.delivery_count, batch.first, size))
            self.end_offset = batch.last + 1
        if self._gap_from != NO_OFFSET:
            self._gap_end = self.end_offset
        self._available_from = self.start_offset
        self.move_start()

    @property
    def size(self) -> int:
        """How many runs and locks are kept."""
        return len(self.runs) + len(self._locks)

    @property
    def finished(self) -> int:
        """Offsets from the start on that are acknowledged or archived."""
        return self.runs.records[ACKNOWLEDGED] + self.runs.records[ARCHIVED]

    # --- What is next -------------------------------------------------------------------------------------------------

    def next_offset(self, record_locks_max: int) -> int:
        """The first offset that can be acquired; NO_OFFSET while too much is in flight."""
        gap = self._first_gap()
        available = self._first_available()
        if gap != NO_OFFSET and (available == NO_OFFSET or gap < available):
            return gap
        if available != NO_OFFSET:
            return available
        return self.end_offset if self.end_offset - self.start_offset < record_locks_max else NO_OFFSET

    def _first_available(self) -> int:
        runs = self.runs
        if runs.records[AVAILABLE] == 0:
            return NO_OFFSET
        index = runs.index(self._available_from)
        while runs[index].state != AVAILABLE:
            index += 1
        self._available_from = runs[index].first
        return self._available_from

    def _first_gap(self) -> int:
        if self._gap_from == NO_OFFSET:
            return NO_OFFSET
        runs = self.runs
        index = runs.index(self._gap_from)
        while index < len(runs) and runs[index].first <= self._gap_from:
            self._gap_from = runs[index].last + 1
            index += 1
        if self._gap_from >= self._gap_end:
            self._gap_from = NO_OFFSET
        return self._gap_from

    @property
    def has_gaps(self) -> bool:
        """True if offsets without a run may have to be acquired."""
        return self._gap_from != NO_OFFSET

    def pass_gaps(self, offset: int) -> None:
        """Note that offsets before ``offset`` that are in no run have no records."""
        if self._gap_from != NO_OFFSET:
            self._gap_from = max(self._gap_from, offset) if self.end_offset == self._gap_end else NO_OFFSET

    # --- Locks --------------------------------------------------------------------------------------------------------

    def lock(self, deadline_ms: int, first: int, last: int) -> None:
        """Have ``expire`` look at acquired offsets at their deadline."""
        locks = self._locks
        heapq.heappush(locks, (deadline_ms, first, last))
        if len(locks) > 2 * len(self.runs) + _STALE_MIN:
            self._locks = [(run.deadline_ms, run.first, run.last) for run in self.runs if run.state == ACQUIRED]
            heapq.heapify(self._locks)

    def deadline_ms(self) -> int | None:
        """When the next records are released because no member has acknowledged them in time."""
        while self._locks:
            deadline_ms, first, last = self._locks[0]
            if self._locked(deadline_ms, first, last):
                return deadline_ms
            heapq.heappop(self._locks)
        return None

    def _locked(self, deadline_ms: int, first: int, last: int) -> list[Run]:
        found = []
        index = self.runs.index(first)
        while index < len(self.runs) and self.runs[index].first <= last:
            run = self.runs[index]
            if run.state == ACQUIRED and run.deadline_ms == deadline_ms:
                found.append(run)
            index += 1
        return found

    def expire(self, now_ms: int, limits: Limits) -> Decision:
        """Release what was acquired until ``now_ms`` or earlier."""
        decision = Decision()
        while self._locks and self._locks[0][0] <= now_ms:
            deadline_ms, first, last = heapq.heappop(self._locks)
            for run in self._locked(deadline_ms, first, last):
                self._release(run, decision, limits)
            self.runs.join(self.runs.index(first), self.runs.index(last) + 1)
        decision.batches.sort()
        self.move_start()
        return decision

    def release(self, member: str, limits: Limits) -> Decision:
        """Release all that a member has."""
        decision = Decision()
        for run in self.runs:
            if run.state == ACQUIRED and run.member == member:
                self._release(run, decision, limits)
        self.runs.join(0, len(self.runs))
        self.move_start()
        return decision

    # --- What becomes of records --------------------------------------------------------------------------------------

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], deadline_ms: int, limits: Limits
    ) -> Decision:
        """Take what a member says; ``deadline_ms`` is for what it renews. See ``SharePartition.acknowledge``."""
        previous = NO_OFFSET
        for each in acknowledgements:
            _check_form(each, previous)
            if each.last >= self.start_offset:
                self._check_acquired(member, each, previous, limits)
            previous = each.last
        decision = Decision()
        for first, last, types in acknowledgements:
            start = max(first, self.start_offset)
            if len(types) == 1:
                self._apply(start, last, types[0], decision, deadline_ms, limits)
                continue
            while start <= last:
                end = start
                while end < last and types[end + 1 - first] == types[start - first]:
                    end += 1
                self._apply(start, end, types[start - first], decision, deadline_ms, limits)
                start = end + 1
        self.move_start()
        return decision

    def _check_acquired(self, member: str, acknowledgement: Acknowledgement, previous: int, limits: Limits) -> None:
        """Check that the member has these offsets. Those that no run has, between others, are passed over."""
        runs = self.runs
        first, last = max(acknowledgement.first, self.start_offset), acknowledgement.last
        if len(runs) == 0 or first < runs[0].first or first == previous:
            raise _not_acquired(first, "no member has it")
        end = runs.index(last)
        if end == len(runs) or runs[end].first > last:
            raise InvalidRequestError(f"offset {last} cannot be acknowledged: no member has acquired so much")
        for index in range(runs.index(first), end + 1):
            run = runs[index]
            if run.state != ACQUIRED:
                raise _not_acquired(max(first, run.first), "no member has it, or none any more")
            if run.member != member:
                raise _not_acquired(max(first, run.first), "another member has it")
        if RENEW in acknowledgement.types and not limits.may_renew:
            raise _not_acquired(first, "share.renew.acknowledge.enable of the group is false, so no lock is renewed")

    def _apply(self, first: int, last: int, kind: int, decision: Decision, deadline_ms: int, limits: Limits) -> None:
        """Do as an acknowledgement says with offsets that its member has."""
        low, high = self.runs.cut(first, last)
        for index in range(low, high):
            run = self.runs[index]
            if kind == RENEW:
                run.deadline_ms = deadline_ms
            elif kind == RELEASE:
                self._release(run, decision, limits)
            elif kind == REJECT and limits.has_dead_letters:
                self._change(run, ARCHIVING, decision)
                append_batch(decision.rejected, run.first, run.last, ARCHIVING, run.count)
            else:
                self._change(run, ACKNOWLEDGED if kind == ACCEPT else ARCHIVED, decision)
        self.runs.join(low, high)
        if kind == RENEW:
            self.lock(deadline_ms, first, last)

    def _release(self, run: Run, decision: Decision, limits: Limits) -> None:
        """Make an acquired run available, or archive it where it was delivered often enough."""
        if run.count < limits.delivery_count_max:
            self._change(run, AVAILABLE, decision)
            self.note_available(run.first)
            decision.has_available = True
        elif limits.has_dead_letters:
            self._change(run, ARCHIVING, decision)
            append_batch(decision.exceeded, run.first, run.last, ARCHIVING, run.count)
        else:
            self._change(run, ARCHIVED, decision)

    def _change(self, run: Run, state: int, decision: Decision) -> None:
        self.runs.change(run, state, run.count)
        append_batch(decision.batches, run.first, run.last, state, run.count)

    def note_available(self, offset: int) -> None:
        """Note that an offset has become available."""
        self._available_from = min(self._available_from, offset)

    def archive(self, first: int, last: int) -> None:
        """Archive what is available or acquired of these offsets: no member is to see it."""
        self._archive(first, last, ACQUIRED)
        self.move_start()

    def _archive(self, first: int, last: int, last_state: int) -> None:
        low, high = self.runs.cut(first, last)
        for index in range(low, high):
            run = self.runs[index]
            if run.state <= last_state:
                self.runs.change(run, ARCHIVED, run.count)
        self.runs.join(low, high)

    def archive_stale(self, first: int, last: int) -> None:
        """Archive what is available of offsets that the log has no more; what a member has, it may acknowledge yet."""
        self._archive(first, last, AVAILABLE)

    def end_archiving(self, first: int, last: int) -> Decision:
        """Archive what is ARCHIVING of these offsets."""
        decision = Decision()
        low, high = self.runs.cut(first, last)
        for index in range(low, high):
            run = self.runs[index]
            if run.state == ARCHIVING:
                self._change(run, ARCHIVED, decision)
        self.runs.join(low, high)
        self.move_start()
        return decision

    # --- The start ----------------------------------------------------------------------------------------------------

    def note_log_start(self, offset: int) -> None:
        """Forget what is before ``offset``: the log has it no more."""
        if offset <= self.start_offset:
            return
        self.runs.drop_before(offset)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self.pass_gaps(offset)
        self.move_start()

    def note_log_end(self, offset: int) -> None:
        """Forget what is at ``offset`` and behind it, before anything is acquired."""
        loaded = [StateBatch(run.first, min(run.last, offset - 1), run.state, run.count) for run in self.runs]
        self.begin(min(self.start_offset, offset))
        self.load([batch for batch in loaded if batch.first < offset])

    def move_start(self) -> None:
        """Move the start over what is finished, and over offsets that have no records."""
        runs = self.runs
        gap = self._first_gap()
        start = self.end_offset
        for run in runs:
            if gap != NO_OFFSET and gap < run.first:
                start = gap
                break
            if not run.is_finished:
                start = run.first
                break
        self.start_offset = max(start, self.start_offset)
        if len(runs) > 0 and runs[0].first < self.start_offset:
            runs.drop_before(self.start_offset)

    def written(self) -> list[StateBatch]:
        """The runs as a record may have them: an acquired one counts as it was before, as no record says otherwise.

        What was never delivered, or is for the first time, is in no record.
        """
        batches: list[StateBatch] = []
        for run in self.runs:
            state, count = run.state, run.count
            if state == ACQUIRED:
                state, count = AVAILABLE, count - 1
            if state == AVAILABLE and count == 0:
                continue
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
