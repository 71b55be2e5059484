"""Cancelled at any of its waits, a call leaves its client right: the next one gets its own answer.

Each call is cancelled at its first wait, then at its second, and so on: while it waits, or just when what it waits for
has come, which asyncio throws away.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import seglog.asyncio
from seglog.asyncio import raw
from seglog.testing import Broker
from seglog_protocol.batch_builder import encode_batch
from tests.unit.clients.asyncio.conftest import Run
from tests.unit.clients.cancelled_calls import SCENARIOS, TOPICS
from tests.unit.clients.fake_broker import FakeBroker, fake_broker
from tests.unit.clients.secure_broker import Authority, SecureBroker, secure_broker

WAITS_MAX = 1_000
When = Literal["waiting", "answered"]

pytestmark = pytest.mark.filterwarnings("error")


class CancelledAt:
    """Awaits a call whose task is cancelled at its wait of this number; ``waits`` are those that there were."""

    def __init__(self, call: Callable[[], Awaitable[object]], number: int, when: When) -> None:
        self._call = call
        self._number = number
        self._when = when
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._call().__await__()
        resume: Callable[[], Any] = steps.__next__
        while True:
            try:
                waited = resume()
            except StopIteration:
                return
            if self.waits == self._number:
                self._cancel(waited)
            self.waits += 1
            try:
                yield waited
                resume = steps.__next__
            except BaseException as error:  # noqa: BLE001 - handed on
                thrown = error
                resume = lambda: steps.throw(thrown)  # noqa: E731, B023 - called at once

    def _cancel(self, waited: "asyncio.Future[object] | None") -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._when == "waiting":
            task.cancel()
        elif waited is None:
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            waited.add_done_callback(lambda _: task.cancel())  # before the task's own, which goes on


async def sweep(call: Callable[[], Awaitable[object]], check: Callable[[], Awaitable[None]], when: When) -> None:
    """Cancel the call at its waits one after the other, and check each time, until it has no more."""
    for number in range(WAITS_MAX):
        cancelled = CancelledAt(call, number, when)

        async def do(cancelled: CancelledAt = cancelled) -> None:
            await cancelled

        task = asyncio.create_task(do())
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        await check()
        if cancelled.waits <= number:
            assert number > 1
            return
    pytest.fail("it never came to its end")


@pytest.fixture(params=["waiting", "answered"])
def when(request: pytest.FixtureRequest) -> When:
    chosen: When = request.param
    return chosen


async def all_ended() -> None:
    """Wait until no task is left but this one."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_call(run: Run, when: When, scenario: str) -> None:
    async def main(broker: FakeBroker) -> None:
        async with seglog.asyncio.connect(broker.address) as client:
            await SCENARIOS[scenario](broker, client, partial(sweep, when=when))

    with fake_broker(topics=TOPICS) as broker:
        run(main(broker))


def test_a_request_that_is_larger_than_the_buffers_of_the_socket(run: Run, when: When) -> None:
    batch = encode_batch([(0, None, b"x" * 900_000, ())])

    async def main(broker: FakeBroker) -> None:
        async with seglog.asyncio.connect(broker.address) as client:

            async def check() -> None:
                assert len(await client.offsets("two")) == 2

            batches = [raw.RawBatch("one", 0, batch)] * 8
            await sweep(lambda: raw.append(client, batches), check, when)
        assert set(broker.values("one")) == {b"x" * 900_000}

    with fake_broker(topics={"one": 1, "two": 2}) as broker:
        run(main(broker))


def test_a_whole_program_left_at_any_wait_leaves_nothing_behind(broker: FakeBroker, run: Run, when: When) -> None:
    async def main(broker: FakeBroker) -> None:
        async def program() -> None:
            async with seglog.asyncio.connect(broker.address) as client:
                async with client.producer("t", linger_ms=0) as producer:
                    await (await producer.send(b"3"))
                async with client.consumer("t", until=3) as consumer:
                    async for _ in consumer:
                        await client.topics()

        await sweep(program, all_ended, when)

    broker.fill(3)
    run(main(broker))


def test_connecting_by_tls_with_an_account_leaves_no_connection_behind(run: Run, when: When, tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main(broker: SecureBroker) -> None:
        async def connected() -> None:
            async with seglog.asyncio.connect(
                broker.address, tls=authority.file, user="alice", password="secret of alice"
            ) as client:
                await client.topics()

        async def check() -> None:
            await all_ended()
            gc.collect()  # a socket that is not closed warns, which is an error

        await sweep(connected, check, when)

    with secure_broker(context=authority.context(), passwords={"alice": "secret of alice"}) as broker:
        run(main(broker))


@pytest.mark.parametrize("when", ["waiting", "answered"])
def test_a_transaction_is_committed_or_aborted_whole_and_another_one_begins(when: When) -> None:
    with Broker() as broker:

        async def main() -> None:
            async with seglog.asyncio.connect(broker.address) as client:
                for topic in ("a", "b"):
                    await client.create_topic(topic)
                txn = client.transaction("app")

                async def call() -> None:
                    async with txn:
                        for topic in ("a", "b"):
                            await txn.send(topic, "sent")

                async def read(topic: str) -> int:
                    async with client.consumer(topic, isolation="read_committed") as consumer:
                        return len([record async for record in consumer])

                async def check() -> None:
                    assert [each.state for each in await client.transactions() if each.state == "Ongoing"] == []
                    async with txn:
                        await txn.send("a", "after")
                        await txn.send("b", "after")
                    assert await read("a") == await read("b")

                await sweep(call, check, when)

        asyncio.run(main())


@pytest.mark.soak  # each of some hundred members joins a group
def test_a_member_commits_no_more_than_it_has_read_and_leaves_its_group(run: Run, when: When) -> None:
    with Broker() as broker:

        async def main() -> None:
            async with seglog.asyncio.connect(broker.address) as client:
                await client.create_topic("t", 2)
                seen: set[tuple[int, int]] = set()

                async def send() -> None:
                    async with client.producer("t") as producer:
                        for partition in (0, 1):
                            await producer.send(b"x", partition=partition)

                async def work() -> None:
                    async with client.consumer("t", group="g", auto_commit=False, follow=False) as consumer:
                        async for record in consumer:
                            seen.add((record.partition, record.offset))
                        await consumer.commit()

                async def check() -> None:
                    groups = {each.group for each in await client.groups()}
                    if "g" in groups:
                        assert (await client.describe_group("g")).members == []
                        for found in await client.group_offsets("g"):
                            assert {(found.partition, offset) for offset in range(found.offset or 0)} <= seen
                    await send()

                await send()
                await sweep(work, check, when)
                await work()
                ends = {each.partition: each.latest for each in await client.offsets("t")}
                assert seen == {(partition, offset) for partition, end in ends.items() for offset in range(end)}

        run(main())
