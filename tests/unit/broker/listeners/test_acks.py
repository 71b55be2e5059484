"""Replies to appends: in their order, and together for those that one sync covers; frames in parts."""

import socket
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from seglog_broker.engine.pending_appends import Acknowledged
from seglog_broker.listeners import ack_task
from seglog_broker.listeners.native.replies import RESULTS_A_TURN, encode_append_replies
from seglog_broker.listeners.native.slow_requests import encode_long_append_replies
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.listeners.sender import REPLIES_A_TURN, AckQueue, Sender
from seglog_broker.listeners.sending import send_frame
from seglog_broker.listeners.transport import Transport
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import UnknownTopicError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import FrameReader
from seglog_protocol.messages import AppendReply, AppendResult
from tests.support import each_case


class Recorder(Transport):
    """A transport that takes ``at_a_time`` bytes and records each send; while it is full, a send has to wait."""

    def __init__(self, at_a_time: int = 1 << 30) -> None:
        super().__init__(socket.socket())
        self.close()
        self.taken = b""
        self.sends: list[list[int]] = []
        """The ids of the replies in each."""
        self.is_more_to_come = False
        self.takes_at_once = at_a_time == 1 << 30
        self._at_a_time = at_a_time
        self._is_writable = not self.takes_at_once

    @property
    def sent(self) -> list[int]:
        return [number for send in self.sends for number in send]

    def send(self, data: Buffer, *, more: bool = False) -> int:
        if not (self.takes_at_once or self._is_writable):
            raise BlockingIOError
        self._is_writable = False
        sent = bytes(data)[: self._at_a_time]
        self.taken += sent
        if sent:
            self.is_more_to_come = more
        if self._at_a_time == 1 << 30:
            assert not more
            self.sends.append(_request_ids(sent))
        return len(sent)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        self._is_writable = True


class NativeReplies(Wire):
    """Encodes as the native protocol does."""

    def encode_appended(
        self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome], began: float
    ) -> Buffer | None:
        return encode_append_replies(request_ids, outcomes, ApiMetrics("append"), began)

    async def encode_long_appended(
        self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome], began: float
    ) -> Buffer:
        counts = ApiMetrics("append")
        return await encode_long_append_replies(request_ids, outcomes, counts, began, trio.lowlevel.checkpoint)


def queue_of(transport: Recorder) -> AckQueue:
    return AckQueue(Sender(transport, InlineOffload(), Transfers(), 60), NativeReplies())


def _request_ids(frames: bytes) -> list[int]:
    reader = FrameReader(1 << 20)
    reader.receive_data(frames)
    ids = []
    while (read := reader.next_frame() or reader.next_frame()) is not None:
        ids.append(int(read.header["id"]))
    return ids


class Disk:
    """Has the offset up to which everything is durable."""

    def __init__(self) -> None:
        self.end = 0
        self.moved = trio.Event()
        self.has_leader = False
        self.listeners: list[Callable[[], None]] = []

    def reach(self, end: int) -> None:
        self.end = end
        self.moved.set()
        self.moved = trio.Event()
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()


class Waiting(Acknowledged):
    """Appends that are acknowledged when the disk has reached their offset."""

    def __init__(self, disk: Disk, offset: int, results: int = 1, requests: int = 1) -> None:
        self._disk = disk
        self._offset = offset
        self._results = results
        self._requests = requests

    @property
    def replies(self) -> list[AppendOutcome] | None:
        result = AppendResult("t", 0, base_offset=self._offset, timestamp=-1, ack="disk", duplicate=False)
        return [AppendReply([result] * self._results)] * self._requests if self._disk.end > self._offset else None

    def listen(self, listener: Callable[[], None]) -> bool:
        if self._disk.has_leader:
            self._disk.listeners.append(listener)
        return self._disk.has_leader

    async def wait(self) -> list[AppendOutcome]:
        while (replies := self.replies) is None:
            await self._disk.moved.wait()
        return replies


@pytest.mark.parametrize("has_leader", [False, True], ids=["the task answers", "whoever ends the round answers"])
async def test_replies_that_one_sync_has_reached_go_out_with_one_send_in_order(has_leader: bool) -> None:
    disk, sender = Disk(), Recorder()
    disk.has_leader = has_leader
    acks = queue_of(sender)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack_task.run, acks)
        for number in range(10):
            acks.add([number], Waiting(disk, number), 100, 0.0)
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
    acks = queue_of(sender)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while len(acks):
            turns += 1
            await trio.lowlevel.checkpoint()

    disk.reach(1000)
    for number in range(5 * REPLIES_A_TURN):
        acks.add([number], Waiting(disk, number), 100, 0.0)
    acks.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack_task.run, acks)
        nursery.start_soon(work)
    assert [len(send) for send in sender.sends] == [REPLIES_A_TURN] * 5
    assert turns >= 4


