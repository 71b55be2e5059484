"""A broker on the forgetful disk with its groups' tasks, without listeners, and what it is asked in tests."""

import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
import trio.testing

from seglog_broker.api.broker import IN_LINE_BYTES, Broker
from seglog_broker.config import load_config
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult, SyncRequest
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest
from tests.appends import append_batch
from tests.logs import ManualClock, batch

NOW = 1_700_000_000_000
MINUTE_MS = 60_000
RETENTION_MS = 10_080 * MINUTE_MS


SMALL_SEGMENTS: Final[dict[str, Any]] = {
    "offsets_topic_segment_bytes": 1024,
    "transaction_state_log_segment_bytes": 1024,
}
"""Fields of a configuration for tests of compaction; no operator can set such values."""


def open_broker(
    fs: ForgetfulFileSystem, clock: ManualClock, *flags: str, in_line_bytes: int = IN_LINE_BYTES, **fields: Any
) -> Broker:
    config = dataclasses.replace(load_config(None, "", {}, ["log.dir=/data", *flags])[0], **fields)
    return Broker.open(config, fs, clock, InlineOffload(), in_line_bytes=in_line_bytes)


@asynccontextmanager
async def running(
    fs: ForgetfulFileSystem, clock: ManualClock | None = None, *flags: str, closes: bool = True
) -> AsyncIterator[Broker]:
    """A broker with its groups' tasks, without listeners."""
    broker = open_broker(fs, clock or ManualClock(NOW), *flags)
    async with with_tasks(broker):
        yield broker
    if closes:
        broker.close()


@asynccontextmanager
async def with_tasks(broker: Broker) -> AsyncIterator[None]:
    """The tasks of its groups; what there was before is loaded."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.groups.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def with_topic(broker: Broker, topic: str = "t", partitions: int = 3, records: int = 10) -> None:
    await broker.create_topic(CreateTopicRequest(topic, partitions))
    for number in range(partitions):
        data = batch(*(b"v" for _ in range(records)))
        pending = append_batch(broker, data, topic, number, ack="disk")
        await pending.wait()


async def commit(broker: Broker, group: str, offset: int, partition: int = 0, topic: str = "t") -> None:
    results = await broker.groups.commit(group, Committer(), [OffsetToCommit(topic, partition, offset)])
    assert results == [None]


def committed(broker: Broker, group: str, partition: int = 0) -> int:
    return broker.groups.committed(group, [("t", partition)])[0].offset


def join_request(member_id: str = "", **changes: object) -> JoinRequest:
    return JoinRequest(member_id, None, "app", "/1.2.3.4", 10_000, 20_000, "consumer", [("range", b"")])._replace(
        **changes  # type: ignore[arg-type]
    )


async def joined(broker: Broker, group: str) -> JoinResult:
    """A member, the only one, with its generation; it has an assignment."""
    first = await broker.groups.join(group, join_request())
    assert isinstance(first.error, errors.MemberIdRequiredError)
    result = await broker.groups.join(group, join_request(first.member_id))
    assert result.error is None
    synced = await broker.groups.sync(
        group, SyncRequest(result.member_id, result.generation, assignments={result.member_id: b"mine"})
    )
    assert synced.assignment == b"mine"
    return result


class States:
    """Where the state of share partitions is kept, in a test; ``error`` is what is wrong with it."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, bytes], dict[int, int]] = {}
        self.epochs: list[int] = []
        self.error: errors.SeglogError | None = None

    async def initialize(self, group: str, topic_id: bytes, start_offsets: Mapping[int, int], state_epoch: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        self.known.setdefault((group, topic_id), {}).update(start_offsets)
        self.epochs.append(state_epoch)

    async def delete(self, group: str, topic_id: bytes, partitions: Collection[int]) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        for number in partitions:
            self.known[group, topic_id].pop(number, None)


class TogetherClock(ManualClock):
    """A wall clock that goes with the loop's, and may be set ahead."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self._began = trio.current_time()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return NOW + round((trio.current_time() - self._began) * 1000) + self.ahead_ms
