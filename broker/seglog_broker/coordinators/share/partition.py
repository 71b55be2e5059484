"""The state machine of a share partition: what one group has of a partition, and what is written of it.

It is leader and persister of Kafka's in one: a request changes the state in memory at once, and the records that say so
go to the outbox. Who has acquired what is in none of them: after a start it is available again. Each record has the
start and only what has changed; now and then one has all.

A write that fails leaves the state as it was decided. All of it is written a second later, or with the next request.
Source: Kafka's SharePartition and ShareCoordinatorShard.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from seglog_broker.coordinators.share.acquisition import Acquisition
from seglog_broker.coordinators.share.in_flight import (
    NO_OFFSET,
    Acknowledgement,
    Acquired,
    Decision,
    InFlight,
    StateBatch,
    Tally,
)
from seglog_broker.coordinators.share.records import (
    NO_COUNT,
    Header,
    PartitionKey,
    WrittenState,
    encode_keys,
    encode_snapshot,
    encode_update,
    tombstone,
)
from seglog_broker.coordinators.share.runs import ACQUIRED, ARCHIVING, Runs
from seglog_broker.coordinators.share.settings import ShareSettings
from seglog_broker.coordinators.state_machine import Now, Outbox, StateMachine
from seglog_protocol.dead_letters import COUNT_EXCEEDED, REJECTED

RETRY_MS: Final = 1_000
"""After so long what could not be written is written again."""

PARTITION_BYTES: Final = 3_000
"""Bytes that a share partition takes, without its group's name and its runs."""
RUN_BYTES: Final = 300
"""Bytes of a run, or of a lock."""


class DeadLetter(NamedTuple):
    """Records that are to go to the dead letters of their group, and then to ``end_archiving``.

    It may come more than once: after a start, and after a write that failed.
    """

    key: PartitionKey
    first: int
    last: int
    delivery_count: int
    cause: str


