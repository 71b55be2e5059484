"""A double of the process that makes the continuous backup, and the task with it."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.backup.agent_messages import (
    Begin,
    Cut,
    CutWanted,
    FromAgent,
    Published,
    Stop,
    ToAgent,
    line_of,
    to_agent,
)
from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.tasks.backups import Backups
from seglog_broker.workers.messages import DIED, WorkerError
from seglog_broker.workers.pool import Process

TO = "seglog.backup.to=s3://bucket/backup"


class DoubleAgent(Process):
    """Says what a test has it say, and keeps what it is told."""

    begin: Begin

    def __init__(self) -> None:
        self.started_at = trio.current_time()
        self._says, self._said = trio.open_memory_channel[bytes](math.inf)
        self._received = b""
        self._told_in, self._told = trio.open_memory_channel[ToAgent](math.inf)
        self.has_ended = False

    async def send(self, line: bytes, payload: Buffer = b"") -> None:
        assert not payload
        await trio.lowlevel.checkpoint()
        *whole, self._received = (self._received + line).split(b"\n")
        for told in whole:
            self._told_in.send_nowait(to_agent(told))

    async def next_line(self) -> bytes:
        try:
            return await self._said.receive()
        except trio.EndOfChannel:
            raise WorkerError(DIED, "the process ended with status 1. Its last words") from None

    async def end(self) -> None:
        self.has_ended = True

    def say(self, message: FromAgent) -> None:
        self.say_bytes(line_of(message))

    def say_bytes(self, said: bytes) -> None:
        self._says.send_nowait(said)

    def die(self) -> None:
        self._says.close()

    async def told(self) -> ToAgent:
        """The next message that it is told."""
        return await self._told.receive()

    async def cut(self, *, is_whole: bool = False) -> Cut:
        """Ask for a cut."""
        self.say(CutWanted(is_whole))
        cut = await self.told()
        assert isinstance(cut, Cut), cut
        return cut

    async def publish(self, written: int = 0) -> Cut:
        """Ask for a cut and say that it is in the place."""
        cut = await self.cut()
        self.say(Published(cut.number, f"id-{cut.number}", written))
        await wait_all_tasks_blocked()
        return cut

    async def obey_stop(self) -> None:
        """Do at a stop what it is to do."""
        assert isinstance(await self.told(), Stop)
        await self.publish()
        self.die()


class Started:
    """The doubles that a task has started, in order; ``task`` runs until the end of its block."""

    def __init__(self) -> None:
        self.agents: list[DoubleAgent] = []
        self._more = trio.Event()

    async def start(self, _: IO[bytes]) -> Process:
        self.agents.append(DoubleAgent())
        self._more.set()
        self._more = trio.Event()
        return self.agents[-1]

    async def agent(self, number: int = 0) -> DoubleAgent:
        """The one that is started as number ``number``, which has been told how to begin."""
        while len(self.agents) <= number:
            await self._more.wait()
        agent = self.agents[number]
        begin = await agent.told()
        assert isinstance(begin, Begin)
        agent.begin = begin
        return agent


@asynccontextmanager
async def backing_up(broker: Broker) -> AsyncIterator[Started]:
    """The task of a broker with the key TO, without the processes."""
    started = Started()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Backups(*broker.common, broker.backup, started.start).run)
        yield started
        nursery.cancel_scope.cancel()


def partitions_of(cut: Cut) -> dict[tuple[str, int], tuple[int, int]]:
    """Log end and size by topic and partition."""
    return {(part.topic, part.partition): (part.log_end, part.active_size) for part in cut.partitions}
