"""What is asyncio's own in the client: loops, threads, tasks, and how they end; deadlines and shields of its loop."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest
import trio
import uvloop

import seglog
import seglog.asyncio
from seglog.asyncio.connecting import open_socket
from seglog.asyncio.loop import AsyncioLoop, Deadline
from seglog.core.dialing import parse_address
from seglog.testing import Broker
from seglog_protocol.messages import AppendRequest, Request
from tests.unit.clients.asyncio.conftest import Run
from tests.unit.clients.fake_broker import SILENCE, Answer, FakeBroker, fake_broker

pytestmark = pytest.mark.filterwarnings("error")

ELSEWHERE = "belongs to the asyncio loop in which its block was entered"


def silent(kind: type[Request]) -> Callable[[Request, memoryview], Answer | None]:
    return lambda request, _: SILENCE if isinstance(request, kind) else None


async def arrived(broker: FakeBroker, kind: type[Request], count: int = 1) -> None:
    """Wait until so many requests of a kind have come."""

    def wait() -> None:
        with broker.changed:
            assert broker.changed.wait_for(lambda: broker.asked(kind) >= count, 60)

    await asyncio.to_thread(wait)


def test_queues_work_on_any_loop(run: Run) -> None:
    async def main(address: str) -> None:
        async with seglog.asyncio.connect(address) as client:
            await client.create_topic("jobs", 3)
            async with client.queue("jobs", group="workers", start="earliest") as queue:
                waiting = asyncio.create_task(queue.get())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                async with client.producer("jobs") as producer:
                    for number in range(50):
                        await producer.send(str(number))
                done: set[bytes | None] = set()

                async def handle(job: seglog.Job) -> None:
                    await asyncio.sleep(0)
                    assert job.value not in done
                    done.add(job.value)
                    if len(done) == 50:
                        os.kill(os.getpid(), signal.SIGTERM)

                await queue.work(handle, at_once=5)
                await queue.flush()
                assert await queue.get() is None

    with Broker(group_share_assignment_interval_ms=0) as broker:
        run(main(broker.address))


def test_producers_groups_and_transactions_work_on_any_loop(run: Run) -> None:
    async def main(address: str) -> None:
        async with seglog.asyncio.connect(address) as client:
            await client.create_topic("in", 3)
            await client.create_topic("out")
            async with client.producer("in", compression="zstd") as producer:
                deliveries = [await producer.send(str(number), key=str(number % 7)) for number in range(500)]
                receipts = await asyncio.gather(*deliveries)
            assert sorted(receipt.offset for receipt in receipts if receipt.partition == 0)[:3] == [0, 1, 2]
            txn = client.transaction("sums")
            async with client.consumer("in", group="g", auto_commit=False, follow=False) as consumer, txn:
                total = sum([int(record.value or b"") async for record in consumer])
                await txn.send("out", str(total))
                await txn.commit_offsets(consumer)
            async with client.consumer("out", isolation="read_committed") as consumer:
                assert [record.value async for record in consumer] == [b"%d" % sum(range(500))]
            assert [offset.lag.records for offset in await client.group_offsets("g") if offset.lag] == [0, 0, 0]
            assert (await client.explain.config("in"))["retention.ms"].value is not None

    with Broker() as broker:
        run(main(broker.address))


def test_a_port_where_nobody_listens_is_an_error_with_the_reason_alone(run: Run) -> None:
    async def main(address: str) -> None:
        with pytest.raises(ConnectionRefusedError, match=r"^\[Errno \d+\] Connection refused$"):
            await open_socket(parse_address(address))

    with fake_broker() as broker:
        address = broker.address
    run(main(address))


def test_of_many_senders_that_wait_for_room_only_the_first_in_line_looks(broker: FakeBroker, run: Run) -> None:
    senders = 400

    async def main(broker: FakeBroker) -> None:
        async with (
            seglog.asyncio.connect(broker.address) as client,
            client.producer("t", linger_ms=0, buffer_bytes=2_000) as producer,
        ):
            looks = 0
            append = producer._append

            def counted(*record: Any) -> Any:
                nonlocal looks
                looks += 1
                return append(*record)

            producer._append = counted  # type: ignore[method-assign, assignment]
            tasks = [asyncio.create_task(producer.send(b"%05d" % number * 20)) for number in range(senders)]
            await arrived(broker, AppendRequest)
            gone = [task for task in tasks[30::50] if task.cancel()]  # those that have not sent yet
            assert gone
            await asyncio.wait(tasks)
            await producer.flush()
            kept = [number for number, task in enumerate(tasks) if not task.cancelled()]
            assert len(kept) == senders - len(gone)
            assert sorted(value or b"" for value in broker.values()) == [b"%05d" % number * 20 for number in kept]
            assert looks <= 3 * senders  # one that finds room, and one in vain for each answer at most

    run(main(broker))


def test_a_client_is_of_its_loop_and_says_so_in_another_loop_and_another_thread(broker: FakeBroker, run: Run) -> None:
    async def main(broker: FakeBroker) -> None:
        loop = asyncio.get_running_loop()
        async with (
            seglog.asyncio.connect(broker.address) as client,
            client.producer("t") as producer,
            client.consumer("t") as consumer,
        ):
            delivery = await producer.send(b"x")
            await delivery

            async def read() -> None:
                async for _ in consumer:
                    pass

            async def enter() -> None:
                async with client.consumer("t"):
                    pass

            calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
                client.topics,
                client.ping,
                enter,
                lambda: producer.send(b"y"),
                producer.flush,
                delivery.result,
                read,
                lambda: consumer.seek(0),
            ]

            def refused() -> None:
                for call in calls:
                    for runner in (asyncio.run, uvloop.run, trio_run):
                        with pytest.raises(seglog.ClientError, match=ELSEWHERE):
                            runner(call())

            await asyncio.to_thread(refused)
            assert (await client.topics())[0].name == "t"
            assert broker.values() == [b"x"]
            handed_over = await asyncio.to_thread(
                lambda: asyncio.run_coroutine_threadsafe(client.topics(), loop).result(30)
            )
            assert handed_over[0].name == "t"

    run(main(broker))


def trio_run(coroutine: Coroutine[Any, Any, object]) -> None:
    async def awaited() -> None:
        await coroutine

    trio.run(awaited)


@pytest.mark.parametrize("how", ["the loop ends", "the task is cancelled"])
def test_records_that_wait_when_their_loop_ends_fail_and_are_counted(
    run: Run, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries: list[seglog.asyncio.Delivery] = []
    errors: list[BaseException] = []

    async def own(broker: FakeBroker) -> None:
        try:
            async with seglog.asyncio.connect(broker.address) as client, client.producer("t") as producer:
                broker.script = silent(AppendRequest)
                deliveries.extend([await producer.send(b"x") for _ in range(3)])
                await deliveries[0]
        except asyncio.CancelledError as error:
            errors.append(error)
            raise

    async def main(broker: FakeBroker) -> None:
        owner = asyncio.create_task(own(broker))
        await arrived(broker, AppendRequest)
        if how == "the task is cancelled":
            owner.cancel()
            await asyncio.wait([owner])

    with fake_broker() as broker, caplog.at_level(logging.WARNING):
        run(main(broker))
    assert all(delivery.done() for delivery in deliveries)
    (error,) = errors
    notes = [*getattr(error, "__notes__", []), *caplog.messages]
    assert any("not acknowledged: 3 records to t" in note for note in notes), notes


def test_a_bug_in_a_task_ends_the_block_and_comes_out_as_itself(broker: FakeBroker, run: Run) -> None:
    async def bug() -> None:
        raise ZeroDivisionError("a bug")

    async def main(broker: FakeBroker) -> None:
        with pytest.raises(ZeroDivisionError, match="a bug"):  # noqa: PT012
            async with seglog.asyncio.connect(broker.address) as client:
                client._loop.start(bug, "a bug")
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012
            async with seglog.asyncio.connect(broker.address) as client:
                client._loop.start(bug, "a bug")
                try:
                    await asyncio.Event().wait()
                finally:
                    raise ValueError("mine")
        assert any("ZeroDivisionError" in note for note in caught.value.__notes__)
        await asyncio.sleep(0)
        assert task.cancelling() == 0

    run(main(broker))


# --- Deadlines and shields of asyncio's loop: their own cancellation is told from that of others, and none is lost ----


def cancellations() -> int:
    """How often the current task was cancelled, and not uncancelled."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def test_a_block_is_left_at_its_deadline_and_the_task_goes_on(run: Run) -> None:
    async def main() -> None:
        with Deadline(time.monotonic() + 0.01) as scope:
            await asyncio.Event().wait()
        assert scope.cancelled_caught
        assert cancellations() == 0
        with Deadline(0.0) as scope:
            pass  # it does not wait
        assert not scope.cancelled_caught
        with Deadline(inf) as scope:
            await asyncio.sleep(0)
        assert not scope.cancelled_caught
        for _ in range(3):
            await asyncio.sleep(0)  # nothing comes afterwards
        assert cancellations() == 0

    run(main())


