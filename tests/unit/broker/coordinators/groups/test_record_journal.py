"""Which records of a group are written: those that changed, and those that may not be there."""

import pytest

from seglog_broker.coordinators.groups.consumer_records import (
    CONSUMER_RECORDS,
    RecordJournal,
    RecordKey,
    RecordType,
    make_record,
)
from seglog_broker.coordinators.state_machine import Outbox, Record
from seglog_protocol.errors import CoordinatorNotAvailableError
from seglog_protocol.kafka.messages import ConsumerGroupMetadataValue

EPOCH = RecordKey(RecordType.METADATA)
MEMBER_A = RecordKey(RecordType.MEMBER_METADATA, "a")
MEMBER_B = RecordKey(RecordType.MEMBER_METADATA, "b")
HAS_A = RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, "a")


class Run:
    """A journal. Members a and b: ``alive`` have values, others tombstones."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.alive = {"", "a", "b"}
        self.journal = RecordJournal(self.outbox, self._record)

    def _record(self, key: RecordKey) -> Record:
        value = ConsumerGroupMetadataValue(epoch=1) if key.name in self.alive else None
        return make_record(CONSUMER_RECORDS, "g", key, None, sorted)._replace(value=value)

    def appended(self) -> list[tuple[int, str, bool]]:
        """Type, name, and whether it has a value, of what was appended since."""
        records, self.outbox.records = self.outbox.records, []
        return [
            (record.key_version, getattr(record.key, "member_id", ""), record.value is not None) for record in records
        ]

    def note_durable(self, round_: int = 0) -> None:
        """The reply to the round with this index comes."""
        answer, result = self.outbox.replies.pop(round_)
        answer(result)


@pytest.fixture
def run() -> Run:
    return Run()


def test_what_changed_is_appended_once_and_in_an_order_that_kafka_reads(run: Run) -> None:
    run.alive.discard("b")
    run.journal.note_all([HAS_A, MEMBER_A, MEMBER_B, EPOCH, MEMBER_A])
    run.journal.append()
    assert run.appended() == [(5, "b", False), (5, "a", True), (3, "", True), (8, "a", True)]
    run.journal.append()
    assert run.appended() == []
    assert len(run.outbox.replies) == 1


def test_what_is_durable_is_not_written_again_and_the_rest_is(run: Run) -> None:
    run.journal.note(MEMBER_A)
    run.journal.append()
    run.journal.note(MEMBER_B)
    run.journal.append()
    run.appended()
    run.note_durable()
    run.journal.write_failed()
    run.journal.append()
    assert run.appended() == [(5, "b", True)]


def test_a_record_that_changed_again_is_not_durable_with_its_first_round(run: Run) -> None:
    for _ in range(2):
        run.journal.note(MEMBER_A)
        run.journal.append()
    run.appended()
    run.note_durable()
    run.alive.discard("a")
    run.journal.write_failed()
    run.journal.append()
    assert run.appended() == [(5, "a", False)], "as it is by then"


def test_an_error_in_place_of_the_reply_does_not_make_records_durable(run: Run) -> None:
    run.journal.note(MEMBER_A)
    run.journal.append()
    run.appended()
    (answer, _) = run.outbox.replies.pop()
    answer(CoordinatorNotAvailableError("the disk is full"))
    run.journal.write_failed()
    run.journal.append()
    assert run.appended() == [(5, "a", True)]
