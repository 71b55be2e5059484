"""The native listener, over real sockets and in front of a fake broker."""

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.listeners.acceptor import (
    DRAIN_SECONDS,
    REFUSALS_MAX,
    ListenError,
    Place,
    addresses_of,
    open_all_listeners,
    open_listeners,
)
from seglog_broker.listeners.native import wire
from seglog_broker.listeners.native.first_bytes import hint_for
from seglog_broker.listeners.native.replies import FETCHES_IN_FLIGHT_MAX, PARTITIONS_WAITING_MAX, RESULTS_A_TURN
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.sender import SEND_STEP_BYTES, SLICE_COST_BYTES, Sender
from seglog_broker.listeners.sending import COLD_STEP_BYTES, READ_AHEAD_BYTES, end_frame
from seglog_broker.listeners.serving import kafka_places, serve_native
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.storage.io.filesystem import File
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import InvalidTopicError
from seglog_protocol.frames import PREFIX, encode_frame
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    FetchPartition,
    FetchReply,
    FetchRequest,
    FetchResult,
    HelloRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    TopicsRequest,
    request_header,
)
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import (
    OFFSETS,
    WITH_FAKES,
    FakeBroker,
    FakeSlice,
    Listening,
    Peer,
    StoredFile,
    answer_of,
    append_of,
    code_of,
    fetch_of,
    reach,
    serving,
)

BATCH = b"b" * 100


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def served(broker: FakeBroker) -> AsyncIterator[Listening]:
    async with serving(broker) as served:
        yield served


@pytest.fixture
async def peer(served: Listening) -> Peer:
    return await served.greeted()


# --- Hello ------------------------------------------------------------------------------------------------------------


async def test_hello_may_come_byte_by_byte_and_with_requests_right_behind_it(served: Listening) -> None:
    peer = await served.connect()
    hello = encode_frame(request_header(1, HelloRequest(PROTOCOL_NAME)))
    for at in range(len(hello)):
        await peer.stream.send_all(hello[at : at + 1])
    assert await peer.receive_ids(1) == [1]
    peer = await served.connect()
    large = encode_frame(request_header(2, append_of(200_000, "os")), [bytes(200_000)])  # above the limit of hello
    await peer.stream.send_all(hello + large)
    assert await peer.receive_ids(2) == [1, 2]


@each_case(("request_", "field"), [(OFFSETS, "api"), (HelloRequest("seglog2"), "protocol")])
async def test_another_first_request_or_protocol_gets_an_error_and_a_close(
    request_: Request, field: str, served: Listening
) -> None:
    peer = await served.connect()
    header = await peer.ask(9, request_)
    assert (header["id"], header["error"]["field"]) == (9, field)
    assert await peer.hung_up()


# --- Other protocols --------------------------------------------------------------------------------------------------

TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost:9192\r\n\r\n", b"not a web server"),
        (TLS_CLIENT_HELLO, b"without TLS"),
        (b"\x00\x00\x00\x00", b"hello"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"hello"),
        (encode_frame({"no": "id"}), b"hello"),
        (PREFIX.pack(200, 5), b"hello"),  # a frame within limits that never comes: the time for hello runs out
        (b"hi", b"hello"),
        (b"", b"hello"),
    ],
    ids=["http", "tls", "zeros", "ssh", "no id", "half a frame", "two bytes", "nothing"],
)
async def test_other_first_bytes_get_a_line_that_says_why_and_a_close(
    first: bytes, words: bytes, autojump_clock: MockClock, served: Listening
) -> None:
    with capture_logs() as logged:
        peer = await served.connect()
        await peer.stream.send_all(first)
        answer = await peer.rest()
    assert words in answer
    assert answer.splitlines()[-1].isascii()
    assert [(entry["event"], entry["log_level"]) for entry in logged] == [("connection_refused", "info")]
    assert (logged[0]["reason"] == "it sent nothing for 10 s") == (not first)
    if first.startswith(b"GET"):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 400 Bad Request\r\n"), "a browser can show it"
        assert f"Content-Length: {len(body)}".encode() in head
    await served.greeted()  # others are served


async def test_a_connection_that_sends_nothing_and_closes_is_not_logged(served: Listening) -> None:
    with capture_logs() as logged:
        peer = await served.connect()
        await peer.stream.send_eof()
        assert await peer.hung_up()
    assert logged == []


