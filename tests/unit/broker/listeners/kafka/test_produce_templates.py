"""Which requests are served by a template, and how many of these a connection keeps.

That the responses are those of the ordinary way is held by ``test_kafka_served_together``.
"""

from typing import Final

import pytest

from seglog_broker.listeners.kafka.context import Endpoint, RequestContext
from seglog_broker.listeners.kafka.handlers.produce import Append
from seglog_broker.listeners.kafka.produce_templates import PARTITIONS_MAX, ProduceTemplate, template_of
from seglog_broker.listeners.kafka.templates import MISSES_A_TEMPLATE, SHARED_BYTES_MAX, TEMPLATES_MAX, Templates
from seglog_protocol.kafka import RequestHeaderReader, messages, read_request, write_request
from tests.logs import batch
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaServed, produce
from tests.unit.broker.listeners.real_broker import open_session

RECORDS: Final = batch(b"value")


class Connection:
    """The templates of a connection. ``serve`` makes one of a request, as the ordinary way does."""

    def __init__(self, served: KafkaServed) -> None:
        self.broker = served.broker
        self.templates = Templates()

    def serve(self, frame: memoryview) -> None:
        header = RequestHeaderReader().read(frame)
        room = self.broker.response_memory.room("127.0.0.1")
        endpoint = Endpoint("127.0.0.1", 9092)
        session = open_session(self.broker)
        context = RequestContext(self.broker, endpoint, header.version, header.client_id, "/127.0.0.1", room, session)
        request = read_request(header, frame)
        assert isinstance(request, messages.ProduceRequest)
        if self.templates.find(frame) is None and self.templates.is_due():
            template = template_of(context, header, frame, request)
            if template is not None:
                self.templates.add(template)

    def appends_of(self, frame: memoryview) -> list[Append] | None:
        """The appends of a request that has a template."""
        template = self.templates.find(frame)
        if template is None:
            return None
        assert isinstance(template, ProduceTemplate)
        return template.appends_of(frame)

    def places(self, frame: memoryview) -> list[tuple[str, int, bytes]] | None:
        """Topic, partition and records of the appends of a request that has a template."""
        appends = self.appends_of(frame)
        if appends is None:
            return None
        return [
            (asked.partitions[0].topic, asked.partitions[0].partition, bytes(records)) for _, asked, records in appends
        ]


def frame_of(request: messages.ProduceRequest, version: int = 12, client_id: str = "test") -> memoryview:
    return memoryview(b"".join(write_request(7, client_id, request, version))[4:])


@pytest.fixture
def connection(served: KafkaServed) -> Connection:
    return Connection(served)


@pytest.mark.parametrize("version", range(3, 13))
async def test_a_template_serves_all_partitions_of_its_topic(connection: Connection, version: int) -> None:
    connection.serve(frame_of(produce(("plain", 0, RECORDS)), version))
    other = batch(b"another value")
    frame = frame_of(produce(("plain", 2, other), ("plain", 1, RECORDS)), version)
    assert connection.places(frame) == [("plain", 2, other), ("plain", 1, RECORDS)]


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(produce(("plain", 0, RECORDS), acks=1)),
        frame_of(produce(("keyed", 0, RECORDS))),
        frame_of(produce(("plain", 0, RECORDS), ("keyed", 0, RECORDS))),
        frame_of(produce(("plain", 0, RECORDS)), client_id="other"),
        frame_of(produce(("plain", 0, RECORDS)), version=11),
        frame_of(produce(("plain", 0, RECORDS + b"!"))),
        frame_of(produce(("plain", 0, RECORDS[:50]))),
        frame_of(produce(("plain", 0, None))),
        frame_of(produce(*[("plain", number, RECORDS) for number in range(PARTITIONS_MAX + 1)])),
    ],
)
async def test_a_request_that_differs_in_more_has_none(connection: Connection, frame: memoryview) -> None:
    connection.serve(frame_of(produce(("plain", 0, RECORDS))))
    assert connection.appends_of(frame) is None


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(produce(("plain", 0, RECORDS), acks=0)),
        frame_of(produce(("plain", 0, RECORDS), ("keyed", 0, RECORDS))),
        frame_of(produce(("plain", 0, RECORDS)), client_id="x" * SHARED_BYTES_MAX),
    ],
    ids=["no ack", "two topics", "long"],
)
async def test_no_template_is_made(connection: Connection, frame: memoryview) -> None:
    connection.serve(frame)
    assert connection.appends_of(frame) is None


async def test_a_connection_keeps_few_templates_and_replaces_them_seldom(connection: Connection) -> None:
    frames = [frame_of(produce(("plain", 0, RECORDS)), client_id=str(number)) for number in range(TEMPLATES_MAX + 1)]
    for frame in frames:
        connection.serve(frame)
    *kept, late = frames
    assert all(connection.appends_of(frame) for frame in kept)
    for _ in range(MISSES_A_TEMPLATE - 1):
        assert connection.appends_of(late) is None
        connection.serve(late)
    assert connection.appends_of(late)
    found = [connection.appends_of(frame) is not None for frame in frames]
    assert found.count(False) == 1
    assert found[0] is False  # the one that was used longest ago


async def test_a_request_that_its_template_does_not_fit_makes_no_second_one(connection: Connection) -> None:
    others = [frame_of(produce(("plain", 0, RECORDS)), client_id=str(number)) for number in range(TEMPLATES_MAX - 1)]
    for frame in others:
        connection.serve(frame)
    many = frame_of(produce(*[("plain", number, RECORDS) for number in range(PARTITIONS_MAX + 1)]))
    for _ in range(2 * MISSES_A_TEMPLATE):
        connection.serve(many)
    assert all(connection.appends_of(frame) for frame in others)
