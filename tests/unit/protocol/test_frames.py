"""Frames: every way of arriving, every limit, and any bytes at all."""

import itertools
import random
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seglog_protocol.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError
from seglog_protocol.frame_receiver import (
    LENGTH_SIZE,
    RECEIVE_BYTES,
    BufferPool,
    ReceiveBuffer,
    ReusedMemory,
    has_own_buffer,
)
from seglog_protocol.frames import (
    HEADER_BYTES_MAX,
    Frame,
    FrameReader,
    decode_map,
    decode_value,
    encode_frame,
    encode_packed_prefix,
    encode_value,
)
from tests.support import each_case, examples, memory_taken

Feed = Callable[[FrameReader, bytes], None]
Read = tuple[dict[str, Any], bytes]


def by_receive_data(reader: FrameReader, data: bytes) -> None:
    reader.receive_data(data)


def by_get_buffer(reader: FrameReader, data: bytes) -> None:
    """As a socket does: never more than one buffer at a time, and frames are taken before the next."""
    buffer = reader.get_buffer()
    assert len(buffer) >= len(data), "give it in smaller pieces"
    buffer[: len(data)] = data
    reader.received(len(data))


FEEDS: Final = pytest.mark.parametrize("feed", [by_receive_data, by_get_buffer])

FRAMES: Final[dict[str, Read]] = {
    "the smallest": ({}, b""),
    "a header alone": ({"id": 7, "api": "topics", "v": 1}, b""),
    "a payload": ({"id": 8}, bytes(range(256))),
    "one that fills the receive buffer": ({"id": 9}, bytes(RECEIVE_BYTES - 4 - len(encode_value({"id": 9})))),
    "one byte more": ({"id": 9}, bytes(RECEIVE_BYTES - 3 - len(encode_value({"id": 9})))),
    "a large one": ({"id": 10, "text": "ü" * 100}, random.Random(1).randbytes(3 * RECEIVE_BYTES + 17)),
}
EVERY_FRAME: Final = pytest.mark.parametrize("what", FRAMES)


def take(reader: FrameReader) -> list[Read]:
    found: list[Read] = []
    while (frame := reader.next_frame()) is not None:
        found.append((frame.header, bytes(frame.payload)))
    return found


def read(feed: Feed, pieces: Iterable[bytes], reader: FrameReader | None = None) -> list[Read]:
    reader = reader or FrameReader()
    found: list[Read] = []
    for piece in pieces:
        feed(reader, piece)
        found += take(reader)
    return found


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def encoded(what: str) -> bytes:
    header, payload = FRAMES[what]
    return encode_frame(header, [payload])


# --- Every way of arriving --------------------------------------------------------------------------------------------


@EVERY_FRAME
def test_a_frame_is_its_two_lengths_its_header_and_its_payload(what: str) -> None:
    header, payload = FRAMES[what]
    packed = msgpack.packb(header)
    data = struct.pack(">II", 4 + len(packed) + len(payload), len(packed)) + packed + payload
    assert encoded(what) == data
    assert encode_packed_prefix(packed, len(payload)) + payload == data
    assert read(by_receive_data, [data]) == [(header, payload)]


def test_the_buffer_to_receive_into_is_never_empty() -> None:
    """The buffer to receive into is never empty even before a finished large frame is taken."""
    large = encoded("a large one")
    reader = FrameReader()
    reader.receive_data(large[:100])
    assert reader.next_frame() is None
    reader.receive_data(large[100:])
    assert len(reader.get_buffer()) > 0, "an empty one would read as the end of the connection"
    by_get_buffer(reader, encoded("a payload"))
    assert take(reader) == [FRAMES["a large one"], FRAMES["a payload"]]


@given(
    order=st.lists(st.sampled_from(list(FRAMES)), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 2 * RECEIVE_BYTES), min_size=1, max_size=20),
)
def test_however_they_are_cut_the_same_frames_come_out_of_both_ways_in(order: list[str], sizes: list[int]) -> None:
    data = b"".join(map(encoded, order))
    pieces, position, number = list[bytes](), 0, 0
    while position < len(data):
        size = sizes[number % len(sizes)] + number  # not the same few for ever
        pieces.append(data[position : position + size])
        position, number = position + size, number + 1
    expected = [FRAMES[what] for what in order]
    assert read(by_receive_data, pieces) == expected
    received, reader = list[Read](), FrameReader()
    for piece in pieces:
        rest = piece
        while rest:
            part = rest[: len(reader.get_buffer())]
            by_get_buffer(reader, part)
            received += take(reader)
            rest = rest[len(part) :]
    assert received == expected
    assert reader.is_idle


