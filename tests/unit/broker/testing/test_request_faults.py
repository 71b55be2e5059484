"""Faults by name in front of raw peers, on both wires: what is asked for is met, once, and nothing else is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from scripts.message_tables import REQUIRED, fields
from seglog_broker.listeners.kafka.apis import APIS as APIS_OF_KAFKA
from seglog_broker.testing import request_faults
from seglog_broker.testing.request_faults import RequestFaults
from seglog_protocol import messages as native
from seglog_protocol.errors import DiskFullError, SeglogError
from seglog_protocol.kafka.definitions import apis
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response
from seglog_protocol.messages import PROTOCOL_NAME, REQUESTS, Ack, HelloRequest, Request, decode_reply
from seglog_protocol.messages.groups import CommitOffset, GroupPartition, LeavingGroupMember
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer
from tests.unit.broker.listeners.kafka.test_error_responses import filled, structs_of
from tests.unit.broker.listeners.wires import TOPIC, WIRES, WireKit, WirePeer, WireServed, serving_wire

APIS: Final = {
    "native": {"append": "append", "fetch": "fetch", "query": "offsets"},
    "kafka": {"append": "Produce", "fetch": "Fetch", "query": "ListOffsets"},
}
ERRORS: Final[dict[str, Any]] = {"native": DiskFullError, "kafka": "KAFKA_STORAGE_ERROR"}


@asynccontextmanager
async def faulty_wire(kit: WireKit) -> AsyncIterator[tuple[WireServed, RequestFaults]]:
    faults = RequestFaults()
    async with serving_wire(kit._replace(serve=partial(kit.serve, faults=faults))) as served:
        faults.begin(served.broker)
        yield served, faults


def failing(faults: RequestFaults, kit: WireKit, kind: str, times: int = 1, **options: Any) -> request_faults.Fault:
    return faults.fail_next(APIS[kit.name][kind], ERRORS[kit.name], times, **options)


@pytest.fixture(params=WIRES, ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest) -> WireKit:
    wire: WireKit = request.param
    return wire


async def answer(peer: WirePeer, frame: bytes) -> int | None:
    """The value of the reply to the one request of ``frame``; None for an error."""
    await peer.send(frame)
    return (await peer.receive()).value


def frame_of(peer: WirePeer, kind: str) -> bytes:
    return {"append": peer.append, "fetch": lambda: peer.fetch(0), "query": peer.query}[kind]()


# --- fail_next --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "fetch", "query"])
async def test_the_next_requests_of_an_api_fail_and_the_others_do_not(kit: WireKit, kind: str) -> None:
    async with faulty_wire(kit) as (served, faults):
        fault = failing(faults, kit, kind, times=2)
        assert faults.pending == [fault]
        peer = await served.connect()
        kinds = ["append", "query", kind, kind, kind]
        for each in kinds:
            await peer.send(frame_of(peer, each))
        got = await peer.receive_all(len(kinds))
        failed = [response.number for response in got if response.value is None]
        assert failed == [number for number, each in enumerate(kinds) if each == kind][:2]
        assert fault.met == 2
        assert faults.pending == []


async def test_the_failure_of_an_append_is_answered_in_its_place(kit: WireKit) -> None:
    """It does not overtake the appends before it, which wait for the disk, nor do those behind it."""
    async with faulty_wire(kit) as (served, faults):
        peer = await served.connect()
        assert await answer(peer, peer.append()) == 0
        faults.fail_next(APIS[kit.name]["append"], ERRORS[kit.name], topic="another")
        failing(faults, kit, "append", topic=TOPIC)
        assert await answer(peer, peer.append("os")) is None
        failing(faults, kit, "append", topic=TOPIC)
        faults.delay(0)
        await peer.send(peer.append(), peer.append("disk"), peer.append("os"))
        got = await peer.receive_all(3)
        assert [(response.number, response.value) for response in got] == [(2, None), (3, 1), (4, 2)]
        assert served.broker.partitions[TOPIC, 0].log.log_end_offset == 3, "what fails is not served"
        assert sum(served.broker.metrics.request_errors.values()) == 2
        assert [fault.call.count("another") for fault in faults.pending] == [1]


async def test_a_failed_append_without_an_ack_ends_the_connection(kit: WireKit) -> None:
    async with faulty_wire(kit) as (served, faults):
        fault = failing(faults, kit, "append")
        peer = await served.connect()
        await peer.send(peer.append("none"))
        assert await peer.rest() == b""
        assert fault.met == 1
        assert served.broker.partitions[TOPIC, 0].log.log_end_offset == 0


# --- delay ------------------------------------------------------------------------------------------------------------


async def test_delayed_requests_are_served_later_and_in_order(kit: WireKit, autojump_clock: MockClock) -> None:
    """Of another connection none is held up."""
    async with faulty_wire(kit) as (served, faults):
        slow, other = await served.connect(), await served.connect()
        fault = faults.delay(3, APIS[kit.name]["append"], times=2)
        assert fault is not None
        began = trio.current_time()
        await slow.send(slow.append(), slow.append(), slow.query())
        assert await answer(other, other.query()) == 0
        assert trio.current_time() - began < 1
        got = await slow.receive_all(3)
        if not kit.is_ordered:
            got.sort(key=lambda response: response.number)
        assert [(response.kind, response.value) for response in got] == [("append", 0), ("append", 1), ("query", 2)]
        assert 3 <= trio.current_time() - began < 4, "they came together"
        assert fault.met == 2
        assert faults.pending == []
        faults.delay(2, APIS[kit.name]["query"])
        faults.delay(5, APIS[kit.name]["append"])
        began = trio.current_time()
        await slow.send(slow.query(), slow.append(), slow.query())
        await slow.receive_all(3)
        assert 5 <= trio.current_time() - began < 6, "each is late from the moment at which it came"
        for _ in range(2):
            await slow.send(slow.append())
            await slow.receive()
        assert 15 <= trio.current_time() - began < 16


@pytest.mark.parametrize("how", ["heal", "zero", "other api", "stop"])
async def test_a_delay_ends_when_it_is_told_to(kit: WireKit, how: str, autojump_clock: MockClock) -> None:
    async with faulty_wire(kit) as (served, faults):
        peer = await served.connect()
        began = trio.current_time()
        faults.delay(50)
        await peer.send(peer.append())
        await wait_all_tasks_blocked()
        if how == "heal":
            faults.heal()
        elif how == "zero":
            assert faults.delay(0) is None
        elif how == "stop":
            served.stop()
        else:
            faults.delay(0, APIS[kit.name]["append"])
        assert (await peer.receive()).value == 0
        seconds = trio.current_time() - began
        assert seconds >= 50 if how == "other api" else seconds < 10


# --- Connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["os", "disk"])
async def test_of_an_append_whose_ack_is_lost_the_records_are_there(kit: WireKit, ack: Ack) -> None:
    async with faulty_wire(kit) as (served, faults):
        peer = await served.connect()
        assert await answer(peer, peer.append(ack)) == 0
        fault = faults.lose_next_ack(TOPIC)
        faults.lose_next_ack("another")
        await peer.send(peer.query(), peer.append("none"), peer.append(ack), peer.append(ack))
        assert (await peer.receive()).value == 1
        assert await peer.rest() == b""
        assert fault.met == 1
        partition = served.broker.partitions[TOPIC, 0]
        assert partition.log.log_end_offset >= 3
        if ack == "disk":
            assert partition.log.durable_end_offset >= 3
        other = await served.connect()
        assert await answer(other, other.append(ack)) == partition.log.log_end_offset - 1
        assert len(faults.pending) == 1


async def test_open_connections_are_reset_and_others_come(kit: WireKit) -> None:
    async with faulty_wire(kit) as (served, faults):
        idle, waiting = await served.connect(), await served.connect()
        await waiting.send(waiting.fetch(0, wait_ms=60_000))
        await served.until_waiting(1)
        assert faults.cut_connections() == 2
        for peer in (idle, waiting):
            with pytest.raises(trio.BrokenResourceError):
                await peer.stream.receive_some()
        await served.until_closed()
        again = await served.connect()
        assert await answer(again, again.query()) == 0


async def test_new_connections_are_refused_until_that_is_lifted(kit: WireKit) -> None:
    async with faulty_wire(kit) as (served, faults):
        peer = await served.connect()
        fault = faults.refuse()
        assert fault is not None
        assert faults.pending == [fault]
        with pytest.raises((trio.BrokenResourceError, OSError)):  # as soon as it connects, or then
            await (await served._served.connect()).stream.receive_some()
        assert fault.met == 1
        await peer.send(peer.query())
        assert (await peer.receive()).value == 0, "those that are open stay"
        faults.refuse(cut=True)
        await served.until_closed()
        faults.refuse(False)
        again = await served.connect()
        assert await answer(again, again.query()) == 0


async def test_large_requests_meet_faults_and_give_their_memory_back(kit: WireKit, autojump_clock: MockClock) -> None:
    """That all memory was given back is asserted where the broker ends."""
    large = batch(b"x" * 900_000)
    async with faulty_wire(kit) as (served, faults):
        peer = await served.connect()
        faults.delay(1, times=1)
        assert await answer(peer, peer.append("disk", large)) == 0
        failing(faults, kit, "append")
        await peer.send(peer.append("disk", large), peer.append("os", large))
        assert [response.value for response in await peer.receive_all(2)] == [None, 1]
        faults.lose_next_ack(TOPIC)
        await peer.send(peer.append("disk", large))
        assert await peer.rest() == b""
        assert served.broker.partitions[TOPIC, 0].log.durable_end_offset == 3
        peer = await served.connect()
        faults.delay(1_000)
        await peer.send(peer.append("disk", large))
        await wait_all_tasks_blocked()
        faults.cut_connections()
        await served.until_closed()


# --- The first requests of a connection -------------------------------------------------------------------------------


async def test_a_hello_may_fail_and_is_tried_again(autojump_clock: MockClock) -> None:
    async with faulty_wire(WIRES[0]) as (served, faults):
        fault = faults.fail_next("hello", "BROKER_STOPPING")
        faults.delay(2, "hello", times=2)
        peer = await served._served.connect()
        began = trio.current_time()
        await peer.send(0, HelloRequest(PROTOCOL_NAME, "app"))
        assert (await peer.receive()).header["error"]["code"] == "BROKER_STOPPING"
        await peer.send(1, HelloRequest(PROTOCOL_NAME, "app"))
        assert (await peer.receive()).header["protocol"] == PROTOCOL_NAME
        assert trio.current_time() - began >= 4
        assert fault.met == 1
        assert faults.pending == []
        assert faults.cut_connections("app") == 1


# --- All apis ---------------------------------------------------------------------------------------------------------


async def test_every_api_of_kafka_fails_by_its_name() -> None:
    """Over the wire: what a client of it gets is an error, and the connection goes on."""
    async with faulty_wire(WIRES[1]) as (served, faults):
        peer = KafkaPeer((await served.connect()).stream)
        for api in APIS_OF_KAFKA.values():
            fault = faults.fail_next(api.name, "KAFKA_STORAGE_ERROR")
            version = api.versions[-1]
            await peer.send(filled(apis()[api.key].request, version), version)
            response = await peer.receive(Response)
            names = ("error_code", "partition_error_code")
            codes = {getattr(each, name, 0) for each in structs_of(response) for name in names}
            assert codes - {0} == {ErrorCode.KAFKA_STORAGE_ERROR}, api.name
            assert fault.met == 1


EACH: Final[dict[str, tuple[Request, list[tuple[Any, ...]]]]] = {
    "append": (
        native.AppendRequest([native.AppendPartition("a", 0, 9), native.AppendPartition("b", 1, 9)]),
        [("a", 0), ("b", 1)],
    ),
    "fetch": (native.FetchRequest([native.FetchPartition("a", 3, 7)]), [("a", 3)]),
    "offsets": (
        native.OffsetsRequest([native.OffsetsPartition("a", 0), native.OffsetsPartition("b", None)]),
        [("a", 0), ("b", -1)],
    ),
    "truncate": (native.TruncateRequest([native.TruncatePartition("a", 0, 9)]), [("a", 0)]),
    "lag": (native.LagRequest([native.LagPartition("a", 0, 7)]), [("a", 0)]),
    "flush": (native.FlushRequest([native.FlushPartition("a", 0)]), [("a", 0)]),
    "leave_group": (
        native.LeaveGroupRequest("g", [LeavingGroupMember("m"), LeavingGroupMember(None, "i")]),
        [("m", None), ("", "i")],
    ),
    "commit_offsets": (native.CommitOffsetsRequest("g", [CommitOffset("a", 0, 7)]), [("a", 0)]),
    "committed_offsets": (native.CommittedOffsetsRequest("g", [GroupPartition("a", 0)]), [("a", 0)]),
}
"""Requests that name things, and what stands in the results."""


def least(kind: type[Request]) -> Request:
    """A request with the fields that it needs."""
    values = {str: "a", int: 1, bool: True, bytes: b""}
    return kind(**{field.name: values.get(field.type, []) for field in fields(kind) if field.default is REQUIRED})


WHOLE: Final = [
    *(least(kind) for api, kind in REQUESTS.items() if api not in EACH),
    native.CommittedOffsetsRequest("g"),
]
"""Requests that fail as a whole."""


KEYS: Final = ("topic", "partition", "group", "member_id", "instance_id")


async def test_every_native_api_fails_by_its_name_with_each_thing_that_it_names_or_as_a_whole() -> None:
    """What is carried fails by Kafka's name."""
    async with faulty_wire(WIRES[0]) as (served, faults):
        peer = await served._served.greeted()
        requests = [(request, None) for request in WHOLE if request.api != "kafka"]
        for number, (request, named) in enumerate([*requests, *EACH.values()]):
            fault = faults.fail_next(request.api, DiskFullError("as asked"))
            await peer.send(number, request)
            header = (await peer.receive()).header
            assert fault.met == 1
            kind = getattr(native, type(request).__name__.removesuffix("Request") + "Reply")
            if named is None:
                with pytest.raises(DiskFullError, match="as asked"):
                    decode_reply(header, kind)
                continue
            reply = decode_reply(header, kind)
            lists = [getattr(reply, name) for name in reply.__struct_fields__]
            [results] = [value for value in lists if isinstance(value, list) and value]
            keys = [key for key in results[0].__struct_fields__ if key in KEYS]
            assert [tuple(getattr(result, key) for key in keys) for result in results] == named
            assert all(isinstance(result.error, DiskFullError) for result in results)


