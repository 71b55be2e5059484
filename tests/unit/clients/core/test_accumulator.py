"""The producer's core: what is kept, in which order and as what it goes out, and what becomes of it."""

import re
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.accumulator import FAILED_BATCHES_MAX, Accumulator, BatchLimits, ProducerBatch, ProducerEpoch
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientTimeoutError,
    DiskFullError,
    InvalidRecordError,
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

LIMITS = BatchLimits(batch_bytes=1000, buffer_bytes=10_000, linger_seconds=0.005, delivery_seconds=120.0)


def make(**changes: float) -> Accumulator:
    return Accumulator("t", replace(LIMITS, **changes))  # type: ignore[arg-type]


def add(accumulator: Accumulator, value: bytes, partition: int = 0, now: float = 0.0) -> tuple[ProducerBatch, int]:
    batch = accumulator.append(partition, (1000, None, value, ()), lambda: now)
    return batch, batch.record_count - 1


def values(batch: ProducerBatch, accumulator: Accumulator) -> list[bytes | None]:
    accumulator.build(batch)
    data = batch.data
    assert data is not None
    return [record.value for record in decode_records(parse_header(data), data)]


def appended(offset: int = 0) -> AppendResult:
    return AppendResult("t", 0, offset, -1, "disk", False)


def refused(error: SeglogError) -> AppendResult:
    return AppendResult("t", 0, error=error)


def test_records_linger_and_go_out_together_with_those_that_come_until_their_batch_is_taken() -> None:
    accumulator = make()
    add(accumulator, b"a", now=1.0)
    add(accumulator, b"b", now=1.004)
    assert accumulator.next_event() == pytest.approx(1.005)
    assert accumulator.take(1.004) == []
    assert add(accumulator, b"c", now=5.0)[1] == 2
    (batch,) = accumulator.take(5.0)
    assert values(batch, accumulator) == [b"a", b"b", b"c"]
    assert accumulator.next_event() is None


def test_one_request_carries_every_partition_that_is_due() -> None:
    accumulator = make()
    for partition in (2, 0, 1):
        add(accumulator, b"x", partition, now=1.0 + partition / 1000)
    assert sorted(batch.partition for batch in accumulator.take(1.01)) == [0, 1, 2]


def test_a_full_batch_does_not_linger_and_only_the_first_record_of_one_looks_at_the_clock() -> None:
    accumulator, moments = make(linger_seconds=1e6), iter([1.0, 2.0])
    found = [accumulator.append(0, (1000, None, bytes(400), ()), moments.__next__) for _ in range(3)]
    assert [(batch.deadline, batch.follows_full) for batch in found] == [(121, False), (121, False), (122, True)]
    (batch,) = accumulator.take(0.0)
    assert batch.record_count == 2
    accumulator.build(batch)
    assert len(batch.data or b"") <= LIMITS.batch_bytes
    assert accumulator.take(0.0) == []


def test_a_record_larger_than_every_batch_gets_one_of_its_own() -> None:
    accumulator = make()
    add(accumulator, b"small")
    add(accumulator, b"x" * 5000)
    add(accumulator, b"small")
    accumulator.flush()
    counts = []
    while batches := accumulator.take(0.0):
        counts += [batch.record_count for batch in batches]
    assert counts == [1, 1, 1]


def test_flush_lets_nothing_linger_until_all_is_resolved() -> None:
    accumulator = make(linger_seconds=1e6)
    batch, _ = add(accumulator, b"a")
    accumulator.flush()
    assert accumulator.take(0.0) == [batch]
    accumulator.answer(batch, appended(), 0.0)
    add(accumulator, b"b")
    assert accumulator.take(0.0) == [], "the flush is over"


def test_nothing_overtakes_a_batch_that_waits_to_be_sent_again() -> None:
    accumulator = make(linger_seconds=0.0)
    first, _ = add(accumulator, b"0")
    accumulator.take(0.0)
    second, _ = add(accumulator, b"1")
    accumulator.take(0.0)
    accumulator.answer(first, refused(BrokerStoppingError("stopping")), 0.0)
    add(accumulator, b"2")
    assert accumulator.take(100.0) == [], "the second one is still on the way"
    accumulator.answer(second, appended(), 0.0)
    assert accumulator.take(0.0) == [], "backing off"
    assert accumulator.next_event() is not None
    assert accumulator.take(100.0) == [first]


