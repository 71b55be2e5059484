"""Transactions as conversations: what the broker is asked for, and what is told of an end that it did not answer."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from seglog.core.connection import Reply
from seglog.core.conversations import Ask, Conversation, converse
from seglog.core.transaction_admin import abort_transaction, describe_transaction, list_transactions
from seglog.core.transactions import PARTITIONS_A_REQUEST, OpenTransaction, TransactionCore
from seglog_protocol.errors import (
    AuthenticationError,
    ClientClosedError,
    ClientError,
    ClientTimeoutError,
    ConcurrentTransactionsError,
    ConnectionLostError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    SeglogError,
    TransactionAborted,
    TransactionFenced,
    TransactionUnanswered,
    UnknownTopicError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from seglog_protocol.messages import (
    EndTransactionReply,
    EndTransactionRequest,
    ExtendTransactionReply,
    ExtendTransactionRequest,
    InitProducerReply,
    InitProducerRequest,
    reply_header,
)
from tests.support import each_case


class Coordinator:
    """Answers every question; ``fail`` may raise instead, after the question was noted in ``ends``."""

    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.fail: Callable[[], None] = lambda: None

    def run(self, conversation: Conversation[Any]) -> Any:
        return converse(conversation, self._answer, lambda _: None)

    def _answer(self, question: Ask) -> Reply:
        request = question.request
        if isinstance(request, InitProducerRequest):
            return _reply(InitProducerReply(7, 0))
        if isinstance(request, ExtendTransactionRequest):
            return _reply(ExtendTransactionReply())
        assert isinstance(request, EndTransactionRequest)
        self.ends.append(request.commit)
        self.fail()
        return _reply(EndTransactionReply(7, len(self.ends)))


def _reply(message: Any) -> Reply:
    return Reply(1, reply_header(1, message), memoryview(b""))


def fails_with(error: SeglogError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def opened(coordinator: Coordinator) -> TransactionCore:
    core = TransactionCore("app", 60)
    coordinator.run(core.beginning())
    coordinator.run(core.extending(core.open, "t", [0]))
    return core


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def core(coordinator: Coordinator) -> TransactionCore:
    return opened(coordinator)


def test_an_end_is_asked_for_once_and_the_other_end_is_refused_after_it() -> None:
    for is_commit in (True, False):
        coordinator = Coordinator()
        core = opened(coordinator)
        coordinator.run(core.ending(is_commit=is_commit))
        coordinator.run(core.ending(is_commit=is_commit))
        with pytest.raises(ClientError, match=f"the last one was {'committed' if is_commit else 'aborted'}"):
            coordinator.run(core.ending(is_commit=not is_commit))
        assert coordinator.ends == [is_commit]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_without_anything_in_it_has_an_end_as_well(coordinator: Coordinator, is_commit: bool) -> None:
    core = TransactionCore("app", 60)
    with pytest.raises(ClientError, match="no transaction of app is open"):
        coordinator.run(core.ending(is_commit=is_commit))
    coordinator.run(core.beginning())
    coordinator.run(core.ending(is_commit=is_commit))
    with pytest.raises(ClientError, match="the last one was"):
        coordinator.run(core.ending(is_commit=not is_commit))
    assert coordinator.ends == []


@pytest.mark.parametrize(
    "cause", [ClientTimeoutError("late"), ClientClosedError("closed"), AuthenticationError("gone")], ids=str
)
def test_a_commit_that_was_not_answered_is_not_told_to_be_aborted(coordinator: Coordinator, cause: SeglogError) -> None:
    core = opened(coordinator)
    coordinator.fail = fails_with(cause)
    with pytest.raises(TransactionUnanswered, match=r"call commit\(\) again"):
        coordinator.run(core.ending(is_commit=True))
    with pytest.raises(ClientError, match=r"cannot be aborted: call commit\(\) again"):
        coordinator.run(core.ending(is_commit=False))
    with pytest.raises(ClientError, match=r"call commit\(\) before the next one"):
        coordinator.run(core.beginning())
    coordinator.fail = lambda: None
    coordinator.run(core.ending(is_commit=True))
    coordinator.run(core.beginning())
    assert coordinator.ends == [True, True]


def test_an_abort_that_was_not_answered_is_asked_for_again(coordinator: Coordinator, core: TransactionCore) -> None:
    coordinator.fail = fails_with(ClientTimeoutError("late"))
    with pytest.raises(TransactionUnanswered, match=r"call abort\(\) again"):
        coordinator.run(core.ending(is_commit=False))
    with pytest.raises(ClientError, match="was to be aborted"):
        coordinator.run(core.ending(is_commit=True))
    coordinator.fail = lambda: None
    coordinator.run(core.ending(is_commit=False))
    coordinator.run(core.beginning())
    assert coordinator.ends == [False, False]
    assert core.is_open


def fenced(coordinator: Coordinator, core: TransactionCore) -> str:
    with pytest.raises(TransactionFenced, match=r"take the id back by a new client\.transaction\(\)") as told:
        coordinator.run(core.ending(is_commit=True))
    return told.value.message


def test_a_producer_that_is_fenced_at_its_first_commit_knows_that_nothing_counts(coordinator: Coordinator) -> None:
    core = opened(coordinator)
    coordinator.fail = fails_with(InvalidProducerEpochError("epoch 1 is current"))
    assert "nothing of what was open counts" in fenced(coordinator, core)


@pytest.mark.parametrize(
    "cause", [ClientTimeoutError("late"), ConnectionLostError("reset"), ConcurrentTransactionsError("busy")], ids=str
)
def test_a_producer_that_is_fenced_at_a_repeated_commit_does_not_know_whether_the_first_counts(
    cause: SeglogError,
) -> None:
    coordinator = Coordinator()
    core = opened(coordinator)

    def fail_once() -> None:
        coordinator.fail = fails_with(InvalidProducerEpochError("epoch 1 is current"))
        raise cause

    coordinator.fail = fail_once
    if not cause.retriable:
        with pytest.raises(TransactionUnanswered):
            coordinator.run(core.ending(is_commit=True))
    assert "whether the commit that was not answered counts, is seen in what was written" in fenced(coordinator, core)
    assert len(coordinator.ends) == 2


def test_an_abort_that_meets_a_newer_producer_counts_for_nothing_however_often_it_is_asked_for() -> None:
    coordinator = Coordinator()
    core = opened(coordinator)

    def fail_once() -> None:
        coordinator.fail = fails_with(InvalidProducerEpochError("epoch 1 is current"))
        raise ConnectionLostError("reset")

    coordinator.fail = fail_once
    with pytest.raises(TransactionFenced, match="nothing of what was open counts"):
        coordinator.run(core.ending(is_commit=False))


def test_a_client_that_is_closed_aborts_by_one_request_what_nobody_has_begun_to_commit() -> None:
    coordinator = Coordinator()
    core = opened(coordinator)
    assert core.is_to_leave
    coordinator.run(core.leaving())
    assert coordinator.ends == [False]
    assert not core.is_to_leave
    with pytest.raises(ClientError, match="the last one was aborted"):
        coordinator.run(core.ending(is_commit=True))

    core = opened(coordinator)
    coordinator.fail = fails_with(ClientTimeoutError("late"))
    with pytest.raises(TransactionUnanswered):
        coordinator.run(core.ending(is_commit=True))
    assert not core.is_to_leave
    assert not TransactionCore("app", 60).is_to_leave


def test_an_id_that_no_broker_takes_is_refused_before_it_is_sent() -> None:
    TransactionCore("é" * 16_383, 60)
    wrongs: list[Any] = ["", None, 7]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="transactional id"):
            TransactionCore(wrong, 60)
    with pytest.raises(ValueError, match="at most 32,767 bytes of UTF-8, not 32,768"):
        TransactionCore("é" * 16_384, 60)


@pytest.mark.parametrize("ask", [list_transactions, lambda: describe_transaction("a"), lambda: abort_transaction("a")])
def test_questions_about_transactions_to_a_broker_without_them_are_answered_by_a_sentence(
    ask: Callable[[], Conversation[Any]],
) -> None:
    asking = ask()
    next(asking)
    refusal = UnsupportedApiError("no api transactions; there are append, fetch", api="transactions")
    with pytest.raises(UnsupportedApiError, match=r"^the broker has no transactions, .* give it a newer version"):
        asking.throw(refusal)


def test_a_commit_that_is_refused_has_aborted(coordinator: Coordinator, core: TransactionCore) -> None:
    coordinator.fail = fails_with(InvalidTransactionStateError("no"))
    with pytest.raises(TransactionAborted, match="nothing of it counts"):
        coordinator.run(core.ending(is_commit=True))
    coordinator.run(core.ending(is_commit=False))
    with pytest.raises(ClientError, match="the last one was aborted"):
        coordinator.run(core.ending(is_commit=True))


def test_nobody_begins_a_transaction_while_another_one_is_begun(coordinator: Coordinator) -> None:
    core = TransactionCore("app", 60)
    first = core.beginning()
    next(first)
    with pytest.raises(ClientError, match="one at a time"):
        coordinator.run(core.beginning())
    first.close()  # as one that is cancelled
    coordinator.run(core.beginning())


def test_a_partition_is_part_of_it_only_when_the_broker_has_said_so(coordinator: Coordinator) -> None:
    """Else another thread sends meanwhile, and the broker refuses its batch."""
    core = TransactionCore("app", 60)
    coordinator.run(core.beginning())
    extending = core.extending(core.open, "t", [0])
    next(extending)
    assert ("t", 0) not in core.open.partitions
    extending.close()  # as one that is cancelled
    assert ("t", 0) not in core.open.partitions
    coordinator.run(core.extending(core.open, "t", [0]))
    assert ("t", 0) in core.open.partitions


def partitions_of(question: Ask) -> list[tuple[str, int]]:
    assert isinstance(question.request, ExtendTransactionRequest)
    return [(each.topic, each.partition) for each in question.request.partitions]


def test_partitions_that_wait_while_others_are_asked_for_share_the_next_request() -> None:
    core = opened(Coordinator())
    first = core.extending(core.open, "t", [1])
    assert partitions_of(next(first)) == [("t", 1)]
    for topic, partition in (("t", 2), ("u", 0), ("t", 0), ("t", 1)):  # by threads that wait for their turn
        core.open.wanted.append((topic, partition))
    with pytest.raises(StopIteration):
        first.send(_reply(ExtendTransactionReply()))
    second = core.extending(core.open, "u", [0])
    assert partitions_of(next(second)) == [("t", 2), ("u", 0)], "not those that are part of it already"
    with pytest.raises(StopIteration):
        second.send(_reply(ExtendTransactionReply()))
    assert list(core.extending(core.open, "t", [2, 0, 1])) == [], "nothing is left to ask for"


def test_partitions_whose_request_failed_with_that_of_another_are_asked_for_again() -> None:
    core = opened(Coordinator())
    core.open.wanted.append(("t", 2))
    first = core.extending(core.open, "gone", [0])
    assert partitions_of(next(first)) == [("gone", 0), ("t", 2)]
    with pytest.raises(UnknownTopicError):
        first.throw(UnknownTopicError("gone"))
    assert partitions_of(next(core.extending(core.open, "t", [2]))) == [("t", 2)]


def test_more_partitions_than_a_header_holds_are_asked_for_by_several_requests() -> None:
    core = opened(Coordinator())
    extending = core.extending(core.open, "t" * 249, range(2 * PARTITIONS_A_REQUEST + 1))
    sizes = [len(partitions_of(next(extending)))]
    with suppress(StopIteration):
        while True:
            sizes.append(len(partitions_of(extending.send(_reply(ExtendTransactionReply())))))
    assert sizes == [PARTITIONS_A_REQUEST, PARTITIONS_A_REQUEST, 1]


def test_partitions_of_a_transaction_that_has_ended_are_not_those_of_the_next_one(coordinator: Coordinator) -> None:
    core = opened(coordinator)
    late = core.extending(core.open, "t", [1])
    next(late)
    core.open.wanted.append(("t", 2))
    coordinator.run(core.ending(is_commit=False))
    coordinator.run(core.beginning())
    with pytest.raises(StopIteration):
        late.send(_reply(ExtendTransactionReply()))
    assert ("t", 1) not in core.open.partitions
    assert partitions_of(next(core.extending(core.open, "t", [3]))) == [("t", 3)]


Late = Callable[[TransactionCore, OpenTransaction], Conversation[None]]

EACH_CALL = pytest.mark.parametrize(
    "call",
    [
        lambda core, transaction: core.extending(transaction, "t", [1]),
        lambda core, transaction: core.committing_offsets(transaction, "g", "t", {"": {0: 1}}, None, None),
    ],
    ids=["extending", "committing_offsets"],
)


@EACH_CALL
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_call_of_a_transaction_that_has_ended_is_part_of_none(call: Late, is_commit: bool) -> None:
    """It waited for something else meanwhile. Nothing had begun at the broker, so the epoch is the same."""
    coordinator = Coordinator()
    core = TransactionCore("app", 60)
    first = coordinator.run(core.beginning())
    coordinator.run(core.ending(is_commit=is_commit))
    assert coordinator.run(core.beginning()).epoch == first.epoch
    with pytest.raises(ClientError, match="has ended meanwhile"):
        next(call(core, first))
    assert partitions_of(next(core.extending(core.open, "t", [2]))) == [("t", 2)]


@EACH_CALL
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_call_that_waits_to_be_repeated_makes_its_transaction_end_at_the_broker(call: Late, is_commit: bool) -> None:
    coordinator = Coordinator()
    core = TransactionCore("app", 60)
    late = call(core, coordinator.run(core.beginning()))
    next(late)
    late.throw(ConcurrentTransactionsError("app"))  # it is to be asked again after a pause
    coordinator.run(core.ending(is_commit=is_commit))
    assert coordinator.ends == [is_commit]
    with pytest.raises(ClientError, match="has ended meanwhile"):
        late.throw(ConcurrentTransactionsError("app"))


def test_an_abort_that_was_begun_and_interrupted_is_followed_by_no_commit(coordinator: Coordinator) -> None:
    core = opened(coordinator)
    assert core.begin_end(is_commit=False)
    with pytest.raises(ClientError, match=r"was to be aborted: call abort\(\) again"):
        coordinator.run(core.ending(is_commit=True))
    with pytest.raises(ClientError, match=r"was to be aborted: call abort\(\) again"):
        coordinator.run(core.beginning())
    assert core.is_to_be_aborted
    coordinator.run(core.ending(is_commit=False))
    assert coordinator.ends == [False]
    coordinator.run(core.beginning())


def test_a_commit_takes_nothing_more_and_sends_what_it_has(coordinator: Coordinator, core: TransactionCore) -> None:
    transaction = core.open
    assert core.begin_end(is_commit=True)
    with pytest.raises(ClientError, match="has ended meanwhile"):
        transaction.check()
    coordinator.run(core.extending(transaction, "t", [1]))  # for a batch that was there before
    coordinator.run(core.ending(is_commit=True))
    assert coordinator.ends == [True]


@EACH_CALL
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_call_that_comes_while_the_end_is_asked_for_is_part_of_none(call: Late, is_commit: bool) -> None:
    coordinator = Coordinator()
    core = opened(coordinator)
    transaction = core.open
    next(core.ending(is_commit=is_commit))
    with pytest.raises(ClientError, match="has ended meanwhile"):
        next(call(core, transaction))
    with pytest.raises(ClientError, match=r"call (commit|abort)\(\)"):
        _ = core.open


@EACH_CALL
def test_a_call_whose_transaction_has_ended_meanwhile_does_not_fence_its_own_producer(call: Late) -> None:
    coordinator = Coordinator()
    core = opened(coordinator)
    late = call(core, core.open)  # as by another thread
    next(late)
    coordinator.run(core.ending(is_commit=True))
    with pytest.raises(ClientError, match="has ended meanwhile"):
        late.throw(InvalidProducerEpochError("epoch 1 is current"))
    coordinator.run(core.beginning())


def test_what_may_have_begun_without_an_answer_is_aborted(coordinator: Coordinator) -> None:
    core = TransactionCore("app", 60)
    coordinator.run(core.beginning())
    extending = core.extending(core.open, "t", [0])
    next(extending)
    extending.close()
    coordinator.run(core.ending(is_commit=False))
    assert coordinator.ends == [False]


def test_a_wait_for_the_broker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    refusals = iter([ConcurrentTransactionsError("the one before ends still; try again")] * 20)

    def refuse() -> None:
        for error in refusals:
            raise error

    coordinator = Coordinator()
    core = opened(coordinator)
    coordinator.fail = refuse
    coordinator.run(core.ending(is_commit=True))
    first, *_, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("waiting for")
    assert "the one before ends still" in first
    assert last.startswith("the wait is over after")


@each_case("timeout", [0, -1, float("nan"), float("inf"), 1e30, "5", None])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"^timeout is a number of seconds"):
        TransactionCore("app", timeout)


def test_a_broker_without_transactions_is_told_as_that() -> None:
    """Its versions of the request, of which this is not one, are no news to whoever asks for a transaction."""
    beginning = TransactionCore("my-id", 60.0).beginning()
    assert isinstance(next(beginning).request, InitProducerRequest)
    refusal = UnsupportedVersionError("init_producer is spoken in versions 1 to 1, not 2", api="init_producer")
    with pytest.raises(UnsupportedApiError, match=r"no transactions, .* give it a newer version") as told:
        beginning.throw(refusal)
    assert told.value.__cause__ is refusal


def test_a_timeout_above_the_brokers_maximum_is_told_as_the_broker_says_it() -> None:
    beginning = TransactionCore("my-id", 60.0).beginning()
    next(beginning)
    refusal = InvalidTransactionTimeoutError("a transaction may take 1 to 1,000 ms", limit=1_000)
    with pytest.raises(InvalidTransactionTimeoutError) as told:
        beginning.throw(refusal)
    assert told.value is refusal
