"""Transactions, served: what partitions take, what a restart or a power cut leaves, a full disk, and floods."""

import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import TransactionState
from seglog_broker.coordinators.transactions.machine import ID_BYTES
from seglog_broker.coordinators.transactions.service.markers import MARKER_COST, MARKERS_A_ROUND
from seglog_broker.coordinators.transactions.service.service import ENDED_SECONDS, TransactionFilter
from seglog_broker.runtime import budget
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC
from seglog_protocol.messages import DeleteTopicRequest
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.transactions.service.running import (
    KEY,
    TOPIC,
    add,
    append,
    begun,
    coordinating,
    end,
    ended,
    ends,
    until,
    with_orders,
)

S = TransactionState
NOBODY = ProducerIdAndEpoch(7, 0)


@each_case("version", [1, 2])
@each_case("commit", [True, False])
async def test_records_of_a_transaction_are_stable_when_it_has_ended(version: int, commit: bool) -> None:
    async with coordinating(ForgetfulFileSystem()) as broker:
        await with_orders(broker)
        producer = await begun(broker, 0, 1, version=version)
        for partition in 0, 1:
            appended = await append(broker, producer, b"v", b"w", partition=partition)
            assert appended.error is None
            assert ends(broker, partition) == (2, 0)
        following = await end(broker, producer, commit=commit, version=version)
        assert await ended(broker) is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
        for partition in 0, 1:
            assert ends(broker, partition) == (3, 3)
        late = await append(broker, producer, b"x", sequence=2)
        assert isinstance(late.error, errors.InvalidTransactionStateError | errors.InvalidProducerEpochError)
        await add(broker, following, version=version)
        assert (await append(broker, following, b"x", sequence=2 * (version == 1))).error is None


async def test_a_partition_takes_no_batch_before_it_is_part_of_the_transaction(broker: Broker) -> None:
    producer = await begun(broker, 0)
    assert isinstance((await append(broker, producer, b"v", partition=1)).error, errors.InvalidTransactionStateError)
    assert not broker.transactions.has_partitions(KEY, producer, [(TOPIC, 1)])
    await add(broker, producer, 1)
    assert broker.transactions.has_partitions(KEY, producer, [(TOPIC, 0), (TOPIC, 1)])
    assert (await append(broker, producer, b"v", partition=1)).error is None