def test_what_keeps_records_waiting_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    accumulator = make(delivery_seconds=60.0)
    add(accumulator, b"a")
    told = {}
    now = 1.0
    while now < 30:
        (batch,) = accumulator.take(now)
        accumulator.answer(batch, refused(DiskFullError("the disk is full")), now)
        told[now] = len(caplog.messages)
        event = accumulator.next_event()
        assert event is not None
        now = event
    assert min(at for at, count in told.items() if count) > 1.3, "a hiccup is nobody's business"
    assert len(caplog.messages) == 3
    assert re.fullmatch(
        r"records for t-0 are refused and sent again, for up to \d\d s more: the disk is full", caplog.messages[1]
    )


def test_a_batch_refused_as_too_large_is_split_and_each_record_keeps_its_promise() -> None:
    accumulator = make(linger_seconds=0.0, batch_bytes=100_000)
    places = [add(accumulator, b"%d" % number) for number in range(5)]
    (batch,) = accumulator.take(0.0)
    accumulator.build(batch)
    accumulator.answer(batch, refused(MessageTooLargeError("too large", size=900, limit=500)), 0.0)
    assert accumulator.batch_bytes == 500, "the next ones are made smaller"
    offset = 10
    while batches := accumulator.take(0.0):
        (half,) = batches
        accumulator.build(half)
        accumulator.answer(half, appended(offset), 0.0)
        offset += half.record_count
    assert offset == 15
    assert all(place[0].is_resolved for place in places)
    assert batch.halves is not None
    assert [half.base_offset for half in batch.halves] == [10, 12]
    assert accumulator.buffered_bytes == 0
    assert accumulator.unresolved == 0


def test_a_single_record_that_is_too_large_fails() -> None:
    accumulator = make(linger_seconds=0.0)
    batch, _ = add(accumulator, b"x")
    accumulator.take(0.0)
    accumulator.answer(batch, refused(MessageTooLargeError("too large", size=9, limit=5)), 0.0)
    assert isinstance(batch.error, MessageTooLargeError)


def test_an_error_that_trying_again_cannot_mend_fails_the_batch_alone() -> None:
    accumulator = make(linger_seconds=0.0)
    bad, _ = add(accumulator, b"x", 0)
    good, _ = add(accumulator, b"y", 1)
    accumulator.take(0.0)
    accumulator.answer(bad, refused(InvalidRecordError("no")), 0.0)
    accumulator.answer(good, appended(7), 0.0)
    assert isinstance(bad.error, InvalidRecordError)
    assert good.base_offset == 7
    failures, count = accumulator.take_failures()
    assert [(topic, partition, n) for topic, partition, n, _ in failures] == [("t", 0, 1)]
    assert count == 1
    assert accumulator.take_failures() == ([], 0), "told once"


def test_a_failure_that_was_looked_at_is_not_told_again() -> None:
    accumulator = make(linger_seconds=0.0)
    batch, _ = add(accumulator, b"a")
    add(accumulator, b"b")
    accumulator.take(0.0)
    accumulator.answer(batch, refused(InvalidRecordError("no")), 0.0)
    batch.mark_seen(0)
    batch.mark_seen(0)
    assert accumulator.take_failures()[1] == 1


def test_failures_are_counted_also_when_there_are_too_many_to_keep() -> None:
    accumulator = make(linger_seconds=0.0)
    for _ in range(FAILED_BATCHES_MAX + 5):
        batch, _ = add(accumulator, b"a")
        accumulator.take(0.0)
        accumulator.answer(batch, refused(InvalidRecordError("no")), 0.0)
    failures, count = accumulator.take_failures()
    assert (len(failures), count) == (FAILED_BATCHES_MAX, FAILED_BATCHES_MAX + 5)


def test_what_is_here_too_long_fails_sent_or_not() -> None:
    accumulator = make(linger_seconds=0.0, delivery_seconds=10.0)
    sent, _ = add(accumulator, b"a", 0)
    accumulator.take(0.0)
    kept, _ = add(accumulator, b"b", 1)
    young, _ = add(accumulator, b"c", 2, now=5.0)
    accumulator.expire(10.0, [sent])
    assert isinstance(sent.error, ClientTimeoutError)
    assert isinstance(kept.error, ClientTimeoutError)
    assert not young.is_resolved
    accumulator.answer(sent, appended(), 11.0)
    assert sent.base_offset == -1, "what was told stays told"
    assert accumulator.unresolved == 1


