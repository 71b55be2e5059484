"""Producer state: new, repeated and out-of-order batches, and when producers are forgotten."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.producers.producer_state import (
    BATCHES_KEPT,
    PRODUCERS_MAX,
    Duplicate,
    ProducerState,
    TransactionEnd,
)
from seglog_protocol.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    RequestError,
)
from seglog_protocol.record_batch import INT32_MAX, BatchHeader
from seglog_protocol.transaction_files import (
    AbortedTransaction,
    EndMarker,
    ProducerEntry,
    decode_snapshot,
    encode_snapshot,
)
from tests.support import each_case, examples
from tests.unit.broker.storage.producers.producer_batches import NOW, control, data, last_records, plain

DAY = 86_400_000
COMMIT = EndMarker("COMMIT", 3)
ABORT = EndMarker("ABORT", 3)


def state_of(*headers: BatchHeader, producers_max: int = 100) -> ProducerState:
    """The state after these batches, appended one after the other from offset 0."""
    state = ProducerState(expiration_ms=DAY, producers_max=producers_max)
    for header in headers:
        append(state, header)
    return state


def append(state: ProducerState, header: BatchHeader) -> Duplicate | None:
    """Append a client's batch as a log does."""
    duplicate = state.check(header)
    if duplicate is None:
        state.apply(header, state.end_offset)
    return duplicate


def unknown(state: ProducerState) -> list[int]:
    """Those of the producers 0 to 9 that are unknown."""
    known = last_records(state)
    return [producer_id for producer_id in range(10) if producer_id not in known]


# --- Sequences --------------------------------------------------------------------------------------------------------


Verdict = Duplicate | tuple[type[RequestError], dict[str, int]] | None

_TWO = [data(1, 0), data(1, 1)]
_FENCED: Verdict = (InvalidProducerEpochError, {})
_INVALID: Verdict = (InvalidRecordError, {})


@each_case(
    ("before", "sent", "verdict"),
    [
        (_TWO, data(1, 1), Duplicate(1, 1, NOW)),
        (_TWO, data(1, 3), (OutOfOrderSequenceError, {"producer_id": 1, "sequence": 3, "expected": 2})),
        (_TWO, data(1, 2), None),
        # Sequences wrap to zero and to nothing else.
        ([data(1, INT32_MAX)], data(1, 1), (OutOfOrderSequenceError, {"expected": 0})),
        # A producer id needs a sequence.
        ([], data(1, -1), _INVALID),
        ([], data(1, -1, epoch=-1), _INVALID),
        # No epoch is older than every epoch; an older one is fenced; a new one begins at zero and repeats nothing.
        ([data(1, 0, epoch=-1)], data(1, 0), None),
        ([data(1, 0, epoch=-1)], data(1, 77), None),
        ([data(1, 0, epoch=-1), data(1, 0)], data(1, 1, epoch=-1), _FENCED),
        (
            [data(1, 0, epoch=4)],
            data(1, 1, epoch=3),
            (InvalidProducerEpochError, {"producer_id": 1, "producer_epoch": 3, "current_epoch": 4}),
        ),
        (_TWO, data(1, 2, epoch=1), (OutOfOrderSequenceError, {"expected": 0})),
    ],
)
def test_what_an_append_is_to_the_batches_before_it(
    before: list[BatchHeader], sent: BatchHeader, verdict: Verdict
) -> None:
    state = state_of(*before)
    known = state.end_offset, state.entries()
    for _ in range(2):  # nothing changes before the bytes are in the log
        if isinstance(verdict, tuple) and not isinstance(verdict, Duplicate):
            with pytest.raises(verdict[0]) as caught:
                state.check(sent)
            assert {name: getattr(caught.value, name) for name in verdict[1]} == verdict[1]
        else:
            assert state.check(sent) == verdict
        assert (state.end_offset, state.entries()) == known


def test_a_producer_that_only_a_marker_told_of_begins_at_zero() -> None:
    state = ProducerState(expiration_ms=DAY)
    state.apply_replayed(control(1), COMMIT)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(data(1, 1))
    assert append(state, data(1, 0)) is None


# --- Replay -----------------------------------------------------------------------------------------------------------


_OPEN = (data(1, 0, transactional=True), None)


