"""A broker whose background tasks run under trio's mock clock, which its disk and its wall clock follow."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Self

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import IN_LINE_BYTES, Broker
from seglog_broker.config import load_config
from seglog_broker.runtime.offload import Arguments, Offload, T
from seglog_broker.security.tls import ServerTls
from seglog_broker.server import TASKS
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import messages
from tests.appends import append_batch
from tests.logs import batch_of_size

START_MS = 1_700_000_000_000

NO_BALLAST = "seglog.disk.ballast.bytes=0"
"""On a disk in memory it would only slow things down."""


class LoopClock(Clock):
    """Wall time that passes with the loop's time; ``jump_ms`` is added to it."""

    def __init__(self) -> None:
        self.jump_ms = 0

    def now_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000) + self.jump_ms


class TimedDisk(ForgetfulFileSystem):
    """A forgetful disk that takes modification times from the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(now_ms=START_MS)

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    @now_ms.setter
    def now_ms(self, _: int) -> None: ...


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop within its block."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:  # the method's name is trio's
        self.count += 1

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)


class HeldOffload(InlineOffload):
    """An offload whose maintenance calls can be held before they begin; they cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self._gate = trio.Event()
        self._gate.set()

    def hold(self) -> None:
        """Hold every call from now on."""
        self._gate = trio.Event()

    def let_go(self) -> None:
        """Release all held calls."""
        self._gate.set()

    async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        await trio.lowlevel.checkpoint()
        self.held += 1
        with trio.CancelScope(shield=True):
            await self._gate.wait()
        self.held -= 1
        return fn(*args)


@asynccontextmanager
async def living(
    fs: FileSystem,
    clock: Clock,
    *flags: str,
    offload: Offload | None = None,
    tasks: Collection[str] = TASKS.keys(),
    in_line_bytes: int = IN_LINE_BYTES,
    tls: ServerTls | None = None,
) -> AsyncIterator[Broker]:
    """The broker with these tasks running; it is stopped cleanly at the end."""
    config, _ = load_config(None, "", {}, ["log.dir=/data", "log.initial.task.delay.ms=0", NO_BALLAST, *flags])
    broker = Broker.open(config, fs, clock, offload or InlineOffload(), in_line_bytes=in_line_bytes, tls=tls)
    try:
        async with trio.open_nursery() as nursery:
            for name in tasks:
                nursery.start_soon(TASKS[name], broker)
            await wait_all_tasks_blocked()  # whatever they do first, they have done it
            yield broker
            nursery.cancel_scope.cancel()
    finally:
        broker.close()


async def with_topic(broker: Broker, name: str = "t", partitions: int = 1, **config: str | int) -> None:
    """Create a topic; keys are written with underscores."""
    named: dict[str, Any] = {key.replace("_", "."): value for key, value in config.items()}
    await broker.create_topic(messages.CreateTopicRequest(name, partitions, named))


async def alter(broker: Broker, **config: str | int) -> None:
    named: dict[str, Any] = {key.replace("_", "."): value for key, value in config.items()}
    await broker.alter_topic(messages.AlterTopicRequest("t", config=named))


async def delete(broker: Broker, topic: str = "t") -> None:
    await broker.delete_topic(messages.DeleteTopicRequest(topic))


async def truncate(broker: Broker, offset: int | None) -> messages.TruncateResult:
    """The result for the first partition."""
    request = messages.TruncateRequest([messages.TruncatePartition("t", 0, offset)])
    return (await broker.truncate(request)).partitions[0]


def append(
    broker: Broker, count: int = 1, *, topic: str = "t", partition: int = 0, timestamp: int | None = None
) -> None:
    """Append so many one-record batches of 256 bytes with the clock's timestamps; four fill a segment of 1024 bytes."""
    for _ in range(count):
        encoded = batch_of_size(256, broker.clock.now_ms() if timestamp is None else timestamp)
        result = append_batch(broker, encoded, topic, partition).result
        assert result.error is None, result


async def fetch(broker: Broker, offset: int, topic: str = "t") -> messages.FetchResult:
    with await broker.fetch(
        messages.FetchRequest([messages.FetchPartition(topic, 0, offset)], max_wait_ms=0)
    ) as answer:
        return answer.reply.partitions[0]


def log_of(broker: Broker, partition: int = 0) -> PartitionLog:
    return broker.partitions["t", partition].log


def bases(broker: Broker, partition: int = 0) -> list[int]:
    return [segment.base_offset for segment in log_of(broker, partition).segments]


def names(fs: FileSystem, directory: str = "t-0") -> set[str]:
    """Names of a partition's ``.log`` files, those set aside included."""
    return {name for name in fs.list_directory(f"/data/{directory}") if ".log" in name}


def log_name(base: int, suffix: str = "") -> str:
    return f"{base:020d}.log{suffix}"
