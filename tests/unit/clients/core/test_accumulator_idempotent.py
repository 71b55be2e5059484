"""Batches of an idempotent producer, from number to answer: what is sent again, as what, and what is not."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.accumulator import Accumulator, BatchLimits, ProducerBatch, ProducerEpoch
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_protocol.errors import (
    InvalidTimestampError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    RequestError,
    SeglogError,
    StorageError,
)
from seglog_protocol.messages import AppendResult
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records
from tests.support import examples


def accumulator(batch_bytes: int = 10_000) -> Accumulator:
    return Accumulator("t", BatchLimits(batch_bytes, 1 << 20, 0.0, 1e9), producer=ProducerEpoch(7, 0))


def send(a: Accumulator, *values: bytes) -> ProducerBatch:
    batch = [a.append(0, (-1, None, value, ()), 0.0)[0] for value in values][-1]
    lane = a._queues[0]
    if lane.open is not None:  # a batch of its own
        lane.waiting.append(lane.open)
        lane.open = None
    return batch


def take(a: Accumulator, now: float = 1e6) -> ProducerBatch | None:
    taken = a.take(now)
    for batch in taken:
        a.build(batch)
    return taken[0] if taken else None


def taken(a: Accumulator, now: float = 1e6) -> ProducerBatch:
    batch = take(a, now)
    assert batch is not None
    return batch


def fields(batch: ProducerBatch) -> tuple[int, int, int]:
    assert batch.data is not None
    header = parse_header(batch.data)
    return header.producer_id, header.producer_epoch, header.base_sequence


def accept(a: Accumulator, batch: ProducerBatch, offset: int = 0) -> None:
    a.answer(batch, AppendResult("t", 0, base_offset=offset, timestamp=-1, ack="disk", duplicate=False), 0.0)


def out_of_order(expected: int) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError("out of order", producer_id=7, sequence=0, expected=expected)


def test_sequences_count_the_records_of_a_partition() -> None:
    a = accumulator()
    send(a, b"0", b"1", b"2")
    send(a, b"3")
    first = taken(a)
    assert take(a) is None, "the broker does not know this producer yet: nothing may overtake its first batch"
    accept(a, first)
    second = taken(a)
    assert (fields(second), second.sequence) == ((7, 0, 3), 3)


def test_five_batches_of_a_partition_are_on_the_way_at_most() -> None:
    a = accumulator()
    for number in range(8):
        send(a, b"%d" % number)
    accept(a, taken(a))
    assert [fields(taken(a))[2] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert take(a) is None


def test_what_lingers_is_due_in_time_though_others_are_on_the_way() -> None:
    a = Accumulator("t", BatchLimits(10_000, 1 << 20, 5.0, 1e9), producer=ProducerEpoch(7, 0))
    a.append(0, (-1, None, b"0", ()), 0.0)
    first = taken(a, 6.0)
    a.append(0, (-1, None, b"1", ()), 7.0)
    assert a.next_event() is None, "the first one goes alone: only its answer lets the next one go"
    accept(a, first)
    assert a.next_event() == 12.0
    taken(a, 12.0)
    a.append(0, (-1, None, b"2", ()), 13.0)
    assert a.next_event() == 18.0


def test_after_a_lost_connection_the_same_bytes_go_again() -> None:
    a = accumulator()
    for number in range(3):
        send(a, b"%d" % number)
    accept(a, taken(a))
    first, second = taken(a), taken(a)
    before = [first.data, second.data]
    a.requeue([first, second])
    again = taken(a)
    assert (again, again.data) == (first, before[0])
    accept(a, again)
    assert (taken(a), second.data) == (second, before[1])


def test_halves_of_a_batch_have_the_sequences_of_the_whole_in_order() -> None:
    a = accumulator()
    send(a, *[b"%d" % number for number in range(5)])
    send(a, b"next")
    a.refuse(taken(a), MessageTooLargeError("too large", size=1, limit=1), 0.0)
    found = []
    for _ in range(3):
        batch = taken(a)
        found.append((fields(batch), batch.record_count))
        accept(a, batch)
    assert found == [((7, 0, 0), 2), ((7, 0, 2), 3), ((7, 0, 5), 1)]


def test_batches_behind_a_refused_one() -> None:
    """Behind a batch that is refused for good the others go on in an epoch of their own."""
    a = accumulator()
    for number in range(4):
        send(a, b"%d" % number)
    accept(a, taken(a))
    refused, *later = [taken(a) for _ in range(3)]
    a.refuse(refused, InvalidTimestampError("no"), 0.0)
    for batch in later:
        a.refuse(batch, out_of_order(1), 0.0)
    found = []
    for _ in later:
        batch = taken(a)
        found.append(fields(batch))
        accept(a, batch)
    assert found == [(7, 1, 0), (7, 1, 1)]
    assert refused.error is not None
    assert all(batch.error is None for batch in later)


def test_behind_a_batch_that_is_to_be_sent_again_the_others_keep_their_numbers() -> None:
    a = accumulator()
    for number in range(3):
        send(a, b"%d" % number)
    accept(a, taken(a))
    first, second = taken(a), taken(a)
    failed = StorageError("disk full")
    failed.retriable = True
    a.refuse(first, failed, 0.0)
    a.refuse(second, out_of_order(1), 0.0)
    assert fields(taken(a)) == (7, 0, 1)
    accept(a, first)
    assert fields(taken(a)) == (7, 0, 2)


def test_a_duplicate_whose_offset_is_not_known() -> None:
    """What the broker is already past was appended before and its offset is not known."""
    a = accumulator()
    a.passed_ack = "disk"
    for number in range(3):
        send(a, b"%d" % number)
    accept(a, taken(a))
    first, second = taken(a), taken(a)
    a.requeue([first, second])
    a.answer(taken(a), AppendResult("t", 0, error=out_of_order(3)), 0.0)
    assert (first.ack, first.base_offset, first.error) == ("disk", -1, None)
    accept(a, taken(a), 2)
    assert second.ack == "disk"


def test_what_cannot_be_decided_fails_with_the_brokers_error() -> None:
    a = accumulator()
    send(a, b"0", b"1")
    batch = taken(a)
    a.answer(batch, AppendResult("t", 0, error=out_of_order(1)), 0.0)
    assert isinstance(batch.error, OutOfOrderSequenceError)
    b = accumulator()
    send(b, b"0")
    batch = taken(b)
    b.answer(batch, AppendResult("t", 0, error=out_of_order(5)), 0.0)
    assert isinstance(batch.error, OutOfOrderSequenceError), "this was never sent before, so it cannot be there"


@dataclass
class Log:
    """A broker's partition as the rules have it, and the network before it."""

    state: ProducerState = field(default_factory=lambda: ProducerState(expiration_ms=1 << 60))
    values: list[bytes | None] = field(default_factory=list)

    def append(self, data: bytes) -> AppendResult:
        header = parse_header(data)
        try:
            repeated = self.state.check(header)
        except RequestError as error:
            return AppendResult("t", 0, error=error)
        if repeated is not None:
            return AppendResult("t", 0, base_offset=repeated.base_offset, timestamp=-1, ack="disk", duplicate=True)
        base = len(self.values)
        self.state.apply(header, base)
        self.values += [record.value for record in decode_records(header, data)]
        return AppendResult("t", 0, base_offset=base, timestamp=-1, ack="disk", duplicate=False)

    def restart(self) -> None:
        """In good order: a snapshot has only the last batch."""
        self.state.restart(len(self.values), self.state.entries())


