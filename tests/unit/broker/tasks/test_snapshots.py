"""Snapshots of a broker that is in use: how little of the work is done while commits of transactions wait."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from seglog_broker.server import snapshot_maker_of
from seglog_broker.storage.directory.snapshot import SnapshotWriter
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.closing import FrozenLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.unit.broker.coordinators.transactions.service.running import (
    append,
    begun,
    coordinating,
    end,
    ended,
    with_orders,
)

PARTITIONS = 50


class NotingWriter(SnapshotWriter):
    """Notes the directories of the partitions that are added."""

    def __init__(self, fs: FileSystem, log_dir: str) -> None:
        super().__init__(fs, log_dir)
        self.added: list[str] = []

    def add_log(self, frozen: FrozenLog) -> None:
        self.added.append(frozen.directory.rpartition("/")[2])
        super().add_log(frozen)


async def test_while_commits_wait_only_what_has_grown_is_frozen_again() -> None:
    fs = ForgetfulFileSystem()
    async with coordinating(fs) as broker:
        await with_orders(broker, PARTITIONS)
        producer = await begun(broker, 0, version=2)
        maker, writer = snapshot_maker_of(broker), NotingWriter(fs, broker.directory.path)
        held, before = maker._commits_held, 0

        @asynccontextmanager
        async def held_after_a_transaction() -> AsyncIterator[None]:
            nonlocal before
            await append(broker, producer, b"v")
            await end(broker, producer, version=2)
            await ended(broker)
            before = len(writer.added)
            async with held():
                yield

        maker._commits_held = held_after_a_transaction
        await maker.make(writer)
        assert len(set(writer.added[:before])) == before, "each once, where nothing is written meanwhile"
        again = writer.added[before:]
        assert again[0] == "orders-0"
        assert [name.rpartition("-")[0] for name in again[1:]] == ["__transaction_state"]
