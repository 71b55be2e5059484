"""Clients above their quotas, over real sockets and by a clock that goes on when nothing else does."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.config.kafka_configs import Alteration, Operation, ResourceType
from seglog_broker.listeners import hangup
from seglog_broker.listeners.connection_task import MUTED_SECONDS_MAX
from seglog_broker.runtime.usage_buckets import LoopTime
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import (
    AlterTopicRequest,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
)
from seglog_protocol.quotas import Entity, entity_in, entity_of
from tests.logs import batch
from tests.unit.broker.listeners.fake_broker import OFFSETS
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, fetch, kafka, produce
from tests.unit.broker.listeners.real_broker import real

RECORDS = batch(b"v" * 900)
ASKED = messages.MetadataRequest(topics=None)
LIMIT = 1000.0
# What eleven windows give, which may be used at once.
BURST = 11 * LIMIT


@pytest.fixture
async def served() -> AsyncIterator[KafkaServed]:
    async with kafka(topics={"plain": {}}) as served:
        yield served


TEST = entity_of({"client-id": "test"})


async def limit(broker: Broker, entity: Entity = TEST, **quotas: float | None) -> None:
    await broker.configs.alter_clients({entity: quotas}, "", validate_only=False)


async def timed(peer: KafkaPeer, request: Any, version: int | None = None) -> tuple[int, float]:
    """The time that the answer tells, and the seconds that it took, by trio's clock."""
    began = trio.current_time()
    response = await peer.ask(request, version)
    return response.throttle_time_ms, trio.current_time() - began


@pytest.mark.parametrize("version", [3, 12])
async def test_a_producer_has_its_rate_and_waits_as_it_is_told(
    autojump_clock: MockClock, served: KafkaServed, version: int
) -> None:
    await limit(served.broker, producer_byte_rate=LIMIT)
    peer, other = await served.connect(), await served.connect()
    other.client_id = "other"
    size = len(peer.frame(produce(("plain", 0, RECORDS)), version, silent=True))
    began, told = trio.current_time(), 0
    with capture_logs() as logs:
        for _ in range(60):
            throttle_ms, seconds = await timed(peer, produce(("plain", 0, RECORDS)), version)
            assert seconds == pytest.approx(told / 1000, abs=0.002), "for as long it was not read"
            told = throttle_ms
            if told:
                assert (await timed(other, produce(("plain", 0, RECORDS)), version))[1] == 0, "others wait for nothing"
    assert 60 * size - BURST == pytest.approx(LIMIT * (trio.current_time() - began), rel=0.1)
    [line] = [line for line in logs if line["event"] == "client_throttled"]
    assert (line["quota"], line["client_id"], line["user"], line["limit"]) == ("producer_byte_rate", "test", "", LIMIT)
    metrics = served.broker.metrics
    assert metrics.quota_throttles["producer_byte_rate"] >= 30
    assert metrics.quota_throttle_seconds["producer_byte_rate"] == pytest.approx(trio.current_time() - began, rel=0.1)
    await trio.sleep(told / 1000 + 0.01)
    assert not metrics.muted


async def test_no_wait_is_longer_than_the_windows_and_it_ends_when_the_quota_is_changed(
    autojump_clock: MockClock, served: KafkaServed
) -> None:
    for changed in (None, 1e6):
        await limit(served.broker, producer_byte_rate=1.0)
        peer = await served.connect()
        assert await timed(peer, produce(("plain", 0, RECORDS)), 12) == (11_000, 0.0), "a quota of a byte, by mistake"
        async with trio.open_nursery() as tasks:
            tasks.start_soon(peer.send, ASKED)
            await trio.sleep(3)
            await limit(served.broker, entity_of({"user": "ann"}), producer_byte_rate=1.0)
            await trio.sleep(1)
            assert served.broker.metrics.muted, "it is the quota of another one"
            await limit(served.broker, producer_byte_rate=changed)
            began = trio.current_time()
            assert (await peer.receive(messages.MetadataResponse)).throttle_time_ms == 0
            assert trio.current_time() == began


