"""Kafka's requests within native ones: the responses are those of Kafka's wire, and what waits holds up nothing."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners.kafka.carried import APIS, WAITING_BYTES_LEAST, WAITING_BYTES_MAX, Carried
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.wire import READ_AT_ONCE_BYTES
from seglog_broker.listeners.native.wire import NativeWire
from seglog_broker.listeners.serving import serve_kafka
from seglog_protocol.kafka import messages, read_response, write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request
from seglog_protocol.messages import KafkaRequest
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import OFFSETS, Listening, Peer, code_of, serving
from tests.unit.broker.listeners.real_broker import real

DESCRIBE: Final = 32
"""DescribeConfigs, which is served by a job."""
PRODUCE: Final = 0
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def configs(*topics: str) -> messages.DescribeConfigsRequest:
    cls = messages.DescribeConfigsRequest
    return cls(resources=[cls.DescribeConfigsResource(resource_type=2, resource_name=name) for name in topics])


def payload_of(request: Request, version: int = 4) -> bytes:
    return b"".join(write_request(5, "test", request, version))[4:]


@pytest.fixture
async def served() -> AsyncIterator[Listening]:
    async with real() as served:
        yield served


@pytest.fixture
async def peer(served: Listening) -> Peer:
    return await served.greeted()


async def carried_of(served: Listening, peer: Peer) -> Carried:
    wire = (await served.connection_of(peer.stream)).wire
    assert isinstance(wire, NativeWire)
    return wire._carried


@dataclass
class Waiting:
    """A handler that waits; what it is asked, in order, and how its waits end."""

    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    go_on: trio.Event = field(default_factory=trio.Event)

    async def handle(
        self, _context: RequestContext, request: messages.DescribeConfigsRequest
    ) -> messages.DescribeConfigsResponse:
        name = request.resources[0].resource_name
        self.asked.append(name)
        try:
            await self.go_on.wait()
        except trio.Cancelled:
            self.ended.append(name)
            raise
        return messages.DescribeConfigsResponse(throttle_time_ms=1)

    async def serve(self, served: Listening, peer: Peer) -> None:
        """Have it serve the requests of a connection."""
        api = Api(DESCRIBE, "DescribeConfigs", range(1, 5), handle=self.handle, waits=True)
        (await carried_of(served, peer)).apis = {DESCRIBE: api}


# --- Responses --------------------------------------------------------------------------------------------------------


@each_case(
    "request_of",
    [
        messages.ListGroupsRequest,
        lambda: configs("commits", "absent"),
        lambda: configs(*[f"{number:0>200}" for number in range(READ_AT_ONCE_BYTES // 200)]),  # read in turns
        lambda: configs(*["commits"] * 300),  # a large response
    ],
)
async def test_a_response_is_that_of_kafkas_wire(request_of: Callable[[], Request]) -> None:
    request = request_of()
    payload = payload_of(request)
    async with real() as served:
        peer = await served.greeted()
        await peer.send(1, KafkaRequest(), payload)
        frame = await peer.receive()
        assert frame.header == {"id": 1}
        async with serving(served.broker, serve_kafka) as kafka:
            stream = (await kafka.connect()).stream
            await stream.send_all(len(payload).to_bytes(4, "big") + payload)
            whole = len(frame.payload).to_bytes(4, "big") + frame.payload
            received = b""
            while len(received) < len(whole):
                received += await stream.receive_some()
            await kafka.close_peers()
        assert received == whole
        counts = served.broker.metrics.listener("native").of(APIS[request.API_KEY].name)
        assert (counts.requests, sum(counts.seconds.counts)) == (1, 1)


async def test_rights_are_those_of_kafkas_wire() -> None:
    cls = messages.IncrementalAlterConfigsRequest
    resource = cls.AlterConfigsResource(resource_type=2, resource_name="commits", configs=[])
    async with real("super.users=User:admin") as served:
        peer = await served.greeted()
        await peer.send(1, KafkaRequest(), payload_of(cls(resources=[resource]), 1))
        response: Any = read_response(44, 1, (await peer.receive()).payload)[1]
        assert response.responses[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert served.broker.metrics.authorization_refusals == 1


async def test_rules_are_asked_as_on_kafkas_wire() -> None:
    async with real(f"authorizer.class.name={AUTHORIZER}", "super.users=User:admin") as served:
        peer = await served.greeted()
        for key, version, request in (
            (42, 3, messages.DeleteGroupsRequest(groups_names=["g"])),
            (47, 0, messages.OffsetDeleteRequest(group_id="g")),
        ):
            await peer.send(key, KafkaRequest(), payload_of(request, version))
            response: Any = read_response(key, version, (await peer.receive()).payload)[1]
            result = response.results[0] if key == 42 else response
            assert result.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


# --- What is no response ----------------------------------------------------------------------------------------------


async def test_what_is_not_carried_is_a_typed_error(peer: Peer) -> None:
    def with_head(api_key: int, version: int) -> bytes:
        return api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + payload_of(configs("commits"))[4:]

    error = (await peer.ask(1, KafkaRequest(), with_head(PRODUCE, 9)))["error"]
    assert (error["code"], error["api"]) == ("UNSUPPORTED_API", "0")
    error = (await peer.ask(2, KafkaRequest(), with_head(999, 0)))["error"]
    assert (error["code"], error["api"]) == ("UNSUPPORTED_API", "999")
    error = (await peer.ask(3, KafkaRequest(), with_head(DESCRIBE, 77)))["error"]
    assert error["code"] == "UNSUPPORTED_VERSION"
    assert (error["api"], error["minimum"], error["maximum"]) == ("DescribeConfigs", 1, 4)


async def test_a_request_that_is_cut_off_is_refused_and_the_connection_goes_on(peer: Peer) -> None:
    large = payload_of(configs(*["x" * 200] * (READ_AT_ONCE_BYTES // 100)))
    small = payload_of(configs("commits"))
    cuts = [*(small[:end] for end in range(len(small))), large[:-1]]
    for number, cut in enumerate(cuts):
        error = (await peer.ask(number, KafkaRequest(), cut))["error"]
        assert (error["code"], error["field"]) == ("INVALID_REQUEST", "payload")
    assert (await peer.ask(999, KafkaRequest(), small)) == {"id": 999}


@each_case("at_once", [True, False])
async def test_a_handler_that_fails_is_answered_and_the_connection_goes_on(at_once: bool) -> None:
    def fail(*_: object) -> Any:
        raise OSError(5, "Input/output error")

    async def fail_later(*_: object) -> Any:
        fail()

    async with real() as served:
        peer = await served.greeted()
        api = APIS[DESCRIBE]
        broken = api._replace(handle_now=fail) if at_once else api._replace(handle=fail_later, waits=True)
        (await carried_of(served, peer)).apis = {DESCRIBE: broken}
        for number in range(2):
            assert (
                code_of(await peer.ask(number, KafkaRequest(), payload_of(configs("commits")))) == "KAFKA_STORAGE_ERROR"
            )


# --- Requests that wait -----------------------------------------------------------------------------------------------


async def test_a_request_that_waits_is_overtaken(served: Listening, peer: Peer) -> None:
    """Requests begin in their order, and those behind one that waits are served meanwhile."""
    waiting = Waiting()
    await waiting.serve(served, peer)
    names = [str(number) for number in range(10)]
    for number, name in enumerate(names, start=1):
        await peer.send(number, KafkaRequest(), payload_of(configs(name)))
    await peer.send(99, OFFSETS)
    assert (await peer.receive()).header["id"] == 99
    assert waiting.asked == names
    waiting.go_on.set()
    assert sorted(await peer.receive_ids(len(names))) == list(range(1, 11))


async def test_a_wait_ends_when_the_peer_leaves(served: Listening, peer: Peer) -> None:
    waiting = Waiting()
    await waiting.serve(served, peer)
    await peer.send(1, KafkaRequest(), payload_of(configs("commits")))
    await wait_all_tasks_blocked()
    await peer.stream.send_eof()
    assert await peer.rest() == b""
    assert waiting.ended == ["commits"]


async def test_a_wait_ends_when_the_broker_stops(served: Listening, peer: Peer) -> None:
    waiting = Waiting()
    await waiting.serve(served, peer)
    await peer.send(1, KafkaRequest(), payload_of(configs("commits")))
    await wait_all_tasks_blocked()
    served.stop()
    response: Any = read_response(DESCRIBE, 4, (await peer.receive()).payload)[1]
    assert response.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "stopping" in response.results[0].error_message
    assert await peer.hung_up()


async def test_waits_are_bounded(served: Listening, peer: Peer) -> None:
    waiting = Waiting()
    await waiting.serve(served, peer)
    many = WAITING_BYTES_MAX // WAITING_BYTES_LEAST
    for number in range(many):
        await peer.send(number, KafkaRequest(), payload_of(configs(str(number))))
    error = (await peer.ask(many, KafkaRequest(), payload_of(configs("one more"))))["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["message"].startswith(f"{many} requests wait on this connection already")
    assert len(waiting.asked) == many
    waiting.go_on.set()
    await peer.receive_ids(many)
    alone = payload_of(configs(*["x" * 200] * (WAITING_BYTES_MAX // 100)))
    assert await peer.ask(many, KafkaRequest(), alone) == {"id": many}