STEPS = ["send", "send", "take", "take", "answer", "answer", "refuse", "fail", "cut", "restart"]


@given(st.lists(st.sampled_from(STEPS), max_size=60))
@settings(max_examples=examples(400))
def test_every_record_is_there_once_and_in_order(steps: list[str]) -> None:
    """Every record is there once and in order whatever is refused lost or sent again."""
    a, log = accumulator(), Log()
    sent: list[ProducerBatch] = []
    names: list[list[bytes]] = []
    wire: list[tuple[ProducerBatch, AppendResult | SeglogError]] = []  # on the way, the broker has done its part
    appended = set[ProducerBatch]()
    count = 0
    step_refuses = ""

    def take_one() -> bool:
        nonlocal step_refuses
        batch = take(a)
        if batch is None:
            return False
        assert batch.data is not None
        result: AppendResult | SeglogError
        is_there = batch in appended
        if step_refuses == "fail" or (step_refuses and not is_there):
            result = InvalidTimestampError("no") if step_refuses == "refuse" else StorageError("disk full")
            result.retriable = step_refuses == "fail"
            step_refuses = ""
        else:
            result = log.append(batch.data)
            if result.error is None:
                appended.add(batch)
        wire.append((batch, result))
        return True

    def answer() -> None:
        if wire:
            batch, result = wire.pop(0)
            if isinstance(result, SeglogError):
                a.refuse(batch, result, 0.0)
            else:
                a.answer(batch, result, 0.0)

    def cut() -> None:
        a.requeue([batch for batch, _ in wire])
        wire.clear()

    for step in steps:
        if step == "send":
            values = [b"%d" % (count + n) for n in range(count % 3 + 1)]
            count += len(values)
            names.append(values)
            sent.append(send(a, *values))
        elif step == "take":
            take_one()
        elif step == "answer":
            answer()
        elif step in ("refuse", "fail"):
            step_refuses = step
        else:
            cut()
            if step == "restart":
                log.restart()
    step_refuses = ""
    for _ in range(10_000):
        if not take_one() and not wire:
            break
        answer()
    assert all(batch.is_resolved for batch in sent)
    delivered = [value for batch, values in zip(sent, names, strict=True) if batch.error is None for value in values]
    assert log.values == delivered


@pytest.mark.parametrize("epoch", [2**15 - 1])
def test_there_is_no_epoch_behind_the_last(epoch: int) -> None:
    a = accumulator()
    a.producer = ProducerEpoch(7, epoch)
    send(a, b"0")
    accept(a, taken(a))
    send(a, b"1")
    batch = taken(a)
    a.answer(batch, AppendResult("t", 0, error=out_of_order(0)), 0.0)
    assert isinstance(batch.error, OutOfOrderSequenceError)