def test_a_full_buffer_has_no_room_and_an_empty_one_takes_anything() -> None:
    accumulator = make(buffer_bytes=100)
    assert accumulator.has_room(1_000_000)
    add(accumulator, b"x" * 50)
    assert not accumulator.has_room(50)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 600)),
            st.tuples(st.just("take"), st.integers(0, 2), st.integers(0, 0)),
            st.tuples(st.just("land"), st.integers(0, 5), st.integers(0, 0)),
            st.tuples(st.just("lose"), st.integers(0, 0), st.integers(0, 0)),
            st.tuples(st.just("split"), st.integers(0, 5), st.integers(0, 0)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_every_record_lands_exactly_once_and_nothing_is_left_behind(
    steps: list[tuple[str, int, int]],
) -> None:
    """A broker that loses connections and refuses sizes, with one request at a time: order holds in every partition."""
    accumulator = make(linger_seconds=0.0, buffer_bytes=10**9)
    logs: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    flying: list[ProducerBatch] = []
    number = 0

    def land(batch: ProducerBatch) -> None:
        logs[batch.partition] += values(batch, accumulator)
        accumulator.answer(batch, appended(), 0.0)

    for kind, at, size in steps:
        if kind == "add":
            value = b"%d:" % number + b"x" * size
            number += 1
            sent[at].append(value)
            add(accumulator, value, at)
        elif kind == "take" and not flying:
            flying = accumulator.take(1.0)
        elif kind == "land" and flying:
            land(flying.pop(at % len(flying)))
        elif kind == "lose":
            accumulator.requeue(flying)
            flying = []
        elif kind == "split" and flying:
            batch = flying.pop(at % len(flying))
            accumulator.build(batch)
            if batch.record_count > 1:
                accumulator.answer(batch, refused(MessageTooLargeError("no", size=2, limit=1)), 0.0)
            else:
                land(batch)
    for batch in flying:
        land(batch)
    accumulator.flush()
    while batches := accumulator.take(1.0):
        for batch in batches:
            land(batch)
    assert logs == sent
    assert accumulator.buffered_bytes == 0
    assert accumulator.unresolved == 0
    assert accumulator.kept() == []


# --- Batches of an idempotent producer, from number to answer: what is sent again, as what, and what is not -----------


def numbered(batch_bytes: int = 10_000) -> Accumulator:
    return Accumulator("t", BatchLimits(batch_bytes, 1 << 20, 0.0, 1e9), producer=ProducerEpoch(7, 0))


def send(a: Accumulator, *values: bytes) -> ProducerBatch:
    batch = [a.append(0, (-1, None, value, ()), lambda: 0.0) for value in values][-1]
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


def test_five_batches_of_a_partition_are_on_the_way_at_most() -> None:
    a = numbered()
    for number in range(8):
        send(a, b"%d" % number)
    accept(a, taken(a))
    assert [fields(taken(a))[2] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert take(a) is None


def test_what_lingers_is_due_in_time_though_others_are_on_the_way() -> None:
    a = Accumulator("t", BatchLimits(10_000, 1 << 20, 5.0, 1e9), producer=ProducerEpoch(7, 0))
    a.append(0, (-1, None, b"0", ()), lambda: 0.0)
    first = taken(a, 6.0)
    a.append(0, (-1, None, b"1", ()), lambda: 7.0)
    assert a.next_event() is None, "the first one goes alone: only its answer lets the next one go"
    accept(a, first)
    assert a.next_event() == 12.0
    taken(a, 12.0)
    a.append(0, (-1, None, b"2", ()), lambda: 13.0)
    assert a.next_event() == 18.0


def test_halves_of_a_batch_have_the_sequences_of_the_whole_in_order() -> None:
    a = numbered()
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
    a = numbered()
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
    a = numbered()
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
    a = numbered()
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
    a = numbered()
    send(a, b"0", b"1")
    batch = taken(a)
    a.answer(batch, AppendResult("t", 0, error=out_of_order(1)), 0.0)
    assert isinstance(batch.error, OutOfOrderSequenceError)
    b = numbered()
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
    a, log = numbered(), Log()
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
    a = numbered()
    a.producer = ProducerEpoch(7, epoch)
    send(a, b"0")
    accept(a, taken(a))
    send(a, b"1")
    batch = taken(a)
    a.answer(batch, AppendResult("t", 0, error=out_of_order(0)), 0.0)
    assert isinstance(batch.error, OutOfOrderSequenceError)