@given(st.binary(max_size=40))
def test_there_is_a_hint_for_any_first_bytes(first: bytes) -> None:
    kind, answer, reason = hint_for(first)
    assert kind
    assert reason
    assert answer.endswith(b"\r\n") or kind == "kafka"


# --- What breaks a connection, and what does not ----------------------------------------------------------------------


@each_case("sent", [0, 150_000])  # not a byte of the rest, or more than is read
async def test_a_frame_over_the_limit_is_refused_before_it_is_read(sent: int) -> None:
    async with serving(FakeBroker(socket_request_max_bytes=1_000)) as served:
        peer = await served.greeted()
        await peer.stream.send_all(PREFIX.pack(max(1_001, sent), 20) + bytes(sent))
        header = (await peer.receive()).header
        assert header["id"] is None
        assert (code_of(header), header["error"]["limit"]) == ("FRAME_TOO_LARGE", 1_000)
        assert await peer.hung_up()


async def test_requests_that_cannot_be_served_are_answered_and_the_connection_goes_on(peer: Peer) -> None:
    await peer.send_header(id=1, api="frobnicate", v=1)
    await peer.send_header(id=2, api="offsets", v=9, partitions=[])
    await peer.send_header(id=3, api="offsets", v=1, partitions=[], colour="red")
    await peer.send_header(id=4, api="append", v=1, partitions="all")
    await peer.send_header(id=5, api=None)
    await peer.send(6, OFFSETS, payload=b"what for?")
    await peer.send(7, OFFSETS)
    headers = [(await peer.receive()).header for _ in range(7)]
    assert [header["id"] for header in headers] == [1, 2, 3, 4, 5, 6, 7]
    assert [code_of(header) for header in headers[:6]] == [
        "UNSUPPORTED_API",
        "UNSUPPORTED_VERSION",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
        "UNSUPPORTED_API",
        "INVALID_REQUEST",
    ]
    assert headers[6]["partitions"][0]["latest"] == 7


@pytest.mark.parametrize("request_", [append_of(100), fetch_of(), OFFSETS, TopicsRequest(), CreateTopicRequest("t")])
async def test_a_bug_while_serving_a_request_is_logged_and_answered(
    request_: Any, broker: FakeBroker, peer: Peer
) -> None:
    broker.raising = lambda: ZeroDivisionError("oops")
    with capture_logs() as logged:
        await peer.send(1, request_, BATCH if request_.api == "append" else b"")
        assert code_of((await peer.receive()).header) == "UNKNOWN_SERVER_ERROR"
    assert [entry["event"] for entry in logged] == ["request_crashed"]
    assert isinstance(logged[0]["exc_info"], ZeroDivisionError)
    broker.raising = lambda: OSError(errno.EIO, "Input/output error", "/secret/path")
    header = await peer.ask(2, request_, BATCH if request_.api == "append" else b"")
    assert code_of(header) == "KAFKA_STORAGE_ERROR"
    assert "secret" not in header["error"]["message"]
    broker.raising = None
    await peer.send(3, OFFSETS)
    assert await peer.receive_ids(1) == [3]


async def test_a_reply_that_cannot_be_written_is_answered_as_a_bug(broker: FakeBroker, peer: Peer) -> None:
    broker.raising = lambda: InvalidTopicError("no such name", topic=object())  # no msgpack for that
    assert code_of(await peer.ask(1, OFFSETS)) == "UNKNOWN_SERVER_ERROR"


# --- Order ------------------------------------------------------------------------------------------------------------


async def test_an_error_in_an_append_is_answered_in_its_turn_too(broker: FakeBroker, peer: Peer) -> None:
    await peer.send(1, append_of(100), BATCH)
    await peer.send_header(id=2, api="append", v=1)
    await peer.send(3, append_of(100), BATCH)
    await wait_all_tasks_blocked()
    reach(broker.pending[1], RuntimeError("a bug"))
    reach(broker.pending[0])
    headers = [(await peer.receive()).header for _ in range(3)]
    assert [header["id"] for header in headers] == [1, 2, 3]
    assert [code_of(header) for header in headers[1:]] == ["INVALID_REQUEST", "UNKNOWN_SERVER_ERROR"]