@each_case(
    ("replayed", "entry", "unstable"),
    [
        # Gaps and old epochs are believed.
        (
            [(data(1, 0, epoch=5), None), (data(1, 7, epoch=5, at=4), None), (data(1, 3, 2, epoch=2, at=9), None)],
            ProducerEntry(1, 2, 4, 10, 1, NOW, -1, -1),
            None,
        ),
        # A marker closes the transaction and sets epoch, coordinator and time.
        ([_OPEN], ProducerEntry(1, 0, 0, 0, 0, NOW, -1, 0), 0),
        ([_OPEN, (control(1, at=1, timestamp=NOW + 5), COMMIT)], ProducerEntry(1, 0, 0, 0, 0, NOW + 5, 3, -1), None),
        # A marker of an unknown producer makes it known and ends no transaction.
        ([(control(1, epoch=7, at=4), ABORT)], ProducerEntry(1, 7, -1, -1, 0, NOW, 3, -1), None),
        # A control batch that says nothing of a producer changes only the end.
        *(
            ([_OPEN, (header, None)], ProducerEntry(1, 0, 0, 0, 0, NOW, -1, 0), 0)
            for header in (control(1, at=1, count=0), control(-1, epoch=-1, at=1))
        ),
    ],
)
def test_what_is_in_the_log_is_believed(
    replayed: list[tuple[BatchHeader, EndMarker | None]], entry: ProducerEntry, unstable: int | None
) -> None:
    state = ProducerState(expiration_ms=DAY)
    assert [state.apply_replayed(*each) for each in replayed] == [None] * len(replayed)
    assert (state.entries(), state.first_unstable_offset) == ([entry], unstable)
    assert state.end_offset == replayed[-1][0].next_offset


def test_a_marker_of_a_newer_epoch_fences_and_forgets_the_batches() -> None:
    state = state_of(data(1, 0), data(1, 1))
    state.apply_replayed(control(1, epoch=1, at=2), ABORT)
    assert state.entries() == [ProducerEntry(1, 1, -1, -1, 0, NOW, 3, -1)]
    with pytest.raises(InvalidProducerEpochError):
        state.check(data(1, 2))
    with pytest.raises(OutOfOrderSequenceError):
        state.check(data(1, 2, epoch=1))
    assert state.check(data(1, 0, epoch=1)) is None


def test_a_zombie_coordinators_marker_that_is_in_the_log_is_believed() -> None:
    state = ProducerState(expiration_ms=DAY)
    state.apply_replayed(control(1, epoch=2), EndMarker("COMMIT", 9))
    state.apply_replayed(data(1, 0, epoch=2, at=1, transactional=True), None)
    aborted = state.apply_replayed(control(1, epoch=1, at=2), EndMarker("ABORT", 4))
    assert aborted == AbortedTransaction(0, 1, 1, 2, 3)
    assert state.entries() == [ProducerEntry(1, 1, -1, -1, 0, NOW, 4, -1)]


def test_aborted_transactions_come_out_as_the_transaction_index_has_them() -> None:
    state = ProducerState(expiration_ms=DAY)
    for offset, producer_id in enumerate([1, 2, 1, 3]):
        state.apply_replayed(data(producer_id, offset, at=offset, transactional=True), None)
    assert state.apply_replayed(control(2, at=4), ABORT) == AbortedTransaction(0, 2, 1, 4, 0)
    assert state.apply_replayed(control(1, at=5), ABORT) == AbortedTransaction(0, 1, 0, 5, 3)
    assert state.apply_replayed(control(3, at=6), ABORT) == AbortedTransaction(0, 3, 3, 6, 7)


def test_the_first_unstable_offset_is_the_start_of_the_oldest_open_transaction() -> None:
    state = state_of(plain(10))
    for offset, producer_id in [(10, 1), (11, 2), (12, 1)]:
        state.apply_replayed(data(producer_id, offset, at=offset, transactional=True), None)
    assert state.first_unstable_offset == 10
    state.apply_replayed(control(1, at=13), COMMIT)
    assert state.first_unstable_offset == 11
    state.apply_replayed(data(1, 13, at=14, transactional=True), None)
    state.apply_replayed(control(2, at=15), COMMIT)
    assert state.first_unstable_offset == 14


def test_a_producer_with_an_open_transaction_may_not_write_outside_of_it() -> None:
    state = ProducerState(expiration_ms=DAY)
    state.apply_replayed(data(1, 0, at=6, transactional=True), None)
    for header in (data(1, 1), data(1, 0, epoch=1)):
        with pytest.raises(InvalidTransactionStateError) as caught:
            state.check(header)
        assert (caught.value.producer_id, caught.value.first_offset) == (1, 6)
    assert state.check(data(1, 1, transactional=True)) is None


# --- Forgetting -------------------------------------------------------------------------------------------------------


def test_a_producer_is_forgotten_after_a_day_without_a_timestamp_and_not_before() -> None:
    state = state_of(data(1, 0, timestamp=NOW), data(2, 0, timestamp=NOW + 1))
    assert state.expire(NOW + DAY - 1) == 0
    assert state.expire(NOW + DAY) == 1
    assert state.check(data(1, 99)) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(data(2, 99))


