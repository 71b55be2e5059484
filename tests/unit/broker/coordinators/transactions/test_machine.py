"""One transactional id: what its producer may do, how its transaction ends, and Kafka's own traps."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch, decode_record, encode_record
from seglog_broker.coordinators.transactions.facts import (
    KINDS,
    TransactionFacts,
    TransactionState,
    facts_of,
)
from seglog_broker.coordinators.transactions.machine import EPOCH_MAX, PARTITIONS_MAX, RETRY_MS
from seglog_protocol.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    ProducerFencedError,
    SeglogError,
    TransactionAbortableError,
)
from seglog_protocol.kafka.messages import TransactionLogKey, TransactionLogValue
from seglog_protocol.steps import finished
from tests.support import each_case, examples
from tests.unit.broker.coordinators.transactions.coordinator import KEY, TIMEOUT_MS, WALL_MS, Coordinator

S = TransactionState


@pytest.fixture
def asked() -> Coordinator:
    return Coordinator()


def at_epoch(epoch: int) -> Coordinator:
    """A coordinator whose producer has reached an epoch."""
    asked = Coordinator()
    asked.init()
    if epoch:
        asked.machine.facts = asked.machine.facts._replace(epoch=epoch - 1)
        asked.init()
    return asked


@each_case("version", [1, 2])
@each_case("commit", [True, False])
def test_a_transaction_goes_through_the_states_of_kafka(version: int, commit: bool) -> None:
    asked = Coordinator()
    producer = asked.init()
    assert producer == ProducerIdAndEpoch(100, 0)
    assert asked.is_in(S.EMPTY)
    asked.add(producer, ("orders", 1), ("orders", 0), version=version)
    assert asked.is_in(S.ONGOING)
    assert asked.expected[-1].partitions == {"orders": {0, 1}}
    following = asked.end(producer, commit=commit, version=version)
    assert asked.is_in(S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
    assert following == (100, version - 1)  # by version 2 the epoch rises
    [ending] = asked.endings
    assert (ending.producer, ending.is_commit) == (following, commit)
    assert ending.partitions == {"orders": {0, 1}}
    asked.complete()
    assert asked.is_in(S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert not asked.machine.facts.partitions
    asked.add(following, version=version)
    assert asked.is_in(S.ONGOING)


def test_partitions_that_are_there_already_are_written_once(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, ("orders", 0))
    count = len(asked.records)
    asked.add(producer, ("orders", 0))
    assert len(asked.records) == count
    asked.add(producer, ("orders", 0), ("items", 3))
    assert asked.expected[-1].partitions == {"items": {3}}
    assert asked.machine.has(producer, [("orders", 0), ("items", 3)])
    assert not asked.machine.has(producer, [("orders", 1)])


def test_the_producer_of_before_is_fenced(asked: Coordinator) -> None:
    zombie = asked.init()
    producer = asked.init()
    assert producer == (zombie.producer_id, zombie.epoch + 1)
    with pytest.raises(ProducerFencedError):
        asked.add(zombie)
    asked.add(producer)
    for version in 1, 2:
        with pytest.raises(ProducerFencedError):
            asked.end(zombie, version=version)
    with pytest.raises(ProducerFencedError):
        asked.init(zombie)
    assert asked.is_in(S.ONGOING)


def test_another_producer_id_is_not_that_of_the_transactional_id(asked: Coordinator) -> None:
    asked.init()
    for ask in asked.add, asked.end:
        with pytest.raises(InvalidProducerIdMappingError):
            ask(ProducerIdAndEpoch(7, 0))


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_producer_aborts_what_is_open_and_asks_again(version: int, asked: Coordinator) -> None:
    """Once: a second rise of the epoch with the abort is a fault that Kafka had."""
    zombie = asked.init()
    asked.add(zombie, version=version)
    assert asked.init_aborts()
    assert asked.is_in(S.PREPARE_ABORT)
    assert asked.producer == (100, 1)
    assert asked.endings[-1].producer == (100, 1)
    with pytest.raises(ConcurrentTransactionsError):
        asked.init()
    asked.complete()
    assert asked.init() == (100, 2)
    with pytest.raises(ProducerFencedError):
        asked.add(zombie)


def test_a_lost_answer_is_given_once_more(asked: Coordinator) -> None:
    first = asked.init()
    second = asked.init(first)
    assert second == (100, 1)
    assert asked.init(first) == second
    assert asked.init(second) == (100, 2)
    with pytest.raises(ProducerFencedError):
        asked.init(first)


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_lasts_too_long_is_aborted_and_its_producer_fenced(version: int, asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, version=version)
    asked.pass_ms(TIMEOUT_MS - 1)
    assert asked.is_in(S.ONGOING)
    asked.pass_ms(1)
    assert asked.is_in(S.PREPARE_ABORT)
    assert asked.producer == (100, 1)
    if version == 2:
        with pytest.raises(ConcurrentTransactionsError):
            asked.end(producer, version=version)
    asked.complete()
    with pytest.raises(ProducerFencedError):  # INVALID_TXN_STATE in Kafka, by version 2
        asked.end(producer, version=version)


def test_an_abort_that_comes_after_the_timeout_brings_the_next_epoch(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, version=2)
    asked.pass_ms(TIMEOUT_MS)
    with pytest.raises(ConcurrentTransactionsError):
        asked.end(producer, commit=False, version=2)
    asked.complete()
    following = asked.end(producer, commit=False, version=2)
    assert following == (100, 1)
    asked.add(following, version=2)


@each_case("commit", [True, False])
@each_case("version", [1, 2])
def test_an_end_that_comes_again_has_the_same_answer(version: int, commit: bool) -> None:
    asked = Coordinator()
    producer = asked.init()
    asked.add(producer, version=version)
    following = asked.end(producer, commit=commit, version=version)
    for again in commit, not commit:
        with pytest.raises(ConcurrentTransactionsError):
            asked.end(producer, commit=again, version=version)
    asked.complete()
    count = len(asked.records)
    assert asked.end(producer, commit=commit, version=version) == following
    with pytest.raises((InvalidTransactionStateError, ProducerFencedError)):
        asked.end(producer, commit=not commit, version=version)
    assert len(asked.records) == count


@each_case("epoch", [0, EPOCH_MAX - 1])
@each_case("version", [1, 2])
def test_a_producer_that_goes_on_at_once_is_told_to_wait_and_not_fenced(version: int, epoch: int) -> None:
    """Whatever it asks for next: the answer to the end has named who it is from then on (KAFKA-18464)."""
    requests: list[Callable[[Coordinator, ProducerIdAndEpoch], object]] = [
        lambda asked, producer: asked.end(producer, commit=False, version=version),
        lambda asked, producer: asked.end(producer, version=version),
        lambda asked, producer: asked.add(producer, version=version),
        lambda asked, producer: asked.init(producer),
        lambda asked, _: asked.init(),
    ]
    for request, commit in product(requests, (True, False)):
        asked = at_epoch(epoch)
        asked.add(asked.producer, version=version)
        following = asked.end(asked.producer, commit=commit, version=version)
        with pytest.raises(ConcurrentTransactionsError):
            request(asked, following)
        asked.complete()
        try:
            request(asked, following)
        except InvalidTransactionStateError:
            assert request in requests[:2], "an end of nothing, and of what was ended otherwise"


def test_an_end_by_version_1_is_no_second_answer_to_one_by_version_2(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, version=2)
    following = asked.end(producer, version=2)
    asked.complete()
    for commit in True, False:
        with pytest.raises(ProducerFencedError):
            asked.end(producer, commit=commit)
    assert asked.end(following) == following
    with pytest.raises(InvalidTransactionStateError):
        asked.end(following, commit=False)


def test_there_is_nothing_to_commit_without_a_transaction(asked: Coordinator) -> None:
    producer = asked.init()
    for version in 1, 2:
        with pytest.raises(InvalidTransactionStateError):
            asked.end(producer, version=version)
    with pytest.raises(InvalidTransactionStateError):
        asked.end(producer, commit=False, version=1)


def test_by_version_2_an_empty_transaction_is_aborted_for_the_next_epoch(asked: Coordinator) -> None:
    producer = asked.init()
    following = asked.end(producer, commit=False, version=2)
    assert following == (100, 1)
    assert asked.endings[-1].partitions == {}
    asked.complete()
    assert asked.end(producer, commit=False, version=2) == following  # again
    assert asked.end(following, commit=False, version=2) == (100, 2)  # the next one


def test_a_producer_that_goes_on_at_the_last_epoch_gets_another_id_and_the_same_when_it_asks_again() -> None:
    asked = at_epoch(EPOCH_MAX - 1)
    last = ProducerIdAndEpoch(100, EPOCH_MAX - 1)
    assert asked.init(last) == (101, 0)
    assert asked.init(last) == (101, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_by_version_2_the_end_at_the_last_epoch_brings_another_producer_id(commit: bool) -> None:
    asked = at_epoch(EPOCH_MAX - 1)
    last = ProducerIdAndEpoch(100, EPOCH_MAX - 1)
    asked.add(last, version=2)
    following = asked.end(last, commit=commit, version=2)
    assert following == (101, 0)
    assert asked.endings[-1].producer == (100, EPOCH_MAX)
    asked.restart()
    asked.complete()
    assert asked.producer == following
    assert asked.end(last, commit=commit, version=2) == following  # again
    asked.add(following, version=2)


def test_the_abort_at_the_last_epoch_fences_and_the_next_producer_has_another_id() -> None:
    asked = at_epoch(EPOCH_MAX - 1)
    last = ProducerIdAndEpoch(100, EPOCH_MAX - 1)
    asked.add(last, version=2)
    asked.pass_ms(TIMEOUT_MS)
    assert asked.endings[-1].producer == (100, EPOCH_MAX)
    asked.complete()
    for epoch in EPOCH_MAX - 1, EPOCH_MAX:
        with pytest.raises(ProducerFencedError):
            asked.end(ProducerIdAndEpoch(100, epoch), commit=False, version=2)
        with pytest.raises(ProducerFencedError):
            asked.add(ProducerIdAndEpoch(100, epoch), version=2)
    assert asked.init().epoch == 0


def test_a_transaction_with_too_many_partitions_can_only_be_aborted(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, *[("orders", number) for number in range(PARTITIONS_MAX)])
    asked.add(producer, ("orders", 0))
    with pytest.raises(TransactionAbortableError):
        asked.add(producer, ("orders", PARTITIONS_MAX))
    asked.end(producer, commit=False)


# --- What could not be written ----------------------------------------------------------------------------------------


def test_a_decision_that_could_not_be_written_is_written_a_second_later(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer)
    asked.machine.end(producer, is_commit=True, version=1, new_id=None, now=asked.now)
    asked.fail()
    assert not asked.endings
    asked.pass_ms(RETRY_MS)
    assert asked.is_in(S.PREPARE_COMMIT)
    assert facts_of_last(asked).state is S.PREPARE_COMMIT
    assert len(asked.endings) == 1


def test_an_id_that_could_not_be_forgotten_is_forgotten_a_second_later(asked: Coordinator) -> None:
    asked.init()
    asked.machine.forget()
    asked.fail()
    asked.pass_ms(RETRY_MS)
    assert asked.records[-1].value is None


def test_a_partition_whose_addition_could_not_be_written_is_not_taken_for_added(asked: Coordinator) -> None:
    producer = asked.init()
    asked.machine.add_partitions(producer, [("orders", 0)], 2, asked.now)
    asked.fail()
    assert not asked.machine.has(producer, [("orders", 0)])
    assert not asked.expected
    asked.add(producer, ("orders", 0), version=2)  # writes it again
    assert asked.machine.has(producer, [("orders", 0)])
    assert facts_of_last(asked).partitions == {"orders": {0}}
    assert asked.expected


def test_an_ending_that_comes_twice_completes_one_transaction(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer)
    asked.end(producer)
    first = asked.endings[-1]
    asked.complete()
    asked.add(producer)
    asked.end(producer)
    assert not asked.machine.awaits(first)
    asked.machine.complete(first, asked.now)
    assert asked.is_in(S.PREPARE_COMMIT)
    asked.complete()
    assert asked.is_in(S.COMPLETE_COMMIT)


# --- After a start ----------------------------------------------------------------------------------------------------


def test_a_decided_end_is_carried_out_after_a_start(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer, ("orders", 0), ("items", 2))
    asked.end(producer)
    asked.endings.clear()
    asked.restart()
    [ending] = asked.endings
    assert (ending.producer, ending.is_commit) == (producer, True)
    assert ending.partitions == {"orders": {0}, "items": {2}}
    asked.complete()
    assert asked.is_in(S.COMPLETE_COMMIT)


def test_an_open_transaction_is_expected_after_a_start_and_times_out_when_it_would_have(asked: Coordinator) -> None:
    producer = asked.init()
    asked.add(producer)
    asked.pass_ms(TIMEOUT_MS - 10)
    asked.expected.clear()
    asked.restart()
    assert asked.expected[-1].partitions == {"orders": {0}}
    asked.pass_ms(9)
    assert asked.is_in(S.ONGOING)
    asked.pass_ms(1)
    assert asked.is_in(S.PREPARE_ABORT)


def test_a_clock_that_was_set_makes_no_transaction_longer_than_its_timeout(asked: Coordinator) -> None:
    asked.add(asked.init())
    asked.machine.facts = asked.machine.facts._replace(start_ms=WALL_MS + 10**9)
    asked.machine.restored(asked.now)
    assert asked.machine.deadline_ms == TIMEOUT_MS


# --- All of it --------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(("init", "init as", "add", "commit", "abort", "complete", "fail", "time", "restart")),
        st.integers(1, 2),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=examples(1_000))
@given(steps, st.sampled_from((0, EPOCH_MAX - 3)))
def test_records_hold_the_whole_state_and_no_epoch_is_given_twice(
    history: list[tuple[str, int, int]], epoch: int
) -> None:
    """Whatever is asked in whatever order: a record has all that a restart needs, and no two are told the same.

    The producer that was told last is fenced only where another one has asked to begin, or its time was over.
    """
    asked = at_epoch(epoch)
    told = [asked.producer]  # identities that clients were told, the newest last
    is_replaced = False
    for what, version, number in history:
        known = told[-1 - number % len(told)]
        is_newest = known == told[-1] and not is_replaced
        try:
            match what:
                case "init":
                    if asked.is_in(S.ONGOING):
                        is_replaced = asked.init_aborts()
                    else:
                        producer = asked.init()
                        assert producer not in told
                        told.append(producer)
                        is_replaced = False
                case "init as":
                    if not asked.is_in(S.ONGOING):
                        told.append(asked.init(known))
                        is_replaced = False
                case "add":
                    asked.add(known, ("orders", number), version=version)
                    assert known == asked.producer
                case "commit" | "abort":
                    following = asked.end(known, commit=what == "commit", version=version)
                    told.append(following)
                case "complete":
                    if asked.endings:
                        asked.complete()
                case "fail":
                    asked.machine.write_failed(asked.now)
                case "time":
                    was_open = asked.is_in(S.ONGOING)
                    asked.pass_ms(TIMEOUT_MS // 2)
                    is_replaced |= was_open and not asked.is_in(S.ONGOING)
                case "restart":
                    asked.restart()
        except SeglogError as error:
            if is_newest and isinstance(error, ProducerFencedError | InvalidProducerIdMappingError):
                raise AssertionError(f"{known} is fenced by {what}") from error
            asked.settle()
        facts = asked.machine.facts
        assert facts.epoch <= EPOCH_MAX
        assert all(producer.epoch < EPOCH_MAX for producer in told)
        if asked.records:
            assert facts_of_last(asked) == facts


def facts_of_last(asked: Coordinator) -> TransactionFacts:
    """What the last durable record says, by way of its bytes."""
    key, value = finished(encode_record(asked.records[-1]))
    record = finished(decode_record(KINDS, key, value, {}))
    assert isinstance(record.value, TransactionLogValue)
    assert record.key == TransactionLogKey(transactional_id=KEY)
    return facts_of(record.value)
