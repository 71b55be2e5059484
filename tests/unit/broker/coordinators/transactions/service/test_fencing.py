"""Producers that live on while their broker is restored to an earlier moment: none goes on where it was."""

import errno

import pytest

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.storage.directory.identity import is_behind, mark_behind
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from tests.support import each_case
from tests.unit.broker.coordinators.transactions.service import running
from tests.unit.broker.coordinators.transactions.service.running import KEY, add, append, coordinating, end, ends


def restored(fs: ForgetfulFileSystem) -> ForgetfulFileSystem:
    """What was durable is a moment that clients have gone on from."""
    fs.heal()
    fs = fs.crash(POWER_LOSS)
    mark_behind(fs, "/data")
    return fs


def full(fs: ForgetfulFileSystem, partition: str) -> None:
    fs.inject(Fault("pwritev", f"{partition}/00000000000000000000.log", error=errno.ENOSPC, sticky=True))


@each_case("version", [1, 2])
@each_case("ends_before", [False, True])
async def test_after_a_restore_nobody_goes_on_with_a_transactional_id(version: int, ends_before: bool) -> None:
    """By version 1 a commit cannot be told from the last one: one that took it for aborted would do its work twice."""
    fs = ForgetfulFileSystem()
    async with coordinating(fs, closes=False) as broker:
        await running.with_orders(broker)
        producer = await running.begun(broker, 0, version=version)
        await append(broker, producer, b"v")
        if ends_before:
            await end(broker, producer, version=version)
            await running.ended(broker)
    fs = restored(fs)
    async with coordinating(fs) as broker:
        assert ends(broker) == (2, 2)
        assert broker.transactions.open.ended["aborted"] == (not ends_before)
        assert not is_behind(fs, "/data")
        unknown = pytest.raises(errors.InvalidProducerIdMappingError)
        for known in [producer._replace(epoch=producer.epoch + later) for later in range(3)]:
            with pytest.raises(errors.ProducerFencedError, match="restored") if ends_before else unknown:
                await end(broker, known, version=version)
            with unknown:
                await end(broker, known, commit=False, version=version)
            with unknown:
                await add(broker, known, version=version)
            with unknown:
                broker.transactions.check_producer(KEY, known)
            refused = (await append(broker, known, b"late", sequence=1)).error
            assert isinstance(refused, errors.InvalidTransactionStateError | errors.InvalidProducerEpochError)
        with unknown:
            await add(broker, ProducerIdAndEpoch(-1, -1), version=version)
        following = await broker.transactions.init_producer(KEY, 60_000, producer)
        assert following.producer_id > producer.producer_id


async def test_what_a_restore_finds_decided_is_completed_before_its_producer_is_answered() -> None:
    """Until the marker is there, a batch of the next transaction could be taken for part of the one that commits."""
    fs = ForgetfulFileSystem()
    async with coordinating(fs, closes=False) as broker:
        await running.with_orders(broker)
        producer = await running.begun(broker, 0)
        await append(broker, producer, b"v")
        full(fs, "orders-0")
        await end(broker, producer)
    fs = restored(fs)
    full(fs, "orders-0")
    async with coordinating(fs, closes=False) as broker:
        with pytest.raises(errors.CoordinatorLoadingError):
            await add(broker, producer)
    fs.heal()
    fs = fs.crash(POWER_LOSS)  # which this start has not finished, and the next one does
    async with coordinating(fs) as broker:
        await running.until(lambda: not is_behind(fs, "/data"))
        assert (ends(broker), broker.transactions.open.ended["committed"]) == ((2, 2), 1)
        with pytest.raises(errors.InvalidProducerIdMappingError):
            await add(broker, producer)


async def test_ids_are_fenced_until_that_is_durable_and_not_again() -> None:
    fs = ForgetfulFileSystem()
    async with coordinating(fs, closes=False) as broker:
        await broker.transactions.init_producer(KEY, 60_000)
    fs = restored(fs)
    full(fs, "__transaction_state-0")
    async with coordinating(fs, closes=False):
        assert is_behind(fs, "/data")
    fs.heal()
    fs = fs.crash(POWER_LOSS)
    async with coordinating(fs, closes=False) as broker:
        assert not is_behind(fs, "/data")
        kept = await broker.transactions.init_producer(KEY, 60_000)
    async with coordinating(fs.crash(POWER_LOSS)) as broker:
        broker.transactions.check_producer(KEY, kept)