# --- Names ------------------------------------------------------------------------------------------------------------


@each_case(
    ("api", "error", "why"),
    [
        ("produce", "NOT_LEADER", "no api is called 'produce': did you mean 'Produce'?"),
        ("Produce", "NOT_LEADER", "did you mean 'NOT_LEADER_OR_FOLLOWER'?"),
        ("Produce", 4711, "Kafka has no error 4711"),
        ("Produce", "NONE", "NONE is no error"),
        ("append", "DISK_FUL", "did you mean 'DISK_FULL'?"),
        ("append", ValueError, "the native protocol has no error"),
        (
            "Produce",
            "DISK_FULL",
            (
                "DISK_FULL is an error of the native protocol, and Produce an api of Kafka, whose "
                "clients see it as KAFKA_STORAGE_ERROR: fail_next('Produce', 'KAFKA_STORAGE_ERROR')"
            ),
        ),
        ("Produce", DiskFullError("full"), "DISK_FULL is an error of the native protocol"),
        (
            "append",
            "UNKNOWN_TOPIC_OR_PARTITION",
            (
                "UNKNOWN_TOPIC_OR_PARTITION is an error of Kafka's protocol, and append an "
                "api of the native one, which has for it 'UNKNOWN_TOPIC', "
            ),
        ),
        ("append", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "which has for it 'UNKNOWN_TOPIC', "),
        ("append", SeglogError, ""),
    ],
)
async def test_a_name_that_there_is_not_is_refused_with_the_nearest(api: str, error: Any, why: str) -> None:
    faults = RequestFaults()
    if why:
        with pytest.raises(ValueError, match=r".*") as raised:
            faults.fail_next(api, error)
        assert why in str(raised.value)
        assert "'NONE'?" not in str(raised.value)
        assert faults.pending == []
    else:
        faults.fail_next(api, error)


@each_case(
    ("ask", "why"),
    [
        (lambda faults: faults.fail_next(0, 3), "api is a name, a str, not 0"),
        (lambda faults: faults.fail_next("Produce", 3, True), "times is a whole number, not True"),
        (lambda faults: faults.fail_next("Produce", 3, topic=b"t"), "topic is a name, a str, not b't'"),
        (lambda faults: faults.delay("1"), "a delay is a number of seconds, not '1'"),
        (lambda faults: faults.lose_next_ack(None), "topic is a name, a str, not None"),
    ],
)
async def test_what_is_no_name_or_number_is_a_type_error(ask: Callable[[Any], object], why: str) -> None:
    faults = RequestFaults()
    with pytest.raises(TypeError) as raised:
        ask(faults)
    assert str(raised.value) == why
    assert faults.pending == []


async def test_a_fault_is_asked_for_at_least_once() -> None:
    faults = RequestFaults()
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at least once"):
            faults.fail_next("Produce", "REQUEST_TIMED_OUT", wrong)
        with pytest.raises(ValueError, match="at least once"):
            faults.delay(1, times=wrong)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a delay is a number of seconds"):
            faults.delay(seconds)
    with pytest.raises(ValueError, match="no broker"):
        faults.rebalance("group")