def test_a_large_frame_is_received_in_place_and_not_copied() -> None:
    size = 8 * 1024 * 1024
    data = encode_frame({"id": 1}, [bytes(size)])
    reader = FrameReader()
    reader.receive_data(data[: 32 * 1024])
    with memory_taken() as most:
        assert reader.next_frame() is None
        position = 32 * 1024
        while position < len(data):
            buffer = reader.get_buffer()
            assert len(buffer) == len(data) - position, "what is missing of the frame, and not a byte more"
            part = data[position : position + 256 * 1024]
            buffer[: len(part)] = part
            reader.received(len(part))
            position += len(part)
        frame = reader.next_frame()
    assert frame is not None
    assert len(frame.payload) == size
    assert most() < size * 1.2, "one buffer, from the socket to the file"


# --- Limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [1001, 2**31, 2**32 - 1])
@FEEDS
def test_a_frame_over_the_limit_is_refused_when_only_its_length_is_there(announced: int, feed: Feed) -> None:
    reader = FrameReader(frame_bytes_max=1000)
    feed(reader, announced.to_bytes(4, "big"))
    with memory_taken() as most, pytest.raises(FrameTooLargeError) as caught:
        reader.next_frame()
    assert most() < 50_000
    assert (caught.value.size, caught.value.limit) == (announced, 1000)


def test_a_frame_at_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    size = len(encode_frame({"id": 1})) - LENGTH_SIZE
    for extra in (0, 1):
        reader = FrameReader(frame_bytes_max=size + 50)
        reader.receive_data(encode_frame({"id": 1}, [bytes(50 + extra)]))
        if extra:
            with pytest.raises(FrameTooLargeError):
                reader.next_frame()
        else:
            assert take(reader) == [({"id": 1}, bytes(50))]


def test_the_limit_may_be_raised_between_frames_as_after_hello() -> None:
    reader = FrameReader(frame_bytes_max=64)
    reader.receive_data(encode_frame({"id": 1}) + encode_frame({"id": 2}, [bytes(100)]))
    assert reader.next_frame() is not None
    reader.frame_bytes_max = 1000
    assert take(reader) == [({"id": 2}, bytes(100))]


def test_a_header_over_the_limit_is_refused_early() -> None:
    """A header over the limit is refused when only the two lengths are there and nothing is allocated."""
    reader = FrameReader()
    for byte in struct.pack(">II", 90 * 1024 * 1024, HEADER_BYTES_MAX + 1):
        assert reader.next_frame() is None
        reader.receive_data(bytes((byte,)))
    with memory_taken() as most, pytest.raises(RemoteProtocolError, match="limit is 1048576"):
        reader.next_frame()
    assert most() < 50_000


def test_the_header_limit_holds_for_whole_frames_too_and_counts_to_the_byte() -> None:
    text = "x" * (HEADER_BYTES_MAX - 11)
    assert read(by_receive_data, [encode_frame({"text": text}, [b"payload"])]) == [({"text": text}, b"payload")]
    with pytest.raises(LocalProtocolError, match="name fewer partitions, or shorter names"):
        encode_frame({"text": text + "x"})
    packed = encode_value({"text": text + "x"})
    with pytest.raises(RemoteProtocolError):
        read(by_receive_data, [struct.pack(">II", 4 + len(packed), len(packed)) + packed])


# --- No frames --------------------------------------------------------------------------------------------------------

KAFKA_CLIENT: Final = b"\x00\x07rdkafka"
STRANGERS: Final = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost:9192\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS 1.3": bytes.fromhex("1603010200010001fc0303") + bytes(32),
    "TLS alert": bytes.fromhex("15030100020246"),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "Kafka ApiVersions v3": struct.pack(">ihhi", 29, 18, 3, 1) + KAFKA_CLIENT + bytes(10),
    "Kafka ApiVersions v0": struct.pack(">ihhi", 17, 18, 0, 1) + KAFKA_CLIENT,
    "Kafka Metadata v1": struct.pack(">ihhi", 21, 3, 1, 2) + KAFKA_CLIENT + b"\xff\xff\xff\xff",
    "Kafka Produce v9": struct.pack(">ihhi", 60, 0, 9, 3) + KAFKA_CLIENT + b"\x00\x00\x00\x01" + bytes(39),
    "Kafka Fetch v12": struct.pack(">ihhi", 60, 1, 12, 4) + KAFKA_CLIENT + bytes(43),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
}


