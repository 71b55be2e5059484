"""Turns of connections: who gets one, in which order, and that nobody is left out."""

import math
import select
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners import socket_loop
from seglog_broker.listeners.ready_sockets import Next, ReadySockets, Served, Together
from seglog_broker.listeners.transport import Transport


@dataclass
class Shared(Together):
    """What the connections of a test do together; ``room`` of them at a time."""

    room: int = 1_000
    events: list[str] = field(default_factory=list)
    failure: Exception | None = None
    begun: int = 0

    @property
    def has_room(self) -> bool:
        return self.begun < self.room

    def write(self) -> None:
        self.events.append("between")
        if self.failure is not None:
            raise self.failure

    def clear(self) -> None:
        self.events.append("after")
        self.begun = 0


class Peer(Served):
    """A connection that reads what comes, and answers to a turn as ``wants`` says."""

    def __init__(self, name: str, shared: Shared, wants: Next = Next.READABLE) -> None:
        self.name, self.shared, self.wants = name, shared, wants
        self.sock, self.other = socket.socketpair()
        self.sock.setblocking(False)
        self.turns = 0
        self.failure: BaseException | None = None
        self.has_ended = False

    def begin_turn(self) -> None:
        self.shared.begun += 1
        self.turns += 1
        self.shared.events.append(self.name)
        if self.failure is not None:
            raise self.failure
        try:
            self.sock.recv(100)
        except BlockingIOError:
            assert self.wants is not Next.READABLE, "a turn without bytes"

    def end_turn(self) -> Next:
        return self.wants

    async def serve(self, ready: ReadySockets, begin: Next = Next.READABLE) -> None:
        await socket_loop.take_turns(ready, Transport(self.sock), self, self.shared, begin=begin)
        self.has_ended = True

    def close(self) -> None:
        self.sock.close()
        self.other.close()


class Asked:
    """Looks for readable sockets as the selector of ``ready`` does, and notes how many each look has found."""

    def __init__(self, ready: ReadySockets) -> None:
        assert ready._epoll is not None
        self._epoll = ready._epoll
        self._found: list[int] = []
        ready._epoll = cast("select.epoll", self)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        ready = self._epoll.poll(timeout, most)
        self._found.append(len(ready))
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def found(self) -> list[int]:
        """The sockets found by each look since the last call."""
        found, self._found = self._found, []
        return found


@asynccontextmanager
async def running(*peers: Peer, ready: ReadySockets | None = None) -> AsyncIterator[tuple[ReadySockets, trio.Nursery]]:
    if ready is None:
        ready = ReadySockets()
        ready.turn_seconds = math.inf  # not ended by a machine that is busy with something else
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket_loop.run, ready)
        for peer in peers:
            nursery.start_soon(peer.serve, ready)
        await wait_all_tasks_blocked()
        yield ready, nursery
        nursery.cancel_scope.cancel()
    for peer in peers:
        peer.close()


async def send_to(*peers: Peer) -> None:
    """A byte to each, which is received before this returns."""
    for peer in peers:
        peer.other.send(b"x")
    await wait_all_tasks_blocked()


async def test_all_that_are_ready_begin_before_any_ends() -> None:
    shared = Shared()
    peers = [Peer(name, shared) for name in "abc"]
    async with running(*peers):
        await send_to(*peers)
        assert sorted(shared.events[:3]) == ["a", "b", "c"]
        assert shared.events[3:] == ["between", "after"]
        await send_to(peers[1])
        assert shared.events[5:] == ["b", "between", "after"]


async def test_no_more_begin_than_there_is_room_for() -> None:
    shared = Shared(room=2)
    peers = [Peer(name, shared) for name in "abcde"]
    async with running(*peers):
        await send_to(*peers)
    assert [peer.turns for peer in peers] == [1] * 5
    assert [event for event in shared.events if len(event) > 1] == ["between", "after"] * 3


async def test_listeners_do_their_own_work_only() -> None:
    one, two = Shared(), Shared()
    peers = [Peer("a", one), Peer("b", two), Peer("c", one)]
    async with running(*peers):
        await send_to(*peers)
    assert sorted(event for event in one.events if len(event) == 1) == ["a", "c"]
    assert two.events == ["b", "between", "after"]


async def test_a_connection_that_wants_its_task_gets_no_more_turns() -> None:
    shared = Shared()
    peer = Peer("a", shared, Next.TASK)
    async with running(peer) as (ready, nursery):
        peer.other.send(b"xy")
        await wait_all_tasks_blocked()
        assert peer.has_ended
        peer.other.send(b"z")
        await wait_all_tasks_blocked()
        assert peer.turns == 1
        nursery.start_soon(peer.serve, ready)
        await wait_all_tasks_blocked()
        assert peer.turns == 2, "bytes that came meanwhile are there"


async def test_work_that_is_left_is_done_before_the_socket_is_looked_at() -> None:
    shared = Shared()
    peer = Peer("a", shared, Next.TASK)
    async with running() as (ready, nursery):
        nursery.start_soon(peer.serve, ready, Next.TURN)
        await wait_all_tasks_blocked()
        assert (peer.turns, peer.has_ended) == (1, True)
    peer.close()


@pytest.mark.parametrize("where", ["begin", "between"])
async def test_an_error_is_raised_in_the_connections_own_task(where: str) -> None:
    shared = Shared()
    bad, good = Peer("a", shared), Peer("b", shared)
    raised: list[BaseException] = []

    async def serve(ready: ReadySockets) -> None:
        try:
            await bad.serve(ready)
        except ValueError as error:
            raised.append(error)

    async with running(good) as (ready, nursery):
        nursery.start_soon(serve, ready)
        await wait_all_tasks_blocked()
        if where == "begin":
            bad.failure = ValueError("of this one")
        else:
            shared.failure = ValueError("of all of them")
        await send_to(bad)
        assert [str(error) for error in raised] == ["of this one" if where == "begin" else "of all of them"]
        shared.failure = None
        await send_to(good)
        assert (good.turns, good.has_ended) == (1, False)
    bad.close()