class SharePartition(StateMachine):
    """One share partition."""

    def __init__(
        self,
        key: PartitionKey,
        outbox: Outbox,
        settings: Callable[[], ShareSettings],
        on_available: Callable[[PartitionKey], None],
    ) -> None:
        """``on_available`` is called when there is something to acquire that was not, beside what is appended."""
        super().__init__(key.text, outbox)
        self.partition: Final = key
        self.state_epoch = 0
        self.is_deleted = False
        self._settings = settings
        self._on_available = on_available
        self.wakes = 0
        """The calls of that."""
        self.tally: Final = Tally()
        self._in_flight = InFlight(NO_OFFSET, self.tally)
        self._of_snapshots, self._of_updates = encode_keys(key)
        self.leader_epoch = 0
        """That of the leader who has written last: of a Kafka, as there is no other here."""
        self.snapshot_epoch = NO_OFFSET
        """It grows with each snapshot."""
        self._created_ms = self.snapshot_ms = 0
        self._updates = 0  # since the last snapshot
        self._is_snapshot_due = False
        self._retry_ms: int | None = None

    @property
    def start_offset(self) -> int:
        """The first offset in flight; -1 until ``initialize`` says where."""
        return self._in_flight.start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that was never acquired."""
        return self._in_flight.end_offset

    @property
    def finished(self) -> int:
        """Offsets from the start on that are acknowledged or archived; NO_COUNT without a start."""
        return NO_COUNT if self._in_flight.start_offset == NO_OFFSET else self._in_flight.finished

    def runs(self) -> Runs:
        """The runs in flight, for those who watch."""
        return self._in_flight.runs

    @property
    def is_cold(self) -> bool:
        """True if its last snapshot was written for what lies before it alone: see ``snapshot``."""
        return self._created_ms != self.snapshot_ms

    @property
    def is_unwritten(self) -> bool:
        """True if the last write has failed: what was decided is not in the log."""
        return self._retry_ms is not None

    # --- As every state machine ---------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When the next locks end, or what could not be written is written again."""
        deadline_ms = self._in_flight.deadline_ms()
        if deadline_ms is None or self._retry_ms is None:
            return self._retry_ms if deadline_ms is None else deadline_ms
        return min(deadline_ms, self._retry_ms)

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return PARTITION_BYTES + len(self.key) + RUN_BYTES * self._in_flight.size

    @property
    def is_unused(self) -> bool:
        """True if nothing was ever written of it."""
        return self.snapshot_epoch == NO_OFFSET

    def load(self, state: WrittenState) -> None:
        """Take over what was written. The first record that follows has all."""
        self.snapshot_epoch, self.state_epoch, self.leader_epoch, start_offset, _ = state.header
        self._created_ms, self.snapshot_ms = state.times
        self._is_snapshot_due = True
        self._in_flight = InFlight(start_offset, self.tally)
        self._in_flight.load([StateBatch(run.first, run.last, run.state, run.count) for run in state.runs])

    def restored(self, now: Now) -> None:  # noqa: ARG002 - no lock outlives a start
        """Go on after a start: what was to become a dead letter is one yet."""
        self._announce_all()

    def advance(self, now: Now) -> None:
        """Release what was not acknowledged in time; write again what could not be written."""
        window = self._in_flight.window
        self._follow(self._in_flight.expire(now.monotonic_ms, self._settings()), window, now)
        if self._retry_ms is not None and now.monotonic_ms >= self._retry_ms:
            self._write((), now)

    def write_failed(self, now: Now) -> None:
        """Have all written again, later."""
        self._is_snapshot_due = True
        self._retry_ms = now.monotonic_ms + RETRY_MS

    def delete(self) -> None:
        """Decide the tombstone, and have nothing any more."""
        self.is_deleted = True
        self._retry_ms = None
        self._in_flight = InFlight(NO_OFFSET, self.tally)
        self.outbox.records.append(tombstone(self.partition))

    # --- Where it begins ----------------------------------------------------------------------------------------------

    def initialize(self, start_offset: int, state_epoch: int, now: Now) -> None:
        """Begin at an offset, and forget all else; -1: it is not chosen yet where."""
        self.state_epoch = state_epoch
        self._in_flight = InFlight(start_offset, self.tally)
        self._is_snapshot_due = True
        self._write((), now)
        self._call()

    def note_log_start(self, offset: int) -> None:
        """Forget what is before an offset: the log has it no more. Nothing is written of that, as in Kafka."""
        window = self._in_flight.window
        self._in_flight.note_log_start(offset)
        self._wake(window)

    def note_log_end(self, offset: int, now: Now) -> None:
        """Forget what is at an offset and behind it: after a start the log ends there, and others get these offsets."""
        self._in_flight = self._in_flight.note_log_end(offset)
        self._is_snapshot_due = True
        self._write((), now)

    # --- Acquire ------------------------------------------------------------------------------------------------------

    def next_offset(self) -> int | None:
        """Where to read next: the first offset that can be acquired. None while too much is in flight."""
        offset = self._in_flight.next_offset()
        is_full = offset == self.end_offset and self._in_flight.window >= self._settings().record_locks_max
        return None if is_full or offset == NO_OFFSET else offset

    def acquire(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        fetch_offset: int,
        max_records: int,
        batch_size: int,
        *,
        is_record_limit: bool,
        now: Now,
    ) -> list[Acquired]:
        """Give records of ``batches`` to a member, which has them for some time: first and last offset of each batch.

        They were read from ``fetch_offset`` on; where they begin later, the log has no records between. Without
        ``is_record_limit`` a member gets whole batches of the log, also if these are more than ``max_records``, and new
        ones are divided into pieces of about ``batch_size``. Records near their last delivery come with few others, and
        the last time alone. Nothing is written of it.
        """
        settings = self._settings()
        deadline_ms = now.monotonic_ms + settings.lock_ms
        acquisition = Acquisition(self._in_flight, member, deadline_ms, batches, batch_size, is_record_limit, settings)
        acquisition.take(fetch_offset, max_records)
        for first, last, count in acquisition.acquired:
            if count > 1:
                self.tally.redelivered += last - first + 1
        return acquisition.acquired

    def archive(self, first: int, last: int) -> None:
        """Archive records that are acquired or available: no member is to see those of aborted transactions.

        Nothing is written of it: after a start they are found again.
        """
        window = self._in_flight.window
        self._in_flight.archive(first, last, ACQUIRED)
        self._wake(window)

    # --- What becomes of them -----------------------------------------------------------------------------------------

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now: Now) -> None:
        """Take what a member says of records that it has; where it raises, nothing of that holds.

        What was delivered too often is not released, but archived. Offsets before the start are passed over. Raises
        InvalidRecordStateError for what the member does not have, InvalidRequestError for what is no acknowledgement.
        """
        window, settings = self._in_flight.window, self._settings()
        deadline_ms = now.monotonic_ms + settings.lock_ms
        self._follow(self._in_flight.acknowledge(member, acknowledgements, deadline_ms, settings), window, now)

    def release(self, member: str, now: Now) -> None:
        """Release what a member has whose session has ended."""
        window = self._in_flight.window
        self._follow(self._in_flight.release(member, self._settings()), window, now)

    def end_archiving(self, ranges: Sequence[tuple[int, int]], now: Now) -> None:
        """Archive records whose dead letters are written, or given up: from the first to the last of each range."""
        window = self._in_flight.window
        self._follow(self._in_flight.end_archiving(ranges), window, now)

    def _follow(self, decision: Decision, window: int, now: Now) -> None:
        """Write what was decided, and let happen what follows from it."""
        if decision.batches:
            start = self._in_flight.start_offset
            self._write([batch for batch in decision.batches if batch[0] >= start], now)
            self._announce(decision.dead_letters)
        self._wake(window, has_available=decision.has_available)

    def _wake(self, window: int, *, has_available: bool = False) -> None:
        """Call back where something became available, or where there is room again: ``window`` was in flight before."""
        if has_available or self._in_flight.window < self._settings().record_locks_max <= window:
            self._call()

    def _call(self) -> None:
        self.wakes += 1
        self._on_available(self.partition)

    def _announce_all(self) -> None:
        """Have dead letters made of all that is ARCHIVING. The causes are guessed, as in Kafka after a start."""
        found, most = Decision(), self._settings().delivery_count_max
        for run in self._in_flight.runs:
            if run.state == ARCHIVING:
                found.note(run, COUNT_EXCEEDED if run.count >= most else REJECTED)
        self._announce(found.dead_letters)

    def _announce(self, dead_letters: Mapping[str, Sequence[StateBatch]]) -> None:
        for cause, batches in dead_letters.items():
            for first, last, _, count in batches:
                self.outbox.effects.append(DeadLetter(self.partition, first, last, count, cause))

    # --- Records ------------------------------------------------------------------------------------------------------

    def _write(self, batches: Sequence[StateBatch], now: Now, *, is_cold: bool = False) -> None:
        """Decide the record of a change, or of all; ``is_cold`` as in ``snapshot``."""
        is_snapshot = self._is_snapshot_due or self._updates >= self._settings().updates_per_snapshot
        self.snapshot_epoch += is_snapshot
        header = Header(self.snapshot_epoch, self.state_epoch, self.leader_epoch, self.start_offset, self.finished)
        if is_snapshot:
            self.snapshot_ms = now.wall_ms
            self._created_ms = self._created_ms if is_cold else now.wall_ms
            times = self._created_ms, self.snapshot_ms
            snapshot, *updates = encode_snapshot(header, times, self._in_flight.written())
            self.outbox.encoded.append((self._of_snapshots, snapshot))
        else:
            updates = encode_update(header, batches)
        self.outbox.encoded += [(self._of_updates, update) for update in updates]
        self._updates = 0 if is_snapshot else self._updates + 1
        self._is_snapshot_due = False
        if self._retry_ms is not None:
            self._retry_ms = None
            self._announce_all()  # what was to follow from the write that failed

    def snapshot(self, now: Now) -> None:
        """Write all, though nothing has changed, so that what was written before can go.

        As Kafka writes it, it was created when the last other one was.
        """
        self._is_snapshot_due = True
        self._write((), now, is_cold=True)