@each_case("who", STRANGERS)
@each_case("limit", [64 * 1024, 100 * 1024 * 1024])
def test_the_first_bytes_of_other_protocols_are_an_error_and_not_waited_for(who: str, limit: int) -> None:
    reader = FrameReader(limit)
    reader.receive_data(STRANGERS[who])
    with pytest.raises(RemoteProtocolError):
        take(reader)


NO_FRAMES: Final = {
    "no room for a header length": b"\x00\x00\x00\x03",
    "a length of nothing": bytes(4),
    "a header longer than its frame": struct.pack(">II", 10, 7),
    "an empty header": struct.pack(">II", 4, 0),
    "an empty header before a payload": struct.pack(">II", 6, 0) + b"\x80\x80",
    "bytes behind the header's map": struct.pack(">II", 6, 2) + b"\x80\x80",
    "half a map": struct.pack(">II", 5, 1) + b"\x81",
    "a list": struct.pack(">II", 5, 1) + b"\x90",
    "nil": struct.pack(">II", 5, 1) + b"\xc0",
    "a byte that msgpack never uses": struct.pack(">II", 5, 1) + b"\xc1",
}


@pytest.mark.parametrize("what", NO_FRAMES)
@FEEDS
def test_bytes_that_are_no_frame_are_the_peers_error_however_they_arrive(what: str, feed: Feed) -> None:
    for size in (1, 3, 100):
        with pytest.raises(RemoteProtocolError):
            read(feed, pieces_of(NO_FRAMES[what], size))


ODD_MAPS: Final = {
    "a key that is a number": b"\x81\x01\x01",
    "a key that is bytes": b"\x81\xc4\x01a\x01",
    "a key that is nil": b"\x81\xc0\x01",
    "a key that is a list": b"\x81\x90\x01",
    "a key that is a map": b"\x81\x80\x01",
    "a key that is a time": b"\x81\xd6\xff\x00\x00\x00\x00\x01",
    "a number for a key further in": b"\x81\xa1a\x81\x01\x01",
    "text that is not UTF-8": b"\x81\xa1a\xa1\xff",
    "a surrogate": b"\x81\xa1a\xa3\xed\xa0\x80",
    "a key that is not UTF-8": b"\x81\xa1\xff\x01",
    "a list of four billion": b"\x81\xa1a\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\x81\xa1a\xdf\xff\xff\xff\xff",
    "a text of four billion": b"\x81\xa1a\xdb\xff\xff\xff\xff",
    "bytes of four billion": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "an extension of four billion": b"\x81\xa1a\xc9\xff\xff\xff\xff\x05",
    "a time of two bytes": b"\x81\xa1a\xd5\xff\x00\x00",
    "a time of too many nanoseconds": b"\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12,
    "lists in lists, without end": b"\x81\xa1a" + b"\x91" * 100_000,
    "maps in maps, without end": b"\x81\xa1a" * 100_000,
    "large lists in lists": b"\x81\xa1a" + b"\xdd\x00\x03\x00\x00" * 1000 + bytes(200_000),
    "trailing bytes": b"\x81\xa1a\x01\x00",
}


@each_case("what", ODD_MAPS)
def test_odd_msgpack_is_the_peers_error_that_says_what_it_was_meant_to_be(what: str) -> None:
    with pytest.raises(RemoteProtocolError, match="the header is"):
        decode_map(ODD_MAPS[what], "header")


