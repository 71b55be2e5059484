"""Replies to appends in their order, and those that one sync has reached together."""

from collections import Counter
from typing import Final, cast

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners.acks import REPLIES_A_TURN, AckQueue
from seglog_broker.listeners.sender import Sender
from seglog_protocol.frames import FrameReader
from seglog_protocol.messages import Ack, AppendReply, AppendResult


class Recorder:
    """A sender: what went out with each send."""

    def __init__(self) -> None:
        self.sends: list[list[int]] = []
        self._queued: list[bytes] = []

    def queue(self, frame: bytes) -> None:
        self._queued.append(frame)

    async def flush(self) -> None:
        if self._queued:
            self.sends.append([_request_id(frame) for frame in self._queued])
            self._queued.clear()


def _request_id(frame: bytes) -> int:
    reader = FrameReader(1 << 20)
    buffer = reader.get_buffer()
    buffer[: len(frame)] = frame
    reader.received(len(frame))
    read = reader.next_frame()
    assert read is not None
    return int(read.header["id"])


class Disk:
    """Knows how far everything is durable."""

    def __init__(self) -> None:
        self.end = 0
        self.moved = trio.Event()

    def reach(self, end: int) -> None:
        self.end = end
        self.moved.set()
        self.moved = trio.Event()


class Waiting:
    """An append that is answered when the disk has reached it."""

    ack: Final[Ack] = "disk"

    def __init__(self, disk: Disk, offset: int) -> None:
        self._disk = disk
        self._offset = offset

    @property
    def reply(self) -> AppendReply | None:
        result = AppendResult("t", 0, base_offset=self._offset, timestamp=-1, ack="disk", duplicate=False)
        return AppendReply([result]) if self._disk.end > self._offset else None

    async def wait(self) -> AppendReply:
        while (reply := self.reply) is None:
            await self._disk.moved.wait()
        return reply


async def test_replies_that_one_sync_has_reached_go_out_with_one_send_in_order() -> None:
    disk, sender = Disk(), Recorder()
    acks = AckQueue(cast("Sender", sender), Counter())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acks.run)
        for number in range(10):
            acks.add(number, Waiting(disk, number), 100)
        await wait_all_tasks_blocked()
        assert sender.sends == []
        disk.reach(7)
        await wait_all_tasks_blocked()
        assert sender.sends == [list(range(7))], "what is ready does not wait for what is not"
        disk.reach(10)
        acks.finish()
    assert sender.sends == [list(range(7)), [7, 8, 9]]


async def test_a_long_row_of_replies_lets_others_work_in_between() -> None:
    disk, sender = Disk(), Recorder()
    acks = AckQueue(cast("Sender", sender), Counter())
    turns = 0

    async def work() -> None:
        nonlocal turns
        while len(acks):
            turns += 1
            await trio.lowlevel.checkpoint()

    disk.reach(1000)
    for number in range(5 * REPLIES_A_TURN):
        acks.add(number, Waiting(disk, number), 100)
    acks.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acks.run)
        nursery.start_soon(work)
    assert [len(send) for send in sender.sends] == [REPLIES_A_TURN] * 5
    assert turns >= 4