async def test_a_marker_that_cannot_be_written_is_written_when_it_can(fs: ForgetfulFileSystem, broker: Broker) -> None:
    producer = await begun(broker, 0, 1)
    for partition in 0, 1:
        await append(broker, producer, b"v", partition=partition)
    fs.inject(Fault("pwritev", f"{TOPIC}-1/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
    await end(broker, producer)
    await trio.sleep(20)
    assert broker.transactions.describe(KEY).facts.state is S.PREPARE_COMMIT
    assert broker.transactions.describe(KEY).held_up
    assert ends(broker, 0) == (2, 2)  # others do not wait
    assert ends(broker, 1) == (1, 0)
    with pytest.raises(errors.ConcurrentTransactionsError):
        await add(broker, producer)
    fs.heal()
    assert await ended(broker) is S.COMPLETE_COMMIT
    assert ends(broker, 1) == (2, 2)


async def test_a_marker_among_offsets_waits_until_groups_are_loaded_and_no_other_marker_does(
    fs: ForgetfulFileSystem,
) -> None:
    async with coordinating(fs, closes=False) as broker:
        await with_orders(broker)
        other = await begun(broker, 1, key="other")
        producer = await begun(broker, 0)
        await broker.transactions.add_offsets(KEY, producer, "readers", version=1)
        offsets = OFFSETS_TOPIC, broker.groups.partition_of("readers")
        for partition in 0, 1:
            path = f"{TOPIC}-{partition}/00000000000000000000.log"
            fs.inject(Fault("pwritev", path, error=errno.ENOSPC, sticky=True))
        await end(broker, producer)
        await end(broker, other, key="other")
    fs.heal()
    fs = fs.crash(POWER_LOSS)
    broker = open_broker(fs, ManualClock(NOW))
    end_offset = broker.partitions.partition(*offsets).log.log_end_offset
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.transactions.run)
        await until(lambda: broker.transactions.open.ended["committed"] == 1)
        assert broker.transactions.open.ids == [KEY]
        await until(lambda: broker.transactions.markers.all_held_up() != [])
        [(_, left, error)] = broker.transactions.markers.all_held_up()
        assert (left, type(error)) == (1, errors.CoordinatorLoadingError)
        assert broker.partitions.partition(*offsets).log.log_end_offset == end_offset
        nursery.start_soon(broker.groups.run)
        assert await ended(broker) is S.COMPLETE_COMMIT
        nursery.cancel_scope.cancel()
    broker.close()


async def test_a_deleted_topic_holds_up_no_end(broker: Broker) -> None:
    producer = await begun(broker, 0, 1)
    await append(broker, producer, b"v")
    await broker.delete_topic(DeleteTopicRequest(TOPIC))
    await end(broker, producer)
    assert await ended(broker) is S.COMPLETE_COMMIT


async def test_a_bug_of_groups_ends_no_transaction_too_early_and_not_the_broker(broker: Broker) -> None:
    producer = await broker.transactions.init_producer(KEY, 60_000)
    await broker.transactions.add_offsets(KEY, producer, "readers", version=1)
    told = broker.groups.end_transaction

    async def fail(partition: int, producer_id: int, *, is_commit: bool) -> None:
        raise ZeroDivisionError(partition, producer_id, is_commit)

    broker.groups.end_transaction = fail  # type: ignore[method-assign]
    await end(broker, producer)
    await trio.sleep(5)
    assert broker.transactions.describe(KEY).facts.state is S.PREPARE_COMMIT
    broker.groups.end_transaction = told  # type: ignore[method-assign]
    assert await ended(broker) is S.COMPLETE_COMMIT


async def test_an_operator_aborts_what_is_open(broker: Broker) -> None:
    with pytest.raises(errors.UnknownTransactionalIdError):
        await broker.transactions.abort(KEY)
    producer = await begun(broker, 0)
    await append(broker, producer, b"v")
    await broker.transactions.abort(KEY)
    assert await ended(broker) is S.COMPLETE_ABORT
    assert ends(broker) == (2, 2)
    with pytest.raises(errors.InvalidTransactionStateError):
        await broker.transactions.abort(KEY)


@pytest.mark.parametrize("producer", [(-1, 0), (7, -1)])
async def test_an_operators_marker_is_of_a_producer_or_refused(producer: tuple[int, int], broker: Broker) -> None:
    failed = await broker.transactions.markers.write(TransactionEnd(*producer, 0, False, 1), [(TOPIC, 0)])
    assert isinstance(failed[TOPIC, 0], errors.InvalidRequestError)
    assert ends(broker) == (0, 0)
    failed = await broker.transactions.markers.write(TransactionEnd(7, 0, 0, False, 1), [(TOPIC, 0), ("lost", 0)])
    assert list(failed) == [("lost", 0)]
    assert ends(broker) == (1, 1)


async def test_transactions_are_listed_by_state_producer_and_age() -> None:
    clock = ManualClock(NOW)
    async with coordinating(ForgetfulFileSystem(), clock=clock) as broker:
        await with_orders(broker)
        first = await begun(broker, 0, key="a")
        await broker.transactions.init_producer("b", 60_000)
        clock.now += 10_000

        async def found(wanted: TransactionFilter) -> list[str]:
            return [each.transactional_id for each in await broker.transactions.list_all(wanted)]

        assert await found(TransactionFilter()) == ["a", "b"]
        assert await found(TransactionFilter([S.ONGOING])) == ["a"]
        assert await found(TransactionFilter(producer_ids=[first.producer_id + 1])) == ["b"]
        assert await found(TransactionFilter([S.ONGOING], duration_ms_min=9_999)) == ["a"]
        assert await found(TransactionFilter([S.ONGOING], duration_ms_min=10_000)) == []


async def test_while_a_snapshot_is_made_nothing_is_committed_and_all_else_goes_on(broker: Broker) -> None:
    producer, other = await begun(broker, 0), await begun(broker, 1, key="other")
    for each, partition in (producer, 0), (other, 1):
        await append(broker, each, b"v", partition=partition)
    async with broker.transactions.commits_held():
        with pytest.raises(errors.ConcurrentTransactionsError, match="snapshot"):
            await end(broker, producer)
        assert broker.transactions.describe(KEY).facts.state is S.ONGOING
        assert (await append(broker, producer, b"w", sequence=1)).error is None
        await end(broker, other, commit=False, key="other")
        await trio.sleep(10)
        assert broker.transactions.describe("other").facts.state is S.PREPARE_ABORT
        assert ends(broker, 1) == (1, 0), "no marker is written"
    await end(broker, producer)
    assert await ended(broker) is S.COMPLETE_COMMIT
    assert await ended(broker, "other") is S.COMPLETE_ABORT
    assert (ends(broker, 0), ends(broker, 1)) == ((3, 3), (2, 2))


async def test_a_commit_that_comes_while_a_snapshot_is_made_is_decided_after_it(broker: Broker) -> None:
    producer = await begun(broker, 0)
    async with trio.open_nursery() as nursery, broker.transactions.commits_held():
        nursery.start_soon(end, broker, producer)
        await trio.sleep(ENDED_SECONDS / 2)
        assert broker.transactions.describe(KEY).facts.state is S.ONGOING
    assert await ended(broker) is S.COMPLETE_COMMIT


# --- Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_ids_that_come_once_are_forgotten_when_memory_is_short() -> None:
    """Ten thousand ids that come once take no more than the limit, and none that is in use is forgotten."""
    async with coordinating(ForgetfulFileSystem(), "seglog.transactions.memory.bytes=2097152") as broker:
        await with_orders(broker)
        producer = await begun(broker, 0, timeout_ms=600_000)
        most = 0
        for number in range(10_000):
            while True:
                try:
                    await broker.transactions.init_producer(f"once-{number}", 60_000)
                    break
                except errors.CoordinatorNotAvailableError:
                    await trio.sleep(1)
            most = max(most, broker.transactions.memory.used)
        assert most <= 2_097_152
        assert broker.transactions.memory.used > 2_097_152 // 2
        assert broker.transactions.describe(KEY).facts.producer == producer
        assert broker.transactions.describe("once-9999")
        with pytest.raises(errors.UnknownTransactionalIdError):
            broker.transactions.describe("once-0")


async def test_open_transactions_fill_the_memory_and_one_more_is_refused() -> None:
    """Those that are open are not forgotten: a client that begins and never ends is refused in the end."""
    async with coordinating(ForgetfulFileSystem(), "seglog.transactions.memory.bytes=1048576") as broker:
        await with_orders(broker)

        async def flood() -> None:
            for number in range(1_048_576 // ID_BYTES + 1):
                # One that has not begun yet may be forgotten when memory is nearly short.
                while True:
                    with suppress(errors.InvalidProducerIdMappingError):
                        await begun(broker, 0, key=f"open-{number}")
                        break

        with pytest.raises(errors.CoordinatorNotAvailableError, match=r"seglog\.transactions\.memory\.bytes"):
            await flood()
        assert broker.transactions.memory.used <= 1_048_576


@pytest.mark.soak
async def test_very_many_markers_are_written_in_rounds_and_turns() -> None:
    """An end of a transaction with 2,500 partitions holds up nobody, and is complete when all have their marker."""
    count = 2_500
    async with coordinating(ForgetfulFileSystem(), "seglog.handles.max=3000") as broker:
        await with_orders(broker, count)
        producer = await begun(broker, *range(count))
        await end(broker, producer)
        ended_at_once: list[int] = []
        while not ended_at_once or ended_at_once[-1] < count:
            await trio.lowlevel.checkpoint()
            marked = sum(ends(broker, number)[0] for number in range(count))
            if not ended_at_once or marked != ended_at_once[-1]:
                ended_at_once.append(marked)
        steps = [after - before for before, after in pairwise([0, *ended_at_once])]
        assert max(steps) <= budget.items_of(MARKER_COST) + 1
        assert count > MARKERS_A_ROUND
        assert await ended(broker) is S.COMPLETE_COMMIT


async def test_an_id_that_nobody_uses_is_forgotten_and_begins_anew() -> None:
    clock = ManualClock(NOW)
    fs = ForgetfulFileSystem()
    async with coordinating(fs, "transactional.id.expiration.ms=1000", clock=clock, closes=False) as broker:
        await with_orders(broker)
        idle = await broker.transactions.init_producer("idle", 60_000)
        used = await begun(broker, 0, key="used")
        broker.clock_trust.now_ms = lambda: NOW + 2_000  # type: ignore[method-assign]
        await broker.transactions.expiry.sweep()
        with pytest.raises(errors.InvalidProducerIdMappingError):
            await add(broker, idle, key="idle")
        assert broker.transactions.describe("used").facts.producer == used
    async with coordinating(fs.crash(POWER_LOSS)) as broker:
        with pytest.raises(errors.UnknownTransactionalIdError):
            broker.transactions.describe("idle")
        assert (await broker.transactions.init_producer("idle", 60_000)).producer_id > idle.producer_id


@each_case(
    ("call", "error"),
    [
        (lambda ids: ids.init_producer("", 60_000), errors.InvalidRequestError),
        (lambda ids: ids.init_producer("n" * 32_768, 60_000), errors.InvalidRequestError),
        *(
            (lambda ids, ms=ms: ids.init_producer(KEY, ms), errors.InvalidTransactionTimeoutError)
            for ms in (0, -1, 900_001)
        ),
        (lambda ids: ids.add_partitions(KEY, NOBODY, [(TOPIC, 0)], version=1), errors.InvalidProducerIdMappingError),
        (lambda ids: ids.end(KEY, NOBODY, is_commit=True, version=1), errors.InvalidProducerIdMappingError),
    ],
)
async def test_bad_requests_are_typed_errors(
    call: Callable[[object], Awaitable[object]], error: type[errors.SeglogError], broker: Broker
) -> None:
    with pytest.raises(error):
        await call(broker.transactions)