async def test_a_reply_that_is_too_long_for_a_frame_becomes_an_error() -> None:
    results = [AppendResult("t", 0, error=UnknownTopicError("no" * 1_000))] * 600
    turn = trio.lowlevel.checkpoint
    told = await encode_long_append_replies([7], [AppendReply(results)], ApiMetrics("append"), 0.0, turn)
    reader = FrameReader(1 << 20)
    reader.receive_data(bytes(told))
    frame = reader.next_frame()
    assert frame is not None
    assert (frame.header["id"], "error" in frame.header, "partitions" in frame.header) == (7, True, False)


async def test_acks_of_a_finished_round_are_sent_before_any_task_runs() -> None:
    disk, sender = Disk(), Recorder()
    disk.has_leader = True
    acks = queue_of(sender)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack_task.run, acks)
        await wait_all_tasks_blocked()
        for number in range(2 * REPLIES_A_TURN):
            acks.add([number], Waiting(disk, number), 100, 0.0)
        disk.reach(2)
        assert sender.sends == [[0, 1]]
        disk.reach(4)
        assert sender.sends == [[0, 1], [2, 3]], "the next in the queue listens in its turn"
        disk.reach(2 * REPLIES_A_TURN)
        assert len(sender.sends[-1]) == REPLIES_A_TURN, "the rest is left to the task: others have their turn"
        acks.finish()
    assert sender.sent == list(range(2 * REPLIES_A_TURN))


Step = tuple[str, int]
_STEPS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("reach"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["lead", "block", "run"]), st.integers(0, 1)),
    ),
    max_size=30,
)


@given(_STEPS)
def test_every_append_is_answered_once_and_in_order_by_whichever_task_is_first(steps: list[Step]) -> None:
    disk, sender = Disk(), Recorder()
    acks = queue_of(sender)
    added = 0
    begins: list[int] = []  # of those that came together

    async def drive() -> None:
        nonlocal added
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack_task.run, acks)
            for step, count in steps:
                match step:
                    case "add":
                        results = RESULTS_A_TURN + 1 if added % 4 == 3 else 1
                        acks.add(list(range(added, added + count)), Waiting(disk, added, results, count), 100, 0.0)
                        begins.append(added)
                        added += count
                        assert len(acks) <= added
                    case "reach":
                        reached = bisect_left(begins, disk.end) + count
                        disk.reach(begins[reached] if reached < len(begins) else added)
                    case "lead":
                        disk.has_leader = bool(count)
                    case "block":
                        sender.takes_at_once = bool(count)
                    case _:
                        await wait_all_tasks_blocked()
                        if count:
                            assert sender.sent == list(range(disk.end)), "whatever is on the disk has been answered"
            acks.finish()
            disk.reach(added)

    trio.run(drive)
    assert sender.sent == list(range(added))


async def test_an_append_that_listens_when_the_queue_is_finished_is_answered_once() -> None:
    first, second, sender = Disk(), Disk(), Recorder()
    first.has_leader = second.has_leader = True
    acks = queue_of(sender)
    acks.add(list(range(REPLIES_A_TURN)), Waiting(second, -1, requests=REPLIES_A_TURN), 100, 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack_task.run, acks)
        for _ in range(2):  # until the task lets others work, with an empty queue
            await trio.lowlevel.checkpoint()
            if not len(acks):
                break
        acks.add([100], Waiting(first, 0), 100, 0.0)
        acks.add([101], Waiting(second, 0), 100, 0.0)
        acks.finish()
        await wait_all_tasks_blocked()
        first.reach(1)
        await wait_all_tasks_blocked()
        assert sender.sent == [*range(REPLIES_A_TURN), 100]
        second.reach(1)
    assert sender.sent == [*range(REPLIES_A_TURN), 100, 101]


# --- Frames in parts: the system is told that more follows only where something does, as it would keep the rest back --


@each_case("at_a_time", [1, 3, 100])
@each_case("chunks", [[b"head", b""], [b"head", b"payload"], [b"", b"head", b"", b"payload", b"", b""]])
async def test_behind_the_last_byte_of_a_frame_no_more_is_announced(at_a_time: int, chunks: Sequence[bytes]) -> None:
    transport = Recorder(at_a_time)
    await send_frame(Sender(transport, InlineOffload(), Transfers(), 60), chunks)
    assert transport.taken == b"".join(chunks)
    assert not transport.is_more_to_come