def test_msgpack_that_is_odd_but_whole_is_a_value_like_any_other() -> None:
    assert decode_map(b"\x81\xa1a\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "header")["a"] != 0  # NaN
    assert decode_value(b"\xd4\x05\x00", "value") == msgpack.ExtType(5, b"\x00")
    assert decode_value(b"\xcf" + b"\xff" * 8, "value") == 2**64 - 1
    assert decode_map(b"\x82\xa1a\x01\xa1a\x02", "header") == {"a": 2}  # of two, the last counts


# --- Any bytes at all -------------------------------------------------------------------------------------------------


def frames_or_error(data: bytes, *, piece: int = 10_000) -> None:
    """Any bytes give frames or RemoteProtocolError."""
    reader = FrameReader(frame_bytes_max=1024 * 1024)
    try:
        for part in pieces_of(data, piece):
            reader.receive_data(part)
            for header, _ in take(reader):
                assert all(type(key) is str for key in header)
    except RemoteProtocolError as error:
        message = error.message
    else:
        message = "none"
    assert 0 < len(message) < 1000


@given(data=st.binary(max_size=300), piece=st.integers(1, 300))
@example(data=b"", piece=1)
def test_any_bytes_give_frames_or_a_remote_protocol_error(data: bytes, piece: int) -> None:
    frames_or_error(data, piece=piece)


@given(header=st.binary(max_size=200), payload=st.binary(max_size=20))
def test_any_header_in_a_good_frame_gives_a_map_or_a_remote_protocol_error(header: bytes, payload: bytes) -> None:
    frames_or_error(struct.pack(">II", 4 + len(header) + len(payload), len(header)) + header + payload)


VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(header=st.dictionaries(st.text(), VALUES, max_size=5), payload=st.lists(st.binary(), max_size=3))
def test_any_frame_comes_back_as_it_was(header: dict[str, Any], payload: list[bytes]) -> None:
    reader = FrameReader()
    data = encode_frame(header, payload)
    reader.receive_data(data)
    frame = reader.next_frame()
    assert frame is not None
    assert encode_frame(frame.header, [frame.payload]) == data
    assert reader.is_idle


@given(dice=st.randoms(use_true_random=False))
@settings(max_examples=examples(500))
def test_damaged_frames_give_frames_or_a_remote_protocol_error(dice: random.Random) -> None:
    data = bytearray(encoded("a header alone") + encoded("a payload") + encoded("the smallest"))
    for _ in range(dice.randint(1, 5)):
        data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF, dice.randrange(256)))
    end = dice.randrange(len(data)) if dice.random() < 0.3 else len(data)
    frames_or_error(bytes(data[:end]), piece=dice.randint(1, 400))


# --- Buffers used again -----------------------------------------------------------------------------------------------


def large_frame(number: int, size: int) -> bytes:
    return encode_frame({"id": number}, [bytes([number]) * size])


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([10, 70_000, 90_000, 200_000]), st.booleans()), max_size=12),
    st.integers(5_000, 300_000),
)
@settings(max_examples=examples(50))
def test_readers_that_share_buffers_get_the_same_frames(frames: list[tuple[int, int, bool]], step: int) -> None:
    pool = BufferPool()
    readers = [FrameReader(pool=pool), FrameReader(pool=pool)]
    kept: list[tuple[int, int, Frame]] = []
    for number, (which, size, is_done_with) in enumerate(frames):
        reader, data = readers[which], large_frame(number, size)
        for at in range(0, len(data), step):
            assert reader.next_frame() is None
            reader.receive_data(data[at : at + step])
        frame = reader.next_frame() or reader.next_frame()
        assert frame is not None
        assert (frame.header, bytes(frame.payload)) == ({"id": number}, bytes([number]) * size)
        if is_done_with:
            pool.give_back(frame.payload)
        else:
            kept.append((number, size, frame))
    for number, size, frame in kept:
        assert bytes(frame.payload) == bytes([number]) * size, "what was not given back was given to nobody"


