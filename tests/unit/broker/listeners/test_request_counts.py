"""What is counted of requests and connections, on each wire: how many, their bytes, errors, times, reasons to end."""

from math import inf

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.kafka.error_responses import count_errors, paths_of
from seglog_broker.runtime.histogram import Histogram
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol.kafka import messages
from seglog_protocol.steps import finished
from tests.logs import batch
from tests.unit.broker.listeners.kafka.kafka_peer import kafka, produce
from tests.unit.broker.listeners.wires import BATCH, WireKit, WirePeer, WireServed

LABELS = {"native": "native", "kafka": "PLAINTEXT"}
APPEND = {"native": "append", "kafka": "Produce"}
FETCH = {"native": "fetch", "kafka": "Fetch"}
QUERY = {"native": "offsets", "kafka": "ListOffsets"}


def counts_of(broker: Broker, kit: WireKit, api: dict[str, str]) -> ApiMetrics:
    return broker.metrics.listeners[LABELS[kit.name]].of(api[kit.name])


def timed(counts: ApiMetrics) -> int:
    """The requests in the histogram."""
    return sum(counts.seconds.counts)


class Taps:
    """Counts the bytes that one connection receives."""

    def __init__(self, peer: WirePeer) -> None:
        self.peer = peer
        self.received = 0
        receive_some = peer.stream.receive_some

        async def counted(max_bytes: int | None = None) -> bytes:
            data = await receive_some(max_bytes)
            self.received += len(data)
            return bytes(data)

        peer.stream.receive_some = counted  # type: ignore[method-assign]

    async def counted(self, counts: ApiMetrics, *frames: bytes) -> None:
        """Sends requests of one api, and looks that they and their responses are counted with all their bytes."""
        self.received = 0
        before = counts.request_bytes, counts.response_bytes, counts.requests
        await self.peer.send(*frames)
        await self.peer.receive_all(len(frames))
        assert counts.request_bytes - before[0] == sum(map(len, frames))
        assert counts.response_bytes - before[1] == self.received
        assert counts.requests - before[2] == len(frames)
        assert timed(counts) == counts.requests


@pytest.mark.parametrize("ack", ["os", "disk"])
async def test_appends_are_counted_with_all_their_bytes(kit: WireKit, ack: str, served: WireServed) -> None:
    taps = Taps(await served.connect())
    counts = counts_of(served.broker, kit, APPEND)
    for number in range(1, 8):  # a pipeline of one, then of more
        await taps.counted(counts, *[taps.peer.append("os" if ack == "os" else "disk") for _ in range(number)])
    assert counts.requests == 28
    assert not counts.errors


async def test_appends_without_an_answer_are_counted_too(kit: WireKit, served: WireServed, peer: WirePeer) -> None:
    counts = counts_of(served.broker, kit, APPEND)
    for _ in range(3):
        await peer.send(peer.append("none"))
    await peer.send(peer.query())
    await peer.receive()
    assert (counts.requests, timed(counts), counts.response_bytes) == (3, 3, 0)


async def test_fetches_and_other_requests_are_counted_with_their_records(kit: WireKit, served: WireServed) -> None:
    taps = Taps(await served.connect())
    peer = taps.peer
    await taps.counted(counts_of(served.broker, kit, APPEND), peer.append())
    for api, frame in ((FETCH, peer.fetch(0)), (QUERY, peer.query()), (FETCH, peer.fetch(0))):
        await taps.counted(counts_of(served.broker, kit, api), frame)
    assert counts_of(served.broker, kit, FETCH).response_bytes > 2 * len(BATCH)


async def test_a_fetch_that_waits_is_timed_until_it_is_answered(kit: WireKit, served: WireServed) -> None:
    reader, writer = await served.connect(), await served.connect()
    counts = counts_of(served.broker, kit, FETCH)
    await reader.send(reader.fetch(0, wait_ms=60_000))
    await served.until_waiting(1)
    assert (counts.requests, timed(counts)) == (1, 0)
    await trio.sleep(0.11)
    await writer.send(writer.append())
    await reader.receive()
    assert timed(counts) == 1
    assert counts.seconds.sum > 0.1