@WITH_FAKES
@pytest.mark.parametrize("topic", ["commits", "missing"])
async def test_a_long_reply_to_an_append_is_made_in_turns_and_keeps_its_place(topic: str) -> None:
    broker = FakeBroker()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1
        await trio.lowlevel.checkpoint()

    broker.turn = turn  # type: ignore[method-assign]
    count = 3 * RESULTS_A_TURN
    long = AppendRequest([AppendPartition(topic, 0, 1)] * count, "os")
    async with serving(broker) as served:
        peer = await served.greeted()
        small = [encode_frame(request_header(n, append_of(100, "os")), [BATCH]) for n in (1, 3)]
        await peer.stream.send_all(small[0] + encode_frame(request_header(2, long), [bytes(count)]) + small[1])
        replies = [(await peer.receive()).header for _ in range(3)]
    assert [(reply["id"], len(reply["partitions"])) for reply in replies] == [(1, 1), (2, count), (3, 1)]
    assert turns >= 3


async def test_long_requests_of_many_connections_are_decoded_one_a_turn() -> None:
    broker = FakeBroker()
    turns = trio.Semaphore(0)
    long = OffsetsRequest([OffsetsPartition("commits", 0)] * (wire.HEADER_BYTES_AT_ONCE // 25))
    async with serving(broker) as served:
        peers = [await served.greeted() for _ in range(5)]
        broker.turn = turns.acquire  # type: ignore[method-assign]
        for peer in peers:
            await peer.send(1, long)
        for decoded in range(6):
            await wait_all_tasks_blocked()
            assert broker.metrics.requests["offsets"] == decoded, "counted as soon as it is decoded"
            turns.release()
        for _ in range(1_000):
            turns.release()  # for their replies
        for peer in peers:
            assert len((await peer.receive()).header["partitions"]) == len(long.partitions)


@pytest.mark.parametrize("how", ["partition", "request", "bug"])
async def test_an_error_after_ack_none_is_logged_and_closes_the_connection(
    how: str, broker: FakeBroker, peer: Peer
) -> None:
    await peer.send(1, append_of(100), BATCH)
    await wait_all_tasks_blocked()
    with capture_logs() as logged:
        if how == "request":
            await peer.send_header(id=2, api="append", v=1, ack="none")
        else:
            broker.raising = (lambda: ZeroDivisionError()) if how == "bug" else None  # noqa: PLW0108
            await peer.send(2, append_of(100, "none", "missing"), BATCH)
        await wait_all_tasks_blocked()
        broker.raising = None
        await peer.send(3, OFFSETS)  # comes too late
        reach(broker.pending[0])
        assert await peer.receive_ids(1) == [1]  # what was promised before is kept
        assert await peer.hung_up()
    assert "append_failed" in [entry["event"] for entry in logged]


@WITH_FAKES
async def test_bytes_in_flight_are_limited_except_for_a_single_large_append(
    broker: FakeBroker, served: Listening, peer: Peer
) -> None:
    (await served.connection_of(peer.stream)).acks.bytes_max = 250
    await peer.send(0, append_of(1_000), bytes(1_000))
    await peer.send(1, append_of(100), BATCH)
    await wait_all_tasks_blocked()
    assert [len(batch) for batch in broker.appended] == [1_000]
    reach(broker.pending[0])
    assert await peer.receive_ids(1) == [0]
    for number in range(2, 6):
        await peer.send(number, append_of(100), BATCH)
    await wait_all_tasks_blocked()
    assert [len(batch) for batch in broker.appended] == [1_000, 100, 100, 100]
    while broker.pending:
        reach(broker.pending.pop())
        await wait_all_tasks_blocked()


# --- Fetching ---------------------------------------------------------------------------------------------------------


@WITH_FAKES
async def test_an_answer_that_cannot_be_encoded_is_an_error_reply(tmp_path: Path) -> None:
    broker = FakeBroker()
    answer = answer_of(FakeSlice(StoredFile(tmp_path, b"0123456789"), 2, 5))
    answer.reply = FetchReply([FetchResult("commits", 0, 5, offset=2**70)])  # no number of msgpack
    broker.answers.append(answer)
    async with serving(broker) as served:
        peer = await served.greeted()
        assert (await peer.ask(1, fetch_of()))["error"]["code"] == "UNKNOWN_SERVER_ERROR"
        assert answer.closed == 1
        await peer.send(2, OFFSETS)
        assert await peer.receive_ids(1) == [2]


async def test_too_many_waiting_fetches_are_refused_one_by_one() -> None:
    most = FETCHES_IN_FLIGHT_MAX
    broker = FakeBroker()
    async with serving(broker) as served:
        peer = await served.greeted()
        for number in range(most + 1):
            await peer.send(number, fetch_of())
        header = (await peer.receive()).header
        assert (header["id"], code_of(header)) == (most, "INVALID_REQUEST")
        broker.late_answers += [answer_of() for _ in range(most)]
        broker.records_arrived.set()
        assert sorted(await peer.receive_ids(most)) == [*range(most)]
        broker.answers.append(answer_of())
        await peer.send(most + 1, fetch_of())
        assert await peer.receive_ids(1) == [most + 1]


async def test_fetches_of_one_connection_wait_for_so_many_partitions_in_all(broker: FakeBroker, peer: Peer) -> None:
    for number, count in enumerate((PARTITIONS_WAITING_MAX // 2, PARTITIONS_WAITING_MAX // 2, 1), start=1):
        await peer.send(number, FetchRequest([FetchPartition("commits", 0, 0)] * count))
    header = (await peer.receive()).header
    assert (header["id"], code_of(header), header["error"]["field"]) == (3, "INVALID_REQUEST", "partitions")
    broker.late_answers += [answer_of(), answer_of()]
    broker.records_arrived.set()
    assert sorted(await peer.receive_ids(2)) == [1, 2]


T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Turns:
    """How much is done between two turns of a task that always wants one."""

    def __init__(self) -> None:
        self.noted = self.most = self._now = 0

    def note(self, count: int) -> None:
        self.noted += count
        self._now += count
        self.most = max(self.most, self._now)

    async def take(self) -> None:
        while True:
            self._now = 0
            await trio.lowlevel.checkpoint()


@pytest.fixture
def turns() -> Turns:
    return Turns()


class CountingOffload(InlineOffload):
    def __init__(self) -> None:
        super().__init__()
        self.cold_reads = 0

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        self.cold_reads += 1
        return await super().cold_read(fn, *args)


@WITH_FAKES
@pytest.mark.parametrize("cached", [True, False])
async def test_slices_go_out_in_their_order_whether_in_memory_or_cold(tmp_path: Path, cached: bool) -> None:
    content = bytes(range(256)) * (3 * COLD_STEP_BYTES // 256)
    offload = CountingOffload()
    broker = FakeBroker(offload)
    file = StoredFile(tmp_path, content, cached)
    broker.answers.append(answer_of(FakeSlice(file, 5, len(content) - 9), FakeSlice(file, 0, 0), FakeSlice(file, 3, 7)))
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, fetch_of())
        frame = await peer.receive()
        assert bytes(frame.payload) == content[5:-4] + content[3:10]
    assert len(file.reads) == offload.cold_reads
    assert file.brought_in == [(position, READ_AHEAD_BYTES) for position, _ in file.reads]
    assert offload.cold_reads == (0 if cached and hasattr(os, "RWF_NOWAIT") else 4)


@WITH_FAKES
async def test_a_peer_that_never_stops_reading_gets_a_step_at_a_time(tmp_path: Path, turns: Turns) -> None:
    class Taking(Transport):
        def send_file(self, file: File, position: int, size: int) -> int:
            sent = min(size, SEND_STEP_BYTES // 3 * 2)
            turns.note(sent)
            return sent

    size = 2 * SEND_STEP_BYTES
    ours, theirs = socket.socketpair()
    with ours, theirs, StoredFile(tmp_path, b"") as file:
        sender = Sender(Taking(ours), InlineOffload(), Transfers(), 10)
        chunks = [b"header", *[cast("Any", FakeSlice(file, 0, size))] * 2]
        left = sender.begin_frame(chunks)
        assert left == 2 * size - SEND_STEP_BYTES
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.take)
            await trio.lowlevel.checkpoint()
            await end_frame(sender, chunks, left)
            nursery.cancel_scope.cancel()
    assert turns.noted == 2 * size
    assert turns.most <= 2 * SEND_STEP_BYTES  # trio draws which task runs first


@WITH_FAKES
async def test_very_many_small_slices_go_out_in_steps(tmp_path: Path, turns: Turns) -> None:
    class Sent(StoredFile):
        def is_cached(self, position: int, size: int) -> bool:
            turns.note(1)
            return super().is_cached(position, size)

    file = Sent(tmp_path, b"0123456789")
    broker = FakeBroker()
    broker.answers.append(answer_of(*[FakeSlice(file, number % 9, 2) for number in range(5_000)]))
    async with serving(broker) as served, trio.open_nursery() as nursery:
        nursery.start_soon(turns.take)
        peer = await served.greeted()
        await peer.send(1, fetch_of())
        frame = await peer.receive()
        assert bytes(frame.payload) == b"".join(b"0123456789"[n % 9 : n % 9 + 2] for n in range(5_000))
        nursery.cancel_scope.cancel()
    in_step = SEND_STEP_BYTES // SLICE_COST_BYTES
    assert in_step <= turns.most <= 2 * in_step


@WITH_FAKES
@pytest.mark.parametrize("cached", [True, False])
async def test_a_file_that_shrank_ends_the_connection_and_only_that(tmp_path: Path, cached: bool) -> None:
    broker = FakeBroker()
    answer = answer_of(FakeSlice(StoredFile(tmp_path, b"12345", cached), 0, 6))
    async with serving(broker) as served:
        peer, other = await served.greeted(), await served.greeted()
        broker.answers.append(answer)
        with capture_logs() as logged:
            await peer.send(1, fetch_of())
            await peer.send(2, OFFSETS)
            assert (await peer.rest()).endswith(b"12345" if cached else b"")  # and nothing behind it
        assert [entry["event"] for entry in logged] == ["fetch_cut_short"]
        assert answer.closed == 1
        await other.send(1, OFFSETS)
        assert await other.receive_ids(1) == [1]


@WITH_FAKES
async def test_after_a_cut_frame_not_a_byte_more_is_sent(tmp_path: Path) -> None:
    """A task that waits to send must not put its reply into the payload of a frame that failed."""
    content = bytes(8 * 1024 * 1024)
    file = StoredFile(tmp_path, content)
    broker = FakeBroker()
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, append_of(100), BATCH)
        await peer.send(2, fetch_of())
        await wait_all_tasks_blocked()
        broker.late_answers.append(answer_of(FakeSlice(file, 0, len(content))))
        broker.records_arrived.set()
        await wait_all_tasks_blocked()
        reach(broker.pending[0])
        await wait_all_tasks_blocked()  # now its reply waits behind the answer
        os.truncate(file.path, 4096)
        rest = await peer.rest()
        assert rest[-1] == 0
        assert b"base_offset" not in rest


# --- Accepting --------------------------------------------------------------------------------------------------------


@WITH_FAKES
async def test_a_connection_beyond_the_limit_gets_an_error() -> None:
    async with serving(FakeBroker(seglog_connections_max=2)) as served:
        first, second = await served.greeted(), await served.greeted()
        third = await served.connect()
        header = await third.ask(0, HelloRequest(PROTOCOL_NAME))
        assert header["id"] is None
        assert header["error"]["retriable"]
        assert header["error"]["limit"] == 2
        assert await third.hung_up()
        await first.stream.aclose()
        await wait_all_tasks_blocked()
        await served.greeted()
        await second.send(1, OFFSETS)
        assert await second.receive_ids(1) == [1]
        counts = served.broker.metrics.listener("native")
        assert served.broker.metrics.connections_ended == {"too_many_connections": 1}
        assert (counts.connections, counts.connections_accepted) == (2, 3)
    async with serving(FakeBroker(seglog_connections_max=3)) as served:
        assert len([await served.greeted() for _ in range(3)]) == 3


async def test_of_very_many_connections_beyond_the_limit_some_get_an_error() -> None:
    async with serving(FakeBroker(seglog_connections_max=1)) as served:
        await served.greeted()
        others = [await served.connect() for _ in range(REFUSALS_MAX + 4)]
        await wait_all_tasks_blocked()
        answered = 0
        for other in others:
            with suppress(trio.BrokenResourceError):
                answered += bool(await other.stream.receive_some())
            await other.stream.aclose()
        assert answered == REFUSALS_MAX


async def test_running_out_of_descriptors_is_logged_and_waited_out(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept = trio.SocketListener.accept

    async def accept_or_fail(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", accept_or_fail)
    with capture_logs() as logged:
        async with serving(FakeBroker()) as served:
            await served.greeted()
    assert [entry["event"] for entry in logged] == ["accept_failed", "accept_resumed"], "told once"


@pytest.mark.parametrize(
    ("flags", "named", "said_by", "flag"),
    [
        ([], {}, "the default of seglog.listen", "--listen"),
        (["seglog.listen={}"], {}, "--set seglog.listen", "--listen"),
        ([], {"--listen": ("seglog.listen", "{}")}, "--listen", "--listen"),
        (["listeners=PLAINTEXT://{}"], {}, "--set listeners", "--kafka"),
        ([], {"--kafka": ("listeners", "PLAINTEXT://{}")}, "--kafka", "--kafka"),
    ],
)
async def test_a_port_in_use_is_an_error_that_names_the_address_what_chose_it_and_the_flag_for_another(
    flags: list[str], named: dict[str, tuple[str, str]], said_by: str, flag: str
) -> None:
    [listener] = await open_listeners(Place("127.0.0.1:0"))
    async with listener:
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        flags = [text.format(address) for text in flags]
        config, _ = load_config(
            None, "", {}, flags, {name: (key, value.format(address)) for name, (key, value) in named.items()}
        )
        place = kafka_places(config)[0] if flag == "--kafka" else Place(address, origin=config.origin("seglog.listen"))
        with pytest.raises(ListenError) as caught:
            await open_listeners(place)
    assert caught.value.message == (
        f"Cannot listen on {address} ({said_by}): another program, perhaps a second seglogd, uses it; stop that, or "
        f"choose another by {flag}."
    )


async def test_where_one_of_several_addresses_cannot_be_opened_none_stays_open() -> None:
    [free] = await open_listeners(Place("127.0.0.1:0"))
    [taken] = await open_all_listeners([Place("127.0.0.1:0")])
    first = addresses_of([free])[0]
    free.socket.close()
    async with taken[0]:
        with pytest.raises(ListenError):
            await open_all_listeners([Place(first), Place(addresses_of(taken)[0])])
    [again] = await open_listeners(Place(first))
    again.socket.close()


# --- Stopping ---------------------------------------------------------------------------------------------------------


async def test_a_waiting_fetch_is_told_that_its_connection_stalled(autojump_clock: MockClock) -> None:
    async with serving(FakeBroker(seglog_connections_max_stall_ms=5_000)) as served:
        peer = await served.greeted()
        await peer.send(2, fetch_of())
        await peer.stream.send_all(PREFIX.pack(200, 5))
        header = (await peer.receive()).header
        assert (header["id"], code_of(header)) == (2, "BROKER_STOPPING")
        assert header["error"]["message"].startswith("this connection is closed: it sent half a request")


@WITH_FAKES
async def test_stopping_does_not_wait_for_ever(autojump_clock: MockClock, served: Listening, peer: Peer) -> None:
    await peer.send(1, append_of(100), BATCH)  # its ack will never be reached
    silent = await served.connect()  # never says hello
    await wait_all_tasks_blocked()
    before = trio.current_time()
    with capture_logs() as logged:
        served.stop()
        await served.ended.wait()
    assert trio.current_time() - before == pytest.approx(DRAIN_SECONDS)
    assert [entry["event"] for entry in logged] == ["connections_cut"]
    assert await peer.hung_up()
    assert await silent.hung_up()


async def test_stopping_before_anything_has_begun_ends_at_once() -> None:
    listeners = await open_listeners(Place("127.0.0.1:0"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await serve_native(cast("Broker", FakeBroker()), listeners, ReadySockets())
    assert scope.cancelled_caught
    assert listeners[0].socket.fileno() == -1


@WITH_FAKES
async def test_a_fetch_that_is_being_sent_is_finished_before_the_end(tmp_path: Path) -> None:
    content = bytes(range(256)) * 64 * 1024
    file = StoredFile(tmp_path, content)
    broker = FakeBroker(Offload())
    broker.answers.append(answer_of(FakeSlice(file, 0, len(content))))
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, fetch_of())
        await wait_all_tasks_blocked()
        served.stop()
        await wait_all_tasks_blocked()
        assert bytes((await peer.receive()).payload) == content
        assert await peer.hung_up()