def test_a_cancellation_by_others_passes_also_where_the_deadline_has_passed_as_well(run: Run) -> None:
    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        with Deadline(0.0):
            await asyncio.Event().wait()
        pytest.fail("it went on")

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_the_inner_of_two_deadlines_does_not_take_the_cancellation_of_the_outer_one(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(0):
                with Deadline(0.0):
                    await asyncio.Event().wait()
                pytest.fail("it went on")
        with Deadline(0.0) as outer:
            with Deadline(inf) as inner:
                await asyncio.Event().wait()
            pytest.fail("it went on")
        assert (outer.cancelled_caught, inner.cancelled_caught) == (True, False)
        assert cancellations() == 0

    run(main())


def test_an_error_at_the_deadline_is_raised(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError), Deadline(0.0):  # noqa: PT012
            try:
                await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError
        assert cancellations() == 0

    run(main())


def test_shielded_work_ends_before_the_cancellation_is_raised(run: Run) -> None:
    steps: list[str] = []

    async def main() -> None:
        loop = AsyncioLoop()
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            steps.append("worked")

        async def shield() -> None:
            try:
                await loop.shielded(loop.now() + 60, work)
            finally:
                steps.append("left")

        task = asyncio.create_task(shield())
        for _ in range(5):
            await asyncio.sleep(0)
            task.cancel()
        assert steps == []
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert steps == ["worked", "left"]
        may_end.clear()
        assert not await loop.shielded(loop.now() + 0.01, work)

    run(main())
