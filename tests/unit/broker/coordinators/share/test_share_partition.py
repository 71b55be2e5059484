"""The state machine of a share partition: its records, what follows from them, and what it refuses.

What it does with records, request by request, is in ``test_share_machine``.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.coordinators.share.in_flight import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
)
from seglog_broker.coordinators.share.partition import RETRY_MS, DeadLetter, SharePartition
from seglog_broker.coordinators.share.records import KINDS, NO_COUNT, PartitionKey, ShareReplay
from seglog_broker.coordinators.share.settings import share_settings
from seglog_broker.coordinators.state_machine import Now, Outbox, decode_record
from seglog_protocol.dead_letters import COUNT_EXCEEDED, REJECTED
from seglog_protocol.errors import InvalidRecordStateError, InvalidRequestError
from seglog_protocol.kafka.messages import ShareSnapshotValue, ShareUpdateValue
from seglog_protocol.steps import finished
from tests.support import each_case

KEY = PartitionKey("jobs", bytes(16), 0)
SETTINGS = share_settings({}, BrokerConfig())


class Sharing:
    """A share partition, the records that are durable, and what followed from them."""

    def __init__(self, start: int = 0, **settings: Any) -> None:
        self.settings = SETTINGS._replace(**settings)
        self.outbox = Outbox()
        self.ms = 0
        self.written: list[tuple[bytes, bytes | None]] = []
        self.letters: list[DeadLetter] = []
        self.calls = 0
        self.machine = self.make()
        self.machine.initialize(start, 4, self.now)
        self.settle()
        self.calls = 0

    def make(self) -> SharePartition:
        return SharePartition(KEY, self.outbox, lambda: self.settings, self.note_available)

    def note_available(self, _: PartitionKey) -> None:
        self.calls += 1

    @property
    def now(self) -> Now:
        return Now(self.ms, 1_000_000 + self.ms)

    def settle(self) -> list[Any]:
        """Make all durable that is decided: the values of its records."""
        decided = self.outbox.take()
        self.written += decided.encoded
        self.letters += decided.effects
        return [finished(decode_record(KINDS, *each, {})).value for each in decided.encoded]

    def fail(self) -> None:
        self.outbox.take()
        self.machine.write_failed(self.now)

    def restart(self) -> None:
        replay = ShareReplay()
        for key, value in self.written:
            finished(replay.take(key, value))
        [state] = replay.states.values()
        self.machine = self.make()
        self.machine.load(state)
        self.machine.restored(self.now)
        self.settle()

    def acquire(self, first: int, last: int, member: str = "ann", most: int = 500, **how: Any) -> list[Acquired]:
        """What a member gets of one batch of the log."""
        asked: dict[str, Any] = {
            "fetch_offset": first,
            "batch_size": 500,
            "is_record_limit": False,
            "batches": [(first, last)],
        }
        return self.machine.acquire(member, max_records=most, now=self.now, **asked | how)

    def say(self, first: int, last: int, *types: int, member: str = "ann") -> list[Any]:
        self.machine.acknowledge(member, [Acknowledgement(first, last, types)], self.now)
        return self.settle()

    def states(self) -> list[tuple[int, int, int, int]]:
        return [(run.first, run.last, run.state, run.count) for run in self.machine.runs()]


def batches_of(value: ShareSnapshotValue | ShareUpdateValue) -> Sequence[tuple[int, int, int, int]]:
    return [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in value.state_batches]


# --- Records ----------------------------------------------------------------------------------------------------------


def test_a_record_has_the_start_and_what_has_changed() -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    assert not sharing.outbox, "who has acquired what is not written"
    [value] = sharing.say(2, 5, ACCEPT, ACCEPT, RELEASE, REJECT)
    assert isinstance(value, ShareUpdateValue)
    assert (value.snapshot_epoch, value.start_offset, value.delivery_complete_count) == (0, 0, 3)
    assert batches_of(value) == [(2, 3, 2, 1), (4, 4, 0, 1), (5, 5, 4, 1)]
    [value] = sharing.say(0, 1, ACCEPT)
    assert (value.start_offset, value.delivery_complete_count) == (4, 1)
    assert batches_of(value) == [], "what lies before the start needs no words"


def test_what_expires_is_written_in_order_and_neighbours_are_one_batch() -> None:
    sharing = Sharing()
    for first, ms in ((0, 1), (10, 0), (20, 1)):
        sharing.acquire(first, first + 9)
        sharing.ms += ms
    sharing.ms = 30_001
    sharing.machine.advance(sharing.now)
    [value] = sharing.settle()
    assert sorted(batches_of(value)) == batches_of(value)
    assert [(first, last) for first, last, _, _ in sharing.states()] == [(0, 9), (10, 19), (20, 29)]


def test_after_so_many_updates_a_snapshot_has_all() -> None:
    sharing = Sharing(updates_per_snapshot=2)
    sharing.acquire(0, 9)
    sharing.ms = 7
    kinds = [type(value) for offset in (9, 8, 6, 5, 3, 2) for value in sharing.say(offset, offset, ACCEPT)]
    assert kinds == [ShareUpdateValue, ShareUpdateValue, ShareSnapshotValue] * 2
    [value] = [finished(decode_record(KINDS, *sharing.written[-1], {})).value]
    assert isinstance(value, ShareSnapshotValue)
    assert (value.snapshot_epoch, value.state_epoch, value.delivery_complete_count) == (2, 4, 6)
    assert (value.create_timestamp, value.write_timestamp) == (1_000_007, 1_000_007)
    assert batches_of(value) == [(2, 3, 2, 1), (5, 6, 2, 1), (8, 9, 2, 1)]


def test_a_snapshot_of_what_is_cold_says_when_the_last_other_one_was_written() -> None:
    sharing = Sharing()
    assert not sharing.machine.is_cold
    sharing.ms = 500
    sharing.machine.snapshot(sharing.now)
    [value] = sharing.settle()
    assert (value.create_timestamp, value.write_timestamp) == (1_000_000, 1_000_500)
    sharing.restart()
    assert sharing.machine.is_cold
    assert sharing.machine.snapshot_ms == 1_000_500


def test_a_state_that_begins_where_a_setting_says_has_no_start_until_then() -> None:
    sharing = Sharing(start=-1)
    [(_, value)] = sharing.written
    assert value is not None
    sharing.restart()
    assert sharing.machine.start_offset == -1
    assert sharing.machine.finished == NO_COUNT
    assert sharing.machine.next_offset() is None
    assert sharing.acquire(0, 9) == []
    sharing.machine.note_log_start(3)
    assert sharing.machine.start_offset == -1
    sharing.machine.initialize(5, 4, sharing.now)
    assert sharing.acquire(3, 9, fetch_offset=5) == [Acquired(5, 9, 1)]


def test_what_was_read_before_the_group_was_set_back_is_not_acquired_instead_of_what_comes_first() -> None:
    sharing = Sharing(start=10)
    offset = sharing.machine.next_offset()
    sharing.machine.initialize(0, 5, sharing.now)
    assert sharing.acquire(10, 19, fetch_offset=offset) == []
    assert sharing.machine.next_offset() == 0


@each_case("size", (0, -1, -(2**31)))
def test_a_batch_size_below_one_is_one(size: int) -> None:
    sharing = Sharing()
    batches = [(0, 0), (1, 2)]
    assert sharing.acquire(0, 2, batches=batches, batch_size=size) == [Acquired(0, 0, 1), Acquired(1, 2, 1)]


def test_a_state_that_begins_anew_forgets_who_had_what() -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    sharing.machine.initialize(3, 5, sharing.now)
    [value] = sharing.settle()
    assert (value.snapshot_epoch, value.state_epoch, value.start_offset) == (1, 5, 3)
    assert sharing.machine.deadline_ms is None
    assert sharing.calls == 1
    with pytest.raises(InvalidRecordStateError):
        sharing.say(3, 9, ACCEPT)


def test_a_deleted_state_leaves_a_tombstone_and_has_nothing() -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    sharing.machine.delete()
    [record] = sharing.outbox.take().records
    assert record.value is None
    assert sharing.machine.is_deleted
    assert (sharing.machine.deadline_ms, sharing.machine.next_offset()) == (None, None)


def test_what_could_not_be_written_is_written_a_second_later() -> None:
    sharing = Sharing(dead_letter_topic="dlq.jobs")
    sharing.acquire(0, 9)
    sharing.machine.acknowledge("ann", [Acknowledgement(0, 3, [ACCEPT]), Acknowledgement(5, 6, [REJECT])], sharing.now)
    sharing.fail()
    assert sharing.machine.is_unwritten
    assert sharing.states()[0] == (4, 4, 1, 1), "what was decided stays"
    sharing.ms = RETRY_MS
    assert sharing.machine.deadline_ms == RETRY_MS
    sharing.machine.advance(sharing.now)
    [value] = sharing.settle()
    assert isinstance(value, ShareSnapshotValue)
    assert batches_of(value) == [(5, 6, 3, 1)]
    assert sharing.letters == [DeadLetter(KEY, 5, 6, 1, REJECTED)]
    assert not sharing.machine.is_unwritten
    assert sharing.machine.deadline_ms == 30_000


def test_a_log_that_ends_before_what_is_known_takes_the_rest_with_it() -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    sharing.say(2, 9, ACCEPT)
    sharing.restart()
    sharing.machine.note_log_end(5, sharing.now)
    [value] = sharing.settle()
    assert batches_of(value) == [(2, 4, 2, 1)]
    assert sharing.machine.next_offset() == 0
    assert sharing.acquire(0, 4) == [Acquired(0, 1, 1)]
    assert sharing.machine.end_offset == 5


# --- Dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_are_made_once_it_is_durable_why() -> None:
    sharing = Sharing(dead_letter_topic="dlq.jobs", delivery_count_max=1)
    sharing.acquire(0, 9)
    [value] = sharing.say(0, 3, REJECT, RELEASE, RELEASE, REJECT)
    assert batches_of(value) == [(0, 3, 3, 1)]
    expected = [
        DeadLetter(KEY, 0, 0, 1, REJECTED),
        DeadLetter(KEY, 3, 3, 1, REJECTED),
        DeadLetter(KEY, 1, 2, 1, COUNT_EXCEEDED),
    ]
    assert sharing.letters == expected
    sharing.machine.end_archiving([(0, 2), (3, 20)], sharing.now)
    [value] = sharing.settle()
    assert (value.start_offset, batches_of(value)) == (4, [])


def test_dead_letters_go_on_after_a_start() -> None:
    sharing = Sharing(dead_letter_topic="dlq.jobs", delivery_count_max=2)
    for _ in range(2):
        sharing.acquire(0, 9)
        sharing.say(0, 3, RELEASE)
        sharing.ms += 30_000
        sharing.machine.advance(sharing.now)
        sharing.settle()
    assert {letter.cause for letter in sharing.letters} == {COUNT_EXCEEDED}
    sharing.letters.clear()
    sharing.restart()
    assert sharing.letters == [DeadLetter(KEY, 0, 9, 2, COUNT_EXCEEDED)]
    sharing.machine.end_archiving([(0, 9)], sharing.now)
    assert sharing.machine.start_offset == 10


# --- Refused ----------------------------------------------------------------------------------------------------------

FORMS = {
    "a type too few": [Acknowledgement(0, 2, [ACCEPT, ACCEPT])],
    "no type": [Acknowledgement(0, 0, [])],
    "an unknown type": [Acknowledgement(0, 0, [5])],
    "a negative type": [Acknowledgement(0, 1, [ACCEPT, -1])],
    "from behind": [Acknowledgement(2, 1, [ACCEPT])],
    "not in order": [Acknowledgement(4, 5, [ACCEPT]), Acknowledgement(0, 1, [ACCEPT])],
    "more than was acquired": [Acknowledgement(5, 10, [ACCEPT])],
}


@each_case("said", FORMS.values(), ids=FORMS)
def test_what_is_no_acknowledgement_is_refused(said: list[Acknowledgement]) -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    with pytest.raises(InvalidRequestError):
        sharing.machine.acknowledge("ann", said, sharing.now)
    assert not sharing.outbox


def test_what_a_member_does_not_have_is_refused_with_its_offset() -> None:
    sharing = Sharing(may_renew=False)
    sharing.acquire(0, 9)
    sharing.say(4, 4, ACCEPT)
    for first, last, types, member, offset in (
        (3, 5, [ACCEPT], "ann", 4), (2, 3, [ACCEPT], "bob", 2), (2, 3, [RENEW, ACCEPT], "ann", 2),
    ):  # fmt: skip
        with pytest.raises(InvalidRecordStateError) as refused:
            sharing.say(first, last, *types, member=member)
        assert refused.value.offset == offset
    said = [Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(1, 2, [ACCEPT])]
    with pytest.raises(InvalidRecordStateError):
        sharing.machine.acknowledge("ann", said, sharing.now)
    with pytest.raises(InvalidRecordStateError):
        Sharing(start=5).say(5, 5, ACCEPT)


def test_what_lies_before_the_start_is_passed_over() -> None:
    sharing = Sharing()
    sharing.acquire(0, 9)
    sharing.machine.note_log_start(4)
    assert sharing.say(0, 3, ACCEPT) == []
    [value] = sharing.say(2, 6, REJECT, REJECT, REJECT, ACCEPT, ACCEPT)
    assert (value.start_offset, sharing.states()) == (7, [(7, 9, 1, 1)])


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_a_lock_may_last_for_ever() -> None:
    sharing = Sharing(lock_ms=2**63 - 1)
    sharing.ms = 2**62
    sharing.acquire(0, 9)
    assert sharing.machine.deadline_ms == 2**63 - 1 + 2**62
    sharing.machine.advance(sharing.now)
    assert sharing.states() == [(0, 9, 1, 1)]


def test_deliveries_are_counted_as_far_as_a_record_can_say() -> None:
    sharing = Sharing(delivery_count_max=1_000_000)
    sharing.acquire(0, 0)
    for run in sharing.machine._in_flight.runs:
        run.count = 32_767
    sharing.say(0, 0, RELEASE)
    assert sharing.acquire(0, 0) == [Acquired(0, 0, 32_767)]


def test_who_waits_is_called_when_there_is_room_again_not_with_each_acknowledgement() -> None:
    sharing = Sharing(record_locks_max=10)
    sharing.acquire(0, 4)
    sharing.say(0, 0, ACCEPT)
    assert sharing.calls == 0
    sharing.acquire(5, 14)
    assert sharing.machine.next_offset() is None
    sharing.say(5, 9, ACCEPT)
    assert sharing.calls == 0
    sharing.say(1, 4, ACCEPT)
    assert sharing.calls == 1
    assert sharing.machine.next_offset() == 15
    sharing.say(10, 10, RELEASE)
    assert sharing.calls == 2


def test_locks_of_what_was_acknowledged_are_forgotten() -> None:
    sharing = Sharing()
    sharing.acquire(0, 0)
    size = sharing.machine.size
    for offset in range(1, 1_000):
        sharing.acquire(offset, offset)
        sharing.say(offset, offset, ACCEPT)
    assert sharing.machine.size < size + 100 * 300
    assert sharing.machine.deadline_ms == 30_000


def test_a_hole_at_the_end_of_what_was_not_written_is_passed() -> None:
    """Kafka 4.4.0 would read from the hole for ever."""
    sharing = Sharing()
    sharing.acquire(0, 9, is_record_limit=True, most=5)
    sharing.say(0, 4, RELEASE)
    sharing.acquire(10, 14, batches=[(10, 14)], fetch_offset=10)
    sharing.say(12, 14, ACCEPT)
    sharing.restart()
    sharing.acquire(0, 4, most=5, is_record_limit=True)
    assert sharing.machine.next_offset() == 5
    assert sharing.acquire(12, 14, fetch_offset=5) == []
    assert sharing.machine.next_offset() == 15
    sharing.say(0, 4, ACCEPT)
    assert sharing.machine.start_offset == 15
