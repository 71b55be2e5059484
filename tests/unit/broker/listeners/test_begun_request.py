"""A request that has begun, and the end of its connection."""

from types import SimpleNamespace
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners.begun_request import BegunRequest
from seglog_broker.runtime.begun import Signal, by_task

TIMES: Final = 30
"""The order in which tasks that are cancelled together run is random."""


async def test_a_request_that_a_task_goes_on_with_is_ended_by_that_task_alone() -> None:
    async def work() -> None:
        await signal.wait()
        await by_task()
        with trio.move_on_after(60):
            await trio.sleep_forever()

    async def ending(request: BegunRequest) -> None:
        try:
            await request.finish()
        finally:
            request.drop()

    for _ in range(TIMES):
        signal = Signal()
        broker: Any = SimpleNamespace(write_decided=lambda *, at_once: None)
        sender, ready = SimpleNamespace(outgoing=[]), SimpleNamespace(is_alone=False)
        connection: Any = SimpleNamespace(hold=lambda: None, sender=sender, ready=ready)
        async with trio.open_nursery() as nursery:
            connection.start_soon = nursery.start_soon
            request = BegunRequest(broker, connection)
            request.begin(work(), lambda _begun: None)
            signal.set()
            nursery.start_soon(ending, request)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


async def test_a_reply_that_fails_by_a_bug_ends_the_connection() -> None:
    async def work() -> None:
        await signal.wait()

    def answer(_begun: object) -> None:
        raise ValueError("a bug")

    said: list[object] = []
    signal = Signal()
    broker: Any = SimpleNamespace(write_decided=lambda *, at_once: None)
    connection: Any = SimpleNamespace(
        fail=lambda error: setattr(connection, "failure", error),
        failure=None,
        hold=lambda: said.append("held"),
        is_over=False,
        job=None,
        ready=SimpleNamespace(is_alone=False),
        release=lambda: said.append("released"),
        sender=SimpleNamespace(flush_now=lambda: True),
        transport=SimpleNamespace(stop_receiving=lambda: said.append("woken")),
    )
    request = BegunRequest(broker, connection)
    request.begin(work(), answer)
    signal.set()
    assert said == ["held", "woken", "released"]
    assert isinstance(connection.failure, ValueError)
    assert not request.is_waiting