def test_the_last_timestamp_counts_not_the_largest() -> None:
    state = state_of(data(1, 0, timestamp=NOW), data(1, 1, timestamp=NOW - DAY))
    assert state.expire(NOW) == 1


def test_an_open_transaction_keeps_its_producer() -> None:
    state = ProducerState(expiration_ms=DAY)
    state.apply_replayed(data(1, 0, timestamp=0, transactional=True), None)
    assert state.expire(NOW) == 0
    state.apply_replayed(control(1, at=1, timestamp=0), COMMIT)
    assert state.expire(NOW) == 1


def test_open_transactions_do_not_count_and_are_not_forgotten() -> None:
    state = ProducerState(expiration_ms=DAY, producers_max=2)
    for producer_id in range(4):
        state.apply_replayed(data(producer_id, 0, at=producer_id, transactional=True), None)
    for offset, producer_id in enumerate([5, 6, 7], start=4):
        state.apply_replayed(data(producer_id, 0, at=offset), None)
    assert unknown(state) == [4, 5, 8, 9]
    state.apply_replayed(control(0, at=7), COMMIT)
    assert unknown(state) == [4, 5, 6, 8, 9]


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 5))
def test_the_limit_holds_after_every_batch(producer_ids: list[int], limit: int) -> None:
    state = ProducerState(expiration_ms=DAY, producers_max=limit)
    for number, producer_id in enumerate(producer_ids):
        state.apply(data(producer_id, number), number)
        recent = list(dict.fromkeys(reversed(producer_ids[: number + 1])))
        assert [entry.producer_id for entry in reversed(state.entries())] == recent[:limit]


def test_a_large_state_keeps_nearly_as_many_as_the_limit_says() -> None:
    state = ProducerState(expiration_ms=DAY, producers_max=1000)
    for number in range(5000):
        state.apply(data(number, 0), number)
        assert min(number + 1, 980) <= len(state) <= 1000
    assert [entry.producer_id for entry in state.entries()] == list(range(5000 - len(state), 5000))


def restarted(state: ProducerState) -> ProducerState:
    """The state that a start reads from a snapshot of this one."""
    again = ProducerState(expiration_ms=DAY, producers_max=state._producers_max)
    again.restart(state.end_offset, decode_snapshot(encode_snapshot(state.entries())))
    return again


def test_a_producer_in_use_outlasts_twice_the_limit_of_producers_that_come_once() -> None:
    state = ProducerState(expiration_ms=DAY)
    append(state, data(1, 0))
    append(state, data(1, 1))
    for producer_id in range(10, 10 + 2 * PRODUCERS_MAX):
        append(state, data(producer_id, 0))
        if producer_id % 5_000 == 0:
            state = restarted(state)
    assert len(state) <= PRODUCERS_MAX
    assert append(state, data(1, 1)) == Duplicate(1, 1, NOW)
    assert append(state, data(10 + 2 * PRODUCERS_MAX - 1, 0)) is not None, "the newest is remembered, too"


def test_the_longest_silent_producer_is_forgotten() -> None:
    """Where all are in use a new producer is remembered and the longest silent is forgotten."""
    state = state_of(*(data(number, sequence) for sequence in range(2) for number in range(8)), producers_max=8)
    append(state, data(8, 0))
    assert append(state, data(8, 0)) is not None
    assert unknown(state) == [0, 9]


