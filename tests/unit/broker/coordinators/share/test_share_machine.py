"""A share partition against a table with a row for each offset, through failing writes, and starts from any record.

``MISTAKES`` are errors made on purpose. The same run finds each of them, which shows that it would find real ones.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.coordinators.share import acquisition, partition
from seglog_broker.coordinators.share.acquisition import Acquisition
from seglog_broker.coordinators.share.in_flight import (
    ACCEPT,
    GAP,
    NO_OFFSET,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Decision,
    InFlight,
    StateBatch,
)
from seglog_broker.coordinators.share.partition import RETRY_MS, DeadLetter, SharePartition
from seglog_broker.coordinators.share.records import UPDATE, Header, PartitionKey, ShareReplay, encode_update
from seglog_broker.coordinators.share.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVING, AVAILABLE, Run, Runs
from seglog_broker.coordinators.share.settings import share_settings
from seglog_broker.coordinators.state_machine import VERSION, Now, Outbox
from seglog_protocol.errors import InvalidRecordStateError
from seglog_protocol.steps import finished
from tests.support import ON_SOURCES, examples
from tests.unit.broker.coordinators.share.per_offset import Table, Written

KEY: Final = PartitionKey("jobs", bytes(range(16)), 2)
DEFAULTS: Final = share_settings({}, BrokerConfig())
LOCK_MS: Final = 1_000
MEMBERS: Final = st.sampled_from(["ann", "bob"])
TYPES: Final = st.sampled_from([ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, GAP, RENEW])


class ShareModel(RuleBasedStateMachine):
    """Two members of a group, the log that they read, and what is on the disk of what they said."""

    @initialize(
        start=st.sampled_from([0, 3]),
        most=st.sampled_from([2, 2, 5, 8]),
        locks=st.sampled_from([12, 1_000]),
        dead_letters=st.booleans(),
        per_snapshot=st.sampled_from([2, 500]),
    )
    def begin(self, start: int, most: int, locks: int, dead_letters: bool, per_snapshot: int) -> None:
        self.limits = DEFAULTS._replace(
            lock_ms=LOCK_MS,
            delivery_count_max=most,
            record_locks_max=locks,
            dead_letter_topic="dlq.jobs" if dead_letters else "",
            updates_per_snapshot=per_snapshot,
        )
        self.outbox = Outbox()
        self.now_ms = 0
        self.retry_ms: int | None = None
        self.log = [(start, start + 4)]
        self.produce([9, 1], 0)
        self.records: list[tuple[bytes, bytes | None]] = []
        self.states: list[tuple[int, Written]] = []  # start and rows as they are known from each record on
        self.promises: list[set[int]] = []  # offsets that members were told are finished, from each record on
        self.letters: set[int] = set()  # offsets of which dead letters are being made
        self.is_called = False
        self.table = Table(start, start)
        self.machine = SharePartition(KEY, self.outbox, lambda: self.limits, self.note_available)
        self.machine.initialize(start, 1, self.now)
        self.write()

    def note_available(self, key: PartitionKey) -> None:
        assert key == KEY
        self.is_called = True

    @property
    def now(self) -> Now:
        return Now(self.now_ms, 1_700_000_000_000 + self.now_ms)

    # --- The disk -----------------------------------------------------------------------------------------------------

    def write(self, told: Collection[int] = (), *, fails: bool = False) -> None:
        """Have what was decided on the disk, or not."""
        decided = self.outbox.take()
        assert not decided.records
        changed, self.table.changed = self.table.changed, set()
        assert bool(decided.encoded) >= bool(changed)
        if decided.encoded:
            self.retry_ms = self.now_ms + RETRY_MS if fails else None
        if fails and decided.encoded:
            self.machine.write_failed(self.now)
            return
        for letter in decided.effects:
            assert isinstance(letter, DeadLetter)
            self.letters.update(range(letter.first, letter.last + 1))
        for key, value in decided.encoded:
            known = self.table.written()
            if key[: VERSION.size] == VERSION.pack(UPDATE):
                now_known = {offset: known[offset] for offset in changed & known.keys()}
                known = {offset: each for offset, each in self.states[-1][1].items() if offset >= self.table.start}
                known |= now_known
            self.records.append((key, value))
            self.states.append((self.table.start, known))
            self.promises.append({*(self.promises[-1] if self.promises else ()), *told})

    def crash(self, _: str, data: Any) -> None:
        """The broker starts with the records that are on the disk: all but the last ones, at worst."""
        kept = max(1, len(self.records) - data.draw(st.sampled_from([0, 0, 0, 1, 5])))
        for durable in (self.records, self.states, self.promises):
            del durable[kept:]
        replay = ShareReplay()
        for key, value in self.records:
            finished(replay.take(key, value))
        [(key_of_state, state)] = replay.states.items()
        assert key_of_state == KEY
        assert not replay.unknown
        self.machine = SharePartition(KEY, self.outbox, lambda: self.limits, self.note_available)
        self.machine.load(state)
        self.machine.restored(self.now)
        start, known = self.states[-1]
        self.table = Table.loaded(start, known)
        self.letters.clear()
        self.retry_ms = None
        self.write()
        again = {
            offset
            for run in self.machine.runs()
            if run.state in (AVAILABLE, ACQUIRED)
            for offset in range(run.first, run.last + 1)
        }
        assert not again & self.promises[-1]
        assert all(offset < self.machine.start_offset for offset in self.promises[-1] - self.known.keys())

    def produce(self, sizes: Sequence[int], hole: int) -> None:
        """Batches are appended; a hole is what compaction leaves."""
        for size in sizes:
            first = self.log[-1][1] + 1 + hole
            self.log.append((first, first + size - 1))

    # --- Members ------------------------------------------------------------------------------------------------------

    @contextmanager
    def request(self, told: Collection[int] = (), *, fails: bool = False) -> Iterator[None]:
        """A request to both; what it decides is written, or not, and who waits for records is called if need be."""
        window = self.table.end - self.table.start
        self.is_called = self.table.has_available = False
        yield
        self.table.move_start()
        has_room = self.table.end - self.table.start < self.limits.record_locks_max <= window
        assert self.is_called == (self.table.has_available or has_room)
        self.write(told, fails=fails)

    @rule(
        member=MEMBERS,
        count=st.integers(1, 5),
        most=st.sampled_from([1, 3, 10, 20]),
        batch_size=st.sampled_from([1, 4, 500]),
        is_record_limit=st.booleans(),
        hole=st.sampled_from([0, 0, 2]),
    )
    def acquire(self, member: str, count: int, most: int, batch_size: int, is_record_limit: bool, hole: int) -> None:
        offset = self.machine.next_offset()
        if offset is None:
            return
        if offset > self.log[-1][1]:
            self.produce([1, 5, 2, 9][:count], hole)
        batches = [batch for batch in self.log if batch[1] >= offset][:count]
        got = self.machine.acquire(
            member, batches, offset, most, batch_size, is_record_limit=is_record_limit, now=self.now
        )
        args = member, batches, offset, most, batch_size, is_record_limit, self.now_ms + LOCK_MS, self.limits
        assert got == self.table.acquire(*args)
        self.write()

    def held(self, member: str) -> list[int]:
        return [offset for offset, row in self.table.rows.items() if row.member == member]

    @rule(member=MEMBERS, data=st.data(), most=st.sampled_from([1, 4, 40]), fails=st.sampled_from([False, False, True]))
    def acknowledge(self, member: str, data: Any, most: int, fails: bool) -> None:
        held = self.held(member)
        if not held:
            return
        offsets = sorted(data.draw(st.permutations(held))[:most])
        kinds = data.draw(st.lists(TYPES, min_size=1, max_size=3))
        kinds = [kinds[place % len(kinds)] for place in range(len(offsets))]
        told = [each for each, kind in zip(offsets, kinds, strict=True) if kind in (ACCEPT, REJECT, GAP)]
        with self.request(told, fails=fails):
            self.machine.acknowledge(member, list(acknowledgements(offsets, kinds)), self.now)
            for offset, kind in zip(offsets, kinds, strict=True):
                self.table.acknowledge(offset, kind, self.now_ms + LOCK_MS, self.limits)

    @rule(number=st.integers(0, 8), member=MEMBERS, data=st.data())
    def do(self, number: int, member: str, data: Any) -> None:
        """One of the things that happen less often."""
        lives = [self.crash, self.crash, self.expire_records, self.compact, self.limit]
        [*lives, self.leave, self.abort, self.make_dead_letters, self.say_too_much][number](member, data)

    def say_too_much(self, member: str, data: Any) -> None:
        """A member acknowledges what it does not have: then nothing of its request holds."""
        others = [offset for offset, row in self.table.rows.items() if row.member != member]
        if others:
            wrong = data.draw(st.sampled_from(others))
            said = [Acknowledgement(offset, offset, [ACCEPT]) for offset in sorted([wrong, *self.held(member)])]
            with pytest.raises(InvalidRecordStateError), self.request():
                self.machine.acknowledge(member, said, self.now)
            assert not self.outbox

    def leave(self, member: str, _: Any) -> None:
        with self.request():
            self.machine.release(member, self.now)
            for offset in self.held(member):
                self.table.release(offset, self.limits)

    def abort(self, member: str, data: Any) -> None:
        """The records of an aborted transaction are acquired, and nobody is to see them."""
        if held := self.held(member):
            first, last = sorted(data.draw(st.tuples(st.sampled_from(held), st.sampled_from(held))))
            with self.request():
                self.machine.archive(first, last)
                self.table.archive(first, last)

    def make_dead_letters(self, _: str, data: Any) -> None:
        if self.letters:
            first = data.draw(st.sampled_from(sorted(self.letters)))
            with self.request():
                self.machine.end_archiving([(first, first + 3)], self.now)
                for offset in range(first, first + 4):
                    self.table.end_archiving(offset)
                    self.letters.discard(offset)

    def expire_records(self, _: str, data: Any) -> None:
        start = data.draw(st.sampled_from([base for base, _ in self.log]))
        with self.request():
            self.machine.note_log_start(start)
            if start > self.table.start:
                self.table.forget_before(start)
        if start >= self.table.start:
            self.log = [batch for batch in self.log if batch[1] >= start]

    def compact(self, _: str, data: Any) -> None:
        """A batch is left out by compaction, though its records may be in flight."""
        if len(self.log) > 1:
            self.log.remove(data.draw(st.sampled_from(self.log[:-1])))

    def limit(self, _: str, data: Any) -> None:
        self.limits = self.limits._replace(delivery_count_max=data.draw(st.sampled_from([2, 4, 5, 8])))

    @rule(ms=st.sampled_from([1, 1, 400, LOCK_MS]), fails=st.booleans())
    def wait(self, ms: int, fails: bool) -> None:
        until_ms = self.now_ms + ms
        while (due_ms := self.machine.deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            with self.request(fails=fails):
                self.machine.advance(self.now)
                for offset, row in self.table.rows.items():
                    if row.state == ACQUIRED and row.deadline_ms <= self.now_ms:
                        self.table.release(offset, self.limits)
        self.now_ms = until_ms

    # --- What holds ---------------------------------------------------------------------------------------------------

    @property
    def known(self) -> dict[int, tuple[int, int, str]]:
        return {
            offset: (run.state, run.count, run.member)
            for run in self.machine.runs()
            for offset in range(run.first, run.last + 1)
        }

    @invariant()
    def is_as_in_the_table(self) -> None:
        table, machine = self.table, self.machine
        assert (machine.start_offset, machine.end_offset) == (table.start, table.end)
        assert self.known == {offset: (row.state, row.count, row.member) for offset, row in table.rows.items()}
        assert machine.next_offset() == table.next_offset(self.limits)
        due = [each for each in (table.deadline_ms(), self.retry_ms) if each is not None]
        assert machine.deadline_ms == min(due, default=None)
        states = [row.state for row in table.rows.values()]
        records = machine.runs().records
        assert records == [states.count(state) for state in range(len(records))]
        assert machine.finished == len(states) - sum(records[state] for state in (AVAILABLE, ACQUIRED, ARCHIVING))

    @invariant()
    def has_dead_letters_made(self) -> None:
        archiving = {offset for offset, row in self.table.rows.items() if row.state == ARCHIVING}
        assert self.retry_ms is not None or archiving <= self.letters


def acknowledgements(offsets: Sequence[int], kinds: Sequence[int]) -> Iterator[Acknowledgement]:
    """Neighbours together: with one type where all have the same, else with one for each."""
    first = 0
    for place in range(1, len(offsets) + 1):
        if place == len(offsets) or offsets[place] != offsets[place - 1] + 1:
            types = list(kinds[first:place])
            yield Acknowledgement(offsets[first], offsets[place - 1], types[:1] if len(set(types)) == 1 else types)
            first = place


TestShareMachine = ShareModel.TestCase
TestShareMachine.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)


# --- Mistakes ---------------------------------------------------------------------------------------------------------

ACKNOWLEDGE, LOAD, RELEASING, TAKE = InFlight.acknowledge, InFlight.load, InFlight._release, Acquisition.take
APPLY: Any = InFlight._apply
MAKE: Any = Acquisition.__init__
ENDLESS: Final = DEFAULTS._replace(delivery_count_max=1_000)


def move_over_what_is_acquired(in_flight: InFlight) -> None:
    states = [run.state for run in in_flight.runs]
    if states and AVAILABLE not in states and ARCHIVING not in states and ACKNOWLEDGED in states:
        in_flight.start_offset = in_flight.end_offset
        in_flight.runs.drop_before(in_flight.end_offset)


def load_without_gaps(flight: InFlight, batches: Sequence[StateBatch]) -> None:
    LOAD(flight, batches)
    flight.gap_from = NO_OFFSET


def acknowledge_one_by_one(in_flight: InFlight, member: str, said: Sequence[Acknowledgement], *rest: Any) -> Decision:
    for each in said[:-1]:
        ACKNOWLEDGE(in_flight, member, [each], *rest)
    return ACKNOWLEDGE(in_flight, member, said[-1:], *rest)


def encode_a_delivery_less(header: Header, batches: Sequence[StateBatch]) -> list[bytes]:
    return encode_update(header, [each._replace(delivery_count=each.delivery_count - 1) for each in batches])


def write_what_is_acquired(flight: InFlight) -> list[StateBatch]:
    return [StateBatch(run.first, run.last, max(run.state - 1, 0), run.count) for run in flight.runs if run.count]


def keep_the_last(runs: Runs, first: int, last: int, state: int, count: int) -> None:
    runs.drop_before(last + 1)
    runs.insert(Run(first, last, state, count, -1, 0))


MISTAKES: Final[dict[str, tuple[object, str, object]]] = {
    "the start moves over records that a member still has": (InFlight, "move_start", move_over_what_is_acquired),
    "after a start offsets of which nothing was written have no records": (InFlight, "load", load_without_gaps),
    "what comes before a wrong offset is acknowledged": (InFlight, "acknowledge", acknowledge_one_by_one),
    "records of two members are taken for one member's": (
        *(Run, "goes_with"),
        lambda run, other: run.last + 1 == other.first and run.state == other.state,
    ),
    "a lock that is renewed ends too early": (
        *(InFlight, "_apply"),
        lambda *args: APPLY(*args[:5], args[5] - 1, args[6]),
    ),
    "a record is released, however often it was delivered": (
        *(InFlight, "_release"),
        lambda flight, run, decision, _: RELEASING(flight, run, decision, ENDLESS),
    ),
    "records near their last delivery come with others": (acquisition, "THROTTLED_FROM", 1_000),
    "offsets whose records the log has no more stay available": (
        *(Acquisition, "take"),
        lambda made, _, most: TAKE(made, made._batches[0][0], most),
    ),
    "more and more is in flight": (
        *(Acquisition, "__init__"),
        lambda made, *args: MAKE(made, *args[:-1], args[-1]._replace(record_locks_max=1_000_000)),
    ),
    "records of the topic say one delivery less": (partition, "encode_update", encode_a_delivery_less),
    "a record has the first change alone": (
        *(partition, "encode_update"),
        lambda header, batches: encode_update(header, batches[:1]),
    ),
    "a snapshot counts a delivery of which no record says anything": (InFlight, "written", write_what_is_acquired),
    "what could not be written is never written": (SharePartition, "write_failed", lambda *_: None),
    "a start takes nothing but the last record for known": (Runs, "overlay", keep_the_last),
    "a start forgets which dead letters are to be made": (SharePartition, "restored", lambda *_: None),
    "who waits for records is not told that there is room again": (SharePartition, "_wake", lambda *_, **__: None),
}

UNTIL_CAUGHT: Final = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@ON_SOURCES
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_made_on_purpose_is_caught(mistake: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*mistake)
        with pytest.raises(AssertionError):
            run_state_machine_as_test(ShareModel, settings=UNTIL_CAUGHT)