@given(
    st.lists(st.lists(st.sampled_from([0, 10, 300, 5_000, 70_000, 150_000]), max_size=8), min_size=1, max_size=4),
    st.lists(st.integers(500, 200_000), min_size=1, max_size=20),
)
@settings(max_examples=examples(100), deadline=None)
def test_readers_that_receive_into_one_buffer_get_their_own_frames(sizes: list[list[int]], steps: list[int]) -> None:
    """In rounds: all receive, then the frames of all are looked at, then all settle."""
    shared, pool = ReceiveBuffer(4 * RECEIVE_BYTES), BufferPool()
    readers = [FrameReader(receive_buffer=shared, pool=pool, asks=True) for _ in sizes]
    wire = [b"".join(large_frame(number, size) for number, size in enumerate(of_one)) for of_one in sizes]
    found: list[list[int]] = [[] for _ in sizes]
    step = itertools.cycle(steps)
    for _ in range(10_000):
        if not any(wire):
            break
        frames: list[tuple[int, Frame]] = []
        for which, reader in enumerate(readers):
            if not wire[which] or not shared.has_room:
                continue
            if reader.wanted:
                reader.grant(reader.wanted)
            buffer = reader.get_buffer()
            part = wire[which][: min(next(step), len(buffer))]
            buffer[: len(part)] = part
            reader.received(len(part))
            wire[which] = wire[which][len(part) :]
            while (frame := reader.next_frame()) is not None:
                frames.append((which, frame))
        for which, frame in frames:
            number = frame.header["id"]
            assert bytes(frame.payload) == bytes([number]) * sizes[which][number]
            assert has_own_buffer(frame.payload) != shared.has(frame.payload) or len(frame.payload) < RECEIVE_BYTES
            found[which].append(number)
        for reader in readers:
            reader.settle()
        shared.free[:] = bytes(len(shared.free))
        shared.clear()
        shared.free[:] = b"\xff" * len(shared.free)  # nobody may rely on it any more
    assert found == [list(range(len(of_one))) for of_one in sizes]
    assert all(reader.is_idle and not reader.has_large for reader in readers)


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    reader = FrameReader(pool=ReusedMemory())

    def received(number: int, size: int) -> Frame:
        data = large_frame(number, size)
        reader.receive_data(data[:1000])
        assert reader.next_frame() is None
        reader.receive_data(data[1000:])
        found = reader.next_frame()
        assert found is not None
        assert bytes(found.payload) == bytes([number]) * size
        return found

    first = received(1, 200_000)
    part = first.payload[5:10]
    memory = id(first.payload.obj)
    del first
    second = received(2, 200_000)
    assert id(second.payload.obj) != memory
    assert bytes(part) == bytes([1] * 5), "a part of the first one is still looked at"
    del part
    assert id(received(3, 150_000).payload.obj) == memory
    assert id(received(4, 90_000).payload.obj) != memory, "it is more than twice as large"
    assert bytes(second.payload) == bytes([2]) * 200_000


def test_a_pool_keeps_few_buffers_and_none_that_is_very_large() -> None:
    pool = BufferPool()
    got = []
    for size in (100_000, 70_000, 5_000_000, 200_000, 400_000, 300_000, 10):
        reader = FrameReader(pool=pool)
        reader.receive_data(large_frame(1, size))
        reader.receive_data(b"")
        frame = reader.next_frame() or reader.next_frame()
        assert frame is not None
        got.append(frame)
    for frame in got:
        pool.give_back(frame.payload)
    assert pool.take(1, 50_000) is None, "none that is small enough"
    taken = [pool.take(1) for _ in range(5)]
    assert [buffer and len(buffer) // 1000 for buffer in taken] == [100, 200, 300, 400, None]


# --- Memory that is granted as bytes come -----------------------------------------------------------------------------


@given(st.integers(0, 3_000_000), st.lists(st.integers(1, 400_000), min_size=1, max_size=20))
@settings(max_examples=examples(30), deadline=None)
def test_a_reader_wants_less_than_twice_what_has_come(size: int, steps: list[int]) -> None:
    """A reader that asks wants less than twice what has come whatever was announced."""
    reader = FrameReader(asks=True)
    data = large_frame(1, 70_000 + size)
    at = granted = 0
    found: list[Frame] = []
    for step in itertools.cycle(steps):
        if reader.wanted:
            wanted = reader.wanted
            assert granted + wanted <= 2 * at + RECEIVE_BYTES
            granted += wanted
            reader.grant(wanted)
        part = data[at : at + step]
        buffer = reader.get_buffer()
        assert buffer, "there is always something to receive into"
        count = min(len(part), len(buffer))
        buffer[:count] = part[:count]
        reader.received(count)
        at += count
        frame = reader.next_frame()
        if frame is not None:
            found.append(frame)
            break
    [frame] = found
    assert (frame.header, bytes(frame.payload)) == ({"id": 1}, b"\1" * (70_000 + size))
    assert (reader.is_idle, reader.wanted, at) == (True, 0, len(data))


def test_a_spare_buffer_holds_a_whole_large_frame_and_nothing_more_is_asked_for() -> None:
    reader, data = FrameReader(asks=True), large_frame(1, 200_000)
    reader.receive_data(data[:1000])
    assert reader.next_frame() is None
    assert reader.announced == len(data) - 4
    reader.grant_spare(bytearray(300_000))
    assert (reader.announced, reader.wanted) == (0, 0)
    assert len(reader.get_buffer()) == len(data) - 1000
    reader.receive_data(data[1000:])
    frame = reader.next_frame()
    assert frame is not None
    assert bytes(frame.payload) == b"\1" * 200_000
