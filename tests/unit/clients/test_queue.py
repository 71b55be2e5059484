"""Queues of all faces, with a real broker; what their core decides has tests of its own."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

import seglog
from seglog.testing import Broker
from seglog_protocol.errors import ClientClosedError, UnknownGroupError, UnknownTopicError, UnsupportedApiError
from seglog_protocol.messages import KafkaRequest
from tests.support import each_case
from tests.unit.clients.faces import Connect, Face, together

LONG: Final = 600.0
"""Nothing here waits so long, as what is waited for is there, or comes."""


@pytest.fixture(scope="module")
def broker() -> Any:
    with Broker(group_share_assignment_interval_ms=0) as started:
        yield started


@pytest.fixture
async def client(connect: Connect, broker: Broker) -> AsyncIterator[Any]:
    async with connect(broker.address) as client:
        for topic in ("jobs", "more"):
            await client.create_topic(topic, 2)
        yield client
    with seglog.connect(broker.address) as cleaner:
        for topic in ("jobs", "more"):
            cleaner.delete_topic(topic)


async def send(client: Any, *texts: str, topic: str = "jobs") -> None:
    async with client.producer(topic) as producer:
        for text in texts:
            await producer.send(text)


def queue_of(client: Any, group: str, *topics: str, **options: Any) -> Any:
    return client.queue(topics or "jobs", group=group, start="earliest", **options)


async def test_a_loop_accepts_jobs_and_releases_those_that_fail(client: Any) -> None:
    await send(client, *map(str, range(20)))
    seen: Counter[str] = Counter()
    async with queue_of(client, "loop") as queue:
        async for job in queue:
            with job:
                seen[job.value.decode()] += 1
                assert job.topic == "jobs"
                if job.attempt == 1 and job.value in (b"3", b"17"):
                    raise ValueError(job.value)
            if sum(seen.values()) == 22:
                break
        await queue.flush()
        assert seen == Counter(map(str, range(20))) + Counter(["3", "17"])
        assert await queue.get(0.2) is None
    async with queue_of(client, "loop") as queue:
        assert await queue.get(0.2) is None, "all are done"


async def test_several_topics_and_what_may_be_said(client: Any) -> None:
    await send(client, "a")
    await send(client, "b", topic="more")
    async with queue_of(client, "several", "jobs", "more") as queue:
        jobs = {(job := await queue.get(LONG)).topic: job for _ in range(2)}
        assert {topic: job.value for topic, job in jobs.items()} == {"jobs": b"a", "more": b"b"}
        jobs["jobs"].reject()
        jobs["more"].release()
        again = await queue.get(LONG)
        assert (again.topic, again.attempt) == ("more", 2)
        again.accept()
        await queue.flush()
        assert await queue.get(0.2) is None


async def test_jobs_are_worked_on_at_once_until_stop(client: Any) -> None:
    await send(client, *map(str, range(100)))
    done: Counter[bytes] = Counter()
    async with queue_of(client, "work") as queue:

        def handle(job: seglog.Job) -> None:
            assert job.value is not None
            done[job.value] += 1
            if len(done) == 100:
                queue.stop()

        await queue.work(handle, at_once=4)
        assert set(done.values()) == {1}
        assert await queue.get() is None, "it is stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_work_behind_the_jobs_in_hand(client: Any, number: int) -> None:
    """What a handler has begun is finished; the next signal does what it ever did."""
    await send(client, *"abcdef")
    done: list[bytes] = []
    before = signal.signal(number, signal.SIG_IGN)

    def handle(job: seglog.Job) -> None:
        os.kill(os.getpid(), number)
        done.append(job.value or b"")

    try:
        async with queue_of(client, "signalled") as queue:
            await queue.work(handle)
            await queue.flush()
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
    async with queue_of(client, "signalled") as queue:
        left = [await queue.get(LONG) for _ in range(6 - len(done))]
        assert sorted([*done, *(job.value for job in left)]) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_what_ends_a_handler_for_good_ends_the_work(client: Any) -> None:
    await send(client, "a")

    def fail(_job: seglog.Job) -> None:
        raise KeyboardInterrupt

    async with queue_of(client, "interrupted") as queue:
        with pytest.raises(BaseException) as raised:
            await queue.work(fail)
        assert isinstance(raised.value, KeyboardInterrupt) or raised.group_contains(KeyboardInterrupt)
    async with queue_of(client, "interrupted") as queue:
        assert (await queue.get(LONG)).attempt == 2


async def test_closing_releases_what_is_held(client: Any) -> None:
    await send(client, "a", "b")
    async with queue_of(client, "closed") as queue:
        job = await queue.get(LONG)
        await queue.close()
        with pytest.raises(ClientClosedError):
            await queue.get(LONG)
    async with queue_of(client, "closed") as queue:
        attempts = {job.value: job.attempt for job in [await queue.get(LONG), await queue.get(LONG)]}
    assert attempts[job.value] == 2


async def test_a_queue_goes_on_when_the_broker_has_restarted(connect: Connect) -> None:
    with Broker(group_share_assignment_interval_ms=0) as broker:
        async with connect(broker.address) as client:
            await client.create_topic("jobs", 1)
            await send(client, "a", "b")
            async with queue_of(client, "g") as queue:
                with await queue.get(LONG):
                    pass
                await queue.flush()
                job = await queue.get(LONG)
                broker.stop()
                broker.start()
                again = await queue.get(LONG)
                assert (job.value, again.value) == (b"b", b"b")
                assert isinstance(job.lost, seglog.JobLost)
                job.accept()
                with pytest.raises(seglog.JobLost, match="may run again"):
                    await queue.flush()
                again.accept()
                await queue.flush()


async def test_a_test_refuses_an_acknowledgement(client: Any, broker: Broker) -> None:
    """Faults meet requests of Kafka's wire within native ones by Kafka's names."""
    await send(client, "a")
    async with queue_of(client, "refused") as queue:
        with await queue.get(LONG):
            fault = broker.fail_next("ShareAcknowledge", "KAFKA_STORAGE_ERROR")
        with pytest.raises(seglog.JobLost, match="a test asked for it"):
            await queue.flush()
        assert fault.met == 1
        broker.jump_clock(31)  # the broker, which has not heard of it, holds its lock
        again = await queue.get(LONG)
        again.accept()
        await queue.flush()


async def test_two_members_share_the_jobs(client: Any) -> None:
    await send(client, *map(str, range(50)))
    seen: list[bytes] = []

    async def take() -> None:
        async with queue_of(client, "shared", prefetch=3) as queue:
            while len(seen) < 50 and (job := await queue.get(0.5)) is not None:
                with job:
                    seen.append(job.value)

    await together(client, take, take)
    assert len(set(seen)) == len(seen) == 50


async def test_what_cannot_be_a_queue_is_refused(client: Any) -> None:
    with pytest.raises(UnknownTopicError, match="absent"):
        async with queue_of(client, "g", "absent"):
            pass
    await client.create_topic("read", 1, exist_ok=True)
    async with client.consumer("read", group="readers", follow=False) as consumer:
        assert await consumer.poll(0) == []
        async with client.queue("jobs", group="readers") as queue:
            with pytest.raises(UnknownGroupError, match="readers is not a share group: a queue has"):
                await queue.get(LONG)


@each_case(
    ("wrong", "error"),
    [
        ({"group": ""}, ValueError),
        ({"group": 7}, TypeError),
        ({"topics": ()}, ValueError),
        ({"topics": ("", "a")}, ValueError),
        ({"prefetch": -1}, ValueError),
        ({"start": "now"}, seglog.RequestError),
    ],
)
async def test_an_option_that_is_wrong_is_refused(
    connect: Connect, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with Broker(memory=True) as broker:
        async with connect(broker.address) as client:
            await client.create_topic("jobs", 1)
            with pytest.raises(error):
                async with client.queue(**({"topics": "jobs", "group": "g"} | wrong)):
                    pass


async def test_an_older_broker_is_named(face: Face) -> None:
    async with face(topics={"jobs": 1}) as (broker, client):
        old = UnsupportedApiError("no api 'kafka'; there are hello and others", api="kafka")
        broker.script = lambda request, _payload: old if isinstance(request, KafkaRequest) else None
        async with client.queue("jobs", group="g") as queue:
            with pytest.raises(UnsupportedApiError, match="older than this client"):
                await queue.get(LONG)