@pytest.mark.parametrize("version", [4, 12])
async def test_a_fetch_above_the_quota_brings_nothing_and_is_asked_again(
    autojump_clock: MockClock, served: KafkaServed, version: int
) -> None:
    """As in Kafka; records of more than the quota gives in all its windows come when these are over."""
    peer = await served.connect()
    large = batch(b"v" * int(2 * BURST))
    for records in [RECORDS] * 40 + [large]:
        await peer.ask(produce(("plain", 0, records)), 9)
    await limit(served.broker, consumer_byte_rate=LIMIT)
    began, sizes, told = trio.current_time(), [0], 0
    while sum(sizes) < 40 * len(RECORDS) + len(large):
        sent = trio.current_time()
        response = await peer.ask(fetch(("plain", 0, sum(sizes) // len(RECORDS))), version)
        assert trio.current_time() - sent == pytest.approx(told / 1000, abs=0.002)
        sizes += [len(part.records) for topic in response.responses for part in topic.partitions]
        told = response.throttle_time_ms
        assert bool(told) == (not response.responses)
    assert sizes[-1] == len(large)
    assert max(sizes[:-1]) <= BURST
    assert served.broker.metrics.fetch_bytes == sum(sizes)
    assert sum(sizes[:-1]) == pytest.approx(LIMIT * (trio.current_time() - began), rel=0.1)


async def test_templates_are_used_again_when_nothing_is_to_be_waited_for(
    autojump_clock: MockClock, served: KafkaServed
) -> None:
    await limit(served.broker, producer_byte_rate=LIMIT, consumer_byte_rate=LIMIT)
    peer = await served.connect()
    asked = [produce(("plain", 0, RECORDS)), fetch(("plain", 0, 0))]
    before = [await peer.ask(request, 9) for request in asked]
    during = [await peer.ask(request, 9) for _ in range(12) for request in asked]
    assert any(response.throttle_time_ms for response in during)
    await trio.sleep(100)
    after = [await peer.ask(request, 9) for request in asked]
    assert [response.throttle_time_ms for response in (*before, *after)] == [0] * 4


async def test_what_a_muted_client_has_sent_lies_in_the_kernel_and_is_served_though_it_leaves(
    autojump_clock: MockClock, served: KafkaServed
) -> None:
    await limit(served.broker, producer_byte_rate=1.0)
    peer = await served.connect()
    await peer.ask(messages.MetadataRequest(topics=None))
    connection = await served.connection_of(peer)
    assert (await timed(peer, produce(("plain", 0, RECORDS)), 12))[0] > 10_000
    before = served.broker.metrics.requests_total
    for _ in range(3):
        await peer.send(produce(("plain", 0, RECORDS), acks=0), 12, silent=True)
    for _ in range(5):
        await wait_all_tasks_blocked()
    assert served.broker.metrics.requests_total == before
    assert connection.intake.reader.is_idle
    await peer.stream.aclose()
    await trio.sleep(MUTED_SECONDS_MAX + hangup.CHECK_SECONDS + 0.5)
    assert served.broker.metrics.requests_total == before + 1, "it waits for each of them"
    await trio.sleep(10)
    assert not served.broker.metrics.connections_open
    assert served.broker.metrics.requests_total == before + 3
    await (await served.connect()).send(produce(("plain", 0, RECORDS)), 12)
    await wait_all_tasks_blocked()
    began = trio.current_time()
    served.stop()
    await served.ended.wait()
    assert trio.current_time() - began < 5, "it is not waited for at the end"


async def test_a_client_has_its_part_of_the_loops_time(autojump_clock: MockClock, served: KafkaServed) -> None:
    ticks = count()
    served.broker.usage_buckets.loop_time = LoopTime(lambda: next(ticks) * 0.01)  # a hundredth of a second each look
    await limit(served.broker, request_percentage=1.0)
    peer, other = await served.connect(), await served.connect()
    other.client_id = "other"
    told: list[int] = []
    for _ in range(20):
        throttle_ms, seconds = await timed(peer, ASKED)
        assert seconds == pytest.approx(told[-1] / 1000 if told else 0, abs=0.002)
        told.append(throttle_ms)
        assert await timed(other, ASKED) == (0, 0.0)
    assert max(told) == 1000, "no wait is longer than a window"
    # A fetch that waits is the work of its own client, though another one wakes it.
    throttled, wait = served.broker.metrics.quota_throttles["request_percentage"], told[-1]
    for offset in range(30):
        await peer.send(fetch(("plain", 0, offset), max_wait_ms=100_000), 12)
        await trio.sleep(wait / 1000 + 1)
        assert (await other.ask(produce(("plain", 0, RECORDS)), 9)).throttle_time_ms == 0
        wait = (await peer.receive(messages.FetchResponse)).throttle_time_ms
    assert served.broker.metrics.quota_throttles["request_percentage"] > throttled
    # What the sharing of a batch, and of a job of the connection's task, took is counted, too.
    for request in (produce(("plain", 0, RECORDS)), messages.DescribeLogDirsRequest(topics=None)):
        await trio.sleep(60)
        assert (await timed(peer, request, 3))[0] == 0
        assert max([(await timed(peer, request, 3))[0] for _ in range(20)]) == 1000


async def test_on_the_native_wire_the_answer_is_late(autojump_clock: MockClock) -> None:
    append = AppendRequest([AppendPartition("commits", 0, len(RECORDS))], "disk")
    async with real() as served:
        await limit(served.broker, entity_of({"user": None}), producer_byte_rate=LIMIT, consumer_byte_rate=LIMIT)
        peer = await served.greeted()

        async def seconds(first: int, ask: Callable[[int], Awaitable[object]]) -> float:
            began = trio.current_time()
            for number in range(first, first + 100):
                await ask(number)
            return trio.current_time() - began

        def read(number: int) -> Awaitable[object]:
            return peer.ask(number, FetchRequest([FetchPartition("commits", 0, number % 100, max_bytes=1)]))

        for first, ask in ((1, lambda number: peer.ask(number, append, RECORDS)), (1_000, read)):
            await seconds(first, ask)
            assert await seconds(first + 100, ask) == pytest.approx(100 * len(RECORDS) / LIMIT, rel=0.1)
        tries, told = iter(range(2_000, 2_020)), None
        while told is None:
            told = (await peer.ask(next(tries), append, RECORDS)).get("throttle_ms")
        assert await seconds(3_000, lambda number: peer.ask(number, OFFSETS)) == pytest.approx(told / 1000, abs=0.002)


def topics(**partitions: int) -> messages.CreateTopicsRequest:
    cls = messages.CreateTopicsRequest
    wanted = [cls.CreatableTopic(name=name, num_partitions=count) for name, count in partitions.items()]
    for topic in wanted:
        topic.replication_factor, topic.assignments, topic.configs = 1, [], []
    return cls(topics=wanted)


async def test_changes_of_topics_are_refused_to_a_client_above_its_quota_or_have_it_wait(
    autojump_clock: MockClock, served: KafkaServed
) -> None:
    """The numbers are those of a real Kafka: 5 partitions a second, 55 at once; no wait is longer than 11 s."""
    await limit(served.broker, controller_mutation_rate=5.0)
    peer, exceeded = await served.connect(), ErrorCode.THROTTLING_QUOTA_EXCEEDED

    async def told(request: Any, version: int, *codes: int) -> int:
        response = await peer.ask(request, version)
        results = next(
            getattr(response, name) for name in ("topics", "responses", "results") if hasattr(response, name)
        )
        assert [result.error_code for result in results] == list(codes)
        throttle_ms: int = response.throttle_time_ms
        return throttle_ms

    only_validated = topics(v=60)
    only_validated.validate_only = True
    assert await told(only_validated, 6, 0) == 0, "that counts, too"
    assert await told(topics(a=60), 6, exceeded) == pytest.approx(1000, abs=1)
    assert await told(topics(a=1, b=1), 6, 0, exceeded) == pytest.approx(200, abs=1)
    assert await told(topics(plain=60), 6, ErrorCode.TOPIC_ALREADY_EXISTS) == 0
    await trio.sleep(6)
    assert await told(topics(c=3, d=60, e=3), 7, 0, 0, exceeded) > 6000
    enlarged = messages.CreatePartitionsRequest.CreatePartitionsTopic(name="c", count=4, assignments=None)
    assert await told(messages.CreatePartitionsRequest(topics=[enlarged]), 3, 0) == 0
    deleted = messages.DeleteTopicsRequest(topic_names=["c"])
    assert await told(deleted, 5, exceeded) == pytest.approx(200, abs=1)
    assert await told(deleted, 4, 0) == pytest.approx(800, abs=1), "who does not know the error waits after the change"
    assert await told(topics(f=1), 5, 0) == pytest.approx(200, abs=1)
    created = messages.MetadataRequest(topics=[messages.MetadataRequest.MetadataRequestTopic(name="g")])
    await peer.ask(created, 4)
    assert served.broker.metrics.quota_throttles["controller_mutation_rate"] == 7


async def test_native_clients_wait_before_changes_of_topics(autojump_clock: MockClock) -> None:
    """Each on a connection of its own, too: a loop of commands has the rate of one client."""
    async with real() as served:
        await limit(served.broker, entity_of({"user": None}), controller_mutation_rate=1.0)
        began, waited = trio.current_time(), []
        for request in (
            CreateTopicRequest("t", 31),
            AlterTopicRequest("t", partitions=51),
            DeleteTopicRequest("t"),
            AppendRequest([AppendPartition("new", 0, len(RECORDS))], "disk", create=True),
            CreateTopicRequest("u", 1),
            OFFSETS,
        ):
            peer = await served.greeted()
            payload = RECORDS if isinstance(request, AppendRequest) else b""
            assert "error" not in await peer.ask(1, request, payload)
            waited.append(round(trio.current_time() - began))
        assert waited == [0, 20, 40, 40, 92, 92], "11 at once; an append that makes its topic waits afterwards"
        peer = await served.greeted()
        await peer.send(1, CreateTopicRequest("v", 1))
        await wait_all_tasks_blocked()
        served.stop()
        assert (await peer.receive()).header["error"]["code"] == "BROKER_STOPPING"


async def hangs_up(served: KafkaServed) -> float:
    """The seconds until a new connection is closed, of which nothing is served."""
    peer, began = await served.connect(), trio.current_time()
    assert await peer.rest() == b""
    return trio.current_time() - began


async def alter(broker: Broker, key: str, value: str) -> None:
    await broker.configs.alter(ResourceType.BROKER, "", [Alteration(key, Operation.SET, value)])


async def test_an_address_has_so_many_connections(autojump_clock: MockClock) -> None:
    async with kafka("max.connections.per.ip=2", topics={}) as served:
        first, _ = [await served.connect() for _ in range(2)]
        await first.ask(ASKED)
        assert await hangs_up(served) == 0
        await alter(served.broker, "max.connections.per.ip.overrides", "10.0.0.1:1,127.0.0.1:3")
        await (await served.connect()).ask(ASKED)
        assert await hangs_up(served) == 0
        await first.stream.aclose()
        await wait_all_tasks_blocked()
        await (await served.connect()).ask(ASKED)
        assert served.broker.metrics.connections_ended["too_many_connections"] == 2


async def test_a_listener_with_too_many_connections_accepts_another_one_when_there_is_a_place(
    autojump_clock: MockClock,
) -> None:
    async with kafka("listener.name.plaintext.max.connections=2", topics={}) as served:
        peers = [await served.connect() for _ in range(4)]
        for peer in peers[:2]:
            await peer.ask(ASKED)
        began = trio.current_time()
        for peer in peers[2:]:
            await peer.send(ASKED)
        for _ in range(3):
            await wait_all_tasks_blocked()
        await peers[0].stream.aclose()
        await peers[2].receive(messages.MetadataResponse)
        assert trio.current_time() - began < 2
        await peers[1].stream.aclose()
        await peers[3].receive(messages.MetadataResponse)
        await alter(served.broker, "max.connections", "1")  # of all; those that are open stay
        await peers[2].ask(ASKED)


async def test_new_connections_are_accepted_as_fast_as_their_rate(autojump_clock: MockClock) -> None:
    async with kafka("max.connection.creation.rate=2", topics={}) as served:
        began = trio.current_time()
        for _ in range(22):  # so many are possible at once in eleven windows
            await (await served.connect()).ask(ASKED)
        assert trio.current_time() == began
        for _ in range(80):
            await (await served.connect()).ask(ASKED)
        assert 40 * 0.9 < trio.current_time() - began < 40 * 1.1 + 10


async def test_an_address_that_connects_too_fast_is_hung_up_when_it_may_try_again(
    autojump_clock: MockClock, served: KafkaServed
) -> None:
    await limit(served.broker, entity_of({"ip": None}), connection_creation_rate=9.0)
    await limit(served.broker, entity_of({"ip": "127.0.0.1"}), connection_creation_rate=1.0)
    with capture_logs() as logs:
        for _ in range(11):
            await (await served.connect()).ask(ASKED)
        assert 0 < await hangs_up(served) <= 1.001, "it is a window at most"
        await trio.sleep(11)
        await (await served.connect()).ask(ASKED)
    [line] = [line for line in logs if line["event"] == "client_throttled"]
    assert (line["quota"], line["client_id"], line["limit"]) == ("connection_creation_rate", "127.0.0.1", 1.0)
    assert served.broker.metrics.quota_throttles["connection_creation_rate"] == 1


async def test_a_filter_lets_through_what_has_its_names_and_types(served: KafkaServed) -> None:
    ann, both = entity_of({"user": "ann"}), entity_of({"user": "ann", "client-id": None})
    here, cls = entity_of({"ip": "127.0.0.1"}), messages.DescribeClientQuotasRequest
    for entity in (ann, both):
        await limit(served.broker, entity, producer_byte_rate=1.0)
    await limit(served.broker, here, connection_creation_rate=99.0)
    name, default, anyone = range(3)
    cases: list[tuple[list[tuple[str, int, str | None]], bool, list[Entity]]] = [
        ([], False, [ann, both, here]),
        ([], True, []),
        ([("user", name, "ann")], False, [ann, both]),
        ([("user", name, "ann")], True, [ann]),
        ([("user", name, "ann"), ("client-id", anyone, None)], True, [both]),
        ([("user", name, "ann"), ("client-id", default, None)], True, [both]),
        ([("user", default, None)], False, []),
        ([("ip", anyone, None)], False, [here]),
    ]
    peer = await served.connect()
    for components, is_strict, found in cases:
        wanted = [cls.ComponentData(entity_type=kind, match_type=how, match=who) for kind, how, who in components]
        response = await peer.ask(cls(components=wanted, strict=is_strict))
        assert [entity_in(entry.entity) for entry in response.entries] == found