async def test_a_cancelled_connection_gets_no_turn() -> None:
    shared = Shared()
    peer = Peer("a", shared)
    async with running() as (ready, _):
        with trio.move_on_after(0):
            await peer.serve(ready)
        await send_to(peer)
        assert peer.turns == 0
    peer.close()


async def test_when_serving_has_ended_connections_end_with_an_error() -> None:
    shared = Shared()
    waiting, late = Peer("a", shared), Peer("b", shared)
    ready, errors = ReadySockets(), []

    async def serve(peer: Peer) -> None:
        try:
            await peer.serve(ready)
        except OSError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, waiting)
        with trio.move_on_after(0.01):
            await socket_loop.run(ready)
        await wait_all_tasks_blocked()
        assert len(errors) == 1
        nursery.start_soon(serve, late)
    assert len(errors) == 2
    waiting.close()
    late.close()


@pytest.mark.parametrize("seconds", [0.0, 0.002])
async def test_endless_work_starves_nobody(seconds: float) -> None:
    """Beside connections with endless work every other and every task has its turn."""
    shared = Shared(room=1)
    endless = [Peer(f"endless {number}", shared, Next.TURN) for number in range(3)]
    trickle = Peer("t", shared)
    async with running(trickle) as (ready, nursery):
        ready.turn_seconds = seconds
        for peer in endless:
            nursery.start_soon(peer.serve, ready, Next.READABLE)
        await wait_all_tasks_blocked()
        for peer in endless:
            peer.other.send(b"x")
        for count in range(1, 6):
            await trio.sleep(0.003)  # a task beside them
            trickle.other.send(b"x")
            before = len(shared.events)
            with trio.fail_after(60):
                while trickle.turns < count:
                    await trio.lowlevel.checkpoint()
            begun = shared.events[before:]
            waited = sum(event.startswith("endless") for event in begun[: begun.index("t")])
            assert waited <= 3 * len(endless), "it waits for two rounds at most, and the one it came in"
        turns = [peer.turns for peer in endless]
        assert max(turns) - min(turns) <= 1, "they take turns with each other"
        for peer in endless:
            peer.wants = Next.TASK
    for peer in endless:
        peer.close()


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only epoll can be asked for some")
async def test_of_very_many_sockets_that_are_readable_at_once_some_are_looked_up_at_a_time() -> None:
    shared, ready = Shared(), ReadySockets()
    asked = Asked(ready)
    ready.ready_max = 3
    peers = [Peer(str(number), shared) for number in range(20)]
    async with running(*peers, ready=ready):
        for peer in peers:
            peer.other.send(b"x")
        with trio.fail_after(60):
            while not all(peer.turns for peer in peers):
                await trio.lowlevel.checkpoint()
    assert max(asked.found()) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="polls on Linux only")
async def test_a_request_that_comes_soon_is_polled_for() -> None:
    counter, ready = Steps(), ReadySockets()
    ready.turn_seconds = ready.poll_seconds = 60
    begun, done = threading.Event(), trio.Event()
    steps: list[int] = []

    class Begun(Peer):
        def begin_turn(self) -> None:
            super().begin_turn()
            steps.append(counter.count)
            begun.set()
            if len(steps) == 2:
                ready.poll_seconds = 0
                done.set()

    peer = Begun("a", Shared())

    def send_a_second() -> None:
        begun.wait(30)
        time.sleep(0.02)  # so that it comes when nothing is ready
        peer.other.send(b"x")

    async with running(peer, ready=ready):
        sender = threading.Thread(target=send_a_second)
        sender.start()
        trio.lowlevel.add_instrument(counter)
        peer.other.send(b"x")
        with trio.fail_after(30):
            await done.wait()
        trio.lowlevel.remove_instrument(counter)
        sender.join()
    assert steps[1] - steps[0] <= 1, "other tasks had a turn; to sleep and be woken takes two steps"


@pytest.mark.skipif(sys.platform != "linux", reason="polls on Linux only")
async def test_where_no_request_comes_soon_polling_pauses() -> None:
    ready = ReadySockets()
    asked = Asked(ready)
    ready.poll_seconds = 0.01
    ready.poll_pause_factor = 100_000
    peer = Peer("a", Shared())
    async with running(peer, ready=ready):
        asked.found()
        await send_to(peer)
        assert len(asked.found()) > 3, "it polled"
        await send_to(peer)
        assert len(asked.found()) <= 3, "one look that finds it, and two behind it"
    assert peer.turns == 2


@pytest.mark.skipif(sys.platform != "linux", reason="polls on Linux only")
@pytest.mark.parametrize("what", ["something is awaited", "a task is runnable"])
async def test_nothing_else_waits_for_a_poll(what: str) -> None:
    peer = Peer("a", Shared())
    ready = ReadySockets(lambda: what == "something is awaited")
    asked = Asked(ready)
    ready.poll_seconds = 0.2

    async def run(task: trio.Event) -> None:
        while not task.is_set():
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket_loop.run, ready)
        nursery.start_soon(peer.serve, ready)
        done = trio.Event()
        await wait_all_tasks_blocked()
        if what == "a task is runnable":
            nursery.start_soon(run, done)
        asked.found()
        peer.other.send(b"x")
        with trio.fail_after(30):
            while not peer.turns:
                await trio.lowlevel.checkpoint()
        assert len(asked.found()) <= 3
        done.set()
        nursery.cancel_scope.cancel()
    peer.close()