@given(st.lists(st.sampled_from(["once", "retry", "next", "restart"]), max_size=80), st.integers(4, 12), st.data())
@settings(max_examples=examples(200))
def test_a_producer_in_use_is_not_forgotten(steps: list[str], limit: int, choices: st.DataObject) -> None:
    """Up to three quarters of the limit are in use: each has appended twice."""
    living = range(limit - limit // 4)
    state = state_of(*(data(one, sequence) for sequence in range(2) for one in living), producers_max=limit)
    sequences, newcomer = dict.fromkeys(living, 1), limit
    for step in steps:
        one = choices.draw(st.sampled_from(living)) if step in {"retry", "next"} else 0
        if step == "once":
            newcomer += 1
            assert append(state, data(newcomer, 0)) is None
        elif step == "retry":
            assert append(state, data(one, sequences[one])) is not None
        elif step == "next":
            sequences[one] += 1
            assert append(state, data(one, sequences[one])) is None
        else:
            state = restarted(state)
        assert len(state) <= limit


# --- Compaction -------------------------------------------------------------------------------------------------------


def test_compaction_learns_the_last_data_offset_of_every_producer() -> None:
    state = state_of(data(1, 0, 3), plain(), data(2, 5, 2, epoch=4), data(1, 3))
    state.apply_replayed(control(3, epoch=9, at=7), COMMIT)
    assert last_records(state) == {1: (6, 0), 2: (5, 4), 3: (-1, 9)}


# --- Against a plain model --------------------------------------------------------------------------------------------

RING = INT32_MAX + 1
SEQUENCES = st.sampled_from([0, 1, 2, 3, 5, INT32_MAX - 3, INT32_MAX - 1, INT32_MAX])
COUNTS = st.integers(1, 4)


@dataclass
class Model:
    """One producer by the rules of the format page, in simple code."""

    epoch: int = -1
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # first, last sequence, offsets, time

    def judge(self, header: BatchHeader) -> Duplicate | type[RequestError] | None:
        last = (header.base_sequence + header.last_offset_delta) % RING
        if header.producer_epoch == self.epoch:
            for batch in self.batches:
                if batch[:2] == (header.base_sequence, last):
                    return Duplicate(*batch[2:])
        if header.producer_epoch < self.epoch:
            return InvalidProducerEpochError
        if self.epoch == -1:
            return None
        if header.producer_epoch != self.epoch or not self.batches:
            return None if header.base_sequence == 0 else OutOfOrderSequenceError
        return None if header.base_sequence == (self.batches[-1][1] + 1) % RING else OutOfOrderSequenceError

    def add(self, header: BatchHeader, offset: int) -> None:
        if header.producer_epoch != self.epoch:
            self.epoch, self.batches = header.producer_epoch, []
        delta = header.last_offset_delta
        last = (header.base_sequence + delta) % RING
        self.batches.append((header.base_sequence, last, offset, offset + delta, header.max_timestamp))
        self.batches = self.batches[-BATCHES_KEPT:]


@given(st.data())
@settings(max_examples=examples(200))
def test_every_verdict_is_that_of_a_plain_model(choices: st.DataObject) -> None:
    state, models, offset = ProducerState(expiration_ms=DAY), {1: Model(), 2: Model()}, 0
    for number in range(choices.draw(st.integers(1, 30))):
        producer_id = choices.draw(st.sampled_from([1, 2]))
        model = models[producer_id]
        following = (model.batches[-1][1] + 1) % RING if model.batches else 0
        repeated = st.sampled_from(
            [(first, (last - first) % RING + 1) for first, last, *_ in model.batches] or [(0, 1)]
        )
        sequence, count = choices.draw(
            st.tuples(st.just(following), COUNTS) | repeated | st.tuples(SEQUENCES, COUNTS), label="sequence, count"
        )
        epoch = choices.draw(st.sampled_from([max(model.epoch, 0)] * 3 + [0, 1]))
        header = data(producer_id, sequence, count, epoch=epoch, timestamp=number)
        expected = model.judge(header)
        try:
            actual: Duplicate | type[RequestError] | None = state.check(header)
        except RequestError as error:
            actual = type(error)
        assert actual == expected
        assert state.count_new([header], 0) == (expected is None)
        if expected is None:
            state.apply(header, offset)
            model.add(header, offset)
            offset += count
    assert state.end_offset == offset


@given(st.data())
@settings(max_examples=examples(200))
def test_a_batch_counts_as_new_exactly_where_its_check_accepts_it(choices: st.DataObject) -> None:
    """Also in transactions, which begin, are expected and end at any epoch."""
    state, epochs = ProducerState(expiration_ms=DAY), st.integers(0, 2)
    for _ in range(choices.draw(st.integers(1, 30))):
        match choices.draw(st.sampled_from(["batch", "batch", "batch", "expect", "expect no more", "end"])):
            case "expect":
                state.expect(1, choices.draw(epochs), begins_at_zero=choices.draw(st.booleans()))
            case "expect no more":
                state._expected.pop(1, None)
            case "end":
                end = TransactionEnd(1, choices.draw(epochs), 0, True, 1)
                header = data(1, -1, epoch=end.producer_epoch, transactional=True)
                state.apply_marker(header, state.end_offset, end.marker, NOW)
            case _:
                header = data(
                    1,
                    choices.draw(st.integers(0, 4)),
                    epoch=choices.draw(epochs),
                    transactional=choices.draw(st.booleans()),
                )
                try:
                    is_new = state.check(header) is None
                except RequestError:
                    is_new = False
                assert state.count_new([header], 0) == is_new
                if is_new:
                    state.apply(header, state.end_offset)


@given(start=SEQUENCES, counts=st.lists(st.integers(1, 2**30), min_size=1, max_size=8))
def test_a_well_behaved_producer_is_never_refused_wherever_it_starts(start: int, counts: list[int]) -> None:
    state, sequence = ProducerState(expiration_ms=DAY), start
    for count in counts:
        header = data(1, sequence, count)
        assert append(state, header) is None
        assert append(state, header) == Duplicate(state.end_offset - count, state.end_offset - 1, NOW)
        sequence = (sequence + count) % RING
