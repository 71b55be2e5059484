"""Requests about groups, served as if they had come over the wire, by handlers in front of FakeGroups."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.context import Endpoint, RequestContext
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, ResponseMemory
from seglog_broker.storage.directory.topic_registry import Topic, Topics
from seglog_protocol.kafka import (
    read_request,
    read_request_header,
    read_response,
    write_request,
    write_response,
)
from seglog_protocol.kafka.structs import Request
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.sessions import open_session

TOPIC_IDS: Final = {"orders": "A" * 21 + "Q", "events": "B" * 21 + "A"}
PARTITIONS: Final = 2

Places = Mapping[str, Sequence[int]]
"""Partitions by topic."""

ID_OF: Final = {name: id_bytes(topic_id) for name, topic_id in TOPIC_IDS.items()}


def places_to_commit(
    topic: Callable[..., Any], partition: Callable[..., Any], places: Places, *, by_id: bool, has_epoch: bool
) -> list[Any]:
    """Topics of a commit; partition n has the offset 10 + n."""
    epoch = {"committed_leader_epoch": 4} if has_epoch else {}

    def place(number: int) -> Any:
        note = "note" if number == 0 else None
        return partition(partition_index=number, committed_offset=10 + number, committed_metadata=note, **epoch)

    return [
        topic(
            **({"topic_id": ID_OF.get(name, b"?" * 16)} if by_id else {"name": name}),
            partitions=list(map(place, numbers)),
        )
        for name, numbers in places.items()
    ]


async def _added(*_: object, **__: object) -> None:
    """A group's partition, added to a transaction."""


def context_of(
    groups: FakeGroups, version: int, client_id: str | None = "app", response_bytes_max: int = RESPONSE_BYTES_MAX
) -> RequestContext:
    """The context of a request to a broker with two topics of two partitions."""
    topics = Topics({name: Topic(name, topic_id, PARTITIONS) for name, topic_id in TOPIC_IDS.items()})
    broker = SimpleNamespace(
        config=BrokerConfig(),
        groups=groups,
        transactions=SimpleNamespace(check_producer=lambda *_: None, add_offsets=_added),
        directory=SimpleNamespace(registry=SimpleNamespace(topics=topics)),
        turn=trio.lowlevel.checkpoint,
        metrics=Metrics(),
    )
    memory = ResponseMemory()
    memory.response_bytes_max = response_bytes_max
    served = cast("Broker", broker)
    session = open_session(served)
    return RequestContext(served, Endpoint("here", 9092), version, client_id, "/192.0.2.7", memory.room(), session)


def served_now(groups: FakeGroups, request: Request, version: int) -> Any:
    """The response of the synchronous handler; None if it defers to the other one."""
    handle_now = APIS[request.API_KEY].handle_now
    assert handle_now is not None
    return handle_now(context_of(groups, version), request)


async def serve(
    groups: FakeGroups,
    request: Request,
    version: int,
    *,
    client_id: str | None = "app",
    response_bytes_max: int = RESPONSE_BYTES_MAX,
) -> Any:
    """The response, as a client of this version reads it."""
    frame = memoryview(b"".join(write_request(1, client_id, request, version)))[4:]
    asked = read_request(read_request_header(frame), frame)
    context, api = context_of(groups, version, client_id, response_bytes_max), APIS[request.API_KEY]
    answered = None if api.handle_now is None else api.handle_now(context, asked)
    if answered is None:
        assert api.handle is not None
        answered = await api.handle(context, asked)
    sent = memoryview(b"".join(bytes(chunk) for chunk in write_response(1, answered, version)))[4:]
    return read_response(request.API_KEY, version, sent)[1]