async def test_errors_are_counted_by_the_code_of_the_wire(kit: WireKit, served: WireServed, peer: WirePeer) -> None:
    await peer.send(peer.fetch(5), peer.append("os", BATCH[:-1] + bytes([BATCH[-1] ^ 1])))
    await peer.receive_all(2)
    assert counts_of(served.broker, kit, FETCH).errors == {"OFFSET_OUT_OF_RANGE": 1}
    assert counts_of(served.broker, kit, APPEND).errors == {"CORRUPT_MESSAGE": 1}
    assert served.broker.metrics.request_errors == {"OFFSET_OUT_OF_RANGE": 1, "CORRUPT_MESSAGE": 1}
    await peer.send(kit.bad_frames["too large"])
    await peer.rest()
    await served.until_closed()
    assert sum(served.broker.metrics.listeners[LABELS[kit.name]].errors.values()) == 1, "they are of no request"


async def test_a_produce_request_for_several_partitions_is_one() -> None:
    async with kafka() as served:
        peer = await served.connect()
        for _ in range(4):  # the last ones have a template
            await peer.send(produce(*[("plain", number, batch(b"x")) for number in range(3)]), 9)
            await peer.receive(messages.ProduceResponse)
        counts = served.broker.metrics.listeners["PLAINTEXT"].of("Produce")
        assert (counts.requests, timed(counts), served.broker.metrics.appends["disk"]) == (4, 4, 12)


def test_errors_are_found_at_any_depth_of_a_response() -> None:
    topic = messages.MetadataResponse.MetadataResponseTopic
    partition = messages.MetadataResponse.MetadataResponsePartition
    broken = topic(error_code=3, partitions=[partition(error_code=5), partition(), partition(error_code=5)])
    counts = ApiMetrics("Metadata").errors
    finished(count_errors(counts, messages.MetadataResponse(topics=[broken, topic()])))
    assert counts == {"UNKNOWN_TOPIC_OR_PARTITION": 1, "LEADER_NOT_AVAILABLE": 2}
    assert set(paths_of("MetadataResponse")) == {(), ("topics",), ("topics", "partitions")}


def test_long_responses_are_looked_at_in_steps() -> None:
    partition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
    topic = messages.ListOffsetsResponse.ListOffsetsTopicResponse
    response = messages.ListOffsetsResponse(topics=[topic(partitions=[partition(error_code=6) for _ in range(10_000)])])
    counts = ApiMetrics("ListOffsets").errors
    assert len(list(count_errors(counts, response))) == 10
    assert counts == {"NOT_LEADER_OR_FOLLOWER": 10_000}


def test_a_value_counts_in_the_first_bucket_that_is_not_below_it() -> None:
    counted = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0, inf):
        counted.add(value)
    counted.add_many(1.5, 3)
    assert list(counted.counts) == [2, 5, 2]


# --- What is counted of connections, on each wire: by listener, and of those that it did not take or that failed ------


async def test_connections_are_counted_by_listener(kit: WireKit, served: WireServed) -> None:
    first, second = await served.connect(), await served.connect()
    for peer in (first, second):
        await peer.send(peer.query())
        await peer.receive()
    counts = served.broker.metrics.listeners[LABELS[kit.name]]
    assert (counts.connections, counts.connections_accepted) == (2, 2)
    await first.stream.aclose()
    await served.until_closed(1)
    assert (counts.connections, counts.connections_accepted) == (1, 2)
    assert list(served.broker.metrics.listeners) == [LABELS[kit.name]]
    assert not served.broker.metrics.connections_ended, "its peer has left"


async def test_an_append_without_an_answer_that_fails_is_a_reason(served: WireServed, peer: WirePeer) -> None:
    await peer.send(peer.append("none", BATCH[:-1] + bytes([BATCH[-1] ^ 1])))
    await peer.rest()
    await served.until_closed()
    assert served.broker.metrics.connections_ended == {"append_failed": 1}
